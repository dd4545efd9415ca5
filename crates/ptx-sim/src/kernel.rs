//! A kernel ready to run.

use std::collections::HashMap;

use crate::check::RESERVED;
use crate::decode::{Code, Op, Symbols, decode};
use crate::error::{Result, SimError};
use crate::exec::{GLOBALS_WINDOW, registers_of};
use crate::parse::{Entry, Module, Space, Variable};

/// A decoded kernel.
#[derive(Debug)]
pub struct Kernel {
    pub(crate) name: String,
    pub(crate) code: Vec<Code>,
    /// Registers that each instruction reads and writes.
    pub(crate) uses: Vec<Uses>,
    /// Opcode text of each instruction, and its line's text.
    pub(crate) opcodes: Vec<String>,
    pub(crate) texts: Vec<String>,
    /// Bits and names of registers.
    pub(crate) register_bits: Vec<u32>,
    pub(crate) register_names: Vec<String>,
    /// (offset, bytes) of each parameter.
    pub(crate) params: Vec<(usize, usize)>,
    pub(crate) param_bytes: usize,
    /// Bytes of shared memory that the kernel declares, the system's included.
    pub(crate) static_shared: usize,
    pub(crate) local_bytes: usize,
    /// Initial contents of global variables.
    pub(crate) globals: Vec<u8>,
    pub(crate) max_units: Option<[u32; 3]>,
    pub(crate) cluster: Option<[u32; 3]>,
}

/// Registers of an instruction.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    pub(crate) reads: Vec<u32>,
    pub(crate) writes: Vec<u32>,
}

impl Kernel {
    /// Decodes the kernel `name` of `module`, or its only one.
    ///
    /// # Errors
    /// [`SimError::Instruction`] for the first opcode, modifier or operand that is not modelled, [`SimError::Launch`]
    /// when there is no such kernel.
    pub fn load(module: &Module, name: Option<&str>) -> Result<Self> {
        let entry = match name {
            Some(name) => module.entries.iter().find(|entry| entry.name == name),
            None => module.entries.first(),
        };
        let entry = entry.ok_or_else(|| {
            SimError::launch(name.unwrap_or("?"), "the module has no such kernel")
        })?;
        let layout = Layout::new(module, entry);
        let code = decode(module, entry, &layout.symbols)?;
        one_group(module, &code)?;
        let uses = code.iter().map(registers_of).collect();
        Ok(Self {
            name: entry.name.clone(),
            uses,
            opcodes: entry.body.iter().map(|one| one.opcode.clone()).collect(),
            texts: entry
                .body
                .iter()
                .map(|one| module.line(one.line).to_owned())
                .collect(),
            register_bits: entry.registers.iter().map(|r| r.bits).collect(),
            register_names: entry.registers.iter().map(|r| r.name.clone()).collect(),
            params: layout.params,
            param_bytes: layout.param_bytes,
            static_shared: layout.shared,
            local_bytes: layout.local,
            globals: layout.globals,
            max_units: entry.max_units,
            cluster: entry.cluster,
            code,
        })
    }

    /// Name.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// Bytes of each parameter.
    pub fn param_bytes(&self) -> Vec<usize> {
        self.params.iter().map(|&(_, bytes)| bytes).collect()
    }
    /// Cubes of a cluster as the kernel demands them.
    pub fn cluster(&self) -> Option<[u32; 3]> {
        self.cluster
    }
    /// Threads of a cube as the kernel bounds them.
    pub fn max_units(&self) -> Option<[u32; 3]> {
        self.max_units
    }
}

/// PTX wants one `.cta_group` of all tcgen05 instructions of a kernel.
fn one_group(module: &Module, code: &[Code]) -> Result<()> {
    let mut groups = code.iter().filter_map(|one| match &one.op {
        Op::Tcgen(op) => op.pair().map(|pair| (one.line, pair)),
        _ => None,
    });
    let Some((_, first)) = groups.next() else {
        return Ok(());
    };
    match groups.find(|&(_, pair)| pair != first) {
        Some((line, _)) => Err(SimError::Instruction {
            line,
            text: module.line(line).to_owned(),
            problem: "another .cta_group than that of the kernel's first tcgen05 instruction"
                .to_owned(),
        }),
        None => Ok(()),
    }
}

/// Addresses of everything that has a name.
struct Layout {
    symbols: Symbols,
    params: Vec<(usize, usize)>,
    param_bytes: usize,
    shared: usize,
    local: usize,
    globals: Vec<u8>,
}

impl Layout {
    fn new(module: &Module, entry: &Entry) -> Self {
        let mut layout = Self {
            symbols: Symbols::default(),
            params: Vec::new(),
            param_bytes: 0,
            shared: RESERVED as usize,
            local: 0,
            globals: Vec::new(),
        };
        let variables = || module.variables.iter().chain(&entry.variables);
        for (space, variable) in variables().filter(|(_, variable)| !variable.external) {
            layout.place(*space, variable);
        }
        // Dynamic shared memory follows everything static, at the start of the largest alignment.
        let dynamic = || variables().filter(|(space, v)| *space == Space::Shared && v.external);
        let align = dynamic().map(|(_, v)| v.align).max().unwrap_or(16);
        layout.shared = layout.shared.next_multiple_of(align.max(16));
        for (_, variable) in dynamic() {
            let at = layout.shared as u32;
            layout.symbols.shared.insert(variable.name.clone(), at);
        }
        for param in &entry.params {
            let at = layout.param_bytes.next_multiple_of(param.align.max(1));
            layout.symbols.params.insert(param.name.clone(), at as u64);
            layout.params.push((at, param.bytes));
            layout.param_bytes = at + param.bytes;
        }
        layout.symbols.labels = entry.labels.iter().cloned().collect::<HashMap<_, _>>();
        layout
    }

    fn place(&mut self, space: Space, variable: &Variable) {
        let name = variable.name.clone();
        let align = variable.align.max(1);
        match space {
            Space::Shared => {
                let at = self.shared.next_multiple_of(align);
                self.symbols.shared.insert(name, at as u32);
                self.shared = at + variable.bytes;
            }
            Space::Local => {
                let at = self.local.next_multiple_of(align);
                self.symbols.local.insert(name, at as u64);
                self.local = at + variable.bytes;
            }
            Space::Global => {
                let at = self.globals.len().next_multiple_of(align);
                self.globals.resize(at + variable.bytes, 0);
                self.globals[at..at + variable.init.len()].copy_from_slice(&variable.init);
                self.symbols.global.insert(name, GLOBALS_WINDOW + at as u64);
            }
        }
    }
}
