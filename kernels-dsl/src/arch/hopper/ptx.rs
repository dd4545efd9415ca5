//! One function per PTX instruction of the Hopper tier. PTX ISA sections in brackets.
//!
//! `gpu_asm!` numbers its operands in order: the output's registers first (`%0..`), then the
//! inputs. Each operand is named once in a PTX comment where the text addresses it by number.

use cubecl::prelude::*;

/// Number of this unit in its plane. `UNIT_POS_PLANE` divides by a plane's size, which the compiler does not know:
/// 25 instructions.
#[cube]
pub(in crate::arch) fn lane() -> u32 {
    UNIT_POS % 32u32
}

/// Reads a value, so that it reaches the assembler as a register and not as a pointer.
#[cube]
pub(in crate::arch) fn val<T: CubePrimitive>(x: T) -> T {
    intrinsic!(|scope| {
        let v = x.read_value(scope);
        v.into()
    })
}

/// Shared-window address of `x` [9.7.9.20 cvta].
#[cube]
pub(in crate::arch) fn smem_addr<T: CubePrimitive>(x: &T) -> u32 {
    let ptr: *const T = x;
    let a: u32;
    // SAFETY: `x` lies in shared memory, so its generic address converts.
    gpu_asm!("{{ .reg .u64 t; cvta.to.shared.u64 t, {p}; cvt.u32.u64 {a}, t; }}", p = in(_) ptr, a = out(_) a, options(pure, nomem));
    a
}

// mbarrier [9.7.13.15]. SAFETY of all: `bar` is the shared address of an 8-byte-aligned mbarrier
// that `mbar_init` set up before the cube's first barrier.

#[cube]
pub(in crate::arch) fn mbar_init(bar: u32, count: u32) {
    gpu_asm!("mbarrier.init.shared::cta.b64 [{a}], {c};", a = in(_) val::<u32>(bar), c = in(_) val::<u32>(count));
}

/// Makes initialised barriers visible to the asynchronous proxy.
#[cube]
pub(in crate::arch) fn mbar_init_fence() {
    gpu_asm!("fence.mbarrier_init.release.cluster;");
    gpu_asm!("fence.proxy.async.shared::cta;");
}

#[cube]
pub(in crate::arch) fn mbar_expect(bar: u32, bytes: u32) {
    gpu_asm!("mbarrier.arrive.expect_tx.shared::cta.b64 _, [{a}], {c};", a = in(_) val::<u32>(bar), c = in(_) val::<u32>(bytes));
}

#[cube]
pub(in crate::arch) fn mbar_arrive(bar: u32) {
    gpu_asm!("mbarrier.arrive.shared::cta.b64 _, [{a}];", a = in(_) val::<u32>(bar));
}

/// Arrives on the barrier that `bar` names in cube `rank` of the cluster.
#[cube]
pub(super) fn mbar_arrive_at(bar: u32, rank: u32) {
    gpu_asm!("{{ .reg .b32 there; mapa.shared::cluster.u32 there, {a}, {r}; mbarrier.arrive.shared::cluster.b64 _, [there]; }}", a = in(_) val::<u32>(bar), r = in(_) val::<u32>(rank));
}

/// All units of all cubes of the cluster meet [9.7.13.3].
#[cube]
pub(in crate::arch) fn cluster_sync() {
    gpu_asm!("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;");
}

/// Waits for the phase of `parity` to end, asleep for up to 10 ms at a time: without the hint the
/// producer came back so often that its waits were a quarter of what its scheduler issued.
#[cube]
pub(in crate::arch) fn mbar_wait(bar: u32, parity: u32) {
    gpu_asm!("{{\n.reg .pred P1;\nLAB_WAIT:\nmbarrier.try_wait.parity.shared::cta.b64 P1, [{a}], {c}, 10000000;\n@P1 bra DONE;\nbra LAB_WAIT;\nDONE:\n}}", a = in(_) val::<u32>(bar), c = in(_) val::<u32>(parity));
}

/// Box at (x, row, head, batch) -> shared memory, completing on `bar` [9.7.9.25.5.2].
/// SAFETY: `dst` is 1024-byte aligned (the 128-byte swizzle's atom), `map` the address of a
/// tensor map in parameter space whose box is 64 columns wide.
#[cube]
pub(in crate::arch) fn tma_load(
    dst: u32,
    map: u64,
    x: i32,
    row: i32,
    head: i32,
    batch: i32,
    bar: u32,
) {
    gpu_asm!("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [{d}], [{m}, {{{x}, {r}, {h}, {z}}}], [{b}];",
        d = in(_) val::<u32>(dst), m = in(_) val::<u64>(map), x = in(_) val::<i32>(x), r = in(_) val::<i32>(row),
        h = in(_) val::<i32>(head), z = in(_) val::<i32>(batch), b = in(_) val::<u32>(bar));
}

