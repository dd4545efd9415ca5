//! Which columns of tensor memory hold what, as data.

use core::fmt;

/// Columns of a multiprocessor's tensor memory: 128 lanes of 32 bits each [PTX 9.7.17.1].
pub const TENSOR_COLUMNS: u32 = 512;

/// What lies in tensor memory.
#[derive(Debug, Hash, PartialEq, Eq, Clone, Copy)]
pub struct TensorPlan {
    /// Query stages, 128 rows each: a lane a row.
    pub q_stages: u32,
    /// Keys of a block: columns of S, one f32 each.
    pub block: u32,
    /// Columns of O, one f32 each.
    pub width: u32,
    /// Bits of a weight of P: 16, 8 of E4M3, 4 of E2M1.
    pub weight_bits: u32,
    /// Columns of the scale factors of Q, and of those of K: 0 where operands are 16-bit.
    pub score_scales: u32,
    /// Columns of the scale factors of P: 0 where operands are 16-bit.
    pub weight_scales: u32,
    /// Columns of the scale factors of V: 0 where operands are 16-bit.
    pub value_scales: u32,
}

/// Columns of the scale factors of 128 rows: a lane and a column for each row's word of four [PTX 9.7.17.10.7].
pub const SCALE_COLUMNS: u32 = 4;

/// A range of columns with a name.
#[derive(Debug, PartialEq, Eq, Clone)]
pub struct TensorRegion {
    /// S, P or O with the number of its query stage.
    pub name: String,
    /// First column.
    pub first: u32,
    /// One past the last column.
    pub end: u32,
    /// Region in whose columns this one lies.
    pub over: Option<String>,
}

impl TensorPlan {
    /// First column of S of a query stage.
    pub fn scores(self, stage: u32) -> u32 {
        stage * self.block
    }
    /// Columns of P, as many weights in each as fit.
    pub fn probs(self) -> u32 {
        self.block * self.weight_bits / 32
    }
    /// From S to the P that takes its place: the upper end of S, which has been read by then.
    pub fn probs_offset(self) -> u32 {
        self.block - self.probs()
    }
    /// First column of the scale factors of P of a query stage, those of V behind them: they take the place of the lower
    /// end of S, as does P of the upper one.
    pub fn prob_scales(self, stage: u32) -> u32 {
        self.scores(stage)
    }
    /// First column of the scale factors of V for a query stage.
    pub fn value_scales(self, stage: u32) -> u32 {
        self.prob_scales(stage) + self.weight_scales
    }
    /// First column of the scale factors of Q of a query stage, those of K behind them. They are read while S is written,
    /// so that no S has room for them.
    pub fn query_scales(self, stage: u32) -> u32 {
        self.q_stages * (self.block + self.width) + stage * 2 * self.score_scales
    }
    /// First column of O of a query stage.
    pub fn acc(self, stage: u32) -> u32 {
        self.q_stages * self.block + stage * self.width
    }
    /// Columns in use.
    pub fn used(self) -> u32 {
        self.q_stages * (self.block + self.width + 2 * self.score_scales)
    }
    /// Columns to allocate: a power of two, at least 32.
    pub fn allocated(self) -> u32 {
        self.used().next_power_of_two().max(32)
    }
    /// Every region.
    pub fn regions(self) -> Vec<TensorRegion> {
        let region = |name: String, first, columns, over| TensorRegion {
            name,
            first,
            end: first + columns,
            over,
        };
        let of_stage = |s: u32| {
            let probs = self.scores(s) + self.probs_offset();
            let over = Some(format!("S{s}"));
            let (values, queries) = (self.value_scales(s), self.query_scales(s));
            let keys = queries + self.score_scales;
            [
                region(format!("S{s}"), self.scores(s), self.block, None),
                region(format!("P{s}"), probs, self.probs(), over.clone()),
                region(
                    format!("scales of P{s}"),
                    self.prob_scales(s),
                    self.weight_scales,
                    over.clone(),
                ),
                region(format!("scales of V{s}"), values, self.value_scales, over),
                region(format!("O{s}"), self.acc(s), self.width, None),
                region(format!("scales of Q{s}"), queries, self.score_scales, None),
                region(format!("scales of K{s}"), keys, self.score_scales, None),
            ]
        };
        let all = (0..self.q_stages).flat_map(of_stage);
        all.filter(|region| region.first < region.end).collect()
    }
}

