//! The code of a kernel: scopes, registers, labels, instructions.

use std::collections::HashMap;

use super::ast::{Entry, Instruction, Operand, Register};
use super::lex::Token;
use super::module::{Parser, integer, type_bits};
use crate::error::{Result, SimError, SyntaxProblem};

/// Names that one pair of braces declares.
#[derive(Default)]
struct Scope {
    registers: HashMap<String, u32>,
    labels: HashMap<String, String>,
}

/// Parses the code of `entry` up to its closing brace.
pub(super) struct Body<'p, 'a> {
    parser: &'p mut Parser<'a>,
    entry: &'p mut Entry,
    scopes: Vec<Scope>,
    /// Number of scopes opened, which makes label names unique.
    opened: usize,
    /// Branches whose label was not seen yet: instruction, operand and the scopes it may live in.
    pending: Vec<(usize, usize, String)>,
}

impl<'p, 'a> Body<'p, 'a> {
    pub(super) fn new(parser: &'p mut Parser<'a>, entry: &'p mut Entry) -> Self {
        Self {
            parser,
            entry,
            scopes: vec![Scope::default()],
            opened: 0,
            pending: Vec::new(),
        }
    }

    pub(super) fn parse(mut self) -> Result<()> {
        while !self.scopes.is_empty() {
            self.statement()?;
        }
        Ok(())
    }

    fn statement(&mut self) -> Result<()> {
        let line = self.parser.line();
        match self.parser.peek() {
            None => Err(self.parser.error(SyntaxProblem::End)),
            Some(Token::Punct(b'{')) => {
                self.parser.advance();
                self.opened += 1;
                self.scopes.push(Scope::default());
                Ok(())
            }
            Some(Token::Punct(b'}')) => {
                self.parser.advance();
                self.close();
                Ok(())
            }
            Some(Token::Punct(b';')) => {
                self.parser.advance();
                Ok(())
            }
            Some(Token::Punct(b'@')) => {
                self.parser.advance();
                let negated = self.parser.take(b'!');
                let name = self.parser.word()?;
                let guard = self.register(name, line)?;
                self.instruction(line, Some((guard, negated)))
            }
            Some(Token::Word(word)) if self.parser.peek_at(1) == Some(Token::Punct(b':')) => {
                self.parser.advance();
                self.parser.advance();
                self.label(word);
                Ok(())
            }
            Some(Token::Word(word)) if word.starts_with('.') => {
                self.parser.advance();
                self.directive(word)
            }
            Some(Token::Word(_)) => self.instruction(line, None),
            Some(found) => Err(self.parser.error(SyntaxProblem::Expected {
                wanted: "a statement",
                found: format!("{found:?}"),
            })),
        }
    }

    fn label(&mut self, name: &str) {
        let depth = self.scopes.len() - 1;
        let unique = format!("{name}@{}", self.opened);
        self.scopes[depth]
            .labels
            .insert(name.to_owned(), unique.clone());
        self.entry.labels.push((unique, self.entry.body.len()));
    }

    /// Leaves a scope: branches inside it now find its labels, the others look further out.
    fn close(&mut self) {
        let Some(scope) = self.scopes.pop() else {
            return;
        };
        let body = &mut self.entry.body;
        self.pending.retain(|(at, operand, name)| {
            let Some(unique) = scope.labels.get(name) else {
                return true;
            };
            body[*at].operands[*operand] = Operand::Symbol(unique.clone(), 0);
            false
        });
    }

    fn directive(&mut self, word: &str) -> Result<()> {
        match word {
            ".reg" => self.registers(),
            ".loc" => {
                self.parser.skip_line();
                Ok(())
            }
            ".pragma" => {
                self.parser.skip_statement();
                Ok(())
            }
            ".local" | ".shared" | ".extern" => {
                if let Some(found) = self.parser.variable(word)? {
                    self.entry.variables.push(found);
                }
                Ok(())
            }
            other => Err(self
                .parser
                .error(SyntaxProblem::Directive(other.to_owned()))),
        }
    }

    /// `.reg .f32 a, b<8>;`
    fn registers(&mut self) -> Result<()> {
        let ty = self.parser.word()?;
        let bits =
            type_bits(ty).ok_or_else(|| self.parser.error(SyntaxProblem::Type(ty.into())))?;
        loop {
            let name = self.parser.word()?.to_owned();
            if self.parser.take(b'<') {
                let count = self.parser.integer()?;
                self.parser.expect(b'>', ">")?;
                for i in 0..count {
                    self.declare(format!("{name}{i}"), bits);
                }
            } else {
                self.declare(name, bits);
            }
            if !self.parser.take(b',') {
                break;
            }
        }
        self.parser.expect(b';', ";")
    }

