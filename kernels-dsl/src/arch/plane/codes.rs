//! PTX of the plane tier for caches of E4M3 codes: K and V lie in shared memory as they lie in the cache
//! and become 16-bit between ldmatrix and mma. PTX ISA sections in brackets.
//!
//! ldmatrix moves 16-bit places, each of which holds two codes. So a thread gets 4 neighbouring
//! columns of K where mma wants 2 and, 8 further on, 2 more: columns of each step of 16 go to mma in
//! the order 0 1 4 5 8 9 12 13 2 3 6 7 10 11 14 15, and those of Q with them, which leaves their products'
//! sum as it is. Of V a thread gets 2 neighbouring columns of 2 keys: the even columns of 16 make
//! one tile of 8 and the odd ones the next, and the epilogue puts them back.

use super::PlaneShape;
use super::ptx::{chunk_at, flips, ldmatrix, list, mma, row_of};

/// Registers that decoding needs.
const SCRATCH: &str = ".reg .b16 lo, hi;\n.reg .f32 f0, f1;\n.reg .b32 c<4>, e<4>, b<4>, a<16>;\n";

/// Four codes in `from` -> two words of 16-bit values, the lower two codes first [9.7.9.22 cvt].
/// SAFETY: sm_89 and up.
fn decode(ty: &str, from: &str, to: [&str; 2]) -> String {
    let mut s = format!("mov.b32 {{lo, hi}}, {from};\n");
    for (half, to) in ["lo", "hi"].into_iter().zip(to) {
        s += &format!("cvt.rn.f16x2.e4m3x2 {to}, {half};\n");
    }
    if ty == "bf16" {
        for to in to {
            s += &format!(
                "mov.b32 {{lo, hi}}, {to};\ncvt.f32.f16 f0, lo;\ncvt.f32.f16 f1, hi;\n\
                 cvt.rn.bf16x2.f32 {to}, f1, f0;\n"
            );
        }
    }
    s
}

/// Byte from a query tile to the 4 columns of a step that this lane loads: see [`query_load`].
/// Rows of a tile start at multiples of 1 KB, `lane / 4` is the row.
pub(super) fn query_load(name: &str, first: u32, step: u32, offset: u32, row: u32) -> String {
    let one = |down: u32, a: u32, b: u32| {
        let from = chunk_at("q", 2 * step, offset + down);
        format!(
            "ld.shared.v2.b32 {{{name}{}, {name}{}}}, {from};\n",
            first + a,
            first + b
        )
    };
    // Rows t / 4 and 8 further on; words k = 2 (t % 4) and 8 further on.
    one(0, 0, 2) + &one(8 * row, 1, 3)
}

/// S = Q K^T; operands as of the 16-bit text.
pub(super) fn scores_text(shape: PlaneShape, width: usize) -> String {
    let (m_tiles, n_tiles) = (shape.m_tiles(), shape.block / 8);
    let (places, row) = (shape.places(shape.d), shape.k_row());
    let zeros = "{zero, zero, zero, zero}";
    let mut s = String::from(".reg .f32 zero;\nmov.f32 zero, 0f00000000;\n") + SCRATCH;
    for (i, name) in ["q", "k", "k_half"].into_iter().enumerate() {
        s += &flips(name, &format!("%{}", width + i));
    }
    let kept = shape.query_registers() > 0;
    for pass in 0..places.div_ceil(16) {
        // Chunks of 16 columns that one ldmatrix brings of each key.
        let chunks = (places - 16 * pass).min(16) / 8;
        let a = |chunk: u32, m: u32| match kept {
            true => list("q_frag", 4 * ((2 * pass + chunk) * m_tiles + m), 4),
            false => list("a", 4 * (chunk * m_tiles + m), 4),
        };
        for (chunk, m) in (0..chunks).flat_map(|c| (0..m_tiles).map(move |m| (c, m))) {
            let row = PlaneShape::row_bytes(shape.d);
            let first = 4 * (chunk * m_tiles + m);
            let load = query_load("a", first, 2 * pass + chunk, m * 16 * row, row);
            s += if kept { "" } else { &load };
        }
        for pair in 0..n_tiles / 2 {
            let from = if chunks == 2 { "k" } else { "k_half" };
            let from = chunk_at(from, 2 * pass, pair * 16 * row);
            s += &ldmatrix(2 * chunks, "", &list("b", 0, 2 * chunks), &from);
            for (chunk, half) in (0..chunks).flat_map(|c| [(c, 0), (c, 1)]) {
                let codes = format!("b{}", half * chunks + chunk);
                s += &decode(shape.ty, &codes, ["e0", "e1"]);
                for m in 0..m_tiles {
                    let d = list("%", 4 * (m * n_tiles + 2 * pair + half), 4);
                    let c = if pass + chunk == 0 { zeros } else { &d };
                    s += &mma(16, shape.ty, &d, &a(chunk, m), &list("e", 0, 2), c);
                }
            }
        }
    }
    s
}

