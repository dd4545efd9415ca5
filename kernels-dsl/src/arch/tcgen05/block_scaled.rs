//! Products of block-scaled operands: S of Q and K in FP4 or FP8, O of P and V in E4M3. PTX ISA sections in brackets.
//!
//! Scale factors are multiplied from tensor memory. Those of Q, K and V come from shared memory, where TMA left
//! them as they are stored (tiles of 128 rows by 4 groups); P has a scale factor of 1 everywhere.

use cubecl::prelude::*;

use super::operands::{k_major, k_major_of_span, scale_tile};
use super::shape::SCALE_BYTES;
use super::{BlackwellCtx, BlackwellShape, SCALE_COLUMNS, STAGE_ROWS, TensorAcc, ptx};
use crate::arch::hopper::ptx::val;
use crate::quant::OperandFormat;

/// Format of P and V.
const VALUES: OperandFormat = OperandFormat::Mxfp8(crate::quant::ScaleRule::Ceil);

/// Four scale factors of 1, in E8M0.
const ONES: u32 = 0x7F7F_7F7F;

/// Keys that share a scale factor of V.
const GROUP: u32 = VALUES.group() as u32;

/// One instruction's place in its operands: a depth of 32 bytes.
struct Step {
    /// Bytes into a left operand in shared memory, or columns into one in tensor memory.
    a: u32,
    /// Bytes into the right operand.
    b: u32,
    /// Columns into the scale factors.
    scales: u32,
    /// First byte of a row's word of scale factors.
    id: (u32, u32),
}

/// Kind of instruction, with the scale factors of a row that it takes.
fn kind(format: OperandFormat) -> &'static str {
    match format {
        OperandFormat::Nvfp4 { .. } => "kind::mxf4nvf4.block_scale.scale_vec::4X",
        OperandFormat::Mxfp4(_) => "kind::mxf4.block_scale.scale_vec::2X",
        OperandFormat::Mxfp8(_) => "kind::mxf8f6f4.block_scale.scale_vec::1X",
    }
}

/// Instruction descriptor [9.7.17.4.4] of 128 rows by `n` columns of both operands in `format`: E2M1 is 1 and E4M3 is 0, and
/// bit 23 tells E8M0 scale factors from E4M3 ones.
fn instruction(format: OperandFormat, n: u32) -> u32 {
    let element = u32::from(format.bits() == 4);
    let power_of_two = u32::from(!format.nvfp4());
    element << 7 | element << 10 | (n / 8) << 17 | power_of_two << 23 | (STAGE_ROWS / 128) << 27
}

/// Steps of Q K^T: the depth of a tile of scale factors takes `per` of them.
fn score_steps(shape: BlackwellShape, format: OperandFormat) -> Vec<Step> {
    let per = (format.quad() * format.bits()) as u32 / 256;
    let step = |(i, (a, b)): (usize, (u32, u32))| {
        let (tile, at) = (i as u32 / per, i as u32 % per * (4 / per));
        Step {
            a,
            b,
            scales: tile * SCALE_COLUMNS,
            id: (at, at),
        }
    };
    let all = shape.score_steps().into_iter().enumerate();
    all.map(step).collect()
}

/// Steps of P V, 32 keys each: 8 columns of P.
fn value_steps(shape: BlackwellShape) -> Vec<Step> {
    let step = |i| Step {
        a: 8 * i,
        b: 32 * i,
        scales: 0,
        id: (0, i),
    };
    (0..shape.block / GROUP).map(step).collect()
}

/// All instructions of a product; operands %0 D, %1 A, %2 B, %3 and %4 their scale factors, %5 what the
/// instruction descriptor has more, %6 whether the first one adds.
fn product_text(kind: &str, instruction: u32, steps: &[Step], in_tensor: bool) -> String {
    let n = steps.len();
    let mut text = format!(
        ".reg .pred first, yes;\n.reg .b64 a<{n}>, b<{n}>;\n.reg .b32 id<{n}>;\n\
         setp.ne.b32 first, %6, 0;\nsetp.eq.b32 yes, %6, %6;\n"
    );
    for (i, step) in steps.iter().enumerate() {
        let add = if i == 0 { "first" } else { "yes" };
        let a = if in_tensor {
            format!("[%1 + {}]", step.a)
        } else {
            text += &format!("add.s64 a{i}, %1, {};\n", step.a >> 4);
            format!("a{i}")
        };
        let (b, c) = (step.b >> 4, step.scales);
        let id = instruction | step.id.1 << 4 | step.id.0 << 29;
        text += &format!(
            "add.s64 b{i}, %2, {b};\nadd.u32 id{i}, %5, {id};\n\
             tcgen05.mma.cta_group::1.{kind} [%0], {a}, b{i}, id{i}, [%3 + {c}], [%4 + {c}], {add};\n"
        );
    }
    text
}

