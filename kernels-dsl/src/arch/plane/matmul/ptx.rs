//! PTX of products with packed weights that the plane tier's forward has no use for.

use cubecl::prelude::*;

use crate::arch::hopper::ptx::val;
use crate::arch::plane::ptx::{self as plane, list};

/// Starts copying the first `bytes` of a chunk, zeros for the rest [9.7.9.25.3]. SAFETY: both
/// addresses are multiples of 16; the bytes lie inside a buffer.
#[cube]
pub(super) fn copy_part(to: u32, from: u64, bytes: u32) {
    gpu_asm!("cp.async.cg.shared.global.L2::128B [{a}], [{b}], 16, {c};", a = in(_) val::<u32>(to), b = in(_) val::<u64>(from), c = in(_) val::<u32>(bytes));
}

fn copies_text(steps: &[(u32, u32)]) -> String {
    let copy = |(from, to): &(u32, u32)| {
        format!("cp.async.cg.shared.global.L2::128B [%0+{to}], [%1+{from}], 16, %2;\n")
    };
    steps.iter().map(copy).collect()
}

/// Starts copying chunks at (bytes from `from`, bytes from `to`), or zeros where `bytes` is 0.
/// SAFETY: as [`copy_part`].
#[cube]
pub(super) fn copy_steps(to: u32, from: u64, bytes: u32, #[comptime] steps: Vec<(u32, u32)>) {
    let text = comptime!(copies_text(&steps));
    gpu_asm!("{{ // {a} {b} {c}\n{text}}}", a = in(_) val::<u32>(to), b = in(_) val::<u64>(from), c = in(_) val::<u32>(bytes), text = const text);
}

/// d = a b + c, m16n8 by `k` terms [9.7.14.5.14]; of a and b it takes as many registers as `k` of `ty`
/// fill. SAFETY: executed by the whole plane in convergence.
#[cube]
pub(in crate::arch) fn mma(
    a: Vector<u32, Const<4>>,
    b0: u32,
    b1: u32,
    c: Vector<f32, Const<4>>,
    #[comptime] k: u32,
    #[comptime] ty: &'static str,
) -> Vector<f32, Const<4>> {
    let d: Vector<f32, Const<4>>;
    let text = comptime!(mma_text(k, ty));
    gpu_asm!("{text} // {d} {a} {b0} {b1} {c}",
        d = out(_) d, a = in(_) val::<Vector<u32, Const<4>>>(a), b0 = in(_) val::<u32>(b0), b1 = in(_) val::<u32>(b1),
        c = in(_) val::<Vector<f32, Const<4>>>(c), text = const text, options(pure, nomem));
    d
}

fn mma_text(k: u32, ty: &str) -> String {
    // Halves of an operand's 4 and 2 registers: each spans 128 bits of a row.
    let halves = match (k, ty) {
        (8, "f16" | "bf16") => 1,
        _ => 2,
    };
    let (d, a) = (list("%", 0, 4), list("%", 4, 2 * halves));
    let (b, c) = (list("%", 8, halves), list("%", 10, 4));
    plane::mma(k, ty, &d, &a, &b, &c).trim_end().to_owned()
}

/// `count` 8 x 8 matrices of 16-bit elements, 1, 2 or 4, at the addresses of lanes 0 to 8 `count` - 1; registers beyond
/// them are 0 [9.7.14.5.15]. SAFETY: `from` is a multiple of 16 in shared memory filled before the cube's last
/// barrier; the plane converges.
#[cube]
pub(in crate::arch) fn ldmatrix(
    from: u32,
    #[comptime] count: u32,
    #[comptime] transposed: bool,
) -> Vector<u32, Const<4>> {
    let o: Vector<u32, Const<4>>;
    let text = comptime!(ldmatrix_text(count, transposed));
    gpu_asm!("{text} // {o} {a}", o = out(_) o, a = in(_) val::<u32>(from), text = const text);
    o
}

fn ldmatrix_text(count: u32, transposed: bool) -> String {
    let trans = if transposed { ".trans" } else { "" };
    let unused: String = (count..4).map(|i| format!("mov.b32 %{i}, 0;\n")).collect();
    unused + plane::ldmatrix(count, trans, &list("%", 0, count), "[%4]").trim_end()
}

/// A word of shared memory.
#[cube]
pub(in crate::arch) fn load_word(from: u32) -> u32 {
    let o: u32;
    gpu_asm!("ld.shared.b32 {o}, [{a}];", o = out(_) o, a = in(_) val::<u32>(from));
    o
}

/// A float of shared memory.
#[cube]
pub(super) fn load_float(from: u32) -> f32 {
    let o: f32;
    gpu_asm!("ld.shared.f32 {o}, [{a}];", o = out(_) o, a = in(_) val::<u32>(from));
    o
}

/// Two floats to shared memory. SAFETY: `to` is a multiple of 8 that no other unit writes.
#[cube]
pub(super) fn store_pair(to: u32, a: f32, b: f32) {
    gpu_asm!("st.shared.v2.f32 [{t}], {{{a}, {b}}};", t = in(_) val::<u32>(to), a = in(_) val::<f32>(a), b = in(_) val::<f32>(b));
}

/// A word to shared memory.
#[cube]
pub(in crate::arch) fn store_word(to: u32, a: u32) {
    gpu_asm!("st.shared.b32 [{t}], {a};", t = in(_) val::<u32>(to), a = in(_) val::<u32>(a));
}

/// Orders this unit's accesses to global memory before and after, for the whole device
/// [9.7.13.4].
#[cube]
pub(in crate::arch) fn fence_device() {
    gpu_asm!("fence.acq_rel.gpu;");
}

/// A float that another cube wrote, past this multiprocessor's own cache.
#[cube]
pub(in crate::arch) fn load_shared_sum(x: &f32) -> f32 {
    let ptr: *const f32 = x;
    let o: f32;
    // SAFETY: `x` lies in global memory; what wrote it was fenced.
    gpu_asm!("ld.global.cg.f32 {o}, [{p}];", o = out(_) o, p = in(_) ptr);
    o
}
