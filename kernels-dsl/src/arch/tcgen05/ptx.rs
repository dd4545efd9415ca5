//! One function per PTX instruction of the Blackwell tier. PTX ISA sections in brackets; how operands
//! are numbered: [`hopper::ptx`](crate::arch::hopper::ptx).

use cubecl::prelude::*;

use crate::arch::hopper::ptx::val;

// tcgen05 memory [9.7.17.7]. SAFETY of all: executed by whole warps in convergence; addresses lie in
// what this cube allocated, and a warp touches the quarter of the lanes that its number modulo 4 names.

/// Columns of tensor memory for this cube, or the same ones for both of a pair, each of which calls; their address goes to
/// shared memory at `dst`. No allocation follows, so the right to allocate is given up.
#[cube]
pub(super) fn tensor_alloc(dst: u32, #[comptime] columns: u32, #[comptime] cubes: u32) {
    gpu_asm!("tcgen05.alloc.cta_group::{g}.sync.aligned.shared::cta.b32 [{a}], {n};\ntcgen05.relinquish_alloc_permit.cta_group::{g}.sync.aligned;", a = in(_) val::<u32>(dst), n = const columns, g = const cubes);
}

#[cube]
pub(super) fn tensor_free(address: u32, #[comptime] columns: u32, #[comptime] cubes: u32) {
    gpu_asm!("tcgen05.dealloc.cta_group::{g}.sync.aligned.b32 {a}, {n};", a = in(_) val::<u32>(address), n = const columns, g = const cubes);
}

/// Orders this thread's tcgen05 operations before what it tells other threads next [9.7.17.11].
#[cube]
pub(super) fn fence_before() {
    gpu_asm!("tcgen05.fence::before_thread_sync;");
}

/// Orders what other threads told this one before its next tcgen05 operations.
#[cube]
pub(super) fn fence_after() {
    gpu_asm!("tcgen05.fence::after_thread_sync;");
}

fn list(n: u32, first: u32) -> String {
    (first..first + n)
        .map(|i| format!("%{i}"))
        .collect::<Vec<_>>()
        .join(", ")
}

/// `n` columns of this thread's lane, which is its row: loaded and waited for in one, since the
/// compiler may copy what a statement returns before the next.
#[cube]
pub(super) fn load_row<N: Size>(address: u32, #[comptime] n: u32) -> Vector<f32, N> {
    let out: Vector<f32, N>;
    let width = N::value();
    let text = comptime!(load_text(n, width as u32));
    gpu_asm!("// {o} {a}\n{text}tcgen05.wait::ld.sync.aligned;", o = out(_) out, a = in(_) val::<u32>(address), text = const text);
    out
}

/// Loads of up to 32 columns each: wider ones want more registers in a row than a unit starts with.
fn load_text(n: u32, address: u32) -> String {
    (0..n)
        .step_by(32)
        .map(|first| {
            let columns = (n - first).min(32);
            let regs = list(columns, first);
            format!("tcgen05.ld.sync.aligned.32x32b.x{columns}.b32 {{{regs}}}, [%{address} + {first}];\n")
        })
        .collect()
}

/// Starts to store `n` words of this thread in as many columns of its lane.
#[cube]
pub(super) fn store_row<N: Size>(address: u32, words: Vector<u32, N>, #[comptime] n: u32) {
    let regs = comptime!(list(n, 1));
    gpu_asm!("// {a} {w}\ntcgen05.st.sync.aligned.32x32b.x{n}.b32 [%0], {{{regs}}};", a = in(_) val::<u32>(address), w = in(_) val::<Vector<u32, N>>(words), n = const n, regs = const regs);
}

/// A word of this thread in shared memory. SAFETY: `address` is a multiple of 4 and lies in this thread's part of the cube's
/// shared memory.
#[cube]
pub(super) fn store_shared(address: u32, word: u32) {
    gpu_asm!("st.shared.b32 [{a}], {w};", a = in(_) val::<u32>(address), w = in(_) val::<u32>(word));
}

