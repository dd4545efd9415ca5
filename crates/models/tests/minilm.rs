//! The MiniLM forward pass against an independent float64 implementation, and what happens with
//! damaged files. The tests that need the model say so when it is not there.

use std::path::PathBuf;

use flashcube_formats::FormatError;
use flashcube_models::{
    AttentionCall, Bert, BertConfig, ModelError, Real, TokenBatch, Tokenizer, Truncation,
    minilm_dir,
};
use serde::Deserialize;

/// What make_expected.py writes.
#[derive(Deserialize)]
struct Expected {
    sentences: Vec<String>,
    ids: Vec<Vec<u32>>,
    first_dims: Vec<Vec<f64>>,
    cosines: Vec<Vec<f64>>,
}

fn expected() -> Expected {
    serde_json::from_str(include_str!("minilm_expected.json")).expect("fixture parses")
}

/// The model's folder, or None after saying that the test did not run.
fn model() -> Option<PathBuf> {
    let folder = minilm_dir();
    if folder.join("model.safetensors").is_file() {
        return Some(folder);
    }
    let required = std::env::var_os("FLASHCUBE_REQUIRE_MODEL").is_some_and(|v| v == "1");
    assert!(
        !required,
        "model required, but not found in {}",
        folder.display()
    );
    println!("not run: model not found in {}", folder.display());
    None
}

/// Softmax attention by the formula, in f64, one query row after another: [b, h, s, d].
fn attend<T: Real>(call: AttentionCall<'_, T>) -> Result<Vec<T>, ModelError> {
    let AttentionCall {
        b,
        h_q: h,
        s,
        d,
        q,
        k,
        v,
        ..
    } = call;
    let mut out = Vec::with_capacity(q.len());
    for row in 0..b * h * s {
        let (head, length) = (row / s, call.lengths[row / (h * s)]);
        let dot = |j: usize| -> f64 {
            let key = (head * s + j) * d;
            (0..d)
                .map(|i| q[row * d + i].into_f64() * k[key + i].into_f64())
                .sum()
        };
        let scores: Vec<f64> = (0..length).map(|j| call.scale * dot(j)).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let p: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
        let sum: f64 = p.iter().sum();
        for i in 0..d {
            let weighted = p
                .iter()
                .enumerate()
                .map(|(j, p)| p * v[(head * s + j) * d + i].into_f64());
            out.push(T::from_f64(weighted.sum::<f64>() / sum));
        }
    }
    Ok(out)
}

fn cosine<T: Real>(embeddings: &[T], hidden: usize, i: usize, j: usize) -> f64 {
    let row = |i: usize| {
        embeddings[i * hidden..(i + 1) * hidden]
            .iter()
            .map(|v| v.into_f64())
    };
    row(i).zip(row(j)).map(|(a, b)| a * b).sum()
}

/// Embeds the fixture's sentences as one padded batch and compares with the fixture, which was
/// computed one sentence at a time without padding.
fn check_against_fixture<T: Real>(tolerance: f64) {
    let Some(folder) = model() else { return };
    let expected = expected();
    let tokenizer = Tokenizer::open(folder.join("tokenizer.json")).unwrap();
    let batch = tokenizer.encode(&expected.sentences).unwrap();
    let bert = Bert::<T>::open(&folder).unwrap();
    let hidden = bert.config().hidden_size;
    let embeddings = bert.embed(&batch, attend).unwrap();
    assert_eq!(embeddings.len(), expected.sentences.len() * hidden);
    for (i, dims) in expected.first_dims.iter().enumerate() {
        for (j, &e) in dims.iter().enumerate() {
            let error = (embeddings[i * hidden + j].into_f64() - e).abs();
            assert!(error < tolerance, "sentence {i} dim {j}: error {error:e}");
        }
        for (j, &e) in expected.cosines[i].iter().enumerate() {
            let error = (cosine(&embeddings, hidden, i, j) - e).abs();
            assert!(error < tolerance, "cosine {i} {j}: error {error:e}");
        }
    }
}

#[test]
fn embed_in_f64_matches_the_independent_implementation() {
    check_against_fixture::<f64>(1e-12);
}

#[test]
fn embed_in_f32_is_within_single_precision() {
    check_against_fixture::<f32>(2e-6);
}

#[test]
fn tokenizer_gives_the_fixture_ids_and_pads_to_the_longest() {
    let Some(folder) = model() else { return };
    let expected = expected();
    let tokenizer = Tokenizer::open(folder.join("tokenizer.json")).unwrap();
    let batch = tokenizer.encode(&expected.sentences).unwrap();
    assert_eq!(batch.s, expected.ids.iter().map(Vec::len).max().unwrap());
    assert!(batch.truncations.is_empty());
    for (i, ids) in expected.ids.iter().enumerate() {
        let row = &batch.ids[i * batch.s..(i + 1) * batch.s];
        assert_eq!(batch.lengths[i], ids.len());
        assert_eq!(&row[..ids.len()], ids);
        assert!(row[ids.len()..].iter().all(|&id| id == 0));
        assert_eq!(batch.tokens[i].len(), ids.len());
    }
}

#[test]
fn tokenizer_cuts_a_long_sentence_and_says_so() {
    let Some(folder) = model() else { return };
    let tokenizer = Tokenizer::open(folder.join("tokenizer.json")).unwrap();
    let batch = tokenizer
        .encode(&["cat ".repeat(200), String::new()])
        .unwrap();
    assert_eq!(batch.lengths, [128, 2]);
    assert_eq!(
        batch.truncations,
        [Truncation {
            sentence: 0,
            tokens: 202,
            kept: 128
        }]
    );
    assert_eq!(
        (batch.tokens[0][0].as_str(), batch.tokens[0][127].as_str()),
        ("[CLS]", "[SEP]")
    );
    assert_eq!(batch.tokens[1], ["[CLS]", "[SEP]"]);
}

