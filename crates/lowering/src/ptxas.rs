//! PTX to machine code: ptxas, what it reports, and the listing of the result.

use std::{fs, process::Output};

use serde::{Deserialize, Serialize};

use crate::{Arch, LoweringError, Toolkit, error::Result};

/// What ptxas and cuobjdump print about one kernel, as they print it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assembly {
    /// Output of `ptxas -v`.
    pub log: String,
    /// Output of `cuobjdump --dump-sass`.
    pub sass: String,
}

/// Resources of one kernel, read from `ptxas -v`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Registers per unit.
    pub registers: usize,
    /// Named barriers.
    pub barriers: usize,
    /// Bytes of local memory the kernel and what it calls keep on the stack.
    pub stack_bytes: usize,
    /// Bytes of registers written to local memory for want of registers.
    pub spill_store_bytes: usize,
    /// Bytes of registers read back.
    pub spill_load_bytes: usize,
    /// Statically allocated shared memory.
    pub static_smem_bytes: usize,
    /// Every warning, one a line, performance warnings left out.
    pub warnings: Vec<String>,
    /// Warnings C75xx ("Potential Performance Loss"), e.g. that wgmma was serialised. ptxas files them under `info`.
    pub performance_warnings: Vec<String>,
}

/// Options that decide the machine code.
pub(crate) fn options(arch: Arch) -> Vec<String> {
    vec!["-v".to_owned(), format!("-arch={arch}")]
}

/// Assembles `ptx` for `arch` and lists the machine code.
///
/// # Errors
/// [`LoweringError::Ptx`] with ptxas' output when the PTX is refused, [`LoweringError::Tool`] when a program cannot be
/// run or a temporary file cannot be written.
pub fn assemble(toolkit: &Toolkit, kernel: &str, ptx: &str, arch: Arch) -> Result<Assembly> {
    let folder = tempfile::tempdir().map_err(|error| file_error("temporary folder", &error))?;
    let (input, output) = (
        folder.path().join("kernel.ptx"),
        folder.path().join("kernel.cubin"),
    );
    fs::write(&input, ptx).map_err(|error| file_error("kernel.ptx", &error))?;
    let assembled = toolkit.run("ptxas", |command| {
        command
            .args(options(arch))
            .arg(&input)
            .arg("-o")
            .arg(&output)
    })?;
    let log = printed(&assembled);
    if !assembled.status.success() {
        return Err(LoweringError::Ptx {
            kernel: kernel.to_owned(),
            arch,
            log,
        });
    }
    let listed = toolkit.run("cuobjdump", |command| {
        command.arg("--dump-sass").arg(&output)
    })?;
    if !listed.status.success() {
        return Err(LoweringError::Tool {
            program: "cuobjdump".into(),
            reason: printed(&listed),
        });
    }
    // Without its own time the log is the same from run to run.
    let log = log
        .lines()
        .filter(|line| !line.contains("Compile time"))
        .collect::<Vec<_>>()
        .join("\n");
    Ok(Assembly {
        log,
        sass: String::from_utf8_lossy(&listed.stdout).into_owned(),
    })
}

fn file_error(name: &str, error: &std::io::Error) -> LoweringError {
    LoweringError::Tool {
        program: name.into(),
        reason: error.to_string(),
    }
}

fn printed(output: &Output) -> String {
    [&output.stdout, &output.stderr]
        .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        .concat()
}

impl Resources {
    /// Reads the output of `ptxas -v`.
    ///
    /// Several functions (a kernel and what was not inlined into it) give the largest register, barrier, stack and shared
    /// memory counts and the sum of the spills.
    ///
    /// # Errors
    /// [`LoweringError::Output`] when no line tells the registers or the stack frame.
    pub fn parse(log: &str) -> Result<Self> {
        let mut resources = Self::default();
        let (mut saw_stack, mut saw_registers) = (false, false);
        for line in log.lines().map(str::trim) {
            if is_performance_warning(line) {
                resources.performance_warnings.push(line.to_owned());
            } else if line.contains("warning") {
                resources.warnings.push(line.to_owned());
            } else if let Some(stack) = number_before(line, " bytes stack frame") {
                saw_stack = true;
                resources.stack_bytes = resources.stack_bytes.max(stack);
                resources.spill_store_bytes +=
                    number_before(line, " bytes spill stores").unwrap_or(0);
                resources.spill_load_bytes +=
                    number_before(line, " bytes spill loads").unwrap_or(0);
            } else if let Some(registers) = number_before(line, " registers") {
                saw_registers = true;
                let largest = |current: usize, suffix: &str| {
                    current.max(number_before(line, suffix).unwrap_or(0))
                };
                resources.registers = resources.registers.max(registers);
                resources.barriers = largest(resources.barriers, " barriers");
                resources.stack_bytes =
                    largest(resources.stack_bytes, " bytes cumulative stack size");
                resources.static_smem_bytes = largest(resources.static_smem_bytes, " bytes smem");
            }
        }
        for (seen, what) in [
            (saw_stack, "bytes stack frame"),
            (saw_registers, "registers"),
        ] {
            if !seen {
                return Err(LoweringError::Output {
                    tool: "ptxas",
                    reason: format!("no line tells the {what} in:\n{log}"),
                });
            }
        }
        Ok(resources)
    }
}

/// Whether the line carries a code C75xx.
fn is_performance_warning(line: &str) -> bool {
    line.match_indices("C75").any(|(at, _)| {
        let digits = line[at + 1..]
            .bytes()
            .take_while(u8::is_ascii_digit)
            .count();
        digits == 4 && !line[..at].ends_with(|c: char| c.is_ascii_alphanumeric())
    })
}

/// The number that stands directly before `suffix`: 40 for `Used 40 registers`.
fn number_before(line: &str, suffix: &str) -> Option<usize> {
    let before = &line[..line.find(suffix)?];
    before
        .rsplit(|c: char| !c.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "ptxas info    : 0 bytes gmem
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to x
ptxas warning : Value of threads per SM for entry saxpy is out of range. .minnctapersm will be ignored
ptxas info    : Compiling entry function 'saxpy' for 'sm_90a'
ptxas info    : Function properties for saxpy
    1200 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 3 barriers, 1216 bytes cumulative stack size, 256 bytes smem, 400 bytes cmem[0]
";

    #[test]
    fn every_resource_is_read() {
        let resources = Resources::parse(LOG).unwrap();
        assert_eq!(resources.registers, 40);
        assert_eq!(resources.barriers, 3);
        assert_eq!(resources.stack_bytes, 1216);
        assert_eq!(resources.spill_store_bytes, 8);
        assert_eq!(resources.spill_load_bytes, 12);
        assert_eq!(resources.static_smem_bytes, 256);
        assert_eq!(resources.warnings.len(), 1);
        assert!(resources.warnings[0].contains("out of range"));
        assert_eq!(resources.performance_warnings.len(), 1);
        assert!(resources.performance_warnings[0].contains("C7510"));
    }

    #[test]
    fn output_without_the_expected_lines_is_an_error() {
        let error = Resources::parse("ptxas info : 0 bytes gmem").unwrap_err();
        assert!(error.to_string().contains("stack frame"), "{error}");
        let only_stack = "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads";
        let error = Resources::parse(only_stack).unwrap_err();
        assert!(error.to_string().contains("registers"), "{error}");
    }

    #[test]
    fn other_codes_are_no_performance_warnings() {
        assert!(is_performance_warning("ptxas info : (C7513) Potential"));
        for line in ["(C7600) x", "C750", "0xC7510", "C75101"] {
            assert!(!is_performance_warning(line), "{line}");
        }
    }
}
