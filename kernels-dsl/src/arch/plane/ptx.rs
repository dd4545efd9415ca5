//! PTX of the plane tier. PTX ISA sections in brackets. Operands are numbered as in
//! [`hopper::ptx`](crate::arch::hopper::ptx): the output's registers first, then the inputs.
//!
//! A product is one block of text: its ldmatrix and mma instructions name their registers
//! themselves, and the assembler finds the schedule. The accumulator of P V is the named bank
//! `o_acc`, value `4 (m N / 8 + n) + 2 r + e` in the order of [`MmaRegs`](super::MmaRegs).

use cubecl::prelude::*;

use super::{CopyShape, PlaneShape, codes};
use crate::arch::hopper::ptx::val;

/// Global-window address of `x` [9.7.9.20 cvta].
#[cube]
pub(in crate::arch) fn global_addr<T: CubePrimitive>(x: &T) -> u64 {
    let ptr: *const T = x;
    let a: u64;
    // SAFETY: `x` lies in global memory, so its generic address converts.
    gpu_asm!("cvta.to.global.u64 {a}, {p};", p = in(_) ptr, a = out(_) a, options(pure, nomem));
    a
}

// cp.async [9.7.9.25.3]. SAFETY of all: global and shared addresses are multiples of 16, rows
// that are read lie inside the view.

/// `name0..name7`: operand `operand`, an address of chunk 0 of some row, with the chunk's number
/// in the swizzled row flipped by 0 to 7 (see [`PlaneShape`]).
pub(super) fn flips(name: &str, operand: &str) -> String {
    let one = |i: u32| format!("xor.b32 {name}{i}, {operand}, {};\n", 16 * i);
    let all: String = (0..8).map(one).collect();
    format!(".reg .b32 {name}<8>;\n{all}")
}

/// The address of `flips` that holds chunk `chunk`, `offset` bytes on.
pub(super) fn chunk_at(name: &str, chunk: u32, offset: u32) -> String {
    format!("[{name}{}+{}]", chunk % 8, chunk / 8 * 128 + offset)
}

/// The chunks of a thread in every pass of `copy`: all rows, or with `ragged` those before
/// operand 3, while the others become zeros.
fn copy_text(copy: CopyShape, ragged: bool) -> String {
    let mut s = flips("to", "%0");
    s += ".reg .b64 from;\n.reg .pred inside;\n.reg .b32 size;\nmov.b64 from, %1;\n";
    for pass in 0..copy.passes {
        let row = pass * copy.pass_rows;
        if pass > 0 {
            s += "add.s64 from, from, %2;\n";
        }
        let size = if ragged {
            s += &format!("setp.gt.s32 inside, %3, {row};\nselp.b32 size, 16, 0, inside;\n");
            ", size"
        } else {
            ""
        };
        let to = format!("[to{}+{}]", copy.flip(row), row * copy.row_bytes);
        s += &format!("cp.async.cg.shared.global.L2::128B {to}, [from], 16{size};\n");
    }
    s
}

/// Starts copying every row of a tile: from `from`, `step` bytes from pass to pass, to `to`.
#[cube]
pub(super) fn copy_whole(to: u32, from: u64, step: u64, #[comptime] copy: CopyShape) {
    let text = comptime!(copy_text(copy, false));
    gpu_asm!("{{ // {a} {b} {c}\n{text}}}", a = in(_) val::<u32>(to), b = in(_) val::<u64>(from), c = in(_) val::<u64>(step), text = const text);
}

/// Starts copying the rows of a tile of which this unit's first is `left` before the end; those
/// past the end become zeros.
#[cube]
pub(super) fn copy_ragged(to: u32, from: u64, step: u64, left: i32, #[comptime] copy: CopyShape) {
    let text = comptime!(copy_text(copy, true));
    gpu_asm!("{{ // {a} {b} {c} {d}\n{text}}}", a = in(_) val::<u32>(to), b = in(_) val::<u64>(from), c = in(_) val::<u64>(step), d = in(_) val::<i32>(left), text = const text);
}

/// Starts copying one chunk, or zeros where it is not `inside`.
#[cube]
pub(super) fn copy_chunk(to: u32, from: u64, inside: bool) {
    let size = select(inside, 16u32, 0u32);
    gpu_asm!("cp.async.cg.shared.global.L2::128B [{a}], [{b}], 16, {c};", a = in(_) val::<u32>(to), b = in(_) val::<u64>(from), c = in(_) val::<u32>(size));
}