/// 16 bytes of shared memory `and` a mask for each of their words, which all have the same. SAFETY: `address` is a multiple
/// of 16, and nobody else touches these bytes now.
#[cube]
pub(super) fn mask_shared16(address: u32, mask: u32) {
    gpu_asm!("{{ // {a} {m}\n.reg .b32 x<4>;\nld.shared.v4.b32 {{x0, x1, x2, x3}}, [%0];\nand.b32 x0, x0, %1;\nand.b32 x1, x1, %1;\nand.b32 x2, x2, %1;\nand.b32 x3, x3, %1;\nst.shared.v4.b32 [%0], {{x0, x1, x2, x3}}; }}", a = in(_) val::<u32>(address), m = in(_) val::<u32>(mask));
}

/// What this thread stored is in tensor memory.
#[cube]
pub(super) fn store_wait() {
    gpu_asm!("tcgen05.wait::st.sync.aligned;");
}

/// `width` columns of this thread's lane times `factor`, `chunk` at a time; nothing where every
/// factor of the warp is 1.
#[cube]
pub(super) fn scale_row(address: u32, factor: f32, #[comptime] width: u32, #[comptime] chunk: u32) {
    let text = comptime!(scale_text(width, chunk));
    gpu_asm!("{{ // {a} {f}\n.reg .pred p;\n.reg .f32 x<{n}>;\nsetp.neu.f32 p, {f}, 0f3F800000;\nvote.sync.any.pred p, p, -1;\n@!p bra KEEP;\n{text}\ntcgen05.wait::st.sync.aligned;\nKEEP:\n}}", a = in(_) val::<u32>(address), f = in(_) val::<f32>(factor), n = const chunk, text = const text);
}

fn scale_text(width: u32, chunk: u32) -> String {
    let regs = (0..chunk)
        .map(|i| format!("x{i}"))
        .collect::<Vec<_>>()
        .join(", ");
    let products: String = (0..chunk)
        .map(|i| format!("mul.f32 x{i}, x{i}, %1;\n"))
        .collect();
    (0..width / chunk)
        .map(|c| {
            let at = c * chunk;
            format!(
                "tcgen05.ld.sync.aligned.32x32b.x{chunk}.b32 {{{regs}}}, [%0 + {at}];\n\
                 tcgen05.wait::ld.sync.aligned;\n{products}\
                 tcgen05.st.sync.aligned.32x32b.x{chunk}.b32 [%0 + {at}], {{{regs}}};\n"
            )
        })
        .collect()
}

// A pair of cubes, which name each other's barriers as the cluster does. SAFETY: those of the mbarriers of a cube.

/// What cube 0 of the cluster has where this one has `address` [9.7.9.23].
#[cube]
pub(super) fn in_first_cube(address: u32) -> u32 {
    let there: u32;
    gpu_asm!("mapa.shared::cluster.u32 {o}, {a}, 0;", o = out(_) there, a = in(_) val::<u32>(address));
    there
}

#[cube]
pub(super) fn arrive_in_cluster(bar: u32) {
    gpu_asm!("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [{a}];", a = in(_) val::<u32>(bar));
}

#[cube]
pub(super) fn expect_in_cluster(bar: u32, bytes: u32) {
    gpu_asm!("mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [{a}], {c};", a = in(_) val::<u32>(bar), c = in(_) val::<u32>(bytes));
}

/// As [`mbar_wait`](crate::arch::hopper::ptx::mbar_wait), for what both cubes arrive on.
#[cube]
pub(super) fn wait_in_cluster(bar: u32, parity: u32) {
    gpu_asm!("{{\n.reg .pred P1;\nLAB_WAIT:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 P1, [{a}], {c}, 10000000;\n@P1 bra DONE;\nbra LAB_WAIT;\nDONE:\n}}", a = in(_) val::<u32>(bar), c = in(_) val::<u32>(parity));
}

/// As [`tma_load`](crate::arch::hopper::ptx::tma_load), completing on a barrier of either cube.
#[cube]
pub(super) fn pair_load(dst: u32, map: u64, x: i32, row: i32, head: i32, batch: i32, bar: u32) {
    gpu_asm!("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.cta_group::2 [{d}], [{m}, {{{x}, {r}, {h}, {z}}}], [{b}];",
        d = in(_) val::<u32>(dst), m = in(_) val::<u64>(map), x = in(_) val::<i32>(x), r = in(_) val::<i32>(row),
        h = in(_) val::<i32>(head), z = in(_) val::<i32>(batch), b = in(_) val::<u32>(bar));
}

