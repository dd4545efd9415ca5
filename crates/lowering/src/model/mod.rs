//! How many cycles a block of keys takes, predicted from rates of the architecture and counts of the kernel.
//!
//! Streams of query rows (two or three warpgroups) go round between three stations: the matrix unit, the exponential
//! units, and the schedulers with everything else. Of each the demand of a block is known:
//!
//! ```text
//! products = max(16-bit flop / mma rate, bytes / shared-memory rate)
//! exp2     = 32 exp2 / (exp2 rate / 4)
//! vector   = max(issued, 32 alu / (alu rate / 4), 32 fma / (fma rate / 4))
//! ```
//!
//! A stream alone takes their sum. n of them hinder one another; how much is the mean-value analysis of a closed
//! network of queues: who arrives at a station finds there what n - 1 streams leave there on average,
//!
//! ```text
//! r_i(n) = demand_i (1 + q_i(n - 1))      q_i(n) = n r_i(n) / r(n)      r(n) = sum of r_i(n)
//! ```
//!
//! and r(n) is the round in which each of the n streams finishes one block. No constant belongs to a kernel. Left out:
//! starts and ends of tiles, masked blocks, loads that come late.

mod rates;
mod work;

use std::fmt;

use serde::Serialize;

pub use rates::Rates;
pub use work::BlockWork;

use crate::{Arch, Blueprint, Sass};

/// Threads of a warp, schedulers of a multiprocessor.
const WARP: f64 = 32.0;
const SCHEDULERS: f64 = 4.0;

/// What the model says; nothing of it was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// Streams of query rows in flight.
    pub streams: usize,
    /// Rows of a stream.
    pub rows: usize,
    /// Keys of a block.
    pub block: usize,
    /// Cycles that a block of one stream keeps the matrix unit, alone.
    pub products: f64,
    /// The same of the exponential units.
    pub exp2: f64,
    /// The same of a scheduler and its other units.
    pub vector: f64,
    /// Cycles in which each stream finishes one block.
    pub round: f64,
    /// TFLOP/s of the whole card in the interior of long tiles.
    pub tflops: f64,
    /// The clock assumed, in GHz.
    pub clock_ghz: f64,
}

impl Prediction {
    /// For a kernel of which machine code is at hand; None where the model does not apply: kernels other than the 16-bit
    /// forward of the Hopper and the Blackwell tier, and block-scaled products of the latter.
    pub fn of(blueprint: &Blueprint, arch: Arch, sass: &Sass) -> Option<Prediction> {
        let Blueprint::AttendForward(blueprint) = blueprint else {
            return None;
        };
        let rates = Rates::of(arch)?;
        BlockWork::of(blueprint, sass).map(|work| Prediction::new(&work, &rates))
    }

    /// For any schedule whose counts are known.
    pub fn new(work: &BlockWork, rates: &Rates) -> Prediction {
        let of_warp = |instructions: f64, rate: f64| WARP * instructions * SCHEDULERS / rate;
        let products =
            (work.as_sixteen_bit / rates.mma_flop).max(work.smem_bytes / rates.smem_bytes);
        let exp2 = of_warp(work.exp2, rates.exp2);
        let vector = (work.issued * SCHEDULERS / rates.issue)
            .max(of_warp(work.alu, rates.alu))
            .max(of_warp(work.fma, rates.fma));
        let round = round(work.streams, [products, exp2, vector]);
        let per_cycle = work.streams as f64 * work.flop / round;
        let cycles = f64::from(rates.multiprocessors) * rates.clock_ghz * 1e9;
        Prediction {
            streams: work.streams,
            rows: work.rows,
            block: work.block,
            products,
            exp2,
            vector,
            round,
            tflops: per_cycle * cycles / 1e12,
            clock_ghz: rates.clock_ghz,
        }
    }