    fn declare(&mut self, name: String, bits: u32) {
        let index = self.entry.registers.len() as u32;
        self.entry.registers.push(Register {
            name: name.clone(),
            bits,
        });
        if let Some(scope) = self.scopes.last_mut() {
            scope.registers.insert(name, index);
        }
    }

    fn find(&self, name: &str) -> Option<u32> {
        let mut scopes = self.scopes.iter().rev();
        scopes.find_map(|scope| scope.registers.get(name).copied())
    }

    fn register(&self, name: &str, line: u32) -> Result<u32> {
        self.find(name)
            .ok_or_else(|| SimError::syntax(line, SyntaxProblem::Register(name.to_owned())))
    }

    fn instruction(&mut self, line: u32, guard: Option<(u32, bool)>) -> Result<()> {
        let opcode = self.parser.word()?.to_owned();
        let mut operands = Vec::new();
        while !self.parser.take(b';') {
            operands.push(self.operand()?);
            if !self.parser.take(b',') {
                self.parser.expect(b';', "; after an instruction")?;
                break;
            }
        }
        let at = self.entry.body.len();
        if opcode == "bra" || opcode.starts_with("bra.") {
            for (i, operand) in operands.iter().enumerate() {
                if let Operand::Symbol(name, _) = operand {
                    self.pending.push((at, i, name.clone()));
                }
            }
        }
        self.entry.body.push(Instruction {
            line,
            guard,
            opcode,
            operands,
        });
        Ok(())
    }

    fn operand(&mut self) -> Result<Operand> {
        let first = self.simple()?;
        if self.parser.take(b'|') {
            let second = self.simple()?;
            return Ok(Operand::Pair(Box::new(first), Box::new(second)));
        }
        let offset = self.offset()?;
        Ok(shift(first, offset))
    }

    fn offset(&mut self) -> Result<i64> {
        let mut offset = 0;
        loop {
            // The sign of a subtraction belongs to the number.
            let minus = self.parser.peek() == Some(Token::Punct(b'-'));
            if minus || self.parser.take(b'+') {
                offset += self.parser.integer()?;
            } else {
                return Ok(offset);
            }
        }
    }

    fn simple(&mut self) -> Result<Operand> {
        let line = self.parser.line();
        if self.parser.take(b'[') {
            return self.address();
        }
        if self.parser.take(b'{') {
            let mut parts = Vec::new();
            while !self.parser.take(b'}') {
                parts.push(self.operand()?);
                self.parser.take(b',');
            }
            return Ok(Operand::Vector(parts));
        }
        if self.parser.take(b'!') {
            let name = self.parser.word()?;
            return Ok(Operand::Not(self.register(name, line)?));
        }
        let negative = self.parser.take(b'-');
        let word = self.parser.word()?;
        if word == "_" {
            return Ok(Operand::Sink);
        }
        if word.as_bytes()[0].is_ascii_digit() {
            return literal(word, negative)
                .ok_or_else(|| SimError::syntax(line, SyntaxProblem::Number(word.to_owned())));
        }
        Ok(match self.find(word) {
            Some(register) => Operand::Register(register),
            None => Operand::Symbol(word.to_owned(), 0),
        })
    }

    /// After `[`.
    fn address(&mut self) -> Result<Operand> {
        let base = self.simple()?;
        let offset = self.offset()?;
        if !self.parser.take(b',') {
            self.parser.expect(b']', "]")?;
            return Ok(Operand::Address(Box::new(base), offset));
        }
        let mut parts = vec![self.operand()?];
        while self.parser.take(b',') {
            parts.push(self.operand()?);
        }
        self.parser.expect(b']', "]")?;
        Ok(Operand::Tensor(Box::new(shift(base, offset)), parts))
    }
}

fn shift(base: Operand, offset: i64) -> Operand {
    match (base, offset) {
        (base, 0) => base,
        (Operand::Symbol(name, at), _) => Operand::Symbol(name, at + offset),
        (base, _) => Operand::Address(Box::new(base), offset),
    }
}

fn literal(word: &str, negative: bool) -> Option<Operand> {
    let lower = word.to_ascii_lowercase();
    for (prefix, float) in [("0f", 32), ("0d", 64)] {
        if let Some(hex) = lower.strip_prefix(prefix)
            && hex.len() == float as usize / 4
        {
            let bits = u64::from_str_radix(hex, 16).ok()?;
            return Some(Operand::Literal { bits, float });
        }
    }
    if lower.contains('.') || (lower.contains('e') && !lower.starts_with("0x")) {
        let value: f64 = lower.parse().ok()?;
        return Some(Operand::Decimal(if negative { -value } else { value }));
    }
    let value = integer(word)?;
    let bits = if negative {
        value.wrapping_neg()
    } else {
        value
    };
    Some(Operand::Literal { bits, float: 0 })
}