/// As [`tma_load_packed`](crate::arch::hopper::ptx::tma_load_packed), completing on a barrier of either cube.
#[cube]
pub(super) fn pair_load_packed(
    dst: u32,
    map: u64,
    x: i32,
    row: i32,
    head: i32,
    batch: i32,
    bar: u32,
) {
    gpu_asm!("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.cta_group::2 [{d}], [{m}, {{{x}, {p}, {r}, {h}, {z}}}], [{b}];",
        d = in(_) val::<u32>(dst), m = in(_) val::<u64>(map), x = in(_) val::<i32>(x), p = const 0, r = in(_) val::<i32>(row),
        h = in(_) val::<i32>(head), z = in(_) val::<i32>(batch), b = in(_) val::<u32>(bar));
}

// tcgen05.mma [9.7.17.10]. SAFETY of all: executed by one thread of the cube, or of cube 0 of a pair, for each query
// stage; descriptors address 1024-byte-aligned tiles, in both cubes of a pair, that their barriers said are there.

/// Commit of everything this thread issued: one arrival on an mbarrier, or on that of each cube of a pair, when that is
/// done.
#[cube]
pub(super) fn commit(bar: u32, #[comptime] cubes: u32) {
    if comptime!(cubes == 1) {
        gpu_asm!("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [{b}];", b = in(_) val::<u32>(bar));
    } else {
        gpu_asm!("{{ .reg .b16 both; mov.b16 both, 3; tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [{b}], both; }}", b = in(_) val::<u32>(bar));
    }
}

/// S [128 x n] of every cube = Q K^T, all k-steps. `steps`: bytes to k-step i in the stages of Q and K.
#[cube]
pub(super) fn issue_scores(s: u32, q: u64, k: u64, #[comptime] text: String) {
    gpu_asm!("{{ // {s} {q} {k}\n{text} }}", s = in(_) val::<u32>(s), q = in(_) val::<u64>(q), k = in(_) val::<u64>(k), text = const text);
}

/// O [128 x n] of every cube (+)= P V, all k-steps, replacing O where `add` is 0.
#[cube]
pub(super) fn issue_values(o: u32, p: u32, v: u64, add: u32, #[comptime] text: String) {
    gpu_asm!("{{ // {o} {p} {v} {add}\n{text} }}", o = in(_) val::<u32>(o), p = in(_) val::<u32>(p), v = in(_) val::<u64>(v), add = in(_) val::<u32>(add), text = const text);
}

/// Text of [`issue_scores`]; operands %0 S, %1 Q, %2 K.
pub(super) fn scores_text(instruction: u32, steps: &[(u32, u32)], cubes: u32) -> String {
    let n = steps.len();
    let mut text = format!(
        ".reg .pred no, yes;\n.reg .b64 q<{n}>, k<{n}>;\n.reg .b32 id;\nmov.b32 id, {instruction};\n\
         setp.ne.b32 no, id, id;\nsetp.eq.b32 yes, id, id;\n"
    );
    for (i, (q, k)) in steps.iter().enumerate() {
        let add = if i == 0 { "no" } else { "yes" };
        text += &format!(
            "add.s64 q{i}, %1, {};\nadd.s64 k{i}, %2, {};\n\
             tcgen05.mma.cta_group::{cubes}.kind::f16 [%0], q{i}, k{i}, id, {add};\n",
            q >> 4,
            k >> 4
        );
    }
    text
}

/// Text of [`issue_values`]; operands %0 O, %1 P, %2 V, %3 whether the first step adds.
pub(super) fn values_text(instruction: u32, steps: &[(u32, u32)], cubes: u32) -> String {
    let n = steps.len();
    let mut text = format!(
        ".reg .pred first, yes;\n.reg .b64 v<{n}>;\n.reg .b32 id;\nmov.b32 id, {instruction};\n\
         setp.ne.b32 first, %3, 0;\nsetp.eq.b32 yes, id, id;\n"
    );
    for (i, (p, v)) in steps.iter().enumerate() {
        let add = if i == 0 { "first" } else { "yes" };
        text += &format!(
            "add.s64 v{i}, %2, {};\n\
             tcgen05.mma.cta_group::{cubes}.kind::f16 [%0], [%1 + {p}], v{i}, id, {add};\n",
            v >> 4
        );
    }
    text
}
