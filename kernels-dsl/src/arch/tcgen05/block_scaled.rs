//! Products of block-scaled operands: S of Q and K, O of P and V, each in FP4 or FP8. PTX ISA sections in brackets.
//!
//! Scale factors are multiplied from tensor memory. Those of Q, K and V come from shared memory, where TMA left
//! them as they are stored (tiles of 128 rows by 4 groups). Those of P in E2M1 take the same way, since a warp reaches its
//! own quarter of the lanes only; P in E4M3 has a scale factor of 1 everywhere. Operands in FP8 have none at all.

use cubecl::prelude::*;

use super::operands::{k_major, k_major_of_span, scale_tile};
use super::shape::SCALE_BYTES;
use super::{BlackwellCtx, BlackwellShape, SCALE_COLUMNS, STAGE_ROWS, TensorAcc};
use crate::arch::hopper::ptx::val;
use crate::quant::OperandFormat;

/// One instruction's place in its operands: a depth of 32 bytes.
struct Step {
    /// Bytes into a left operand in shared memory, or columns into one in tensor memory.
    a: u32,
    /// Bytes into the right operand.
    b: u32,
    /// Columns into the scale factors of both.
    scales: (u32, u32),
    /// First byte of a row's word of scale factors.
    id: (u32, u32),
}

/// Kind of instruction, with the scale factors of a row that it takes.
fn kind(format: OperandFormat) -> &'static str {
    match format {
        OperandFormat::Nvfp4 { .. } => "kind::mxf4nvf4.block_scale.scale_vec::4X",
        OperandFormat::Mxfp4(_) => "kind::mxf4.block_scale.scale_vec::2X",
        OperandFormat::Mxfp8(_) => "kind::mxf8f6f4.block_scale.scale_vec::1X",
        OperandFormat::Fp8 { .. } => "kind::f8f6f4",
    }
}

/// Instruction descriptor [9.7.17.4.4] of 128 rows by `n` columns of both operands in `format`: E2M1 is 1 and E4M3 is 0, and
/// bit 23 tells E8M0 scale factors from E4M3 ones. Without them results are f32, and rows count elsewhere.
fn instruction(format: OperandFormat, n: u32) -> u32 {
    if format.unscaled() {
        return 1 << 4 | (n / 8) << 17 | (STAGE_ROWS / 16) << 24;
    }
    let element = u32::from(format.bits() == 4);
    let power_of_two = u32::from(!format.nvfp4());
    element << 7 | element << 10 | (n / 8) << 17 | power_of_two << 23 | (STAGE_ROWS / 128) << 27
}

/// Tile of scale factors of step `i`, and the first byte of a word of it: the depth of a tile takes several steps.
fn scale_place(format: OperandFormat, i: u32) -> (u32, u32) {
    let per = (format.quad() * format.bits()) as u32 / 256;
    (i / per, i % per * (4 / per))
}

/// Steps of Q K^T.
fn score_steps(shape: BlackwellShape, format: OperandFormat) -> Vec<Step> {
    let step = |(i, (a, b)): (usize, (u32, u32))| {
        let (tile, at) = scale_place(format, i as u32);
        let column = tile * SCALE_COLUMNS;
        Step {
            a,
            b,
            scales: (column, column),
            id: (at, at),
        }
    };
    let all = shape.score_steps().into_iter().enumerate();
    all.map(step).collect()
}

/// Steps of P V: 8 columns of P, 32 bytes of each row of V.
fn value_steps(shape: BlackwellShape, format: OperandFormat) -> Vec<Step> {
    let step = |i| {
        let (tile, at) = scale_place(format, i);
        let column = tile * SCALE_COLUMNS;
        Step {
            a: 8 * i,
            b: 32 * i,
            scales: match shape.weights_scaled() {
                true => (column, column * shape.value_rows()),
                false => (0, column * shape.value_rows()),
            },
            id: match shape.weights_scaled() {
                true => (at, at),
                false => (0, at),
            },
        }
    };
    (0..shape.value_span() / 32).map(step).collect()
}

/// All instructions of a product; operands %0 D, %1 A, %2 B, %3 and %4 their scale factors, %5 what the
/// instruction descriptor has more, %6 whether the first one adds.
fn product_text(format: OperandFormat, columns: u32, steps: &[Step], in_tensor: bool) -> String {
    let (kind, instruction) = (kind(format), instruction(format, columns));
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
        let (b, (x, y)) = (step.b >> 4, step.scales);
        let (id, scales) = match format.unscaled() {
            true => (instruction, String::new()),
            false => (
                instruction | step.id.1 << 4 | step.id.0 << 29,
                format!(", [%3 + {x}], [%4 + {y}]"),
            ),
        };
        text += &format!(
            "add.s64 b{i}, %2, {b};\nadd.u32 id{i}, %5, {id};\n\
             tcgen05.mma.cta_group::1.{kind} [%0], {a}, b{i}, id{i}{scales}, {add};\n"
        );
    }
    text
}

/// Nothing where operands are 16-bit.
fn score_text(shape: BlackwellShape) -> String {
    let text = |format| {
        let steps = score_steps(shape, format);
        product_text(format, shape.block, &steps, false)
    };
    shape.features.operands.map(text).unwrap_or_default()
}

/// Nothing where operands are 16-bit.
fn value_text(shape: BlackwellShape) -> String {
    let text = |format| {
        let steps = value_steps(shape, format);
        product_text(format, shape.width(), &steps, true)
    };
    shape.value_format().map(text).unwrap_or_default()
}

/// Groups of keys in a block, of which a word of scale factors holds four.
fn value_groups(shape: BlackwellShape) -> u32 {
    let groups = |format: OperandFormat| shape.block / format.group() as u32;
    shape.value_format().map_or(0, groups)
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
    if comptime!(n > 0) {
        let text = comptime!(copy_text(n));
        issue_copies(columns, tiles, text);
    }
}

#[cube]
fn issue_copies(columns: u32, tiles: u64, #[comptime] text: String) {
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
/// its place to the scale factors. Whoever writes the next ones has seen the scores of the block after, hence these copies
/// done.
#[cube]
pub(super) fn issue_values(ctx: &BlackwellCtx<'_>, ring: u32, j: u32, acc: &TensorAcc) {
    let shape = comptime!(ctx.shape);
    let values = ctx.v_smem + ring * comptime!(shape.v_stage());
    let weight_scales = ctx.tensor + ctx.scores_column();
    if comptime!(shape.weights_scaled()) {
        let tiles = scale_tile(ctx.weight_scales());
        copy_scales(weight_scales, tiles, comptime!(shape.weight_tiles()));
    }
    let scales = weight_scales + comptime!(SCALE_COLUMNS * shape.weight_tiles());
    let tiles = scale_tile(values + comptime!(shape.v_codes()));
    copy_scales(scales, tiles, comptime!(shape.value_tiles()));
    // Nor need it have whole words of them.
    let mut more = 0u32.runtime();
    if comptime!(shape.scaled()) {
        more = (j * comptime!(value_groups(shape)) % 4u32) << 4u32;
    }
    issue_from_tensor(
        ctx.tensor + ctx.acc_column(ctx.stage),
        ctx.tensor + ctx.probs_column(),
        k_major_of_span(values, comptime!(shape.value_span())),
        weight_scales,
        scales,
        more,
        acc.filled,
        comptime!(value_text(shape)),
    );
}
