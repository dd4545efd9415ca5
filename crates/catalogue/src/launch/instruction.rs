//! Single instructions.

use flashcube::{Error, Instruction, InstructionOperands, run_instruction};

use super::{Launched, Run, erase};
use crate::array::{Array, decode};
use crate::verdict::Outputs;

impl Run<'_> {
    /// All trials in one launch, shared out to the outputs in their order.
    pub(super) fn instruction(&self, instruction: Instruction) -> Result<Launched, Error> {
        let words = |name: &str| self.inputs.get(name).map(Array::words).unwrap_or_default();
        let c = self.inputs.values("c");
        let operands = InstructionOperands {
            a: words("a"),
            b: words("b"),
            c: &c,
        };
        let outputs = self.problem.outputs();
        let trials = outputs.iter().map(|(_, shape)| shape[0]).sum();
        let executed = run_instruction(self.client, instruction, operands, trials)?;
        let out = erase(&executed.out);
        let values = decode(out.dtype, &self.read(&out.handle)?);
        let mut rest = &values[..];
        let mut launched = Outputs::default();
        for (name, shape) in outputs {
            let (part, others) = rest.split_at(shape.iter().product());
            launched = launched.with(name, part.to_vec());
            rest = others;
        }
        Ok(Launched {
            outputs: launched,
            blueprint: executed.blueprint.map(|b| b.to_string()),
            attend: None,
            disturbed: None,
        })
    }
}