/// Closes the group of the copies started since the last one.
#[cube]
pub(super) fn copies_commit() {
    gpu_asm!("cp.async.commit_group;");
}

/// Waits until at most `in_flight` of this thread's groups run.
#[cube]
pub(super) fn copies_wait(#[comptime] in_flight: u32) {
    gpu_asm!("cp.async.wait_group {n};", n = const in_flight);
}

// ldmatrix [9.7.14.5.15] and mma [9.7.14.5.14]. SAFETY of all: executed by the whole plane in
// convergence; row addresses are multiples of 16 in shared memory that was filled before the
// cube's last barrier.

pub(super) fn list(name: &str, first: u32, n: u32) -> String {
    let names: Vec<String> = (first..first + n).map(|i| format!("{name}{i}")).collect();
    format!("{{{}}}", names.join(", "))
}

pub(super) fn ldmatrix(n: u32, trans: &str, to: &str, from: &str) -> String {
    format!("ldmatrix.sync.aligned.m8n8.x{n}{trans}.shared.b16 {to}, {from};\n")
}

pub(super) fn mma(k: u32, ty: &str, d: &str, a: &str, b: &str, c: &str) -> String {
    format!("mma.sync.aligned.m16n8k{k}.row.col.f32.{ty}.{ty}.f32 {d}, {a}, {b}, {c};\n")
}

/// Columns of step `step` over d: 16, or the 8 that are left.
fn depth(shape: PlaneShape, step: u32) -> u32 {
    (shape.q_places() - 16 * step).min(16)
}

/// Every query fragment of the plane, from the address that this lane gives ldmatrix.
pub(super) fn queries_text(shape: PlaneShape) -> String {
    let mut s = flips("q", "%0");
    for step in 0..shape.q_places().div_ceil(16) {
        for m in 0..shape.m_tiles() {
            s += &query_load(shape, "q_frag", 4 * (step * shape.m_tiles() + m), step, m);
        }
    }
    s
}

/// Loads the query fragment of step `step` and 16-row tile `m` into registers `name{first}..`: by
/// ldmatrix, or as [`codes`](super::codes) has them.
pub(super) fn query_load(shape: PlaneShape, name: &str, first: u32, step: u32, m: u32) -> String {
    let row = shape.q_row();
    if shape.codes.is_some() {
        return codes::query_load(name, first, step, m * 16 * row, row);
    }
    let words = depth(shape, step) / 4;
    let to = list(name, first, words);
    ldmatrix(words, "", &to, &chunk_at("q", 2 * step, m * 16 * row))
}

/// S = Q K^T. `%0..` are the scores of a vector of `width`, then the addresses that this lane
/// gives ldmatrix for Q, for 16 keys by 16 columns of K, and for 16 keys by 8 columns.
///
/// Columns go in steps of 16, a rest of 8 by the instruction of half the depth.
pub(super) fn scores_text(shape: PlaneShape, width: usize) -> String {
    if shape.codes.is_some() {
        return codes::scores_text(shape, width);
    }
    let (m_tiles, n_tiles) = (shape.m_tiles(), shape.block / 8);
    let row = PlaneShape::row_bytes(shape.d);
    let zeros = "{zero, zero, zero, zero}";
    let mut s = String::from(".reg .f32 zero;\nmov.f32 zero, 0f00000000;\n.reg .b32 a<8>, b<4>;\n");
    for (i, name) in ["q", "k", "k_half"].into_iter().enumerate() {
        s += &flips(name, &format!("%{}", width + i));
    }
    let kept = shape.query_registers() > 0;
    for step in 0..shape.d.div_ceil(16) {
        let depth = depth(shape, step);
        let (a_words, b_words) = (depth / 4, depth / 8);
        let a = |m| match kept {
            true => list("q_frag", 4 * (step * m_tiles + m), a_words),
            false => list("a", 4 * m, a_words),
        };
        for m in (0..m_tiles).filter(|_| !kept) {
            s += &query_load(shape, "a", 4 * m, step, m);
        }
        for pair in 0..n_tiles / 2 {
            let from = if depth == 16 { "k" } else { "k_half" };
            let from = chunk_at(from, 2 * step, pair * 16 * row);
            s += &ldmatrix(2 * b_words, "", &list("b", 0, 2 * b_words), &from);
            for half in 0..2 {
                for m in 0..m_tiles {
                    let d = list("%", 4 * (m * n_tiles + 2 * pair + half), 4);
                    let c = if step == 0 { zeros } else { &d };
                    let b = list("b", half * b_words, b_words);
                    s += &mma(depth, shape.ty, &d, &a(m), &b, c);
                }
            }
        }
    }
    s
}

