//! Reads modifiers and operands of one instruction in order.

use super::op::{Addr, Src};
use super::special;
use super::ty::Ty;
use super::{Decoded, Symbols};
use crate::number::Format;
use crate::parse::{Entry, Instruction, Operand};

/// Modifiers are consumed from the left; [`Cursor::finish`] refuses what is left.
pub(super) struct Cursor<'a> {
    parts: Vec<&'a str>,
    at: usize,
    operands: &'a [Operand],
    next: usize,
    entry: &'a Entry,
    symbols: &'a Symbols,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(
        instruction: &'a Instruction,
        entry: &'a Entry,
        symbols: &'a Symbols,
    ) -> Self {
        Self {
            parts: instruction.opcode.split('.').collect(),
            at: 1,
            operands: &instruction.operands,
            next: 0,
            entry,
            symbols,
        }
    }

    pub(super) fn opcode(&self) -> &'a str {
        self.parts[0]
    }
    /// The next modifier, not consumed.
    pub(super) fn peek(&self) -> Option<&'a str> {
        self.parts.get(self.at).copied()
    }
    /// Consumes the next modifier if it is `word`.
    pub(super) fn take(&mut self, word: &str) -> bool {
        let found = self.peek() == Some(word);
        self.at += usize::from(found);
        found
    }
    /// Consumes any of `words`, as often as they come.
    pub(super) fn skip(&mut self, words: &[&str]) {
        while self.peek().is_some_and(|part| words.contains(&part)) {
            self.at += 1;
        }
    }
    /// Consumes the next modifier, which must be `word`.
    pub(super) fn need(&mut self, word: &str) -> Decoded<()> {
        if self.take(word) {
            return Ok(());
        }
        Err(format!(
            "modifier `.{word}` is wanted where `{}` stands",
            self.peek().unwrap_or("the end")
        ))
    }
    /// Consumes the next modifier.
    pub(super) fn modifier(&mut self) -> Decoded<&'a str> {
        let part = self.peek().ok_or("a modifier is missing")?;
        self.at += 1;
        Ok(part)
    }
    /// Consumes a modifier that `parse` understands.
    pub(super) fn try_parse<T>(&mut self, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        let value = self.peek().and_then(parse)?;
        self.at += 1;
        Some(value)
    }
    pub(super) fn ty(&mut self) -> Decoded<Ty> {
        let part = self.modifier()?;
        Ty::parse(part).ok_or_else(|| format!("type `.{part}` is not modelled"))
    }
    pub(super) fn format(&mut self) -> Decoded<Format> {
        let part = self.modifier()?;
        Format::parse(part).ok_or_else(|| format!("type `.{part}` is not modelled"))
    }
    /// Nothing may be left.
    pub(super) fn finish(&self) -> Decoded<()> {
        if let Some(part) = self.peek() {
            return Err(format!("modifier `.{part}` is not modelled"));
        }
        if self.next < self.operands.len() {
            return Err(format!(
                "{} operands, but {} are known",
                self.operands.len(),
                self.next
            ));
        }
        Ok(())
    }

    /// Operands not read yet.
    pub(super) fn left(&self) -> usize {
        self.operands.len() - self.next
    }
    pub(super) fn peek_operand(&self) -> Option<&'a Operand> {
        self.operands.get(self.next)
    }
    pub(super) fn operand(&mut self) -> Decoded<&'a Operand> {
        let found = self.peek_operand().ok_or("an operand is missing")?;
        self.next += 1;
        Ok(found)
    }
    pub(super) fn src(&mut self, ty: Ty) -> Decoded<Src> {
        let operand = self.operand()?;
        self.source(operand, ty)
    }
    pub(super) fn word(&mut self) -> Decoded<Src> {
        self.src(Ty::B(32))
    }
    pub(super) fn pred(&mut self) -> Decoded<Src> {
        self.src(Ty::Pred)
    }
    /// A register that is written.
    pub(super) fn dst(&mut self) -> Decoded<u32> {
        match self.operand()? {
            Operand::Register(register) => Ok(*register),
            other => Err(format!("{other:?} is no register to write")),
        }
    }
    pub(super) fn dst_or_sink(&mut self) -> Decoded<Option<u32>> {
        let operand = self.operand()?;
        sink(operand)
    }
    /// `a|b`, b optional.
    pub(super) fn pair(&mut self) -> Decoded<(Option<u32>, Option<u32>)> {
        match self.operand()? {
            Operand::Pair(a, b) => Ok((sink(a)?, sink(b)?)),
            other => Ok((sink(other)?, None)),
        }
    }
    /// Registers of a vector operand or one register.
    pub(super) fn dsts(&mut self) -> Decoded<Vec<Option<u32>>> {
        match self.operand()? {
            Operand::Vector(parts) => parts.iter().map(sink).collect(),
            other => Ok(vec![sink(other)?]),
        }
    }
    pub(super) fn registers(&mut self) -> Decoded<Vec<u32>> {
        let all = self.dsts()?;
        let known: Option<Vec<u32>> = all.into_iter().collect();
        known.ok_or_else(|| "`_` cannot stand here".to_owned())
    }
    pub(super) fn srcs(&mut self, ty: Ty) -> Decoded<Vec<Src>> {
        match self.operand()? {
            Operand::Vector(parts) => parts.iter().map(|part| self.source(part, ty)).collect(),
            other => Ok(vec![self.source(other, ty)?]),
        }
    }
    /// An integer literal.
    pub(super) fn literal(&mut self) -> Decoded<u64> {
        match self.operand()? {
            Operand::Literal { bits, float: 0 } => Ok(*bits),
            other => Err(format!("{other:?} must be an integer literal")),
        }
    }
    pub(super) fn addr(&mut self) -> Decoded<Addr> {
        let operand = self.operand()?;
        self.address(operand)
    }
    pub(super) fn address(&self, operand: &Operand) -> Decoded<Addr> {
        match operand {
            Operand::Address(base, offset) => Ok(Addr {
                base: self.source(base, Ty::B(64))?,
                offset: *offset,
            }),
            other => Err(format!("{other:?} is no address")),
        }
    }
    /// `[base, {coordinates}]`.
    pub(super) fn tensor(&mut self) -> Decoded<(Addr, Vec<Src>)> {
        let Operand::Tensor(base, parts) = self.operand()? else {
            return Err("[map, {coordinates}] is wanted".to_owned());
        };
        let base = match &**base {
            Operand::Address(base, offset) => Addr {
                base: self.source(base, Ty::B(64))?,
                offset: *offset,
            },
            other => Addr {
                base: self.source(other, Ty::B(64))?,
                offset: 0,
            },
        };
        let [Operand::Vector(coords)] = parts.as_slice() else {
            return Err("one list of coordinates is wanted".to_owned());
        };
        let coords: Decoded<Vec<Src>> = coords
            .iter()
            .map(|coord| self.source(coord, Ty::S(32)))
            .collect();
        Ok((base, coords?))
    }

    /// A value; literals take the form that `ty` wants.
    pub(super) fn source(&self, operand: &Operand, ty: Ty) -> Decoded<Src> {
        Ok(match operand {
            Operand::Register(register) => Src::Reg(*register),
            Operand::Not(register) => Src::Not(*register),
            Operand::Literal { bits, float } => Src::Imm(literal(*bits, *float, ty)?),
            Operand::Decimal(value) => match ty {
                Ty::F(format) => {
                    Src::Imm(format.encode(*value, 0.0, crate::number::Rounding::Nearest, false))
                }
                _ => return Err(format!("{value} is no value of this type")),
            },
            Operand::Symbol(name, offset) => self.symbol(name, *offset)?,
            other => return Err(format!("{other:?} is no value")),
        })
    }

    fn symbol(&self, name: &str, offset: i64) -> Decoded<Src> {
        if name == "WARP_SZ" {
            return Ok(Src::Imm(32));
        }
        if let Some(at) = self.symbols.shared.get(name) {
            return Ok(Src::Shared(at.wrapping_add(offset as u32)));
        }
        let tables = [
            &self.symbols.global,
            &self.symbols.local,
            &self.symbols.params,
        ];
        let found = tables.into_iter().find_map(|table| table.get(name));
        match found {
            Some(at) => Ok(Src::Imm(at.wrapping_add_signed(offset))),
            None if name.starts_with('%') => {
                Err(format!("special register `{name}` cannot be read here"))
            }
            None => Err(format!("`{name}` is not declared")),
        }
    }

    /// A special register, if the operand names one.
    pub(super) fn special(&self) -> Decoded<Option<super::op::Special>> {
        match self.peek_operand() {
            Some(Operand::Symbol(name, 0)) if name.starts_with('%') => {
                special::parse(name).map(Some)
            }
            _ => Ok(None),
        }
    }

    pub(super) fn label(&mut self) -> Decoded<usize> {
        match self.operand()? {
            Operand::Symbol(name, 0) => self
                .symbols
                .labels
                .get(name)
                .copied()
                .ok_or_else(|| format!("label `{name}` does not exist")),
            other => Err(format!("{other:?} is no label")),
        }
    }
    /// Bits of register `register`.
    pub(super) fn bits(&self, register: u32) -> u32 {
        self.entry.registers[register as usize].bits
    }
}

fn sink(operand: &Operand) -> Decoded<Option<u32>> {
    match operand {
        Operand::Register(register) => Ok(Some(*register)),
        Operand::Sink => Ok(None),
        other => Err(format!("{other:?} is no register to write")),
    }
}

fn literal(bits: u64, float: u32, ty: Ty) -> Decoded<u64> {
    match (float, ty) {
        (32, Ty::F(Format::F64)) => Ok(f64::from(f32::from_bits(bits as u32)).to_bits()),
        (64, Ty::F(Format::F32)) => Ok(u64::from((f64::from_bits(bits) as f32).to_bits())),
        (0, Ty::Pred) => Ok(u64::from(bits != 0)),
        (0, Ty::F(Format::F32 | Format::F64)) if bits != 0 => {
            Err("an integer stands where a float is wanted".to_owned())
        }
        _ => Ok(bits),
    }
}
