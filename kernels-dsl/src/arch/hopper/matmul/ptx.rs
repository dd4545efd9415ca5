//! PTX of products with packed weights that the Hopper tier's forward has no use for. Accumulators
//! are named registers: `sum_group`, the sums over one group of rows, and `sum_acc`, what they are
//! added to, column block by column block; value i of a column block of 64 is that of
//! [`WgmmaRegs`](crate::arch::hopper::WgmmaRegs).

use cubecl::prelude::*;

use super::HopperMatmulShape;
use crate::arch::hopper::ptx::{val, wgmma};
use crate::quant::Scaling;

/// Box at (x, row) -> shared memory, completing on `bar` [9.7.9.25.5.2]. SAFETY: `dst` is 1024-byte
/// aligned, `map` the address of a tensor map in parameter space.
#[cube]
pub(super) fn tma_load_2d(dst: u32, map: u64, x: i32, row: i32, bar: u32) {
    gpu_asm!("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [{d}], [{m}, {{{x}, {r}}}], [{b}];",
        d = in(_) val::<u32>(dst), m = in(_) val::<u64>(map), x = in(_) val::<i32>(x), r = in(_) val::<i32>(row), b = in(_) val::<u32>(bar));
}

/// `bytes` bytes of global memory -> shared memory, completing on `bar` [9.7.9.25.4.1]. SAFETY: both
/// addresses and the size are multiples of 16; the bytes lie inside a buffer.
#[cube]
pub(super) fn bulk_load(dst: u32, from: u64, bytes: u32, bar: u32) {
    gpu_asm!("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{d}], [{f}], {n}, [{b}];",
        d = in(_) val::<u32>(dst), f = in(_) val::<u64>(from), n = in(_) val::<u32>(bytes), b = in(_) val::<u32>(bar));
}

/// `.reg` of both banks.
#[cube]
pub(super) fn banks_declare(#[comptime] shape: HopperMatmulShape) {
    let group = comptime!(shape.sum_registers());
    let acc = comptime!(shape.acc_registers());
    gpu_asm!(".reg .f32 sum_group<{g}>, sum_acc<{a}>;", g = const group, a = const acc);
}

/// A line for each of the first `n` values.
fn each(n: u32, line: impl Fn(u32) -> String) -> String {
    (0..n).map(line).collect::<Vec<_>>().join("\n")
}

#[cube]
pub(super) fn acc_zero(#[comptime] shape: HopperMatmulShape) {
    let text = comptime!(each(shape.acc_registers(), |i| format!(
        "mov.b32 sum_acc{i}, 0;"
    )));
    gpu_asm!("{text}", text = const text);
}

fn issue_text(shape: HopperMatmulShape, part: u32, step: usize, accumulate: bool) -> String {
    let n = shape.sum_registers();
    let registers: Vec<String> = match shape.scaling {
        Scaling::Sums => (0..n).map(|i| format!("sum_group{i}")).collect(),
        Scaling::Weights => (part * n..part * n + n)
            .map(|i| format!("sum_acc{i}"))
            .collect(),
    };
    let operands = [registers.join(", "), "{%0, %1, %2, %3}".into(), "%4".into()];
    let product = wgmma(shape.rows, shape.ty, operands, accumulate, ", 0");
    // Products of a tile with scales in the weights follow one another: one fence orders the writes of all their
    // registers.
    match shape.scaling == Scaling::Weights && step > 0 {
        true => product,
        false => format!("wgmma.fence.sync.aligned;\n{product}"),
    }
}

