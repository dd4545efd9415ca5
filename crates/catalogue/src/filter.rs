//! Which problems of the catalogue to run.

use std::fmt;
use std::str::FromStr;

use flashcube::DType;

use crate::catalogue::problems;
use crate::problem::{Kernel, Problem};

/// Which problems to run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Filter {
    /// Of this kernel only.
    pub kernel: Option<Kernel>,
    /// Of this dtype only.
    pub dtype: Option<DType>,
    /// Whose name contains this.
    pub name: Option<String>,
    /// The reduced set only.
    pub core: bool,
    /// Of what all of this leaves, one stretch.
    pub shard: Option<Shard>,
}

/// One of `count` stretches of equal length that the problems are cut into, so that as many processes can
/// share them out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// Which one, from 1 to `count`.
    pub index: usize,
    /// How many there are.
    pub count: usize,
}

impl FromStr for Shard {
    type Err = InvalidShard;

    /// Reads `index/count`, as in `3/16`.
    fn from_str(text: &str) -> Result<Self, InvalidShard> {
        let parts = text.split_once('/').and_then(|(index, count)| {
            let (index, count) = (index.parse().ok()?, count.parse().ok()?);
            (1..=count)
                .contains(&index)
                .then_some(Self { index, count })
        });
        parts.ok_or_else(|| InvalidShard(text.into()))
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl Shard {
    fn of<T>(self, mut all: Vec<T>) -> Vec<T> {
        let start = |index: usize| index * all.len() / self.count;
        let (from, to) = (start(self.index - 1), start(self.index));
        all.truncate(to);
        all.split_off(from)
    }
}

/// A shard that is not `index/count` with 1 <= index <= count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no shard: write I/N with I from 1 to N, as in 3/16")]
pub struct InvalidShard(String);

impl Filter {
    /// Whether `problem` is wanted, its shard aside.
    pub fn takes(&self, problem: &Problem) -> bool {
        self.kernel.is_none_or(|k| k == problem.kernel())
            && self.dtype.is_none_or(|d| d == problem.dtype)
            && self
                .name
                .as_ref()
                .is_none_or(|n| problem.name.contains(n.as_str()))
            && (problem.core || !self.core)
    }

    /// The problems of the catalogue that are wanted, in its order.
    pub fn problems(&self) -> Vec<Problem> {
        let all = problems().into_iter().filter(|p| self.takes(p)).collect();
        match self.shard {
            Some(shard) => shard.of(all),
            None => all,
        }
    }

    /// Whether it may take some problems of a feature and leave others.
    pub(crate) fn narrows(&self) -> bool {
        self.name.is_some() || self.core || self.shard.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_share_out_every_problem_once() {
        let all = Filter::default().problems();
        let shard = |index| Filter {
            shard: Some(Shard { index, count: 7 }),
            ..Filter::default()
        };
        let shards: Vec<_> = (1..=7).flat_map(|i| shard(i).problems()).collect();
        assert_eq!(shards, all);
    }

    #[test]
    fn more_shards_than_problems_leave_some_empty() {
        let of = |index| Shard { index, count: 5 }.of(vec![1, 2]);
        let shards: Vec<_> = (1..=5).map(of).collect();
        assert_eq!(shards.concat(), [1, 2]);
    }

    #[test]
    fn what_is_no_shard_is_refused() {
        for text in ["0/4", "5/4", "1/0", "3", "a/b", "-1/2", ""] {
            assert_eq!(text.parse::<Shard>(), Err(InvalidShard(text.into())));
        }
        assert_eq!("4/4".parse::<Shard>().unwrap().to_string(), "4/4");
    }
}