/// O += P V. `%0..` are the words of P of a vector of `width`, then the address that this lane
/// gives ldmatrix for 16 keys by 16 columns of V.
pub(super) fn values_text(shape: PlaneShape, width: usize) -> String {
    if shape.codes.is_some() {
        return codes::values_text(shape, width);
    }
    let (m_tiles, n_tiles) = (shape.m_tiles(), shape.d_v / 8);
    let row = PlaneShape::row_bytes(shape.d_v);
    let mut s = String::from(".reg .b32 b<4>;\n") + &flips("v", &format!("%{width}"));
    for step in 0..shape.block / 16 {
        for pair in 0..n_tiles.div_ceil(2) {
            let halves = (n_tiles - 2 * pair).min(2);
            let to = list("b", 0, 2 * halves);
            let from = chunk_at("v", 2 * pair, step * 16 * row);
            s += &ldmatrix(2 * halves, ".trans", &to, &from);
            for half in 0..halves {
                for m in 0..m_tiles {
                    let o = list("o_acc", 4 * (m * n_tiles + 2 * pair + half), 4);
                    let p = list("%", 2 * (m * shape.block / 8 + 2 * step), 4);
                    s += &mma(16, shape.ty, &o, &p, &list("b", 2 * half, 2), &o);
                }
            }
        }
    }
    s
}

/// `.reg .b32 q_frag<n>`: query fragments that live as long as the tile.
#[cube]
pub(super) fn declare_queries(#[comptime] shape: PlaneShape) {
    let n = comptime!(shape.query_registers());
    if comptime!(n > 0) {
        gpu_asm!(".reg .b32 q_frag<{n}>;", n = const n);
    }
}

#[cube]
pub(super) fn keep_queries(q: u32, #[comptime] shape: PlaneShape) {
    let text = comptime!(queries_text(shape));
    gpu_asm!("{{ // {a}\n{text}}}", a = in(_) val::<u32>(q), text = const text);
}

#[cube]
pub(super) fn scores<NS: Size>(
    q: u32,
    k: u32,
    k_half: u32,
    #[comptime] shape: PlaneShape,
) -> Vector<f32, NS> {
    let out: Vector<f32, NS>;
    let width = NS::value();
    let text = comptime!(scores_text(shape, width));
    gpu_asm!("{{ // {o} {a} {b} {c}\n{text}}}", o = out(_) out, a = in(_) val::<u32>(q), b = in(_) val::<u32>(k), c = in(_) val::<u32>(k_half), text = const text);
    out
}

#[cube]
pub(super) fn values<NP: Size>(p: Vector<u32, NP>, v: u32, #[comptime] shape: PlaneShape) {
    let width = NP::value();
    let text = comptime!(values_text(shape, width));
    gpu_asm!("{{ // {a} {b}\n{text}}}", a = in(_) val::<Vector<u32, NP>>(p), b = in(_) val::<u32>(v), text = const text);
}

/// Operand of the four rows of a thread that register `i` of the bank belongs to.
pub(super) fn row_of(shape: PlaneShape, i: u32) -> u32 {
    2 * (i / (shape.d_v / 2)) + i / 2 % 2
}

/// Rows of the bank times their factors, of which planes with one 16-row tile have two; nothing
/// where all factors of the plane are 1.
#[cube]
pub(super) fn bank_scale(f: Vector<f32, Const<4>>, #[comptime] shape: PlaneShape) {
    let text = comptime!(scale_text(shape));
    gpu_asm!("{{ // {a}\n{text}}}", a = in(_) val::<Vector<f32, Const<4>>>(f), text = const text);
}

