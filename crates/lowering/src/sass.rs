//! Machine code as a list of instructions, and questions about it.

use std::{collections::BTreeMap, ops::RangeInclusive};

use crate::{LoweringError, error::Result};

/// One machine instruction, e.g. `@!P0 BRA 0x4d0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Byte address within the kernel.
    pub address: u64,
    /// The guard without its `@`, e.g. `!P0`.
    pub predicate: Option<String>,
    /// Mnemonic with modifiers, e.g. `LDG.E.128`.
    pub opcode: String,
    /// The rest of the line, e.g. `R4, desc[UR4][R2.64]`.
    pub operands: String,
}

impl Instruction {
    /// Mnemonic without modifiers, e.g. `LDG`.
    pub fn base(&self) -> &str {
        self.opcode
            .split_once('.')
            .map_or(&self.opcode, |(base, _)| base)
    }

    /// Whether the mnemonic is `pattern` or `pattern` followed by modifiers; `|` separates alternatives.
    ///
    /// `OMMA.SF` matches `OMMA.SF.16864.F32`, `FFMA` does not match `FFMA2`, `FFMA|FFMA2` matches both.
    pub fn is(&self, pattern: &str) -> bool {
        opcode_matches(&self.opcode, pattern)
    }

    /// Where a direct branch goes.
    pub(crate) fn branch_target(&self) -> Option<u64> {
        if self.base() != "BRA" {
            return None;
        }
        let target = self
            .operands
            .split([' ', ','])
            .find_map(|word| word.strip_prefix("0x"))?;
        u64::from_str_radix(target, 16).ok()
    }
}