fn score_text(shape: BlackwellShape) -> String {
    let format = shape.features.operands.unwrap_or(VALUES);
    let steps = score_steps(shape, format);
    product_text(
        kind(format),
        instruction(format, shape.block),
        &steps,
        false,
    )
}

fn value_text(shape: BlackwellShape) -> String {
    let steps = value_steps(shape);
    product_text(
        kind(VALUES),
        instruction(VALUES, shape.width()),
        &steps,
        true,
    )
}

// tcgen05.mma with block scales [9.7.17.10.9]. SAFETY: as of the 16-bit products; scale factors are in tensor memory
// or on their way there by tcgen05.cp of the same thread, which tcgen05.mma follows in order [9.7.17.6.2].

#[cube]
fn issue_from_shared(
    d: u32,
    a: u64,
    b: u64,
    a_scales: u32,
    b_scales: u32,
    #[comptime] text: String,
) {
    let none = 0u32.runtime();
    gpu_asm!("{{ // {d} {a} {b} {x} {y} {i} {add}\n{text} }}", d = in(_) val::<u32>(d), a = in(_) val::<u64>(a), b = in(_) val::<u64>(b), x = in(_) val::<u32>(a_scales), y = in(_) val::<u32>(b_scales), i = in(_) val::<u32>(none), add = in(_) val::<u32>(none), text = const text);
}

#[cube]
fn issue_from_tensor(
    d: u32,
    a: u32,
    b: u64,
    a_scales: u32,
    b_scales: u32,
    more: u32,
    add: u32,
    #[comptime] text: String,
) {
    gpu_asm!("{{ // {d} {a} {b} {x} {y} {i} {add}\n{text} }}", d = in(_) val::<u32>(d), a = in(_) val::<u32>(a), b = in(_) val::<u64>(b), x = in(_) val::<u32>(a_scales), y = in(_) val::<u32>(b_scales), i = in(_) val::<u32>(more), add = in(_) val::<u32>(add), text = const text);
}

/// Tiles of scale factors from shared memory to `columns` and those behind, the same in each quarter of the lanes
/// [9.7.17.9.2]. SAFETY: by the thread whose products read them, after what was there has been read.
#[cube]
fn copy_scales(columns: u32, tiles: u64, #[comptime] n: u32) {
    let text = comptime!(copy_text(n));
    gpu_asm!("{{ // {c} {t}\n{text} }}", c = in(_) val::<u32>(columns), t = in(_) val::<u64>(tiles), text = const text);
}

fn copy_text(tiles: u32) -> String {
    let mut text = format!(".reg .b64 tile<{tiles}>;\n");
    for i in 0..tiles {
        let (bytes, column) = (i * SCALE_BYTES / 16, i * SCALE_COLUMNS);
        text += &format!(
            "add.s64 tile{i}, %1, {bytes};\n\
             tcgen05.cp.cta_group::1.32x128b.warpx4 [%0 + {column}], tile{i};\n"
        );
    }
    text
}

/// Four weights -> a word of E4M3 codes, the first in the lowest bits [9.7.9.22 cvt]. Exact: they are E4M3 values.
#[cube]
fn pack_e4m3(a: f32, b: f32, c: f32, d: f32) -> u32 {
    let out: u32;
    gpu_asm!("{{ .reg .b16 lo, hi; cvt.rn.satfinite.e4m3x2.f32 lo, {b}, {a}; cvt.rn.satfinite.e4m3x2.f32 hi, {d}, {c}; mov.b32 {o}, {{lo, hi}}; }}", o = out(_) out, a = in(_) val::<f32>(a), b = in(_) val::<f32>(b), c = in(_) val::<f32>(c), d = in(_) val::<f32>(d), options(pure, nomem));
    out
}

