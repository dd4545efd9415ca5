//! Work of the host: the f64 reference, number formats and packings.

mod codecs;
mod packers;
mod reference_attention;

fn main() {
    flashcube_benches::run(&[
        reference_attention::bench_forward,
        reference_attention::bench_backward,
        codecs::bench_floats,
        codecs::bench_e8m0,
        codecs::bench_mx,
        codecs::bench_nvfp4,
        packers::bench_int,
        packers::bench_nvfp4,
        packers::bench_gguf,
    ]);
}
