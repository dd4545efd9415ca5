//! A PTX module as it was written.

/// A variable in memory or a kernel parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Variable {
    /// Name.
    pub name: String,
    /// Bytes; 0 for an `extern` array, which has the size of the launch's dynamic shared memory.
    pub bytes: usize,
    /// Alignment in bytes.
    pub align: usize,
    /// Initial bytes; zeros after their end.
    pub init: Vec<u8>,
    /// Declared `.extern`.
    pub external: bool,
}

/// Where a variable lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// `.global`, `.const`.
    Global,
    /// `.shared`.
    Shared,
    /// `.local`, one per thread.
    Local,
}

/// A register of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Register {
    /// Name as the text spells it.
    pub name: String,
    /// Bits; 1 for predicates.
    pub bits: u32,
}

/// An operand of an instruction.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// Register by index into [`Entry::registers`].
    Register(u32),
    /// `!register`.
    Not(u32),
    /// Integer literal or float bits; `float` holds the number of bits of a `0f` or `0d` literal.
    Literal {
        /// Two's complement value or bits.
        bits: u64,
        /// 0 for integers, else 32 or 64.
        float: u32,
    },
    /// Decimal float.
    Decimal(f64),
    /// A variable, a parameter, a label or a special register, with an offset.
    Symbol(String, i64),
    /// `[base + offset]`.
    Address(Box<Operand>, i64),
    /// `[base, {coordinates}]` of a tensor map, with what follows the coordinates.
    Tensor(Box<Operand>, Vec<Operand>),
    /// `{a, b, ..}`.
    Vector(Vec<Operand>),
    /// `a|b`.
    Pair(Box<Operand>, Box<Operand>),
    /// `_`.
    Sink,
}

/// One instruction.
#[derive(Clone, Debug, PartialEq)]
pub struct Instruction {
    /// Line, from 1.
    pub line: u32,
    /// Guard: register and whether it must be false.
    pub guard: Option<(u32, bool)>,
    /// Opcode with its modifiers.
    pub opcode: String,
    /// Operands in order.
    pub operands: Vec<Operand>,
}

/// A kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Name.
    pub name: String,
    /// Parameters in order.
    pub params: Vec<Variable>,
    /// Registers of all scopes.
    pub registers: Vec<Register>,
    /// Variables declared inside.
    pub variables: Vec<(Space, Variable)>,
    /// Code.
    pub body: Vec<Instruction>,
    /// Label -> index into `body`; names are unique per scope, so nested ones carry their scope.
    pub labels: Vec<(String, usize)>,
    /// `.maxntid` or `.reqntid`.
    pub max_units: Option<[u32; 3]>,
    /// `.reqnctapercluster` or `.explicitcluster` dimensions.
    pub cluster: Option<[u32; 3]>,
}

/// A parsed file.
#[derive(Clone, Debug, PartialEq)]
pub struct Module {
    /// `.version`.
    pub version: (u32, u32),
    /// `.target`.
    pub target: String,
    /// Variables outside kernels.
    pub variables: Vec<(Space, Variable)>,
    /// Kernels.
    pub entries: Vec<Entry>,
    /// Lines of the source, for messages.
    pub(crate) lines: Vec<String>,
}

impl Module {
    /// Line `line` (from 1) of the source without surrounding blanks.
    pub fn line(&self, line: u32) -> &str {
        self.lines
            .get(line as usize - 1)
            .map_or("", |text| text.trim())
    }
}
