//! The products and the store, interpreted for one plane of 32 lanes: addresses, fragments and the
//! order of operands are checked where no GPU is. 16-bit elements are small integers here.

use std::collections::HashMap;

use super::copies::shared_chunk;
use super::operands::{code_rows_address, half_keys_address, keys_address, rows_address};
use super::ptx::{queries_text, scores_text, store_text, values_text};
use super::*;
use crate::attention::ScaledBy;

const LANES: u32 = 32;

/// Registers of every lane by name, and shared memory by 16-bit element.
struct Machine {
    words: Vec<HashMap<String, u32>>,
    floats: Vec<HashMap<String, f32>>,
    shared: Vec<u16>,
}

/// Names in `{a, b}` or of one register.
fn names(operand: &str) -> Vec<&str> {
    let inner = operand.trim_matches(|c| c == '{' || c == '}');
    inner.split(", ").collect()
}

impl Machine {
    fn new(bytes: u32) -> Self {
        Self {
            words: vec![HashMap::new(); LANES as usize],
            floats: vec![HashMap::new(); LANES as usize],
            shared: vec![0; bytes as usize / 2],
        }
    }

    fn run(&mut self, text: &str) {
        let lines = text.lines().map(|line| line.trim_end_matches(';'));
        for line in lines.filter(|line| !line.starts_with(".reg")) {
            let (name, rest) = line.split_once(' ').unwrap();
            // Operands: lists in braces count as one.
            let mut operands = vec![String::new()];
            let mut inside = false;
            for c in rest.chars() {
                inside = (inside || c == '{') && c != '}';
                match c {
                    ',' if !inside => operands.push(String::new()),
                    c => operands.last_mut().unwrap().push(c),
                }
            }
            let operands: Vec<&str> = operands.iter().map(|o| o.trim()).collect();
            self.step(name, &operands);
        }
    }

    fn step(&mut self, name: &str, operands: &[&str]) {
        match name.split('.').next().unwrap() {
            "ldmatrix" => self.ldmatrix(name, operands),
            "mma" => self.mma(name, operands),
            _ => (0..LANES as usize).for_each(|lane| self.alone(name, operands, lane)),
        }
    }

    /// Instructions in which lanes do not meet. A code's value is its byte.
    fn alone(&mut self, name: &str, operands: &[&str], lane: usize) {
        let word = |of: &Self, name: &str| of.words[lane][name];
        match name.split('.').next().unwrap() {
            "xor" => {
                let x = word(self, operands[1]) ^ operands[2].parse::<u32>().unwrap();
                self.words[lane].insert(operands[0].into(), x);
            }
            "mov" if operands[0].starts_with('{') => {
                let x = word(self, operands[1]);
                for (half, to) in names(operands[0]).into_iter().enumerate() {
                    self.words[lane].insert(to.into(), x >> (16 * half) & 0xFFFF);
                }
            }
            "mov" => {
                assert_eq!(operands[1], "0f00000000");
                self.floats[lane].insert(operands[0].into(), 0.0);
            }
            "mul" => {
                let x = self.floats[lane][operands[1]] * self.floats[lane][operands[2]];
                self.floats[lane].insert(operands[0].into(), x);
            }
            "prmt" => {
                let bytes = u64::from(word(self, operands[1])).to_le_bytes();
                let picks = u32::from_str_radix(&operands[3][2..], 16).unwrap();
                let byte = |i: u32| u32::from(bytes[(picks >> (4 * i) & 7) as usize]) << (8 * i);
                assert_eq!(operands[2], "0");
                let x = (0..4).map(byte).sum();
                self.words[lane].insert(operands[0].into(), x);
            }
            "cvt" if name.ends_with("e4m3x2") => {
                let x = word(self, operands[1]);
                self.words[lane].insert(operands[0].into(), (x >> 8) << 16 | (x & 0xFF));
            }
            "cvt" if name.ends_with("f32.f16") => {
                let x = word(self, operands[1]) as f32;
                self.floats[lane].insert(operands[0].into(), x);
            }
            "cvt" => {
                let [hi, lo] = [1, 2].map(|i| self.floats[lane][operands[i]] as u32);
                self.words[lane].insert(operands[0].into(), hi << 16 | lo);
            }
            "ld" => {
                let at = self.address(operands[1], lane);
                for (i, to) in names(operands[0]).into_iter().enumerate() {
                    let [lo, hi] = [0, 1].map(|e| u32::from(self.shared[at + 2 * i + e]));
                    self.words[lane].insert(to.into(), hi << 16 | lo);
                }
            }
            "st" => {
                let at = self.address(operands[0], lane);
                for (i, from) in names(operands[1]).into_iter().enumerate() {
                    let x = word(self, from);
                    self.shared[at + 2 * i] = x as u16;
                    self.shared[at + 2 * i + 1] = (x >> 16) as u16;
                }
            }
            other => panic!("{other}"),
        }
    }