/// sum_group (+)= a x [9.7.15], with scales in the weights sum_acc of column block `part`: 64 columns of W by
/// `rows` rows of x, 16 deep. SAFETY: executed by the four warps of a warpgroup in convergence; `x` describes
/// lines that have arrived; a and the sums are touched again only after the wait.
#[cube]
pub(super) fn issue(
    a: Vector<u32, Const<4>>,
    x: u64,
    #[comptime] part: u32,
    #[comptime] step: usize,
    #[comptime] accumulate: bool,
    #[comptime] shape: HopperMatmulShape,
) {
    let text = comptime!(issue_text(shape, part, step, accumulate));
    gpu_asm!("{{ // {a} {b}\n{text}\n}}", a = in(_) val::<Vector<u32, Const<4>>>(a), b = in(_) val::<u64>(x), text = const text);
}

/// Closes the group of products since the last time.
#[cube]
pub(super) fn commit() {
    gpu_asm!("wgmma.commit_group.sync.aligned;");
}

/// Until at most `n` groups of products are under way.
#[cube]
pub(super) fn wait(#[comptime] n: u32) {
    gpu_asm!("wgmma.wait_group.sync.aligned {n};", n = const n);
}

fn rescale_text(shape: HopperMatmulShape, part: u32) -> String {
    let n = shape.sum_registers();
    each(n, |i| {
        let acc = part * n + i;
        let column = i / 2 % 2;
        format!("fma.rn.f32 sum_acc{acc}, sum_group{i}, %{column}, sum_acc{acc};")
    })
}

/// sum_acc += scales * sum_group, for the lane's even and odd column of a column block.
#[cube]
pub(super) fn rescale(
    even: f32,
    odd: f32,
    #[comptime] part: u32,
    #[comptime] shape: HopperMatmulShape,
) {
    let text = comptime!(rescale_text(shape, part));
    gpu_asm!("{{ // {a} {b}\n{text}\n}}", a = in(_) val::<f32>(even), b = in(_) val::<f32>(odd), text = const text);
}

/// Value `i` of sum_acc.
#[cube]
pub(super) fn acc_get(#[comptime] i: u32) -> f32 {
    let o: f32;
    gpu_asm!("mov.b32 {o}, sum_acc{i};", o = out(_) o, i = const i);
    o
}

/// Bytes from one value of a unit's sums in memory to the next: those of the consumers' units.
fn value_bytes(shape: HopperMatmulShape) -> u32 {
    4 * shape.consumer_units()
}

fn save_text(shape: HopperMatmulShape) -> String {
    each(shape.acc_registers(), |i| {
        format!("st.global.f32 [%0+{}], sum_acc{i};", i * value_bytes(shape))
    })
}

/// sum_acc to memory. SAFETY: `to` is where this unit's first value goes.
#[cube]
pub(super) fn acc_save(to: u64, #[comptime] shape: HopperMatmulShape) {
    let text = comptime!(save_text(shape));
    gpu_asm!("{{ // {a}\n{text}\n}}", a = in(_) val::<u64>(to), text = const text);
}

fn add_text(shape: HopperMatmulShape, part: u32) -> String {
    let n = shape.sum_registers();
    let load = each(n, |i| {
        format!(
            "ld.global.cg.f32 sum_group{i}, [%0+{}];",
            (part * n + i) * value_bytes(shape)
        )
    });
    let add = each(n, |i| {
        let acc = part * n + i;
        format!("add.f32 sum_acc{acc}, sum_acc{acc}, sum_group{i};")
    });
    format!("{load}\n{add}")
}

/// sum_acc += what [`acc_save`] wrote, of one column block. SAFETY: the cube that wrote it has
/// fenced and arrived.
#[cube]
pub(super) fn acc_add(from: u64, #[comptime] part: u32, #[comptime] shape: HopperMatmulShape) {
    let text = comptime!(add_text(shape, part));
    gpu_asm!("{{ // {a}\n{text}\n}}", a = in(_) val::<u64>(from), text = const text);
}

/// A word to global memory. SAFETY: `to` is a multiple of 4 inside a buffer.
#[cube]
pub(super) fn store_global(to: u64, word: u32) {
    gpu_asm!("st.global.b32 [{t}], {w};", t = in(_) val::<u64>(to), w = in(_) val::<u32>(word));
}
