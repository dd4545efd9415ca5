use flashcube_models::{Family, Model, ModelError, TokenBatch};

use crate::error::QuantizeError;

/// A text in two parts that do not overlap: what may be calibrated with, and what is held out.
#[derive(Debug, Clone, Copy)]
pub struct Texts<'a> {
    /// The first nine tenths.
    pub calibration: &'a str,
    /// The last tenth.
    pub held_out: &'a str,
}

impl<'a> Texts<'a> {
    /// Cuts a text at the line that nine tenths of it lie before.
    pub fn split(text: &'a str) -> Self {
        let bytes = text.as_bytes();
        let wish = text.len() / 10 * 9;
        let line = bytes[wish..].iter().position(|&byte| byte == b'\n');
        let cut = line.map_or(text.len(), |line| wish + line + 1);
        Self {
            calibration: &text[..cut],
            held_out: &text[cut..],
        }
    }

    /// A text without the lines that mark documents (`<doc ...>`, `</doc>`).
    pub fn clean(text: &str) -> String {
        let kept = text
            .lines()
            .filter(|line| !line.starts_with("<doc ") && *line != "</doc>");
        kept.flat_map(|line| [line, "\n"]).collect()
    }
}

/// `count` lines of more than five words, spread evenly over the text: how a sentence encoder is
/// used.
///
/// # Errors
/// [`QuantizeError::Unsupported`] when the text has fewer, [`QuantizeError::Model`] when it cannot be
/// tokenized or the model is a decoder, whose texts must be of one length.
pub fn sentence_batches(
    model: &Model,
    text: &str,
    count: usize,
    per_batch: usize,
) -> Result<Vec<TokenBatch>, QuantizeError> {
    if !matches!(model.family, Family::Bert(_)) {
        let limit = "an encoder";
        return Err(QuantizeError::unsupported(
            "model of sentences",
            "a decoder",
            limit,
        ));
    }
    let sentences = sentences(text, count);
    if count == 0 || sentences.len() < count {
        let value = format!("{count} sentences of {}", sentences.len());
        let limit = "at least 1 sentence, at most what the text holds";
        return Err(QuantizeError::unsupported("calibration", value, limit));
    }
    let batch = |rows: &[&str]| Ok(model.tokenizer.encode(rows)?);
    sentences.chunks(per_batch.max(1)).map(batch).collect()
}

/// At most `count` lines of more than five words, spread evenly over the text.
pub fn sentences(text: &str, count: usize) -> Vec<&str> {
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| line.split(' ').count() > 5)
        .collect();
    let count = count.min(lines.len());
    (0..count).map(|i| lines[i * lines.len() / count]).collect()
}

/// `sequences` pieces of `length` tokens, spread evenly over the text, in batches of `per_batch`:
/// with the special tokens around each that an encoder was trained with, bare for a decoder.
///
/// # Errors
/// [`QuantizeError::Unsupported`] when the text has fewer tokens, or `length` leaves no room;
/// [`QuantizeError::Model`] when it cannot be tokenized.
pub fn calibration_batches(
    model: &Model,
    text: &str,
    sequences: usize,
    length: usize,
    per_batch: usize,
) -> Result<Vec<TokenBatch>, QuantizeError> {
    let special = |token: &'static str| {
        model.tokenizer.id(token).ok_or_else(|| ModelError::Config {
            field: "tokenizer",
            value: format!("no {token}"),
            expected: "the special tokens of BERT".to_owned(),
        })
    };
    let (before, after) = match model.family {
        Family::Bert(_) => (vec![special("[CLS]")?], vec![special("[SEP]")?]),
        Family::Llama(_) => (Vec::new(), Vec::new()),
    };
    let Some(body) = length
        .checked_sub(before.len() + after.len())
        .filter(|&body| body > 0)
    else {
        let limit = "room for a token beside the special ones";
        return Err(QuantizeError::unsupported("sequence length", length, limit));
    };
    let ids = model.tokenizer.ids(text)?;
    let available = ids.len() / body;
    if sequences == 0 || available < sequences {
        let value = format!("{sequences} x {length} tokens of {}", ids.len());
        let limit = "at least 1 sequence, at most what the text holds";
        return Err(QuantizeError::unsupported("calibration", value, limit));
    }
    let piece = |i: usize| {
        let first = i * available / sequences * body;
        [&before[..], &ids[first..first + body], &after[..]].concat()
    };
    let pieces: Vec<Vec<u32>> = (0..sequences).map(piece).collect();
    let batch = |rows: &[Vec<u32>]| TokenBatch {
        ids: rows.concat(),
        lengths: vec![length; rows.len()],
        s: length,
        ..TokenBatch::default()
    };
    Ok(pieces.chunks(per_batch.max(1)).map(batch).collect())
}
