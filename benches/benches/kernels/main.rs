//! Kernels on the CPU JIT, beside the reference where it computes the same.

mod attend_forward;
mod dequantize_int4;
mod hadamard;
mod merge_partials;

fn main() {
    flashcube_benches::run(&[
        attend_forward::bench,
        merge_partials::bench,
        dequantize_int4::bench,
        hadamard::bench,
    ]);
}