impl fmt::Display for TensorPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for region in self.regions() {
            write!(f, "{} {}..{}", region.name, region.first, region.end)?;
            match region.over {
                Some(over) => writeln!(f, " over {over}")?,
                None => writeln!(f)?,
            }
        }
        write!(f, "{} of {} columns in use", self.used(), self.allocated())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const D128: TensorPlan = TensorPlan {
        q_stages: 2,
        block: 128,
        width: 128,
        weight_bits: 16,
        score_scales: 0,
        weight_scales: 0,
        value_scales: 0,
    };
    /// NVFP4 scores of d 128, E4M3 weights and values.
    const SCALED: TensorPlan = TensorPlan {
        block: 64,
        weight_bits: 8,
        score_scales: 8,
        weight_scales: 4,
        value_scales: 4,
        ..D128
    };
    /// NVFP4 throughout, d 128 and d_v 64.
    const FOUR_BITS: TensorPlan = TensorPlan {
        width: 64,
        weight_bits: 4,
        score_scales: 8,
        weight_scales: 8,
        value_scales: 8,
        ..D128
    };

    #[test]
    fn d128_fills_tensor_memory() {
        assert_eq!(D128.used(), TENSOR_COLUMNS);
        assert_eq!(
            D128.to_string(),
            "S0 0..128\nP0 64..128 over S0\nO0 256..384\nS1 128..256\nP1 192..256 over S1\n\
             O1 384..512\n512 of 512 columns in use"
        );
    }

    #[test]
    fn scale_factors_of_values_lie_over_scores_and_those_of_scores_do_not() {
        assert_eq!(
            SCALED.to_string(),
            "S0 0..64\nP0 48..64 over S0\nscales of P0 0..4 over S0\nscales of V0 4..8 over S0\n\
             O0 128..256\nscales of Q0 384..392\nscales of K0 392..400\n\
             S1 64..128\nP1 112..128 over S1\nscales of P1 64..68 over S1\n\
             scales of V1 68..72 over S1\nO1 256..384\nscales of Q1 400..408\n\
             scales of K1 408..416\n416 of 512 columns in use"
        );
        // P in four bits, with two tiles of scale factors of its own and two of V's.
        assert_eq!(
            FOUR_BITS.to_string(),
            "S0 0..128\nP0 112..128 over S0\nscales of P0 0..8 over S0\nscales of V0 8..16 over S0\n\
             O0 256..320\nscales of Q0 384..392\nscales of K0 392..400\n\
             S1 128..256\nP1 240..256 over S1\nscales of P1 128..136 over S1\n\
             scales of V1 136..144 over S1\nO1 320..384\nscales of Q1 400..408\n\
             scales of K1 408..416\n416 of 512 columns in use"
        );
        // Blocks of 128 keys have no room for them where both outputs are 128 wide.
        let longer = TensorPlan {
            block: 128,
            ..SCALED
        };
        assert!(longer.used() > TENSOR_COLUMNS);
    }

    #[test]
    fn regions_overlap_only_where_they_say_so() {
        for like in [D128, SCALED, FOUR_BITS] {
            for (q_stages, block) in [(1, 64), (1, 128), (2, 32), (2, 64), (2, 128)] {
                for width in [16, 48, 64, 128] {
                    let plan = TensorPlan {
                        q_stages,
                        block,
                        width,
                        ..like
                    };
                    let all = plan.regions();
                    for (i, a) in all.iter().enumerate() {
                        assert!(a.first < a.end && a.end <= plan.allocated(), "{a:?}");
                        for b in &all[i + 1..] {
                            let apart = a.end <= b.first || b.end <= a.first;
                            let known = b.over.as_ref() == Some(&a.name);
                            assert!(apart != known, "{a:?} {b:?}");
                        }
                    }
                }
            }
        }
    }
}
