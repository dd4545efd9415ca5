//! Products of block-scaled operands by mma.sync (sm_120): S of Q and K, O of P and V, each in FP4 or FP8.
//! PTX ISA sections in brackets.
//!
//! 32 bytes of a row are one step of any of these instructions, as they are of a 16-bit one, and lie in the same bytes of
//! the same registers [9.7.14.5.8 to 14]. So tiles, ldmatrix and queries are those of a 16-bit operand of as many bytes; V is
//! stored with a row for each of its columns and is read as K is.
//!
//! A word of P wants neighbouring keys of one row, four in E4M3 and eight in E2M1, where a unit holds two of a tile's eight
//! columns. Which key is which column is free: keys of neighbouring units lie `apart` apart, and no weight moves.
//!
//! Scale factors lie as they are stored, in tiles of 128 rows by 4 groups: a word holds those of a row, first in its lowest
//! byte. Unit t of four gives the words of row `g` (t = 0) and `g + 8` (t = 1) on the left, and of column g on the right.

use cubecl::prelude::*;

use super::ptx::{chunk_at, flips, ldmatrix, list, query_load};
use super::{MmaFragment, MmaProbs, MmaRegs, PlaneCtx, PlaneCtxExpand, PlaneShape, copies, ptx};
use crate::arch::hopper::ptx::{shuffle_xor, val};
use crate::arch::tcgen05::{e4m3_of, e8m0_of, pack_e4m3};
use crate::attention::{Encode, TileCoords, WeightFormat, weight_code};
use crate::quant::{OperandFormat, SCALE_ROWS, e2m1_value};
use crate::tile::{Fragment, Layout};

/// Bytes of a tile of scale factors.
pub(super) const SCALE_BYTES: u32 = 4 * SCALE_ROWS as u32;

/// Where scale factors lie, in units of 16 bytes, rows being tiles of 128; and what O is multiplied by.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub struct ScaleLayouts {
    /// Those of q.
    pub q: Layout,
    /// Those of k.
    pub k: Layout,
    /// Those of v.
    pub v: Layout,
    /// The inverse of the factor that v was multiplied by.
    pub factor: f32,
}

/// Scale factors of one tile's keys and values.
#[derive(CubeType, Clone, Copy)]
pub struct ScaleSource {
    /// Global address of the head's first tile of scale factors.
    pub from: u64,
    /// Bytes from 128 rows to the next.
    pub step: u64,
    /// Shared address of the first stage's tiles.
    pub to: u32,
}

/// The instruction for operands in `format`, up to its registers [9.7.14.5.14].
fn instruction(format: OperandFormat) -> &'static str {
    match format {
        OperandFormat::Nvfp4 { .. } => {
            "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3"
        }
        OperandFormat::Mxfp4(_) => {
            "mma.sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0"
        }
        // Of plain FP8 every scale factor is 1.
        OperandFormat::Mxfp8(_) | OperandFormat::Fp8 { .. } => {
            "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e4m3.f32.ue8m0"
        }
    }
}

/// One product: accumulator `d`, operands `a` and `b`, words of scale factors of both with the byte of the first one
/// that is read.
fn multiply(
    format: OperandFormat,
    [d, a, b, c]: [&str; 4],
    (left, left_byte): (&str, u32),
    (right, right_byte): (&str, u32),
) -> String {
    let name = instruction(format);
    format!(
        "{name} {d}, {a}, {b}, {c}, {left}, {{{left_byte}, 0}}, {right}, {{{right_byte}, 0}};\n"
    )
}

/// Bytes from the word of row 0 of a tile of scale factors to that of row `row`, in this tile or one behind it.
fn scale_at(row: u32) -> u32 {
    row / SCALE_ROWS as u32 * SCALE_BYTES + row % 32 * 16 + row / 32 % 4 * 4
}

/// Tile of scale factors of step `step`, and the first byte of a word of it.
fn scale_place(format: OperandFormat, step: u32) -> (u32, u32) {
    let per = (format.quad() * format.bits()) as u32 / 256;
    (step / per, step % per * (4 / per))
}

