//! What can go wrong, and where.

use std::fmt;

use crate::check::Fault;

/// Result of this crate.
pub type Result<T, E = SimError> = std::result::Result<T, E>;

/// Everything that ends a simulation.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SimError {
    /// The text is not PTX, or PTX that is not modelled outside instructions.
    #[error("line {line}: {problem}")]
    Syntax {
        /// Line, from 1.
        line: u32,
        /// What is wrong.
        problem: SyntaxProblem,
    },
    /// An instruction that is not modelled, or not so: opcodes, modifiers, operands.
    #[error("line {line}: `{text}`: {problem}")]
    Instruction {
        /// Line, from 1.
        line: u32,
        /// The instruction.
        text: String,
        /// What is wrong.
        problem: String,
    },
    /// The launch does not fit the kernel.
    #[error("launch of {kernel}: {problem}")]
    Launch {
        /// Kernel.
        kernel: String,
        /// What is wrong.
        problem: String,
    },
    /// The kernel did something that PTX forbids or leaves undefined.
    #[error("{place}: {fault}")]
    Fault {
        /// Where.
        place: Box<Place>,
        /// What.
        fault: Box<Fault>,
    },
}

/// What is wrong with the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SyntaxProblem {
    /// A comment without an end.
    #[error("the comment does not end")]
    OpenComment,
    /// A text without an end.
    #[error("the quoted text does not end")]
    OpenText,
    /// A character that begins nothing.
    #[error("unexpected character {0:?}")]
    Character(char),
    /// Another token was wanted.
    #[error("expected {wanted}, found {found}")]
    Expected {
        /// Wanted.
        wanted: &'static str,
        /// Found.
        found: String,
    },
    /// The file ends too early.
    #[error("the file ends inside a block")]
    End,
    /// A directive that is not modelled.
    #[error("directive `{0}` is not modelled")]
    Directive(String),
    /// Not a type.
    #[error("`{0}` is no type")]
    Type(String),
    /// Not a number.
    #[error("`{0}` is no number")]
    Number(String),
    /// A register that no scope declares.
    #[error("register `{0}` is not declared")]
    Register(String),
}

/// Where a fault happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Line in the PTX, from 1; 0 when no instruction is at fault (a deadlock, a leak).
    pub line: u32,
    /// The instruction's text.
    pub text: String,
    /// Cube: its position in the grid.
    pub cube: [u32; 3],
    /// First thread that executed the instruction, as a flat index; None for faults of the whole cube.
    pub thread: Option<u32>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.cube;
        write!(f, "cube ({x}, {y}, {z})")?;
        if let Some(thread) = self.thread {
            write!(f, ", thread {thread}")?;
        }
        if self.line > 0 {
            write!(f, ", line {}: `{}`", self.line, self.text)?;
        }
        Ok(())
    }
}

impl SimError {
    pub(crate) fn syntax(line: u32, problem: SyntaxProblem) -> Self {
        SimError::Syntax { line, problem }
    }
    pub(crate) fn launch(kernel: &str, problem: impl Into<String>) -> Self {
        SimError::Launch {
            kernel: kernel.to_owned(),
            problem: problem.into(),
        }
    }
    /// The fault, if this is one.
    pub fn fault(&self) -> Option<&Fault> {
        match self {
            SimError::Fault { fault, .. } => Some(fault),
            _ => None,
        }
    }
}