#[test]
fn embed_of_no_sentence_and_of_an_empty_row() {
    let Some(folder) = model() else { return };
    let bert = Bert::<f32>::open(&folder).unwrap();
    assert!(
        bert.embed(&TokenBatch::default(), attend)
            .unwrap()
            .is_empty()
    );
    let empty_row = TokenBatch {
        ids: vec![101, 102, 0, 0],
        lengths: vec![2, 0],
        s: 2,
        ..Default::default()
    };
    let zeros =
        |call: AttentionCall<'_, f32>| -> Result<_, ModelError> { Ok(vec![0.0; call.q.len()]) };
    let embeddings = bert.embed(&empty_row, zeros).unwrap();
    assert!(embeddings[384..].iter().all(|&v| v == 0.0));
    assert!(embeddings[..384].iter().all(|v| v.is_finite()));
}

#[test]
fn embed_refuses_what_does_not_fit() {
    let Some(folder) = model() else { return };
    let bert = Bert::<f32>::open(&folder).unwrap();
    let refused = |ids: Vec<u32>, lengths: Vec<usize>, s| {
        let batch = TokenBatch {
            ids,
            lengths,
            s,
            ..Default::default()
        };
        bert.embed(&batch, attend).unwrap_err().to_string()
    };
    assert_eq!(
        refused(vec![30522], vec![1], 1),
        "token id: 30522, limit 30521"
    );
    assert_eq!(
        refused(vec![0; 513], vec![513], 513),
        "sequence length: 513, limit 512"
    );
    assert_eq!(
        refused(vec![0; 3], vec![4], 3),
        "valid tokens of a row: 4, limit 3"
    );
    assert_eq!(refused(vec![0; 3], vec![2], 2), "token ids: 3, limit 2");
    let batch = TokenBatch {
        ids: vec![101],
        lengths: vec![1],
        s: 1,
        ..Default::default()
    };
    let short = bert
        .embed(&batch, |_| Ok::<_, ModelError>(vec![0.0; 5]))
        .unwrap_err();
    assert_eq!(
        short.to_string(),
        "values returned by attention: 5, limit 384"
    );
}

/// A model of 4 words and hidden size 8, as its two files, with `shape` for its word table.
fn write_model(shape: &[usize]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config_json(2, "gelu")).unwrap();
    let bytes = 4 * shape.iter().product::<usize>();
    let header = format!(
        r#"{{"embeddings.word_embeddings.weight":{{"dtype":"F32","shape":{shape:?},"data_offsets":[0,{bytes}]}}}}"#
    );
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.resize(file.len() + bytes, 0);
    std::fs::write(folder.path().join("model.safetensors"), file).unwrap();
    folder
}

#[test]
fn open_names_the_tensor_that_is_missing_or_misshapen() {
    let open = |folder: &tempfile::TempDir| Bert::<f32>::open(folder.path()).unwrap_err();
    let error = open(&write_model(&[4, 8]));
    let ModelError::Format(FormatError::MissingTensor { tensor, .. }) = &error else {
        panic!("{error}");
    };
    assert_eq!(tensor, "embeddings.position_embeddings.weight");
    let error = open(&write_model(&[8, 4]));
    let ModelError::Format(FormatError::WrongShape {
        tensor,
        found,
        expected,
    }) = &error
    else {
        panic!("{error}");
    };
    assert_eq!(tensor, "embeddings.word_embeddings.weight");
    assert_eq!(
        (found.as_slice(), expected.as_slice()),
        ([8, 4].as_slice(), [4, 8].as_slice())
    );
}

/// Every truncation of the checkpoint is refused, and so is its absence.
#[test]
fn open_refuses_truncated_and_missing_files() {
    let folder = write_model(&[4, 8]);
    let path = folder.path().join("model.safetensors");
    let whole = std::fs::read(&path).unwrap();
    for length in 0..whole.len() {
        std::fs::write(&path, &whole[..length]).unwrap();
        let error = Bert::<f32>::open(folder.path()).unwrap_err();
        assert!(
            matches!(error, ModelError::Format(FormatError::Corrupt { .. })),
            "{length} bytes: {error}"
        );
    }
    std::fs::remove_file(&path).unwrap();
    let error = Bert::<f32>::open(folder.path()).unwrap_err();
    assert!(matches!(error, ModelError::Format(FormatError::Io { .. })));
    let error = Tokenizer::open(folder.path().join("config.json")).unwrap_err();
    assert!(matches!(error, ModelError::Parse { .. }));
    let error = Tokenizer::open(folder.path().join("tokenizer.json")).unwrap_err();
    assert!(matches!(error, ModelError::Io { .. }));
}

fn config_json(heads: usize, act: &str) -> String {
    format!(
        r#"{{"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": {heads}, "max_position_embeddings": 4, "type_vocab_size": 1,
        "vocab_size": 4, "layer_norm_eps": 1e-12, "hidden_act": "{act}",
        "position_embedding_type": "absolute"}}"#
    )
}

#[test]
fn config_names_the_field_it_refuses() {
    let config = |heads: usize, act: &str| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), config_json(heads, act)).unwrap();
        BertConfig::open(file.path()).map_err(|e| e.to_string())
    };
    assert!(config(2, "gelu").is_ok());
    assert_eq!(
        config(0, "gelu").unwrap_err(),
        "config num_attention_heads: 0, expected at least 1"
    );
    assert_eq!(
        config(3, "gelu").unwrap_err(),
        "config hidden_size: 8, expected a multiple of num_attention_heads 3"
    );
    assert_eq!(
        config(2, "gelu_new").unwrap_err(),
        "config hidden_act: gelu_new, expected gelu"
    );
}