/// S = Q K^T. Operands %0.. the scores of a vector of `width`, then the addresses that this lane gives ldmatrix for Q and
/// for K, and that of the word of its first key's scale factors.
pub(super) fn scores_text(shape: PlaneShape, format: OperandFormat, width: usize) -> String {
    let (m_tiles, n_tiles) = (shape.m_tiles(), shape.block / 8);
    let tiles = shape.score_tiles();
    let zeros = "{zero, zero, zero, zero}";
    let mut s = String::from(
        ".reg .f32 zero;\nmov.f32 zero, 0f00000000;\n.reg .b32 a<8>, b<4>, scale<2>;\n",
    );
    s += &flips("q", &format!("%{width}"));
    s += &flips("k", &format!("%{}", width + 1));
    let kept = shape.query_registers() > 0;
    for step in 0..shape.places(shape.d) / 16 {
        let a = |m: u32| match kept {
            true => list("q_frag", 4 * (step * m_tiles + m), 4),
            false => list("a", 4 * m, 4),
        };
        for m in (0..m_tiles).filter(|_| !kept) {
            s += &query_load(shape, "a", 4 * m, step, m);
        }
        let (tile, byte) = scale_place(format, step);
        for pair in 0..n_tiles / 2 {
            let from = chunk_at("k", 2 * step, shape.key_of(16 * pair) * shape.k_row());
            s += &ldmatrix(4, "", &list("b", 0, 4), &from);
            for half in 0..2 {
                let at = tile * SCALE_BYTES + scale_at(shape.key_of(16 * pair + 8 * half));
                s += &format!("ld.shared.b32 scale{half}, [%{}+{at}];\n", width + 2);
            }
            for (half, m) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
                if m < m_tiles {
                    let n = 2 * pair + half;
                    let d = list("%", 4 * (m * n_tiles + n), 4);
                    let c = if step == 0 { zeros } else { &d };
                    let left = format!("q_scale{}", m * tiles + tile);
                    let right = format!("scale{half}");
                    let b = list("b", 2 * half, 2);
                    let (left, right) = ((left.as_str(), byte), (right.as_str(), byte));
                    s += &multiply(format, [&d, &a(m), &b, c], left, right);
                }
            }
        }
    }
    s
}

/// O += P V. Operands %0.. the words of P and their scale factors in a vector of `width`, then the address that this lane
/// gives ldmatrix for V, that of the word of its first column's scale factors, and how these are shifted and masked.
pub(super) fn values_text(shape: PlaneShape, format: OperandFormat, width: usize) -> String {
    let (m_tiles, n_tiles) = (shape.m_tiles(), shape.d_v / 8);
    let (steps, words) = (shape.weight_steps(), shape.weight_words());
    let groups = 256 / format.bits() as u32 / format.group() as u32;
    let mut s = String::from(".reg .b32 b<4>, scale<2>, one;\nmov.b32 one, 0x7F7F7F7F;\n");
    s += &flips("v", &format!("%{width}"));
    for pair in 0..n_tiles.div_ceil(2) {
        let halves = (n_tiles - 2 * pair).min(2);
        for half in 0..halves {
            let at = scale_at(8 * (2 * pair + half));
            let (scales, shift, mask) = (width + 1, width + 2, width + 3);
            s += &format!(
                "ld.shared.b32 scale{half}, [%{scales}+{at}];\n\
                 shr.u32 scale{half}, scale{half}, %{shift};\nand.b32 scale{half}, scale{half}, %{mask};\n"
            );
        }
        for step in 0..steps {
            let to = list("b", 0, 2 * halves);
            let from = chunk_at("v", 2 * step, pair * 16 * shape.v_row());
            s += &ldmatrix(2 * halves, "", &to, &from);
            for (half, m) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
                if half < halves && m < m_tiles {
                    let o = list("o_acc", 4 * (m * n_tiles + 2 * pair + half), 4);
                    let p = list("%", 4 * (m * steps + step), 4);
                    let left = match format.bits() {
                        4 => format!("%{}", words + m * steps + step),
                        _ => "one".to_owned(),
                    };
                    let right = format!("scale{half}");
                    let (left, right) = ((left.as_str(), 0), (right.as_str(), step * groups));
                    s += &multiply(format, [&o, &p, &list("b", 2 * half, 2), &o], left, right);
                }
            }
        }
    }
    s
}