/// As [`tma_load`], into the same place of both cubes of a cluster, completing on the barrier of each.
#[cube]
pub(super) fn tma_load_both(dst: u32, map: u64, x: i32, row: i32, head: i32, batch: i32, bar: u32) {
    gpu_asm!("{{ .reg .b16 both; mov.b16 both, 3; cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [{d}], [{m}, {{{x}, {r}, {h}, {z}}}], [{b}], both; }}",
        d = in(_) val::<u32>(dst), m = in(_) val::<u64>(map), x = in(_) val::<i32>(x), r = in(_) val::<i32>(row),
        h = in(_) val::<i32>(head), z = in(_) val::<i32>(batch), b = in(_) val::<u32>(bar));
}

/// Box at (x, query, key head, batch) of [b, h_kv, s, pack, d] -> shared memory, all packed heads of
/// a query side by side, completing on `bar` [9.7.9.25.5.2]. SAFETY: as [`tma_load`]'s.
#[cube]
pub(in crate::arch) fn tma_load_packed(
    dst: u32,
    map: u64,
    x: i32,
    row: i32,
    head: i32,
    batch: i32,
    bar: u32,
) {
    gpu_asm!("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [{d}], [{m}, {{{x}, {p}, {r}, {h}, {z}}}], [{b}];",
        d = in(_) val::<u32>(dst), m = in(_) val::<u64>(map), x = in(_) val::<i32>(x), p = const 0, r = in(_) val::<i32>(row),
        h = in(_) val::<i32>(head), z = in(_) val::<i32>(batch), b = in(_) val::<u32>(bar));
}

/// Orders generic writes to shared memory before later asynchronous reads of it [9.7.13.4].
#[cube]
pub(in crate::arch) fn fence_async() {
    gpu_asm!("fence.proxy.async.shared::cta;");
}

#[cube]
pub(super) fn store_zero16(addr: u32) {
    // SAFETY: `addr` is 16-byte aligned shared memory owned by the caller.
    gpu_asm!("{{ .reg .b32 z; mov.b32 z, 0; st.shared.v4.b32 [{a}], {{z, z, z, z}}; }}", a = in(_) val::<u32>(addr));
}

/// Registers of the calling warpgroup [9.7.19.5]; SAFETY: executed by all of its warps.
#[cube]
pub(in crate::arch) fn registers_up(#[comptime] count: u32) {
    gpu_asm!("setmaxnreg.inc.sync.aligned.u32 {n};", n = const count);
}

#[cube]
pub(in crate::arch) fn registers_down(#[comptime] count: u32) {
    gpu_asm!("setmaxnreg.dec.sync.aligned.u32 {n};", n = const count);
}

/// Named barriers between pairs of warpgroups [9.7.13.1].
#[cube]
pub(super) fn named_sync(id: u32, #[comptime] units: u32) {
    gpu_asm!("bar.sync {i}, {n};", i = in(_) val::<u32>(id), n = const units);
}

#[cube]
pub(super) fn named_arrive(id: u32, #[comptime] units: u32) {
    gpu_asm!("bar.arrive {i}, {n};", i = in(_) val::<u32>(id), n = const units);
}

/// `x`, which the compiler cannot know.
#[cube]
pub(in crate::arch) fn opaque(x: u32) -> u32 {
    let o: u32;
    gpu_asm!("mov.b32 {o}, {x};", o = out(_) o, x = in(_) val::<u32>(x));
    o
}

/// 2^x, results below the normal range flushed to 0 [9.7.3.21].
#[cube]
pub(in crate::arch) fn ex2(x: f32) -> f32 {
    let o: f32;
    gpu_asm!("ex2.approx.ftz.f32 {o}, {x};", o = out(_) o, x = in(_) val::<f32>(x), options(pure, nomem));
    o
}

#[cube]
pub(in crate::arch) fn shuffle_xor(x: f32, #[comptime] mask: u32) -> f32 {
    let o: f32;
    gpu_asm!("shfl.sync.bfly.b32 {o}, {x}, {m}, 31, -1;", o = out(_) o, x = in(_) val::<f32>(x), m = const mask);
    o
}