/// O += P V; operands as of the 16-bit text.
pub(super) fn values_text(shape: PlaneShape, width: usize) -> String {
    let (m_tiles, n_tiles) = (shape.m_tiles(), shape.d_v / 8);
    let (places, row) = (shape.places(shape.d_v), shape.v_row());
    let mut s = String::from(SCRATCH) + &flips("v", &format!("%{width}"));
    for step in 0..shape.block / 16 {
        for pair in 0..places.div_ceil(16) {
            let chunks = (places - 16 * pair).min(16) / 8;
            let from = chunk_at("v", 2 * pair, step * 16 * row);
            s += &ldmatrix(2 * chunks, ".trans", &list("b", 0, 2 * chunks), &from);
            for chunk in 0..chunks {
                // Keys 0-7 and 8-15; even columns below odd ones.
                for keys in 0..2 {
                    s += &format!("prmt.b32 c{keys}, b{}, 0, 0x3120;\n", 2 * chunk + keys);
                }
                s += &decode(shape.ty, "c0", ["e0", "e2"]);
                s += &decode(shape.ty, "c1", ["e1", "e3"]);
                for odd in 0..2 {
                    for m in 0..m_tiles {
                        let n = 2 * (2 * pair + chunk) + odd;
                        let o = list("o_acc", 4 * (m * n_tiles + n), 4);
                        let p = list("%", 2 * (m * shape.block / 8 + 2 * step), 4);
                        s += &mma(16, shape.ty, &o, &p, &list("e", 2 * odd, 2), &o);
                    }
                }
            }
        }
    }
    s
}

/// First registers of the even and of the odd columns of 16 from tile `n` on, in row `r` of four.
fn pair_of(shape: PlaneShape, n: u32, r: u32) -> [u32; 2] {
    let of = |n: u32| 4 * (r / 2 * shape.d_v / 8 + n) + 2 * (r % 2);
    [of(n), of(n + 1)]
}

/// Row `r` in f32, 4 columns of every 16 from this thread's on.
pub(super) fn part_text(shape: PlaneShape, r: u32) -> String {
    let mut s = String::from(".reg .f32 x<4>;\n");
    for n in (0..shape.d_v / 8).step_by(2) {
        let [even, odd] = pair_of(shape, n, r);
        for (x, i) in [even, odd, even + 1, odd + 1].into_iter().enumerate() {
            s += &format!("mul.f32 x{x}, o_acc{i}, %1;\n");
        }
        s += &format!("st.shared.v4.f32 [%0+{}], {{x0, x1, x2, x3}};\n", 32 * n);
    }
    s
}

/// The bank times the rows' factors, rounded, to this thread's 8 bytes of every 16 columns.
pub(super) fn store_text(shape: PlaneShape) -> String {
    let mut s = String::from(".reg .f32 x<4>;\n.reg .b32 w<2>;\n") + &flips("to", "%4");
    for r in 0..2 * shape.m_tiles() {
        for n in (0..shape.d_v / 8).step_by(2) {
            let [even, odd] = pair_of(shape, n, r);
            let factor = row_of(shape, even);
            for (x, i) in [even, odd, even + 1, odd + 1].into_iter().enumerate() {
                s += &format!("mul.f32 x{x}, o_acc{i}, %{factor};\n");
            }
            let row = 16 * (r / 2) + 8 * (r % 2);
            let to = chunk_at("to", n, row * PlaneShape::row_bytes(shape.d_v));
            for w in 0..2 {
                let (lo, hi) = (2 * w, 2 * w + 1);
                s += &format!("cvt.rn.{}x2.f32 w{w}, x{hi}, x{lo};\n", shape.ty);
            }
            s += &format!("st.shared.v2.b32 {to}, {{w0, w1}};\n");
        }
    }
    s
}