#[cube]
pub(super) fn scores<NS: Size>(ctx: &PlaneCtx<'_>, j: u32) -> Vector<f32, NS> {
    let shape = comptime!(ctx.shape);
    let stage = ctx.stage(j) * comptime!(shape.k_bytes());
    // A block may be half a tile of scale factors.
    let rows = j * comptime!(shape.block / 32) % 4u32 * 4u32;
    let column = UNIT_POS % 32u32 / 4u32;
    let key = column / 2u32 * comptime!(shape.apart()) + column % 2u32;
    let scales = ctx.k_scale.to + stage + rows + key * 16u32;
    let out: Vector<f32, NS>;
    let width = NS::value();
    let text = comptime!(match shape.operands {
        Some((format, _)) => scores_text(shape, format, width),
        None => String::new(),
    });
    gpu_asm!("{{ // {o} {a} {b} {c}\n{text}}}", o = out(_) out, a = in(_) val::<u32>(ctx.q_at), b = in(_) val::<u32>(ctx.k_at + stage), c = in(_) val::<u32>(scales), text = const text);
    out
}

/// Groups behind the sequence count for nothing, whatever they hold: P is 0 there, and 0 * NaN is NaN.
#[cube]
pub(super) fn values<NP: Size>(ctx: &PlaneCtx<'_>, p: Vector<u32, NP>, j: u32) {
    let shape = comptime!(ctx.shape);
    let group = comptime!(shape.value_group());
    let stage = ctx.stage(j) * comptime!(shape.v_bytes());
    let first = j * comptime!(shape.block);
    let shift = first / group % 4u32 * 8u32;
    let kept = (ctx.len_kv.max(first) - first).div_ceil(group).min(4u32);
    let mask = select(
        kept == 4u32,
        0xFFFF_FFFFu32,
        (1u32 << (8u32 * (kept % 4u32))) - 1u32,
    );
    let scales = ctx.v_scale.to + stage + UNIT_POS % 32u32 / 4u32 * 16u32;
    let width = NP::value();
    let text = comptime!(match shape.operands {
        Some((_, format)) => values_text(shape, format, width),
        None => String::new(),
    });
    gpu_asm!("{{ // {a} {b} {c} {d} {e}\n{text}}}", a = in(_) val::<Vector<u32, NP>>(p), b = in(_) val::<u32>(ctx.v_at + stage), c = in(_) val::<u32>(scales), d = in(_) val::<u32>(shift), e = in(_) val::<u32>(mask), text = const text);
}

/// `.reg .b32 q_scale<n>`: the queries' scale factors, which live as long as the tile.
#[cube]
pub(super) fn declare_query_scales(#[comptime] shape: PlaneShape) {
    let n = comptime!(shape.m_tiles() * shape.score_tiles());
    gpu_asm!(".reg .b32 q_scale<{n}>;", n = const n);
}

/// Scale factors of the rows that this unit gives to products.
#[cube]
pub(super) fn load_query_scales(ctx: &PlaneCtx<'_>, at: &TileCoords) {
    let shape = comptime!(ctx.shape);
    #[unroll]
    for m in 0..comptime!(shape.m_tiles()) {
        let row = ctx.unit_row() + UNIT_POS % 2u32 * 8u32 + comptime!(16 * m);
        let query = at.query(row).min(at.rows_q - 1u32);
        let rows = comptime!(SCALE_ROWS as u32);
        let tile = ctx.q_scales.base(at.batch, at.head_of(row))
            + (query / rows) as usize * ctx.q_scales.row;
        let from =
            ptx::global_addr::<Vector<u32, Const<4>>>(&ctx.q[tile + (query % 32u32) as usize])
                + (query / 32u32 % 4u32) as u64 * 4u64;
        let text = comptime!(query_scales_text(shape, m));
        // SAFETY: rows are padded to whole tiles of scale factors; words are aligned.
        gpu_asm!("{{ // {a}\n{text}}}", a = in(_) val::<u64>(from), text = const text);
    }
}

