//! Instructions in which lanes of a warp exchange values.

use super::machine::Machine;
use super::memory::combine;
use super::step::Flow;
use super::warp::{Warp, lanes};
use crate::check::Fault;
use crate::decode::{Op, Shuffle, Src, Ty, Vote};

impl Machine<'_> {
    pub(super) fn lane_op(
        &mut self,
        warp: &mut Warp,
        active: u32,
        group: u32,
        op: &Op,
    ) -> Result<Flow, Fault> {
        let (Op::Shuffle { members, .. }
        | Op::Vote { members, .. }
        | Op::Match { members, .. }
        | Op::Redux { members, .. }
        | Op::Elect { members, .. }
        | Op::WarpSync { members }) = op
        else {
            return Ok(Flow::Next);
        };
        let mask = self.uniform(warp, active, *members)? as u32;
        let mask = mask & warp.exists;
        if let Some(wait) = self.members(warp, active, group, mask)? {
            return Ok(Flow::Wait(wait));
        }
        if active & !mask != 0 {
            return Err(Fault::Divergent {
                missing: active & !mask,
                why: "they execute the instruction without being in its mask",
            });
        }
        let base = self.base(warp.cube);
        let values = |warp: &Warp, src: Src| -> [u64; 32] {
            let mut all = [0; 32];
            for lane in lanes(active) {
                all[lane] = warp.get(src, lane, base);
            }
            all
        };
        match op {
            Op::Shuffle { .. } => shuffle(warp, active, base, op)?,
            Op::Vote {
                kind, dst, value, ..
            } => {
                let all = values(warp, *value);
                let ballot = lanes(active)
                    .filter(|&lane| all[lane] & 1 == 1)
                    .fold(0u32, |mask, lane| mask | 1 << lane);
                let result = match kind {
                    Vote::All => u64::from(ballot == active),
                    Vote::Any => u64::from(ballot != 0),
                    Vote::Uniform => u64::from(ballot == active || ballot == 0),
                    Vote::Ballot => u64::from(ballot),
                };
                for lane in lanes(active) {
                    warp.set(*dst, lane, result);
                }
            }
            Op::Match {
                all: every,
                bits,
                dst,
                pred,
                value,
                ..
            } => {
                let all = values(warp, *value).map(|v| crate::decode::zero_extend(v, *bits));
                for lane in lanes(active) {
                    let same = lanes(active)
                        .filter(|&other| all[other] == all[lane])
                        .fold(0u32, |mask, other| mask | 1 << other);
                    let agreed = same == active;
                    let result = if *every && !agreed { 0 } else { same };
                    warp.set(*dst, lane, u64::from(result));
                    if let Some(pred) = pred {
                        warp.set(*pred, lane, u64::from(agreed));
                    }
                }
            }
            Op::Redux {
                op,
                signed,
                dst,
                value,
                ..
            } => {
                let ty = if *signed { Ty::S(32) } else { Ty::U(32) };
                let all = values(warp, *value);
                let mut each = lanes(active).map(|lane| all[lane]);
                let first = each.next().unwrap_or(0);
                let result = each.fold(first, |sum, v| combine(*op, ty, sum, v, 0));
                for lane in lanes(active) {
                    warp.set(*dst, lane, result);
                }
            }
            Op::Elect { lane, pred, .. } => {
                // Any lane may be elected; the lowest one is what hardware takes.
                let leader = active.trailing_zeros();
                for each in lanes(active) {
                    warp.set(*pred, each, u64::from(each as u32 == leader));
                    if let Some(dst) = lane {
                        warp.set(*dst, each, u64::from(leader));
                    }
                }
            }
            // bar.warp.sync: from now on each lane speaks for the others.
            _ => {
                warp.synced += 1;
                self.release(warp, active);
            }
        }
        Ok(Flow::Next)
    }
}

fn shuffle(warp: &mut Warp, active: u32, base: u32, op: &Op) -> Result<(), Fault> {
    let Op::Shuffle {
        kind,
        dst,
        valid,
        value,
        lane: by,
        clamp,
        ..
    } = op
    else {
        return Ok(());
    };
    let mut all = [0; 32];
    for lane in lanes(active) {
        all[lane] = warp.get(*value, lane, base);
    }
    for lane in lanes(active) {
        let b = warp.get(*by, lane, base) as usize & 31;
        let c = warp.get(*clamp, lane, base) as usize;
        let (limit, segment) = (c & 31, c >> 8 & 31);
        let max = (lane & segment) | (limit & !segment & 31);
        let min = lane & segment;
        let (from, inside) = match kind {
            Shuffle::Up => (
                lane.wrapping_sub(b),
                lane as isize - b as isize >= max as isize,
            ),
            Shuffle::Down => (lane + b, lane + b <= max),
            Shuffle::Butterfly => (lane ^ b, (lane ^ b) <= max),
            Shuffle::Index => {
                let from = min | (b & !segment & 31);
                (from, from <= max)
            }
        };
        let from = if inside { from } else { lane };
        if active >> from & 1 == 0 {
            return Err(Fault::Divergent {
                missing: 1 << from,
                why: "a lane outside the mask is read",
            });
        }
        warp.set(*dst, lane, all[from]);
        if let Some(valid) = valid {
            warp.set(*valid, lane, u64::from(inside));
        }
    }
    Ok(())
}
