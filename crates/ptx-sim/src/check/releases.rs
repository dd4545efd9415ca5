//! Which lanes of a warp stand behind what the warp makes known.
//!
//! A clock's component is a warp, but an arrival is one lane's: it makes known what that lane did, and what
//! other lanes did only if the warp has synchronised in between.

/// What each warp of the cluster has made known: (time, lanes), times rising.
#[derive(Debug)]
pub(super) struct Releases {
    of: Vec<Vec<(u32, u32)>>,
}

impl Releases {
    pub(super) fn new(warps: usize) -> Self {
        Self {
            of: vec![Vec::new(); warps],
        }
    }

    /// `lanes` of `warp` make known what they did up to `time`.
    pub(super) fn add(&mut self, warp: usize, time: u32, lanes: u32) {
        self.of[warp].push((time, lanes));
    }

    /// Whether each of `lanes` that acted at `from` took part in what `warp` made known up to `to`. What became
    /// known without a release (the end of an asynchronous operation) stands for all lanes.
    pub(super) fn cover(&self, warp: usize, from: u32, to: u32, lanes: u32) -> bool {
        let Some(all) = self.of.get(warp) else {
            return true;
        };
        let first = all.partition_point(|&(time, _)| time < from);
        let mut missing = lanes;
        let mut any = false;
        for &(_, part) in all[first..].iter().take_while(|&&(time, _)| time <= to) {
            any = true;
            missing &= !part;
            if missing == 0 {
                return true;
            }
        }
        !any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_speaks_for_itself_until_the_warp_synchronises() {
        let mut releases = Releases::new(2);
        releases.add(0, 3, 1);
        assert!(releases.cover(0, 3, 3, 0b1));
        assert!(!releases.cover(0, 3, 3, 0b10));
        assert!(releases.cover(0, 4, 9, 0b10), "nothing was released since");
        releases.add(0, 4, u32::MAX);
        assert!(releases.cover(0, 3, 4, 0b10));
        assert!(!releases.cover(0, 3, 3, 0b10), "before it synchronised");
        assert!(releases.cover(7, 1, 1, 0b10), "an mbarrier has no lanes");
    }
}
