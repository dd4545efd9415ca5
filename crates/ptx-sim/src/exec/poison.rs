//! Values that nobody wrote. Compilers load ahead of the branch, or compute beside the selection, that decides
//! whether a value counts: so what arithmetic makes of nothing is nothing again, and only what
//! decides a branch, makes an address, leaves for memory or enters a matrix product is a fault.

use super::warp::{Warp, lanes};
use crate::check::Fault;
use crate::decode::{Alu, Kind, Op, Src, zero_extend};
use crate::kernel::Uses;

impl Warp {
    /// The lanes may execute `op`; the results of those that have nothing to go by are poisoned.
    pub(super) fn admit(
        &mut self,
        op: &Op,
        uses: &Uses,
        active: u32,
        names: &[String],
    ) -> Result<(), Fault> {
        let missing = uses.reads.iter().fold(0, |missing, &register| {
            missing | active & !self.written(register)
        });
        let pure = matches!(
            op,
            Op::Alu { .. } | Op::Compare { .. } | Op::Pack { .. } | Op::Unpack { .. }
        );
        if missing == 0 || !pure {
            return self.readable(&uses.reads, active, names);
        }
        self.readable(&uses.reads, active & !missing, names)?;
        for lane in lanes(missing) {
            if !self.decided(op, lane) {
                for &register in &uses.writes {
                    self.poison(register, lane);
                }
            }
        }
        Ok(())
    }

    /// Whether what was written decides the result alone.
    fn decided(&self, op: &Op, lane: usize) -> bool {
        let Op::Alu {
            alu: Alu { kind, ty, .. },
            srcs,
            ..
        } = op
        else {
            return false;
        };
        let value = |src: Src| {
            self.known(src, lane)
                .map(|value| zero_extend(value, ty.bits()))
        };
        let [a, b, by, _] = *srcs;
        match kind {
            Kind::Select => match self.known(by, lane) {
                Some(by) => value(if by & 1 == 1 { a } else { b }).is_some(),
                None => false,
            },
            Kind::And => [a, b].into_iter().any(|src| value(src) == Some(0)),
            Kind::Or => {
                let ones = zero_extend(u64::MAX, ty.bits());
                [a, b].into_iter().any(|src| value(src) == Some(ones))
            }
            _ => false,
        }
    }

    fn known(&self, src: Src, lane: usize) -> Option<u64> {
        match src {
            Src::Reg(register) | Src::Not(register) => {
                (self.written(register) >> lane & 1 == 1).then(|| self.get(src, lane, 0))
            }
            Src::Imm(_) | Src::Shared(_) => Some(self.get(src, lane, 0)),
        }
    }
}