    /// TFLOP/s of a self-attention over `s` keys as benchmarks count them: a causal one as half, although blocks on the
    /// diagonal are computed whole.
    pub fn tflops_at(&self, s: usize, causal: bool) -> f64 {
        let tile = self.rows * self.streams;
        let blocks = s.div_ceil(self.block);
        let visited: usize = (0..s.div_ceil(tile))
            .map(|at| match causal {
                true => blocks.min(((at + 1) * tile).div_ceil(self.block)),
                false => blocks,
            })
            .sum();
        let counted = (s * s) as f64 / if causal { 2.0 } else { 1.0 };
        self.tflops * counted / (visited * tile * self.block) as f64
    }
}

/// Mean-value analysis; see the head of this module.
fn round(streams: usize, demands: [f64; 3]) -> f64 {
    let mut queues = [0.0; 3];
    let mut total = 0.0;
    for n in 1..=streams {
        let times: [f64; 3] = std::array::from_fn(|i| demands[i] * (1.0 + queues[i]));
        total = times.iter().sum();
        queues = times.map(|time| n as f64 * time / total);
    }
    total
}

impl fmt::Display for Prediction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |name: &str, value: String| writeln!(f, "{name:<14}{value}");
        row(
            "PREDICTION",
            "a model of the interior; nothing below was measured".to_owned(),
        )?;
        row(
            "streams",
            format!(
                "{} of {} rows, blocks of {} keys",
                self.streams, self.rows, self.block
            ),
        )?;
        for (name, cycles) in [
            ("products", self.products),
            ("exp2", self.exp2),
            ("vector", self.vector),
        ] {
            row(name, format!("{cycles:.0} cycles a block of a stream"))?;
        }
        row(
            "round",
            format!("{:.0} cycles for a block of every stream", self.round),
        )?;
        row(
            "speed",
            format!(
                "{:.0} TFLOP/s at {} GHz, products {:.0} % busy",
                self.tflops,
                self.clock_ghz,
                100.0 * self.streams as f64 * self.products / self.round
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_stream_waits_for_every_station_and_many_for_the_slowest() {
        assert_eq!(round(0, [5.0, 3.0, 2.0]), 0.0);
        assert_eq!(round(1, [5.0, 3.0, 2.0]), 10.0);
        let many = 1000;
        let each = round(many, [5.0, 3.0, 2.0]) / many as f64;
        assert!((5.0..5.05).contains(&each), "{each}");
        // Two alike streams on two alike stations: each finds half a stream before it.
        assert_eq!(round(2, [4.0, 4.0, 0.0]), 12.0);
    }

    #[test]
    fn more_exponentials_a_cycle_never_slow_a_kernel_down() {
        let work = BlockWork {
            streams: 2,
            rows: 128,
            block: 128,
            flop: 8_388_608.0,
            as_sixteen_bit: 8_388_608.0,
            smem_bytes: 98304.0,
            issued: 500.0,
            exp2: 128.0,
            alu: 100.0,
            fma: 300.0,
        };
        let [b200, b300] = [Arch::Sm100a, Arch::Sm103a].map(|arch| {
            let rates = Rates::of(arch).unwrap();
            Prediction::new(&work, &rates)
        });
        assert_eq!((b200.products, b200.exp2), (1024.0, 1024.0));
        assert_eq!(b300.exp2, 512.0);
        assert!(b300.round < b200.round);
        let text = b200.to_string();
        assert!(text.starts_with("PREDICTION"), "{text}");
    }

    #[test]
    fn a_causal_tile_computes_its_diagonal_whole() {
        let prediction = Prediction {
            streams: 2,
            rows: 64,
            block: 128,
            products: 1.0,
            exp2: 1.0,
            vector: 1.0,
            round: 1.0,
            tflops: 100.0,
            clock_ghz: 1.0,
        };
        assert_eq!(prediction.tflops_at(1024, false), 100.0);
        // 8 tiles: 36 of 64 blocks where half are counted.
        assert_eq!(prediction.tflops_at(1024, true), 100.0 * 32.0 / 36.0);
    }
}