/// See [`Instruction::is`].
pub(crate) fn opcode_matches(opcode: &str, pattern: &str) -> bool {
    pattern.split('|').any(|one| {
        opcode
            .strip_prefix(one)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

/// The machine code of one kernel, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sass {
    instructions: Vec<Instruction>,
}

impl Sass {
    /// Reads the output of `cuobjdump --dump-sass`. The padding behind the last instruction is dropped.
    ///
    /// # Errors
    /// [`LoweringError::Output`] when it lists no instruction.
    pub fn parse(listing: &str) -> Result<Self> {
        let mut instructions: Vec<Instruction> =
            listing.lines().filter_map(parse_instruction).collect();
        // A branch to itself, then NOPs up to the next multiple of the fetch size, close every function.
        while instructions.last().is_some_and(is_padding) {
            instructions.pop();
        }
        if instructions.is_empty() {
            return Err(LoweringError::Output {
                tool: "cuobjdump",
                reason: "the listing holds no instruction".to_owned(),
            });
        }
        Ok(Self { instructions })
    }

    /// Every instruction in order.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// How often each mnemonic occurs, modifiers included.
    pub fn counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for instruction in &self.instructions {
            *counts.entry(instruction.opcode.clone()).or_insert(0) += 1;
        }
        counts
    }

    /// How many instructions match `pattern`; see [`Instruction::is`].
    pub fn count(&self, pattern: &str) -> usize {
        self.instructions
            .iter()
            .filter(|instruction| instruction.is(pattern))
            .count()
    }

    /// The loops, each as the address range from the target of a backward branch to the branch; inner loops first when
    /// they end first.
    pub fn loops(&self) -> Vec<RangeInclusive<u64>> {
        self.instructions
            .iter()
            .filter_map(|instruction| {
                let target = instruction.branch_target()?;
                (target < instruction.address).then_some(target..=instruction.address)
            })
            .collect()
    }

    /// The instructions whose address lies in `range`.
    pub fn within(&self, range: &RangeInclusive<u64>) -> impl Iterator<Item = &Instruction> {
        let range = range.clone();
        self.instructions
            .iter()
            .filter(move |instruction| range.contains(&instruction.address))
    }
}

fn is_padding(instruction: &Instruction) -> bool {
    instruction.opcode == "NOP" || instruction.branch_target() == Some(instruction.address)
}

/// Reads `/*0080*/  @P0 LDG.E R31, desc[UR6][R2.64+0x20c] ;  /* 0x... */`; other lines give nothing.
fn parse_instruction(line: &str) -> Option<Instruction> {
    let (address, rest) = line.trim().strip_prefix("/*")?.split_once("*/")?;
    let address = u64::from_str_radix(address.trim(), 16).ok()?;
    // The second line of each pair holds only encoding bits: no text before the semicolon.
    let (text, _) = rest.split_once(';')?;
    let mut words = text.trim().splitn(2, char::is_whitespace);
    let mut opcode = words.next()?;
    let mut operands = words.next().unwrap_or("").trim();
    let mut predicate = None;
    if let Some(guard) = opcode.strip_prefix('@') {
        predicate = Some(guard.to_owned());
        (opcode, operands) = match operands.split_once(char::is_whitespace) {
            Some((opcode, operands)) => (opcode, operands.trim()),
            None => (operands, ""),
        };
    }
    Some(Instruction {
        address,
        predicate,
        opcode: opcode.to_owned(),
        operands: operands.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = "
	code for sm_90a
		Function : saxpy
	.headerflags	@\"EF_CUDA_SM90\"
        /*0000*/                   LDC R1, c[0x0][0x28] ;                     /* 0x00000a00ff017b82 */
                                                                              /* 0x000e300000000800 */
        /*0010*/                   FFMA R2, R3, R4, R5 ;                      /* 0x00008400ff027b82 */
        /*0020*/                   LDG.E.128 R4, desc[UR6][R2.64+0x20c] ;     /* 0x00020c06021f7981 */
        /*0030*/                   FFMA.FTZ R2, R3, R4, R5 ;                  /* 0x00008400ff027b82 */
        /*0040*/                   ISETP.NE.AND P0, PT, R2, RZ, PT ;          /* 0x00008400ff027b82 */
        /*0050*/              @!P0 BRA 0x20 ;                                 /* 0x00008400ff027b82 */
        /*0060*/               @P1 EXIT ;                                     /* 0x00008400ff027b82 */
        /*0070*/                   BRA 0x70;                                  /* 0xfffffffc00fc7947 */
        /*0080*/                   NOP;                                       /* 0x0000000000007918 */
		..........
";

    #[test]
    fn instructions_are_read_in_order_without_padding() {
        let sass = Sass::parse(LISTING).unwrap();
        let opcodes: Vec<_> = sass
            .instructions()
            .iter()
            .map(|i| i.opcode.as_str())
            .collect();
        assert_eq!(
            opcodes,
            [
                "LDC",
                "FFMA",
                "LDG.E.128",
                "FFMA.FTZ",
                "ISETP.NE.AND",
                "BRA",
                "EXIT"
            ]
        );
        assert_eq!(
            sass.instructions()[2].operands,
            "R4, desc[UR6][R2.64+0x20c]"
        );
        assert_eq!(sass.instructions()[5].predicate.as_deref(), Some("!P0"));
        assert_eq!(sass.instructions()[6].predicate.as_deref(), Some("P1"));
    }

    #[test]
    fn counts_tell_modifiers_apart_and_patterns_join_them() {
        let sass = Sass::parse(LISTING).unwrap();
        assert_eq!(sass.counts()["FFMA"], 1);
        assert_eq!(sass.counts()["FFMA.FTZ"], 1);
        assert_eq!(sass.count("FFMA"), 2);
        assert_eq!(sass.count("LDG.E"), 1);
        assert_eq!(sass.count("LD"), 0);
        assert_eq!(sass.count("LDC|LDG"), 2);
        assert_eq!(sass.instructions()[2].base(), "LDG");
    }

    #[test]
    fn loops_are_found_and_hold_what_lies_between() {
        let sass = Sass::parse(LISTING).unwrap();
        assert_eq!(sass.loops(), [0x20..=0x50]);
        let inside: Vec<_> = sass.within(&sass.loops()[0]).map(|i| i.base()).collect();
        assert_eq!(inside, ["LDG", "FFMA", "ISETP", "BRA"]);
    }

    #[test]
    fn empty_listing_is_an_error() {
        assert!(Sass::parse("\n\tcode for sm_90a\n").is_err());
    }
}