/// Lane 0's value.
#[cube]
pub(in crate::arch) fn shuffle_first(x: u32) -> u32 {
    let o: u32;
    gpu_asm!("shfl.sync.idx.b32 {o}, {x}, 0, 31, -1;", o = out(_) o, x = in(_) val::<u32>(x));
    o
}

#[cube]
pub(super) fn shuffle_xor_u32(x: u32, #[comptime] mask: u32) -> u32 {
    let o: u32;
    gpu_asm!("shfl.sync.bfly.b32 {o}, {x}, {m}, 31, -1;", o = out(_) o, x = in(_) val::<u32>(x), m = const mask);
    o
}

/// (lo, hi) -> one register of `ty` ("bf16" or "f16"). Volatile: it must not move above the wait
/// of the product that still reads the previous P from the same registers.
#[cube]
pub(in crate::arch) fn pack2(lo: f32, hi: f32, #[comptime] ty: &'static str) -> u32 {
    let o: u32;
    gpu_asm!("cvt.rn.{t}x2.f32 {o}, {h}, {l};", o = out(_) o, h = in(_) val::<f32>(hi), l = in(_) val::<f32>(lo), t = const ty);
    o
}

// wgmma [9.7.15]. SAFETY of all: executed by the four warps of a warpgroup in convergence;
// descriptors address 1024-byte-aligned tiles; an accumulator is touched only after its wait.

/// `.reg .f32 <bank><n>`: an accumulator that lives across statements. Copied in and out of
/// C++ values it would make ptxas serialise every product.
#[cube]
pub(in crate::arch) fn bank_declare(#[comptime] n: u32) {
    gpu_asm!(".reg .f32 o_acc<{n}>;", n = const n);
}

pub(in crate::arch) fn bank(n: u32) -> String {
    (0..n)
        .map(|i| format!("o_acc{i}"))
        .collect::<Vec<_>>()
        .join(", ")
}

fn each(n: u32, text: impl Fn(u32) -> String) -> String {
    (0..n).map(text).collect::<Vec<_>>().join("\n")
}

#[cube]
pub(in crate::arch) fn bank_zero(#[comptime] n: u32) {
    let text = comptime!(each(n, |i| format!("mov.b32 o_acc{i}, 0;")));
    gpu_asm!("{text}", text = const text);
}

/// Rows r and r + 8 of the bank times their factors; nothing where every factor of the warp is 1.
#[cube]
pub(super) fn bank_scale(upper: f32, lower: f32, #[comptime] n: u32) {
    let text = comptime!(each(n, |i| format!(
        "mul.f32 o_acc{i}, o_acc{i}, %{};",
        (i / 2) % 2
    )));
    gpu_asm!("{{ // {a} {b}\n.reg .pred p;\nsetp.neu.f32 p, {a}, 0f3F800000;\nsetp.neu.or.f32 p, {b}, 0f3F800000, p;\nvote.sync.any.pred p, p, -1;\n@!p bra KEEP;\n{text}\nKEEP:\n}}", a = in(_) val::<f32>(upper), b = in(_) val::<f32>(lower), text = const text);
}

/// Sets register `i` of the bank.
#[cube]
pub(in crate::arch) fn bank_set(x: f32, #[comptime] i: u32) {
    gpu_asm!("mov.b32 o_acc{i}, {x};", x = in(_) val::<f32>(x), i = const i);
}

/// Register `i` of the bank.
#[cube]
pub(in crate::arch) fn bank_get(#[comptime] i: u32) -> f32 {
    let out: f32;
    gpu_asm!("mov.b32 {o}, o_acc{i};", o = out(_) out, i = const i);
    out
}

/// Terms that one wgmma of operands of `ty` sums: 256 bits of a row.
pub(in crate::arch) fn wgmma_depth(ty: &str) -> u32 {
    match ty {
        "tf32" => 8,
        "f16" | "bf16" => 16,
        _ => 32,
    }
}

/// d (+)= a b, m64nN by [`wgmma_depth`] [9.7.15.5.2]: `a` a descriptor or 4 registers, `b` a descriptor.
/// `transposes`: whether the operands in shared memory are MN-major, which those of 16 bits alone may be.
pub(in crate::arch) fn wgmma(
    n: u32,
    ty: &str,
    [d, a, b]: [String; 3],
    accumulate: bool,
    transposes: &str,
) -> String {
    format!(
        "wgmma.mma_async.sync.aligned.m64n{n}k{}.f32.{ty}.{ty} {{{d}}}, {a}, {b}, {}, 1, 1{transposes};",
        wgmma_depth(ty),
        u32::from(accumulate)
    )
}

