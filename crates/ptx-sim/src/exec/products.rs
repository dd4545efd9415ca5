//! ldmatrix, stmatrix and mma.sync: a warp's lanes work together at once.

use super::machine::Machine;
use super::warp::{Warp, lanes};
use crate::check::Fault;
use crate::decode::{Op, Src};
use crate::matrix::{MmaShape, acc_place, dot};
use crate::number::{Format, Rounding};

impl Machine<'_> {
    pub(super) fn warp_product(&mut self, warp: &mut Warp, op: &Op) -> Result<(), Fault> {
        if !warp.full() {
            return Err(Fault::Divergent {
                missing: !warp.exists,
                why: "the cube has no such threads",
            });
        }
        let base = self.base(warp.cube);
        match op {
            Op::LoadMatrix {
                count,
                transpose,
                dsts,
                addr,
            } => {
                for (i, &dst) in dsts.iter().enumerate().take(*count) {
                    let mut rows = [[0u8; 16]; 8];
                    for (r, row) in rows.iter_mut().enumerate() {
                        let lane = 8 * i + r;
                        let at = self.shared_offset(warp, *addr, lane)?;
                        let shared = &mut self.cubes[warp.cube].shared;
                        shared.check(at, 16, 16)?;
                        shared.load(at, row, &warp.access(lane))?;
                    }
                    for lane in 0..32 {
                        let (g, t) = (lane / 4, lane % 4);
                        let half = |j: usize| {
                            let (r, c) = if *transpose {
                                (2 * t + j, g)
                            } else {
                                (g, 2 * t + j)
                            };
                            u64::from(u16::from_le_bytes([rows[r][2 * c], rows[r][2 * c + 1]]))
                        };
                        warp.set(dst, lane, half(0) | half(1) << 16);
                    }
                }
            }
            Op::StoreMatrix {
                count,
                transpose,
                srcs,
                addr,
            } => {
                for (i, src) in srcs.iter().enumerate().take(*count) {
                    let mut rows = [[0u8; 16]; 8];
                    for lane in 0..32 {
                        let value = warp.get(*src, lane, base);
                        let (g, t) = (lane / 4, lane % 4);
                        for j in 0..2 {
                            let (r, c) = if *transpose {
                                (2 * t + j, g)
                            } else {
                                (g, 2 * t + j)
                            };
                            let half = (value >> (16 * j)) as u16;
                            rows[r][2 * c..2 * c + 2].copy_from_slice(&half.to_le_bytes());
                        }
                    }
                    for (r, row) in rows.iter().enumerate() {
                        let lane = 8 * i + r;
                        let at = self.shared_offset(warp, *addr, lane)?;
                        let shared = &mut self.cubes[warp.cube].shared;
                        shared.check(at, 16, 16)?;
                        shared.store(at, row, &warp.access(lane))?;
                    }
                }
            }
            Op::Mma {
                shape,
                d,
                a,
                b,
                c,
                scales,
            } => mma(warp, base, shape, (d, a, b, c), scales.as_ref())?,
            _ => {}
        }
        Ok(())
    }
}

type Operands<'a> = (&'a [u32], &'a [Src], &'a [Src], &'a [Src]);

fn mma(
    warp: &mut Warp,
    base: u32,
    shape: &MmaShape,
    (d, a, b, c): Operands,
    scales: Option<&[Src; 6]>,
) -> Result<(), Fault> {
    let k = shape.k as usize;
    let (e, bits) = (shape.packed(), shape.a.bits());
    let mut left = vec![0.0; 16 * k];
    let mut right = vec![0.0; 8 * k];
    for lane in 0..32 {
        for (i, &src) in a.iter().enumerate() {
            let word = warp.get(src, lane, base);
            for j in 0..e {
                let (row, at) = shape.a_place(lane as u32, i as u32, j);
                left[row as usize * k + at as usize] = element(shape.a, word, j, bits);
            }
        }
        for (i, &src) in b.iter().enumerate() {
            let word = warp.get(src, lane, base);
            for j in 0..e {
                let (at, column) = shape.b_place(lane as u32, i as u32, j);
                right[column as usize * k + at as usize] = element(shape.b, word, j, bits);
            }
        }
    }
    if let (Some(args), Some(scale)) = (scales, shape.scale) {
        let per = k / scale.per_row as usize;
        let factor = |warp: &Warp, first: usize, lane: usize, block: u32| {
            let byte = warp.get(args[first + 1], lane, base) as u32 + block;
            let word = warp.get(args[first], lane, base);
            scale.format.decode(word >> (8 * byte) & 0xff)
        };
        for block in 0..scale.per_row {
            for row in 0..16 {
                // Two lanes of the quad hold the factors of rows g and g + 8.
                let thread = warp.get(args[2], 0, base) as usize;
                let lane = row % 8 * 4 + 2 * thread + row / 8;
                let f = factor(warp, 0, lane, block);
                let start = row * k + block as usize * per;
                left[start..start + per].iter_mut().for_each(|x| *x *= f);
            }
            for column in 0..8 {
                let thread = warp.get(args[5], 0, base) as usize;
                let f = factor(warp, 3, column * 4 + thread, block);
                let start = column * k + block as usize * per;
                right[start..start + per].iter_mut().for_each(|x| *x *= f);
            }
        }
    }
    for lane in lanes(u32::MAX) {
        let mut sums = [0.0; 4];
        for (i, sum) in sums.iter_mut().enumerate() {
            let (row, column) = acc_place(lane as u32, i as u32);
            let (row, column) = (row as usize, column as usize);
            let initial = accumulator(warp, base, shape.c, c, lane, i);
            *sum = initial
                + dot(
                    &left[row * k..(row + 1) * k],
                    &right[column * k..(column + 1) * k],
                );
        }
        if shape.d == Format::F32 {
            for (register, sum) in d.iter().zip(sums) {
                warp.set_f32(*register, lane, sum);
            }
        } else {
            for (i, register) in d.iter().enumerate() {
                let half = |j: usize| {
                    shape
                        .d
                        .encode(sums[2 * i + j], 0.0, Rounding::Nearest, false)
                };
                warp.set(*register, lane, half(0) | half(1) << 16);
            }
        }
    }
    Ok(())
}

fn element(format: Format, word: u64, j: u32, bits: u32) -> f64 {
    format.decode(crate::decode::zero_extend(word >> (j * bits), bits))
}

fn accumulator(warp: &Warp, base: u32, format: Format, c: &[Src], lane: usize, i: usize) -> f64 {
    if format == Format::F32 {
        format.decode(warp.get(c[i], lane, base))
    } else {
        let word = warp.get(c[i / 2], lane, base);
        format.decode(word >> (16 * (i % 2)) & 0xffff)
    }
}
