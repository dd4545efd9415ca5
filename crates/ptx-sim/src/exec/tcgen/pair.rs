//! `cta_group::2`: two cubes whose ranks in the cluster differ in the last bit.

use std::ops::Range;

use super::super::machine::Machine;
use crate::check::Fault;

/// What both cubes of a pair must call, in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum PairCall {
    Alloc { first: u32, columns: u32 },
    Dealloc { first: u32, columns: u32 },
    Relinquish,
}

/// Ranks of the cubes that an instruction of `cube` works for.
pub(super) fn cubes_of(cube: usize, pair: bool) -> Range<usize> {
    if pair {
        cube & !1..(cube & !1) + 2
    } else {
        cube..cube + 1
    }
}

impl Machine<'_> {
    /// The other cube of the pair.
    pub(super) fn peer(&self, cube: usize) -> Result<usize, Fault> {
        let peer = cube ^ 1;
        if peer < self.cubes.len() {
            return Ok(peer);
        }
        Err(Fault::TensorMemory {
            problem: format!(
                "cta_group::2 in cube {cube} of a cluster of {}: it has no peer",
                self.cubes.len()
            ),
        })
    }

    /// Notes a call; the peer's call in the same place must be the same one. On a card each waits for the other, which
    /// orders nothing that a kernel may rely on.
    pub(super) fn pair_call(&mut self, cube: usize, call: PairCall) -> Result<(), Fault> {
        let peer = self.peer(cube)?;
        let place = self.cubes[cube].pair_calls.len();
        if let Some(&other) = self.cubes[peer].pair_calls.get(place)
            && other != call
        {
            return Err(Fault::TensorMemory {
                problem: format!("{call:?} where the other cube of the pair calls {other:?}"),
            });
        }
        self.cubes[cube].pair_calls.push(call);
        Ok(())
    }

    /// Calls that the other cube of a pair never made.
    pub(in super::super) fn lonely_call(&self) -> Option<String> {
        self.cubes.chunks(2).find_map(|pair| {
            let [even, odd] = pair else { return None };
            let (a, b) = (even.pair_calls.len(), odd.pair_calls.len());
            let longer = if a > b { even } else { odd };
            let call = longer.pair_calls.get(a.min(b))?;
            Some(format!("one cube of a pair alone calls {call:?}"))
        })
    }

    /// What a warp's tcgen05 operation uses of another cube lasts until that cube's threads have exited.
    pub(super) fn alive(&self, index: usize, cube: usize) -> Result<(), Fault> {
        let warps = self.cubes[cube].warps.clone();
        if cube == self.warps[index].cube || self.warps[warps].iter().any(|warp| warp.live != 0) {
            return Ok(());
        }
        Err(Fault::TensorMemory {
            problem: format!("a tcgen05 operation uses cube {cube} of the cluster after its exit"),
        })
    }
}