fn query_scales_text(shape: PlaneShape, m: u32) -> String {
    let tiles = shape.score_tiles();
    let load = |i: u32| {
        let (to, at) = (m * tiles + i, i * SCALE_BYTES);
        format!("ld.global.nc.b32 q_scale{to}, [%0+{at}];\n")
    };
    (0..tiles).map(load).collect()
}

#[cube]
impl ScaleSource {
    /// Scale factors of head `head` of `data`.
    pub(super) fn new(
        data: &[Vector<u32, Const<4>>],
        layout: &Layout,
        batch: u32,
        head: u32,
        to: u32,
    ) -> ScaleSource {
        let first = layout.base(batch, head);
        ScaleSource {
            from: ptx::global_addr::<Vector<u32, Const<4>>>(&data[first]),
            step: layout.row as u64 * 16u64,
            to,
        }
    }
    /// Starts copying `n` tiles, `step` bytes from one to the next.
    fn copy(&self, from: u64, step: u64, offset: u32, #[comptime] n: u32, #[comptime] team: u32) {
        let unit = copies::team_unit(team);
        #[unroll]
        for pass in 0..comptime!((32 * n).div_ceil(team)) {
            let chunk = unit + comptime!(pass * team);
            if chunk < comptime!(32 * n) {
                let from = from + (chunk / 32u32) as u64 * step + (chunk % 32u32) as u64 * 16u64;
                let inside = true.runtime();
                ptx::copy_chunk(self.to + offset + chunk * 16u32, from, inside);
            }
        }
    }
}

#[cube]
impl<'a> PlaneCtx<'a> {
    /// Scale factors of key block `j` start on their way.
    pub(super) fn copy_key_scales(&self, j: u32) {
        let shape = comptime!(self.shape);
        let tile = j * comptime!(shape.block) / comptime!(SCALE_ROWS as u32);
        let from = self.k_scale.from + tile as u64 * self.k_scale.step;
        let offset = self.stage(j) * comptime!(shape.k_bytes());
        let step = comptime!(SCALE_BYTES as u64).runtime();
        let (n, team) = comptime!((shape.score_tiles(), shape.team()));
        self.k_scale.copy(from, step, offset, n, team);
    }
    /// Those of value block `j`: a tile for 128 columns of V.
    pub(super) fn copy_value_scales(&self, j: u32) {
        let shape = comptime!(self.shape);
        let tile = j * comptime!(shape.block) / comptime!(4 * shape.value_group());
        let from = self.v_scale.from + tile as u64 * comptime!(SCALE_BYTES as u64);
        let offset = self.stage(j) * comptime!(shape.v_bytes());
        let (n, team) = comptime!((shape.value_tiles(), shape.team()));
        self.v_scale.copy(from, self.v_scale.step, offset, n, team);
    }
}

/// Weights as codes, which take the place of their scores: of eight columns the first becomes a word of E2M1 codes and the
/// second their scale factor.
pub struct MmaCodes<NS>(core::marker::PhantomData<NS>);

#[cube]
impl<NS: Size> Encode for MmaCodes<NS> {
    type Scores = MmaFragment<NS>;

