use std::path::Path;

use serde::Serialize;

use crate::ModelError;

/// Sentences as token ids, padded to the longest of the batch.
#[derive(Debug, Clone, Default)]
pub struct TokenBatch {
    /// Token ids, [b, s]; a row is padded with 0 past its length.
    pub ids: Vec<u32>,
    /// Valid tokens of each row, `[b]`, each <= s.
    pub lengths: Vec<usize>,
    /// Padded length: the longest row's, 0 for an empty batch.
    pub s: usize,
    /// The tokens as text, without padding: one list for each row.
    pub tokens: Vec<Vec<String>>,
    /// The rows that were longer than the limit.
    pub truncations: Vec<Truncation>,
}

/// A sentence that was cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Truncation {
    /// Index of the sentence.
    pub sentence: usize,
    /// How many tokens it had, special ones included.
    pub tokens: usize,
    /// How many were kept.
    pub kept: usize,
}

/// A `tokenizer.json`, with truncation and padding done here rather than as the file says.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    limit: usize,
}

impl Tokenizer {
    /// Tokens kept of one sentence: what the MiniLM sentence model was trained with.
    pub const LIMIT: usize = 128;

    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// [`ModelError::Io`] when it cannot be read, [`ModelError::Parse`] when it is not a tokenizer.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ModelError> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(|source| ModelError::Io {
            path: path.to_path_buf(),
            source,
        })?;
        let parse = |e: tokenizers::Error| ModelError::Parse {
            path: path.to_path_buf(),
            detail: e.to_string(),
        };
        let mut inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(parse)?;
        inner
            .with_truncation(None)
            .map_err(parse)?
            .with_padding(None);
        Ok(Self {
            inner,
            limit: Self::LIMIT,
        })
    }

    /// Tokenizes the sentences, with the special tokens the model expects around each.
    ///
    /// A sentence longer than [`Tokenizer::LIMIT`] keeps its first tokens and its closing special
    /// token, and is listed in [`TokenBatch::truncations`].
    ///
    /// # Errors
    /// [`ModelError::Tokenize`] with the index of the sentence.
    pub fn encode<S: AsRef<str>>(&self, sentences: &[S]) -> Result<TokenBatch, ModelError> {
        let mut rows = Vec::with_capacity(sentences.len());
        let mut batch = TokenBatch::default();
        for (sentence, text) in sentences.iter().enumerate() {
            let encoding =
                self.inner
                    .encode(text.as_ref(), true)
                    .map_err(|e| ModelError::Tokenize {
                        sentence,
                        detail: e.to_string(),
                    })?;
            let mut ids = encoding.get_ids().to_vec();
            let mut tokens = encoding.get_tokens().to_vec();
            let count = ids.len();
            if count > self.limit {
                ids.drain(self.limit - 1..count - 1);
                tokens.drain(self.limit - 1..count - 1);
                let kept = self.limit;
                batch.truncations.push(Truncation {
                    sentence,
                    tokens: count,
                    kept,
                });
            }
            batch.lengths.push(ids.len());
            batch.tokens.push(tokens);
            rows.push(ids);
        }
        batch.s = batch.lengths.iter().copied().max().unwrap_or(0);
        for mut row in rows {
            row.resize(batch.s, 0);
            batch.ids.append(&mut row);
        }
        Ok(batch)
    }
}