    /// Element at `[register+offset]`.
    fn address(&self, operand: &str, lane: usize) -> usize {
        let inner = operand.trim_matches(|c| c == '[' || c == ']');
        let (register, offset) = inner.split_once('+').unwrap();
        (self.words[lane][register] + offset.parse::<u32>().unwrap()) as usize / 2
    }

    /// PTX ISA, ldmatrix: lanes 8 i .. 8 i + 7 give the rows of matrix i; a lane gets two neighbours
    /// of row lane / 4, or with .trans of column lane / 4.
    fn ldmatrix(&mut self, name: &str, operands: &[&str]) {
        let to = names(operands[0]);
        let trans = name.contains(".trans");
        assert!(name.contains(&format!(".x{}", to.len())));
        for (i, register) in to.into_iter().enumerate() {
            let rows: Vec<usize> = (8 * i..8 * i + 8)
                .map(|lane| self.address(operands[1], lane))
                .collect();
            for lane in 0..LANES as usize {
                let element = |e: usize| match trans {
                    false => self.shared[rows[lane / 4] + 2 * (lane % 4) + e],
                    true => self.shared[rows[2 * (lane % 4) + e] + lane / 4],
                };
                let word = u32::from(element(1)) << 16 | u32::from(element(0));
                self.words[lane].insert(register.into(), word);
            }
        }
    }

    /// PTX ISA, mma.m16n8k16 and m16n8k8 with 16-bit operands.
    fn mma(&mut self, name: &str, operands: &[&str]) {
        let depth = if name.contains("m16n8k16") { 16 } else { 8 };
        let half = |word: u32, e: usize| (word >> (16 * e) & 0xFFFF) as f32;
        let [to, a, b, from] = [0, 1, 2, 3].map(|i| names(operands[i]));
        assert_eq!((a.len(), b.len()), (depth / 4, depth / 8));
        let mut left = [[0f32; 16]; 16];
        let mut right = [[0f32; 8]; 16];
        for lane in 0..LANES as usize {
            let (group, place) = (lane / 4, 2 * (lane % 4));
            for e in 0..2 {
                for (i, register) in a.iter().enumerate() {
                    left[group + i % 2 * 8][place + i / 2 * 8 + e] =
                        half(self.words[lane][*register], e);
                }
                for (i, register) in b.iter().enumerate() {
                    right[place + i * 8 + e][group] = half(self.words[lane][*register], e);
                }
            }
        }
        for lane in 0..LANES as usize {
            let sums: Vec<f32> = (0..4)
                .map(|i| {
                    let (row, column) = (lane / 4 + i / 2 * 8, 2 * (lane % 4) + i % 2);
                    let products = (0..depth).map(|k| left[row][k] * right[k][column]);
                    self.floats[lane][from[i]] + products.sum::<f32>()
                })
                .collect();
            for (register, sum) in to.iter().zip(sums) {
                self.floats[lane].insert((*register).into(), sum);
            }
        }
    }
}

/// Small integers that tell rows and columns apart.
fn element(seed: u32, row: u32, column: u32) -> u16 {
    ((row * 7 + column * 3 + row * column + seed) % 8) as u16
}

fn fill(machine: &mut Machine, base: u32, seed: u32, rows: u32, width: u32) {
    for row in 0..rows {
        for column in 0..width {
            let at = base + PlaneShape::chunk_at(width, row, column / 8);
            machine.shared[(at / 2 + column % 8) as usize] = element(seed, row, column);
        }
    }
}

/// The same with two codes in each place.
fn fill_codes(machine: &mut Machine, base: u32, seed: u32, rows: u32, width: u32) {
    for row in 0..rows {
        for place in 0..width / 2 {
            let at = base + PlaneShape::chunk_at(width / 2, row, place / 8);
            let [lo, hi] = [0, 1].map(|e| element(seed, row, 2 * place + e));
            machine.shared[(at / 2 + place % 8) as usize] = hi << 8 | lo;
        }
    }
}

/// K or V of a shape.
fn fill_keys(machine: &mut Machine, base: u32, seed: u32, shape: PlaneShape, width: u32) {
    match shape.codes {
        Some(_) => fill_codes(machine, base, seed, shape.block, width),
        None => fill(machine, base, seed, shape.block, width),
    }
}

/// Row and column of register `i` of a lane's accumulator of `columns` columns.
fn place(lane: u32, i: u32, columns: u32) -> (u32, u32) {
    let (m, n) = (i / 4 / (columns / 8), i / 4 % (columns / 8));
    (
        16 * m + lane / 4 + i / 2 % 2 * 8,
        8 * n + 2 * (lane % 4) + i % 2,
    )
}

