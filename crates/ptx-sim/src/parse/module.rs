//! Directives outside kernel bodies.

use super::ast::{Entry, Module, Space, Variable};
use super::body::Body;
use super::lex::{Lexed, Token, lex};
use crate::error::{Result, SimError, SyntaxProblem};

/// Reads a PTX file as NVRTC or Triton writes it.
///
/// # Errors
/// [`SimError::Syntax`] with the line for text that is not PTX and for directives that are not modelled (device functions,
/// textures). Opcodes are looked at when a kernel is loaded, not here.
pub fn parse(source: &str) -> Result<Module> {
    let tokens = lex(source)?;
    let mut parser = Parser { tokens, at: 0 };
    let mut module = Module {
        version: (0, 0),
        target: String::new(),
        variables: Vec::new(),
        entries: Vec::new(),
        lines: source.lines().map(str::to_owned).collect(),
    };
    while !parser.done() {
        top_level(&mut parser, &mut module)?;
    }
    Ok(module)
}

fn top_level<'a>(parser: &mut Parser<'a>, module: &mut Module) -> Result<()> {
    let word = parser.word()?;
    match word {
        ".version" => {
            let text = parser.word()?;
            let mut parts = text.split('.').map(|part| part.parse().unwrap_or(0));
            module.version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        }
        ".target" => {
            module.target = parser.word()?.to_owned();
            while parser.take(b',') {
                parser.word()?;
            }
        }
        ".address_size" => {
            parser.word()?;
        }
        ".visible" | ".weak" | ".extern" if parser.peek_word() == Some(".entry") => {
            parser.word()?;
            module.entries.push(entry(parser)?);
        }
        ".entry" => module.entries.push(entry(parser)?),
        ".file" => parser.skip_line(),
        ".section" => {
            parser.word()?;
            parser.skip_block()?;
        }
        ".visible" | ".weak" => {}
        ".extern" | ".global" | ".const" | ".shared" => {
            if let Some(found) = parser.variable(word)? {
                module.variables.push(found);
            }
        }
        other => return Err(parser.error(SyntaxProblem::Directive(other.to_owned()))),
    }
    Ok(())
}

fn entry<'a>(parser: &mut Parser<'a>) -> Result<Entry> {
    let name = parser.word()?.to_owned();
    let mut params = Vec::new();
    if parser.take(b'(') {
        while !parser.take(b')') {
            parser.expect_word(".param")?;
            params.push(parser.declaration(false)?);
            parser.take(b',');
        }
    }
    let mut entry = Entry {
        name,
        params,
        registers: Vec::new(),
        variables: Vec::new(),
        body: Vec::new(),
        labels: Vec::new(),
        max_units: None,
        cluster: None,
    };
    while !parser.take(b'{') {
        match parser.word()? {
            ".maxntid" | ".reqntid" => entry.max_units = Some(parser.triple()?),
            ".reqnctapercluster" => entry.cluster = Some(parser.triple()?),
            ".minnctapersm" | ".maxnreg" | ".maxclusterrank" => {
                parser.word()?;
            }
            ".explicitcluster" | ".blocksareclusters" => {}
            ".pragma" => parser.skip_statement(),
            other => return Err(parser.error(SyntaxProblem::Directive(other.to_owned()))),
        }
    }
    Body::new(parser, &mut entry).parse()?;
    Ok(entry)
}

/// A cursor over tokens.
pub(super) struct Parser<'a> {
    tokens: Vec<Lexed<'a>>,
    at: usize,
}

