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
}

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
    /// From S to the P that takes its place: two 16-bit weights a column, in the upper half of S,
    /// which has been read by then.
    pub fn probs_offset(self) -> u32 {
        self.block / 2
    }
    /// First column of O of a query stage.
    pub fn acc(self, stage: u32) -> u32 {
        self.q_stages * self.block + stage * self.width
    }
    /// Columns in use.
    pub fn used(self) -> u32 {
        self.q_stages * (self.block + self.width)
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
            [
                region(format!("S{s}"), self.scores(s), self.block, None),
                region(
                    format!("P{s}"),
                    probs,
                    self.block / 2,
                    Some(format!("S{s}")),
                ),
                region(format!("O{s}"), self.acc(s), self.width, None),
            ]
        };
        (0..self.q_stages).flat_map(of_stage).collect()
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
    fn regions_overlap_only_where_they_say_so() {
        for q_stages in [1, 2] {
            for block in [32, 64, 128] {
                for width in [16, 48, 64, 128] {
                    let plan = TensorPlan {
                        q_stages,
                        block,
                        width,
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