    fn columns(
        _s: &MmaRegs<NS>,
        #[comptime] _block: u32,
        #[comptime] _format: WeightFormat,
    ) -> comptime_type!(usize) {
        8usize
    }
    /// Two units share a group of 16 keys, four one of 32.
    fn group_max(x: f32, #[comptime] format: WeightFormat) -> f32 {
        let pair = x.max(shuffle_xor(x, 1u32));
        if comptime!(format.group() == 16) {
            pair
        } else {
            pair.max(shuffle_xor(pair, 2u32))
        }
    }
    fn group(
        s: &mut MmaRegs<NS>,
        #[comptime] r: usize,
        #[comptime] first: usize,
        #[comptime] group: usize,
        scale: f32,
        #[comptime] format: WeightFormat,
    ) -> f32 {
        let mut sum = 0.0f32;
        let mut word = 0u32;
        #[unroll]
        for i in 0..group {
            let x = MmaFragment::<NS>::get(&*s, r, comptime!(first + i));
            let code = weight_code(x, format);
            sum += e2m1_value(code);
            word |= code << comptime!(4 * i as u32);
        }
        let scale_code = if comptime!(format == WeightFormat::Nvfp4) {
            e4m3_of(scale)
        } else {
            e8m0_of(scale)
        };
        MmaFragment::<NS>::set(s, r, first, f32::reinterpret(word));
        MmaFragment::<NS>::set(s, r, comptime!(first + 1), f32::reinterpret(scale_code));
        sum * scale
    }
}

/// Words of P as products want them, from scores that were encoded.
#[cube]
pub(super) fn pack<NS: Size, NP: Size>(
    s: &MmaRegs<NS>,
    p: &mut MmaProbs<NP>,
    #[comptime] shape: PlaneShape,
) {
    let steps = comptime!(shape.weight_steps() as usize);
    #[unroll]
    for m in 0..comptime!(shape.m_tiles() as usize) {
        #[unroll]
        for step in 0..steps {
            #[unroll]
            for i in 0..4usize {
                // Rows g and g + 8, then the same of the next keys.
                let (r, w) = comptime!((2 * m + i % 2, 2 * step + i / 2));
                let word = if comptime!(shape.weight_bits() == 4) {
                    u32::reinterpret(MmaFragment::<NS>::get(s, r, comptime!(8 * w)))
                } else {
                    pack_e4m3(
                        MmaFragment::<NS>::get(s, r, comptime!(4 * w)),
                        MmaFragment::<NS>::get(s, r, comptime!(4 * w + 1)),
                        MmaFragment::<NS>::get(s, r, comptime!(4 * w + 2)),
                        MmaFragment::<NS>::get(s, r, comptime!(4 * w + 3)),
                    )
                };
                p.v.insert(comptime!(4 * (m * steps + step) + i), word);
            }
            if comptime!(shape.weight_bits() == 4) {
                let at = comptime!(shape.weight_words() as usize + m * steps + step);
                p.v.insert(at, scale_word::<NS>(s, m, step, shape));
            }
        }
    }
}

/// Scale factors of the row that this unit gives to a product: its own ones, and in groups of 16 those that the units two
/// further on hold.
#[cube]
fn scale_word<NS: Size>(
    s: &MmaRegs<NS>,
    #[comptime] m: usize,
    #[comptime] step: usize,
    #[comptime] shape: PlaneShape,
) -> u32 {
    let odd = UNIT_POS % 2u32 == 1u32;
    let (low, high) = comptime!((16 * step + 1, 16 * step + 9));
    let (upper, lower) = comptime!((2 * m, 2 * m + 1));
    let first = select(
        odd,
        MmaFragment::<NS>::get(s, lower, low),
        MmaFragment::<NS>::get(s, upper, low),
    );
    let second = select(
        odd,
        MmaFragment::<NS>::get(s, lower, high),
        MmaFragment::<NS>::get(s, upper, high),
    );
    let first = u32::reinterpret(first);
    let second = u32::reinterpret(second);
    if comptime!(shape.value_group() == 16) {
        let own = (first | (second << 16u32)) << (UNIT_POS / 2u32 % 2u32 * 8u32);
        let other = u32::reinterpret(shuffle_xor(f32::reinterpret(own), 2u32));
        own | other
    } else {
        first | (second << 8u32)
    }
}