fn scale_text(shape: PlaneShape) -> String {
    let mut s = String::from(".reg .pred moved;\nsetp.neu.f32 moved, %0, 0f3F800000;\n");
    for factor in 1..2 * shape.m_tiles() {
        s += &format!("setp.neu.or.f32 moved, %{factor}, 0f3F800000, moved;\n");
    }
    s += "vote.sync.any.pred moved, moved, -1;\n@!moved bra KEPT;\n";
    for i in 0..shape.acc_registers() {
        s += &format!("mul.f32 o_acc{i}, o_acc{i}, %{};\n", row_of(shape, i));
    }
    s + "KEPT:\n"
}

/// The bank times `inverse`, rounded, two columns a word, to this thread's words of the output
/// tile from `to`.
#[cube]
pub(super) fn bank_store(to: u32, inverse: Vector<f32, Const<4>>, #[comptime] shape: PlaneShape) {
    let text = comptime!(store_text(shape));
    gpu_asm!("{{ // {a} {b}\n{text}}}", a = in(_) val::<Vector<f32, Const<4>>>(inverse), b = in(_) val::<u32>(to), text = const text);
}

pub(super) fn store_text(shape: PlaneShape) -> String {
    if shape.codes.is_some() {
        return codes::store_text(shape);
    }
    let mut s = String::from(".reg .f32 lo, hi;\n.reg .b32 word;\n") + &flips("to", "%4");
    for i in (0..shape.acc_registers()).step_by(2) {
        let (m, n) = (i / (shape.d_v / 2), i % (shape.d_v / 2) / 4);
        let row = 16 * m + 8 * (i / 2 % 2);
        let to = chunk_at("to", n, row * PlaneShape::row_bytes(shape.d_v));
        let factor = row_of(shape, i);
        s += &format!(
            "mul.f32 lo, o_acc{i}, %{factor};\nmul.f32 hi, o_acc{}, %{factor};\n\
             cvt.rn.{}x2.f32 word, hi, lo;\nst.shared.b32 {to}, word;\n",
            i + 1,
            shape.ty
        );
    }
    s
}

/// Row `r` of this thread's four, times `inverse`, in f32 from the shared address `to` on: two columns of
/// every eight.
#[cube]
pub(super) fn bank_part(to: u32, inverse: f32, #[comptime] r: u32, #[comptime] shape: PlaneShape) {
    let text = comptime!(part_text(shape, r));
    // SAFETY: `to` is aligned to what one thread stores at a time, in shared memory with room for the row's
    // d_v columns.
    gpu_asm!("{{ // {a} {b}\n{text}}}", a = in(_) val::<u32>(to), b = in(_) val::<f32>(inverse), text = const text);
}

fn part_text(shape: PlaneShape, r: u32) -> String {
    if shape.codes.is_some() {
        return codes::part_text(shape, r);
    }
    let mut s = String::from(".reg .f32 lo, hi;\n");
    for n in 0..shape.d_v / 8 {
        let i = 4 * (r / 2 * shape.d_v / 8 + n) + 2 * (r % 2);
        s += &format!(
            "mul.f32 lo, o_acc{i}, %1;\nmul.f32 hi, o_acc{}, %1;\n\
             st.shared.v2.f32 [%0+{}], {{lo, hi}};\n",
            i + 1,
            32 * n
        );
    }
    s
}

/// Four words to shared memory.
#[cube]
pub(super) fn store_words(to: u32, a: u32, b: u32, c: u32, d: u32) {
    // SAFETY: `to` is 16-byte aligned shared memory that no other unit writes.
    gpu_asm!("st.shared.v4.b32 [{t}], {{{a}, {b}, {c}, {d}}};", t = in(_) val::<u32>(to), a = in(_) val::<u32>(a), b = in(_) val::<u32>(b), c = in(_) val::<u32>(c), d = in(_) val::<u32>(d));
}

/// 16 bytes of shared memory.
#[cube]
pub(super) fn load_chunk(from: u32) -> Vector<u32, Const<4>> {
    let out: Vector<u32, Const<4>>;
    // SAFETY: `from` is 16-byte aligned shared memory that the plane wrote before its last sync.
    gpu_asm!("ld.shared.v4.b32 {{%0, %1, %2, %3}}, [{a}]; // {o}", o = out(_) out, a = in(_) val::<u32>(from));
    out
}