/// S [64 x 2n] = Q K^T: all k-steps, committed as one group. `offsets`: bytes to k-step i in the
/// stages of Q and K. Vectors have power-of-two widths, so `width` >= n registers are declared
/// and the rest is never touched.
pub(in crate::arch) fn scores_text(
    n: u32,
    width: usize,
    ty: &str,
    offsets: &[(u32, u32)],
) -> String {
    let regs = (0..n)
        .map(|i| format!("%{i}"))
        .collect::<Vec<_>>()
        .join(", ");
    let (da, db) = (format!("%{width}"), format!("%{}", width + 1));
    let transposes = if wgmma_depth(ty) == 16 { ", 0, 0" } else { "" };
    let steps = offsets.len();
    let mut s = format!(".reg .b64 da<{steps}>, db<{steps}>;\n");
    for (k, (a, b)) in offsets.iter().enumerate() {
        let operands = [regs.clone(), format!("da{k}"), format!("db{k}")];
        s += &format!(
            "add.s64 da{k}, {da}, {};\nadd.s64 db{k}, {db}, {};\n{}\n",
            a >> 4,
            b >> 4,
            wgmma(2 * n, ty, operands, k > 0, transposes)
        );
    }
    s + "wgmma.commit_group.sync.aligned;\n"
}

/// O += P V: P from 4 registers a k-step of a vector of `width`, V MN-major (transpose bit set).
pub(in crate::arch) fn values_text(n: u32, width: usize, ty: &str, offsets: &[u32]) -> String {
    let steps = offsets.len();
    let regs = bank(n);
    let db = format!("%{width}");
    let mut s = format!(".reg .b64 db<{steps}>;\n");
    for (k, b) in offsets.iter().enumerate() {
        let a = (0..4)
            .map(|i| format!("%{}", 4 * k + i))
            .collect::<Vec<_>>()
            .join(", ");
        let operands = [regs.clone(), format!("{{{a}}}"), format!("db{k}")];
        s += &format!(
            "add.s64 db{k}, {db}, {};\n{}\n",
            b >> 4,
            wgmma(2 * n, ty, operands, true, ", 1")
        );
    }
    s + "wgmma.commit_group.sync.aligned;\n"
}

#[cube]
pub(in crate::arch) fn issue_scores<NS: Size>(
    a: u64,
    b: u64,
    #[comptime] text: String,
) -> Vector<f32, NS> {
    let out: Vector<f32, NS>;
    gpu_asm!("{{ // {o} {a} {b}\n wgmma.fence.sync.aligned;\n {text} }}", o = out(_) out, a = in(_) val::<u64>(a), b = in(_) val::<u64>(b), text = const text);
    out
}

#[cube]
pub(in crate::arch) fn issue_values<NP: Size>(
    p: Vector<u32, NP>,
    b: u64,
    #[comptime] text: String,
) {
    gpu_asm!("{{ // {a} {b}\n wgmma.fence.sync.aligned;\n {text} }}", a = in(_) val::<Vector<u32, NP>>(p), b = in(_) val::<u64>(b), text = const text);
}

/// Waits until at most `in_flight` groups run; the scores pass through, so that nothing reads
/// them earlier.
#[cube]
pub(in crate::arch) fn wait_scores<NS: Size>(
    s: Vector<f32, NS>,
    #[comptime] n: u32,
    #[comptime] in_flight: u32,
) -> Vector<f32, NS> {
    let out: Vector<f32, NS>;
    let width = NS::value();
    let text = comptime!(each(n, |i| format!("mov.b32 %{i}, %{};", i + width as u32)));
    gpu_asm!("{{ // {o} {c}\n wgmma.wait_group.sync.aligned {k};\n {text} }}", o = out(_) out, c = in(_) val::<Vector<f32, NS>>(s), k = const in_flight, text = const text);
    out
}

/// Waits until at most `in_flight` groups run, keeping P's registers alive until then.
#[cube]
pub(in crate::arch) fn wait_values<NP: Size>(p: Vector<u32, NP>, #[comptime] in_flight: u32) {
    gpu_asm!("wgmma.wait_group.sync.aligned {k}; // {p}", p = in(_) val::<Vector<u32, NP>>(p), k = const in_flight);
}
