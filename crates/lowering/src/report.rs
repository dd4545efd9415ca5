//! What a kernel costs on one architecture, and whether that is acceptable.

use std::{collections::BTreeMap, fmt};

use serde::Serialize;

use crate::{Arch, Resources, Sass, sass::opcode_matches};

/// Resources, warnings and instruction counts of one kernel on one architecture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The kernel's name.
    pub kernel: String,
    /// The architecture assembled for.
    pub arch: Arch,
    /// Registers per unit.
    pub registers: usize,
    /// Named barriers.
    pub barriers: usize,
    /// Local memory on the stack per unit.
    pub stack_bytes: usize,
    /// Spilled registers, bytes written.
    pub spill_store_bytes: usize,
    /// Spilled registers, bytes read.
    pub spill_load_bytes: usize,
    /// Shared memory per cube, static and dynamic.
    pub smem_bytes: usize,
    /// Warnings of ptxas, performance warnings left out.
    pub warnings: Vec<String>,
    /// Warnings C75xx of ptxas: something was serialised.
    pub performance_warnings: Vec<String>,
    /// Machine instructions, mnemonic with modifiers to count.
    pub instructions: BTreeMap<String, usize>,
}

/// What a report must fulfil. The default asks for nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Expect<'a> {
    /// No register may be spilled.
    pub no_spill: bool,
    /// No local memory on the stack.
    pub no_stack: bool,
    /// No warning C75xx, but for an ignored setmaxnreg (C7508) in a kernel that spills nothing.
    pub no_performance_warning: bool,
    /// Instructions that must occur, in the notation of [`crate::Instruction::is`].
    pub required: &'a [&'a str],
}

impl Expect<'_> {
    /// For kernels that live on registers: no spill, no stack frame, no performance warning.
    pub const CLEAN: Expect<'static> = Expect {
        no_spill: true,
        no_stack: true,
        no_performance_warning: true,
        required: &[],
    };
}

/// One way in which a report falls short of an [`Expect`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Registers were spilled.
    #[error("spills {stores} bytes and loads {loads} bytes back, expected none")]
    Spill {
        /// Bytes written.
        stores: usize,
        /// Bytes read.
        loads: usize,
    },
    /// There is a stack frame.
    #[error("stack frame of {bytes} bytes, expected none")]
    Stack {
        /// Its size.
        bytes: usize,
    },
    /// ptxas warned of a loss of speed.
    #[error("performance warning: {text}")]
    Performance {
        /// The warning.
        text: String,
    },
    /// A required instruction does not occur.
    #[error("no {pattern} among the {distinct} distinct instructions")]
    Missing {
        /// What was looked for.
        pattern: String,
        /// How many mnemonics there are.
        distinct: usize,
    },
}

impl Report {
    pub(crate) fn new(
        kernel: &str,
        arch: Arch,
        dynamic_smem_bytes: usize,
        resources: Resources,
        sass: &Sass,
    ) -> Self {
        Self {
            kernel: kernel.to_owned(),
            arch,
            registers: resources.registers,
            barriers: resources.barriers,
            stack_bytes: resources.stack_bytes,
            spill_store_bytes: resources.spill_store_bytes,
            spill_load_bytes: resources.spill_load_bytes,
            smem_bytes: resources.static_smem_bytes + dynamic_smem_bytes,
            warnings: resources.warnings,
            performance_warnings: resources.performance_warnings,
            instructions: sass.counts(),
        }
    }

    /// How many instructions match `pattern`; notation of [`crate::Instruction::is`].
    pub fn count(&self, pattern: &str) -> usize {
        self.instructions
            .iter()
            .filter(|(opcode, _)| opcode_matches(opcode, pattern))
            .map(|(_, count)| count)
            .sum()
    }