impl<'a> Parser<'a> {
    pub(super) fn done(&self) -> bool {
        self.at >= self.tokens.len()
    }
    pub(super) fn line(&self) -> u32 {
        let last = self.tokens.len().saturating_sub(1);
        self.tokens
            .get(self.at.min(last))
            .map_or(0, |token| token.line)
    }
    pub(super) fn error(&self, problem: SyntaxProblem) -> SimError {
        SimError::syntax(self.line(), problem)
    }
    pub(super) fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).map(|token| token.token)
    }
    pub(super) fn peek_at(&self, ahead: usize) -> Option<Token<'a>> {
        self.tokens.get(self.at + ahead).map(|token| token.token)
    }
    pub(super) fn peek_word(&self) -> Option<&'a str> {
        match self.peek() {
            Some(Token::Word(word)) => Some(word),
            _ => None,
        }
    }
    pub(super) fn advance(&mut self) {
        self.at += 1;
    }
    pub(super) fn word(&mut self) -> Result<&'a str> {
        match self.peek() {
            Some(Token::Word(word)) => {
                self.at += 1;
                Ok(word)
            }
            found => Err(self.error(SyntaxProblem::Expected {
                wanted: "a word",
                found: format!("{found:?}"),
            })),
        }
    }
    pub(super) fn take(&mut self, punct: u8) -> bool {
        let found = self.peek() == Some(Token::Punct(punct));
        self.at += usize::from(found);
        found
    }
    pub(super) fn expect(&mut self, punct: u8, wanted: &'static str) -> Result<()> {
        if self.take(punct) {
            return Ok(());
        }
        Err(self.error(SyntaxProblem::Expected {
            wanted,
            found: format!("{:?}", self.peek()),
        }))
    }
    fn expect_word(&mut self, wanted: &'static str) -> Result<()> {
        let found = self.word()?;
        if found == wanted {
            return Ok(());
        }
        Err(self.error(SyntaxProblem::Expected {
            wanted,
            found: found.to_owned(),
        }))
    }
    pub(super) fn skip_line(&mut self) {
        // The directive's first operand may be the cursor's token; its line is the directive's.
        let line = self.tokens[self.at.max(1) - 1].line;
        while self.tokens.get(self.at).is_some_and(|t| t.line == line) {
            self.at += 1;
        }
    }
    pub(super) fn skip_statement(&mut self) {
        while !self.done() && !self.take(b';') {
            self.at += 1;
        }
    }
    fn skip_block(&mut self) -> Result<()> {
        self.expect(b'{', "{")?;
        let mut depth = 1;
        while depth > 0 {
            match self.peek() {
                Some(Token::Punct(b'{')) => depth += 1,
                Some(Token::Punct(b'}')) => depth -= 1,
                None => return Err(self.error(SyntaxProblem::End)),
                _ => {}
            }
            self.at += 1;
        }
        Ok(())
    }
    /// `a, b, c` with missing parts 1.
    fn triple(&mut self) -> Result<[u32; 3]> {
        let mut values = [1; 3];
        for (i, value) in values.iter_mut().enumerate() {
            if i > 0 && !self.take(b',') {
                break;
            }
            *value = self.integer()? as u32;
        }
        Ok(values)
    }
    pub(super) fn integer(&mut self) -> Result<i64> {
        let negative = self.take(b'-');
        let word = self.word()?;
        let value = integer(word).ok_or_else(|| self.error(SyntaxProblem::Number(word.into())))?;
        Ok(if negative {
            (value as i64).wrapping_neg()
        } else {
            value as i64
        })
    }

    /// A variable whose state space word is `word`, up to its semicolon; None for a forward declaration without storage.
    pub(super) fn variable(&mut self, word: &str) -> Result<Option<(Space, Variable)>> {
        let external = word == ".extern";
        let space = match if external { self.word()? } else { word } {
            ".global" | ".const" => Space::Global,
            ".shared" => Space::Shared,
            ".local" => Space::Local,
            other => return Err(self.error(SyntaxProblem::Directive(other.to_owned()))),
        };
        let mut found = self.declaration(true)?;
        found.external = external;
        self.expect(b';', ";")?;
        if external && space == Space::Global {
            return Ok(None);
        }
        Ok(Some((space, found)))
    }

    /// `.align 16 .b8 name[8] = {..}` after the state space.
    fn declaration(&mut self, initialised: bool) -> Result<Variable> {
        let mut align = None;
        let mut element = 0;
        let name = loop {
            let word = self.word()?;
            match word {
                ".align" => align = Some(self.integer()? as usize),
                ".ptr" | ".global" | ".shared" | ".local" | ".const" => {}
                _ if word.starts_with('.') => {
                    element = type_bits(word)
                        .ok_or_else(|| self.error(SyntaxProblem::Type(word.to_owned())))?
                        / 8;
                }
                _ => break word.to_owned(),
            }
        };
        let mut bytes = element as usize;
        while self.take(b'[') {
            bytes = if self.peek() == Some(Token::Punct(b']')) {
                0
            } else {
                bytes * self.integer()? as usize
            };
            self.expect(b']', "]")?;
        }
        let mut init = Vec::new();
        if initialised && self.take(b'=') {
            let braced = self.take(b'{');
            loop {
                let value = self.integer()?;
                init.extend_from_slice(&value.to_le_bytes()[..element as usize]);
                if !braced || !self.take(b',') {
                    break;
                }
            }
            if braced {
                self.expect(b'}', "}")?;
            }
        }
        Ok(Variable {
            name,
            bytes,
            align: align.unwrap_or(element.max(1) as usize),
            init,
            external: false,
        })
    }
}

/// Bits of a fundamental type.
pub(super) fn type_bits(word: &str) -> Option<u32> {
    Some(match word {
        ".pred" => 1,
        ".u8" | ".s8" | ".b8" => 8,
        ".u16" | ".s16" | ".b16" | ".f16" | ".bf16" => 16,
        ".u32" | ".s32" | ".b32" | ".f32" | ".f16x2" | ".bf16x2" => 32,
        ".u64" | ".s64" | ".b64" | ".f64" => 64,
        ".b128" => 128,
        _ => return None,
    })
}

/// An integer literal: decimal, 0x, 0b or octal, with an optional U.
pub(super) fn integer(word: &str) -> Option<u64> {
    let digits = word.strip_suffix(['U', 'u']).unwrap_or(word);
    let lower = digits.to_ascii_lowercase();
    if let Some(hex) = lower.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).ok();
    }
    if let Some(binary) = lower.strip_prefix("0b") {
        return u64::from_str_radix(binary, 2).ok();
    }
    if lower.len() > 1 && lower.starts_with('0') {
        return u64::from_str_radix(&lower, 8).ok();
    }
    lower.parse().ok()
}
