//! PTX text to tokens. A token knows its line.

use crate::error::{SimError, SyntaxProblem};

/// What the parser sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token<'a> {
    /// Identifier, register, opcode with modifiers, directive or number.
    Word(&'a str),
    /// Text between double quotes.
    Text(&'a str),
    /// One of `{ } [ ] ( ) , ; : @ ! | + - = < >`.
    Punct(u8),
}

/// A token and its line, counted from 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lexed<'a> {
    pub(crate) token: Token<'a>,
    pub(crate) line: u32,
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%' | b'.')
}

/// Tokens of `source` without comments.
pub(crate) fn lex(source: &str) -> Result<Vec<Lexed<'_>>, SimError> {
    let bytes = source.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    let mut line = 1;
    while at < bytes.len() {
        let byte = bytes[at];
        let rest = &bytes[at..];
        if byte == b'\n' {
            line += 1;
            at += 1;
        } else if byte.is_ascii_whitespace() {
            at += 1;
        } else if rest.starts_with(b"//") {
            at += rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len());
        } else if rest.starts_with(b"/*") {
            let end = source[at..]
                .find("*/")
                .ok_or_else(|| SimError::syntax(line, SyntaxProblem::OpenComment))?;
            line += source[at..at + end].matches('\n').count() as u32;
            at += end + 2;
        } else if byte == b'"' {
            let end = source[at + 1..]
                .find('"')
                .ok_or_else(|| SimError::syntax(line, SyntaxProblem::OpenText))?;
            tokens.push(Lexed {
                token: Token::Text(&source[at + 1..at + 1 + end]),
                line,
            });
            at += end + 2;
        } else if is_word(byte) {
            let end = word_end(bytes, at);
            tokens.push(Lexed {
                token: Token::Word(&source[at..end]),
                line,
            });
            at = end;
        } else if b"{}[](),;:@!|+-=<>".contains(&byte) {
            tokens.push(Lexed {
                token: Token::Punct(byte),
                line,
            });
            at += 1;
        } else {
            let found = source[at..].chars().next().unwrap_or('\u{fffd}');
            return Err(SimError::syntax(line, SyntaxProblem::Character(found)));
        }
    }
    Ok(tokens)
}

/// End of the word at `start`; `::` belongs to an opcode's modifiers, a single colon ends a label.
fn word_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start;
    while at < bytes.len() {
        if is_word(bytes[at]) {
            at += 1;
        } else if bytes[at..].starts_with(b"::")
            && bytes.get(at + 2).is_some_and(|&next| is_word(next))
        {
            at += 2;
        } else if matches!(bytes[at], b'+' | b'-') && exponent(&bytes[start..at]) {
            at += 1;
        } else {
            break;
        }
    }
    at
}

/// `1.5e` of a decimal float that goes on with a sign.
fn exponent(word: &[u8]) -> bool {
    let Some((b'e' | b'E', digits)) = word.split_last() else {
        return false;
    };
    !digits.is_empty()
        && digits[0].is_ascii_digit()
        && digits.contains(&b'.')
        && digits.iter().all(|b| b.is_ascii_digit() || *b == b'.')
}