    /// Compares with what is expected.
    ///
    /// # Errors
    /// Every violation, not just the first.
    pub fn check(&self, expect: &Expect<'_>) -> Result<(), Vec<Violation>> {
        let mut violations = Vec::new();
        if expect.no_spill && self.spill_store_bytes + self.spill_load_bytes > 0 {
            violations.push(Violation::Spill {
                stores: self.spill_store_bytes,
                loads: self.spill_load_bytes,
            });
        }
        if expect.no_stack && self.stack_bytes > 0 {
            violations.push(Violation::Stack {
                bytes: self.stack_bytes,
            });
        }
        if expect.no_performance_warning {
            // C7508: ptxas ignores setmaxnreg since the kernel makes do with the registers that a
            // cube starts with. It costs something only where registers are spilled.
            let spills = self.spill_store_bytes + self.spill_load_bytes > 0;
            let harmless = |text: &String| text.contains("C7508") && !spills;
            let warnings = self.performance_warnings.iter();
            let texts = warnings.filter(|text| !harmless(text)).cloned();
            violations.extend(texts.map(|text| Violation::Performance { text }));
        }
        for pattern in expect.required {
            if self.count(pattern) == 0 {
                violations.push(Violation::Missing {
                    pattern: (*pattern).to_owned(),
                    distinct: self.instructions.len(),
                });
            }
        }
        if violations.is_empty() {
            Ok(())
        } else {
            Err(violations)
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |name: &str, value: String| writeln!(f, "{name:<14}{value}");
        row("kernel", self.kernel.clone())?;
        row("arch", self.arch.to_string())?;
        row("registers", self.registers.to_string())?;
        row("barriers", self.barriers.to_string())?;
        row("stack", format!("{} B", self.stack_bytes))?;
        row(
            "spills",
            format!(
                "{} B stored, {} B loaded",
                self.spill_store_bytes, self.spill_load_bytes
            ),
        )?;
        row("shared", format!("{} B", self.smem_bytes))?;
        for (name, lines) in [
            ("warnings", &self.warnings),
            ("performance", &self.performance_warnings),
        ] {
            if lines.is_empty() {
                row(name, "none".to_owned())?;
            }
            for (i, line) in lines.iter().enumerate() {
                row(if i == 0 { name } else { "" }, line.clone())?;
            }
        }
        let total: usize = self.instructions.values().sum();
        row("instructions", total.to_string())?;
        let mut ordered: Vec<_> = self.instructions.iter().collect();
        ordered.sort_by_key(|(opcode, count)| (std::cmp::Reverse(**count), *opcode));
        for (opcode, count) in ordered {
            row("", format!("{count:>6}  {opcode}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            kernel: "saxpy".to_owned(),
            arch: Arch::Sm90a,
            registers: 40,
            barriers: 1,
            stack_bytes: 0,
            spill_store_bytes: 0,
            spill_load_bytes: 0,
            smem_bytes: 256,
            warnings: Vec::new(),
            performance_warnings: Vec::new(),
            instructions: BTreeMap::from([("FFMA.FTZ".to_owned(), 3), ("EXIT".to_owned(), 1)]),
        }
    }

    #[test]
    fn clean_report_passes() {
        let expect = Expect {
            required: &["FFMA", "HFMA2|EXIT"],
            ..Expect::CLEAN
        };
        assert_eq!(report().check(&expect), Ok(()));
    }

    #[test]
    fn every_violation_is_listed() {
        let bad = Report {
            stack_bytes: 16,
            spill_store_bytes: 8,
            performance_warnings: vec!["(C7510) serialized".to_owned()],
            ..report()
        };
        let expect = Expect {
            required: &["HGMMA"],
            ..Expect::CLEAN
        };
        let violations = bad.check(&expect).unwrap_err();
        assert_eq!(violations.len(), 4, "{violations:?}");
        assert!(violations[0].to_string().contains("8 bytes"));
        assert!(violations[1].to_string().contains("16 bytes"));
        assert!(violations[2].to_string().contains("C7510"));
        assert!(violations[3].to_string().contains("HGMMA"));
        assert_eq!(bad.check(&Expect::default()), Ok(()));
    }

    #[test]
    fn an_ignored_setmaxnreg_costs_only_where_registers_spill() {
        let ignored = Report {
            performance_warnings: vec!["(C7508) 'setmaxnreg' ignored".to_owned()],
            ..report()
        };
        let expect = Expect {
            no_performance_warning: true,
            ..Expect::default()
        };
        assert_eq!(ignored.check(&expect), Ok(()));
        let spilling = Report {
            spill_load_bytes: 8,
            ..ignored
        };
        assert!(spilling.check(&expect).is_err());
    }

    #[test]
    fn table_lists_the_most_frequent_instruction_first() {
        let text = report().to_string();
        assert!(text.contains("registers     40\n"), "{text}");
        assert!(text.find("FFMA.FTZ").unwrap() < text.find("EXIT").unwrap());
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(json["arch"], "sm_90a");
        assert_eq!(json["instructions"]["FFMA.FTZ"], 3);
    }
}