/// The E4M3 value nearest to x, to f16 and back [9.7.9.22 cvt]: f16 holds them all. NaN stays NaN.
#[cube]
pub(super) fn round_e4m3(x: f32) -> f32 {
    let out: f32;
    gpu_asm!("{{ .reg .b16 code, lo, hi; .reg .b32 pair; cvt.rn.satfinite.e4m3x2.f32 code, {x}, {x}; cvt.rn.f16x2.e4m3x2 pair, code; mov.b32 {{lo, hi}}, pair; cvt.f32.f16 {o}, lo; }}", o = out(_) out, x = in(_) val::<f32>(x), options(pure, nomem));
    out
}

/// Scale factors of the queries of a stage, once for all its blocks.
#[cube]
pub(super) fn place_query_scales(ctx: &BlackwellCtx<'_>) {
    let shape = comptime!(ctx.shape);
    let tiles = comptime!(shape.score_tiles());
    let from = ctx.q_smem
        + comptime!(shape.q_codes())
        + ctx.stage * comptime!(shape.score_tiles() * SCALE_BYTES);
    copy_scales(
        ctx.tensor + ctx.query_scales_column(),
        scale_tile(from),
        tiles,
    );
}

/// S = Q K^T of the keys in ring stage `ring`, which are block `j`. The scores before were seen by the softmax, so that nothing
/// reads the scale factors of their keys any more.
#[cube]
pub(super) fn issue_scores(ctx: &BlackwellCtx<'_>, ring: u32, j: u32) {
    let shape = comptime!(ctx.shape);
    let plan = comptime!(shape.tensor_plan());
    let keys = ctx.k_smem + ring * comptime!(shape.k_stage());
    let queries = ctx.tensor + ctx.query_scales_column();
    let scales = queries + comptime!(plan.score_scales);
    let tiles = scale_tile(keys + comptime!(shape.k_codes()));
    copy_scales(scales, tiles, comptime!(shape.score_tiles()));
    // A block may be half a tile of scale factors.
    let rows = j * comptime!(shape.block / 32) % SCALE_COLUMNS;
    issue_from_shared(
        ctx.tensor + ctx.scores_column(),
        k_major(ctx.q_smem + ctx.stage * comptime!(STAGE_ROWS * 128)),
        k_major(keys),
        queries,
        scales + rows,
        comptime!(score_text(shape)),
    );
}

/// O (+)= P V of the values in ring stage `ring`, which are block `j`. The weights are there, so that S has been read and gives
/// its place to the scale factors.
#[cube]
pub(super) fn issue_values(ctx: &BlackwellCtx<'_>, ring: u32, j: u32, acc: &TensorAcc) {
    let shape = comptime!(ctx.shape);
    let values = ctx.v_smem + ring * comptime!(shape.v_stage());
    let ones = ctx.tensor + ctx.scores_column();
    let scales = ones + SCALE_COLUMNS;
    let tiles = scale_tile(values + comptime!(shape.v_codes()));
    copy_scales(scales, tiles, comptime!(shape.value_tiles()));
    // Nor need it have whole words of them.
    let group = j * comptime!(shape.block / GROUP) % 4u32;
    issue_from_tensor(
        ctx.tensor + ctx.acc_column(ctx.stage),
        ctx.tensor + ctx.probs_column(),
        k_major_of_span(values, comptime!(shape.block)),
        ones,
        scales,
        group << 4u32,
        acc.filled,
        comptime!(value_text(shape)),
    );
}

/// A row of weights, which are E4M3 values, over the upper end of its scores, and their scale factors over the lower one.
#[cube]
pub(super) fn store_weights(ctx: &BlackwellCtx<'_>, weights: &Array<f32>) {
    let row = ctx.lane_address();
    let to = row + ctx.probs_column();
    #[unroll]
    for chunk in 0..comptime!(ctx.shape.block / 32) {
        let mut words = Vector::<u32, Const<8>>::zeroed();
        #[unroll]
        for w in 0..8usize {
            let c = comptime!(32 * chunk as usize + 4 * w);
            let word = pack_e4m3(
                weights[c],
                weights[comptime!(c + 1)],
                weights[comptime!(c + 2)],
                weights[comptime!(c + 3)],
            );
            words.insert(w, word);
        }
        ptx::store_row::<Const<8>>(to + comptime!(8 * chunk), words, 8u32);
    }
    let mut ones = Vector::<u32, Const<4>>::zeroed();
    #[unroll]
    for w in 0..4usize {
        ones.insert(w, comptime!(ONES).runtime());
    }
    ptx::store_row::<Const<4>>(row + ctx.scores_column(), ones, SCALE_COLUMNS);
}