fn shapes() -> Vec<PlaneShape> {
    let heads = [8, 24, 40, 64, 72, 128, 192, 200, 256];
    let of = |d: u32| {
        [(64, 64), (128, 16), (128, 48), (16, 32)].map(|(rows, block)| PlaneShape {
            d,
            d_v: 264 - d,
            rows,
            block,
            stages: 1,
            ahead: false,
            pack: 1,
            split: false,
            parts: 1,
            codes: None,
            operands: None,
            page: None,
            ty: "bf16",
        })
    };
    let wide = heads.into_iter().flat_map(of);
    let coded = [16, 64, 80, 128, 256].into_iter().flat_map(|d| {
        let shapes = of(d).into_iter();
        shapes.flat_map(move |shape| {
            ["bf16", "f16"].map(|ty| PlaneShape {
                d_v: 272 - d,
                codes: Some(ScaledBy::Head),
                ty,
                ..shape
            })
        })
    });
    wide.chain(coded).collect()
}

#[test]
fn scores_are_the_product_of_queries_and_keys() {
    for shape in shapes() {
        let (base, keys) = (1024, 1024 + shape.q_bytes());
        let (row, k_row) = (PlaneShape::row_bytes(shape.d), shape.k_row());
        let mut machine = Machine::new(keys + shape.k_bytes());
        fill(&mut machine, base, 1, shape.rows, shape.d);
        fill_keys(&mut machine, keys, 2, shape, shape.d);
        let first = shape.rows - shape.plane_rows();
        let width = (shape.score_registers() as usize).next_power_of_two();
        for lane in 0..LANES {
            let registers = &mut machine.words[lane as usize];
            let q_lane = match shape.codes {
                Some(_) => code_rows_address(lane, row),
                None => rows_address(lane, row),
            };
            let q = base + first * row + q_lane;
            registers.insert("%0".into(), q);
            for (i, address) in [
                q,
                keys + keys_address(lane, k_row, 2),
                keys + half_keys_address(lane, k_row),
            ]
            .into_iter()
            .enumerate()
            {
                registers.insert(format!("%{}", width + i), address);
            }
        }
        if shape.query_registers() > 0 {
            machine.run(&queries_text(shape));
        }
        machine.run(&scores_text(shape, width));
        for lane in 0..LANES {
            for i in 0..shape.score_registers() {
                let (row, key) = place(lane, i, shape.block);
                let products = (0..shape.d)
                    .map(|c| u32::from(element(1, first + row, c)) * u32::from(element(2, key, c)));
                let got = machine.floats[lane as usize][&format!("%{i}")];
                assert_eq!(got, products.sum::<u32>() as f32, "{shape:?} {row} {key}");
            }
        }
    }
}

#[test]
fn values_are_the_product_of_weights_and_values_and_land_in_their_rows() {
    for shape in shapes() {
        let (base, values) = (1024, 1024 + shape.q_bytes());
        let row_bytes = PlaneShape::row_bytes(shape.d_v);
        let mut machine = Machine::new(values + shape.v_bytes());
        fill_keys(&mut machine, values, 3, shape, shape.d_v);
        let words = shape.score_registers() / 2;
        let width = (words as usize).next_power_of_two();
        let first = shape.rows - shape.plane_rows();
        for lane in 0..LANES {
            let (registers, floats) = (
                &mut machine.words[lane as usize],
                &mut machine.floats[lane as usize],
            );
            for w in 0..words {
                let [lo, hi] = [2 * w, 2 * w + 1].map(|i| {
                    let (row, key) = place(lane, i, shape.block);
                    u32::from(element(4, row, key))
                });
                registers.insert(format!("%{w}"), hi << 16 | lo);
            }
            registers.insert(
                format!("%{width}"),
                values + rows_address(lane, shape.v_row()),
            );
            for i in 0..shape.acc_registers() {
                floats.insert(format!("o_acc{i}"), 0.0);
            }
        }
        machine.run(&values_text(shape, width));
        for lane in 0..LANES {
            let unit_row = first + lane / 4;
            let to = match shape.codes {
                Some(_) => {
                    let column = lane % 4;
                    shared_chunk(base, unit_row, column / 2, row_bytes) + column % 2 * 8
                }
                None => shared_chunk(base, unit_row, 0, row_bytes) + lane % 4 * 4,
            };
            machine.words[lane as usize].insert("%4".into(), to);
            // A factor of its own for each of the thread's rows.
            for i in 0..4 {
                machine.floats[lane as usize].insert(format!("%{i}"), (i + 1) as f32);
            }
        }
        machine.run(&store_text(shape));
        for row in 0..shape.plane_rows() {
            for column in 0..shape.d_v {
                let products = (0..shape.block).map(|key| {
                    u32::from(element(4, row, key)) * u32::from(element(3, key, column))
                });
                let factor = row / 16 * 2 + row / 8 % 2 + 1;
                let at = base + PlaneShape::chunk_at(shape.d_v, first + row, column / 8);
                let got = u32::from(machine.shared[(at / 2 + column % 8) as usize]);
                assert_eq!(
                    got,
                    products.sum::<u32>() * factor,
                    "{shape:?} {row} {column}"
                );
            }
        }
    }
}
