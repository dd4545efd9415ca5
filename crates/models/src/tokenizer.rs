use std::path::Path;

use serde::Serialize;
use tokenizers::AddedToken;
use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;

use crate::{GgufModel, ModelError};

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
        let bytes = std::fs::read(path).map_err(ModelError::io(path))?;
        let parse = ModelError::parse::<tokenizers::Error>;
        let mut inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(parse(path))?;
        inner
            .with_truncation(None)
            .map_err(parse(path))?
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

    /// The byte-level BPE inside a GGUF file, with digits one by one as SmolLM has them.
    ///
    /// # Errors
    /// [`ModelError::Config`] for another kind of tokenizer, or lists that do not belong together.
    pub fn from_gguf(model: &GgufModel) -> Result<Self, ModelError> {
        use flashcube_formats::GgufValue::{Array, Signed, Text};
        let refuse = |field, value: String, expected: &str| ModelError::Config {
            field,
            value,
            expected: expected.to_owned(),
        };
        let metadata = model.gguf().metadata();
        for (field, expected) in [
            ("tokenizer.ggml.model", "gpt2"),
            ("tokenizer.ggml.pre", "smollm"),
        ] {
            let found = metadata.get(field);
            if !matches!(found, Some(Text(text)) if text == expected) {
                return Err(refuse(field, format!("{found:?}"), expected));
            }
        }
        let tokens = model.texts("tokenizer.ggml.tokens")?;
        let numbered = |(id, token): (usize, &&str)| ((*token).to_owned(), id as u32);
        let vocab: Vocab = tokens.iter().enumerate().map(numbered).collect();
        let merges = model
            .texts("tokenizer.ggml.merges")?
            .into_iter()
            .map(|merge| {
                let pair = merge.split_once(' ');
                pair.map(|(a, b)| (a.to_owned(), b.to_owned()))
                    .ok_or_else(|| refuse("tokenizer.ggml.merges", merge.to_owned(), "two tokens"))
            });
        let bpe = BPE::new(vocab, merges.collect::<Result<_, _>>()?);
        let mut inner = tokenizers::Tokenizer::new(bpe);
        let bytes = ByteLevel::new(false, true, true);
        let split = Sequence::new(vec![Digits::new(true).into(), bytes.into()]);
        inner
            .with_pre_tokenizer(Some(split))
            .with_decoder(Some(bytes));
        // Type 3 marks tokens of control, which no text spells.
        if let Some(Array(kinds)) = metadata.get("tokenizer.ggml.token_type") {
            let control = tokens
                .iter()
                .zip(kinds)
                .filter(|(_, kind)| **kind == Signed(3));
            let special: Vec<AddedToken> = control
                .map(|(token, _)| AddedToken::from(*token, true))
                .collect();
            inner.add_special_tokens(&special);
        }
        Ok(Self {
            inner,
            limit: Self::LIMIT,
        })
    }

    /// Writes a `tokenizer.json`.
    ///
    /// # Errors
    /// [`ModelError::Parse`] with what the writer said.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), ModelError> {
        let path = path.as_ref();
        self.inner.save(path, true).map_err(ModelError::parse(path))
    }

    /// Token ids of a whole text: not cut, nothing added around it.
    ///
    /// # Errors
    /// [`ModelError::Tokenize`].
    pub fn ids(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        let encoding = self
            .inner
            .encode(text, false)
            .map_err(|e| ModelError::Tokenize {
                sentence: 0,
                detail: e.to_string(),
            })?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of tokens, without those of control.
    ///
    /// # Errors
    /// [`ModelError::Tokenize`].
    pub fn text(&self, ids: &[u32]) -> Result<String, ModelError> {
        self.inner
            .decode(ids, true)
            .map_err(|e| ModelError::Tokenize {
                sentence: 0,
                detail: e.to_string(),
            })
    }

    /// The id of a token by its spelling.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }
}
