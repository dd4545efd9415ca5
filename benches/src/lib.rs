//! What the benchmarks share: seeded inputs, the check that comes before the clock, labels that
//! carry the work of one call, and the CPU JIT as a device.
//!
//! A benchmark compares its result with the f64 reference once and panics where they differ; only
//! then does it measure. Throughput is FLOP/s (as elements) for attention, bytes/s for what is
//! bound by memory; the label of each row states both counts.

pub mod device;
pub mod int_weights;

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use criterion::{BenchmarkId, Criterion};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_distr::StandardNormal;

/// Runs benchmarks under the options of the command line, each row for about a second: all files
/// together end within a few minutes on two cores.
pub fn run(benchmarks: &[fn(&mut Criterion)]) {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    for benchmark in benchmarks {
        benchmark(&mut criterion);
    }
    criterion.final_summary();
}

/// `count` standard normal values, the same for the same seed.
pub fn normal(count: usize, seed: u64) -> Vec<f32> {
    let rng = StdRng::seed_from_u64(seed);
    rng.sample_iter(StandardNormal).take(count).collect()
}

/// `count` integers below `limit`, the same for the same seed.
pub fn integers(count: usize, limit: u32, seed: u64) -> Vec<u32> {
    let mut rng = StdRng::seed_from_u64(seed);
    (0..count).map(|_| rng.random_range(0..limit)).collect()
}

/// Every f32 as f64, exactly.
pub fn widen(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

/// What one call does.
#[derive(Debug, Clone, Copy, Default)]
pub struct Work {
    /// Floating-point operations; 0 where none are counted.
    pub flops: u64,
    /// Bytes of the inputs and outputs, each counted once.
    pub bytes: u64,
}

impl Work {
    /// "case, 67.1 MFLOP, 1.3 MB".
    pub fn label(&self, case: impl Display) -> BenchmarkId {
        let mega = |count: u64| count as f64 / 1e6;
        let bytes = mega(self.bytes);
        BenchmarkId::from_parameter(match self.flops {
            0 => format!("{case}, {bytes:.2} MB"),
            flops => format!("{case}, {:.1} MFLOP, {bytes:.2} MB", mega(flops)),
        })
    }
}

/// Sizes of an attention benchmark.
#[derive(Debug, Clone, Copy)]
pub struct AttendSizes {
    /// Batch entries.
    pub b: usize,
    /// Query heads.
    pub h_q: usize,
    /// Key heads.
    pub h_kv: usize,
    /// Queries.
    pub s_q: usize,
    /// Keys.
    pub s_kv: usize,
    /// Width of q and k.
    pub d: usize,
    /// Width of v.
    pub d_v: usize,
    /// Bottom-right causal mask; queries do not outnumber keys.
    pub causal: bool,
}

impl AttendSizes {
    /// [b, h_q, s_q, d], [b, h_kv, s_kv, d], [b, h_kv, s_kv, d_v] and [b, h_q, s_q, d_v].
    pub fn shapes(&self) -> [[usize; 4]; 4] {
        [
            [self.b, self.h_q, self.s_q, self.d],
            [self.b, self.h_kv, self.s_kv, self.d],
            [self.b, self.h_kv, self.s_kv, self.d_v],
            [self.b, self.h_q, self.s_q, self.d_v],
        ]
    }

    /// Forward: 2 (d + d_v) operations per visible pair; q, k, v read, out and lse written, in
    /// elements of `element_bytes`.
    pub fn forward_work(&self, element_bytes: usize) -> Work {
        let elements = self.shapes().map(|shape| shape.iter().product::<usize>());
        let rows = self.b * self.h_q * self.s_q;
        Work {
            flops: 2 * self.visible_pairs() * (self.d + self.d_v) as u64,
            bytes: ((elements.iter().sum::<usize>() + rows) * element_bytes) as u64,
        }
    }

    /// Backward: five products per visible pair, three of width d (S, dQ, dK) and two of width
    /// d_v (dV, dP); q, k, v, d_out read, dq, dk, dv written.
    pub fn backward_work(&self, element_bytes: usize) -> Work {
        let [q, k, v, out] = self.shapes().map(|shape| shape.iter().product::<usize>());
        Work {
            flops: 2 * self.visible_pairs() * (3 * self.d + 2 * self.d_v) as u64,
            bytes: ((2 * (q + k + v) + out) * element_bytes) as u64,
        }
    }

    /// "b1 h4/2 s192x192": what the name of a blueprint leaves open.
    pub fn heads_and_lengths(&self) -> String {
        let Self {
            b,
            h_q,
            h_kv,
            s_q,
            s_kv,
            ..
        } = self;
        format!("b{b} h{h_q}/{h_kv} s{s_q}x{s_kv}")
    }

    /// Pairs of query and key over all heads that the mask leaves.
    fn visible_pairs(&self) -> u64 {
        let hidden = if self.causal {
            self.s_q * (self.s_q - 1) / 2
        } else {
            0
        };
        (self.b * self.h_q * (self.s_q * self.s_kv - hidden)) as u64
    }
}

impl Display for AttendSizes {
    /// "b1 h4/2 s192x192 d64/64 causal"
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} d{}/{}", self.heads_and_lengths(), self.d, self.d_v)?;
        f.write_str(if self.causal { " causal" } else { "" })
    }
}

/// Panics unless every value is within `bound` of the wanted one; infinities must be equal.
pub fn check_close(what: &str, found: &[f64], wanted: &[f64], bound: f64) {
    assert_eq!(found.len(), wanted.len(), "{what}: number of values");
    for (index, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        // Written so that a NaN fails.
        let fits = found == wanted || (found - wanted).abs() <= bound;
        assert!(
            fits,
            "{what}: value {index} is {found}, the reference has {wanted} (bound {bound:e})"
        );
    }
}
