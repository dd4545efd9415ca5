//! AWQ's scales, moved to where they cost nothing.

use std::collections::HashMap;

use flashcube_models::{Fold, Overlay, Stage, Weights};

use crate::awq::multiply_inputs;
use crate::error::QuantizeError;
use crate::weight::transposed;

/// What has been multiplied into a linear so far: W' = diag(rows) W diag(1 / columns).
#[derive(Debug, Clone)]
pub(super) struct Scaled {
    /// `[k]`, the scales of its input.
    pub(super) rows: Vec<f32>,
    /// `[n]`, what a later linear's scales took from its outputs.
    pub(super) columns: Vec<f32>,
    /// The input's divisor stays beside the weight: nothing before it took it.
    pub(super) divisor: bool,
}

impl Scaled {
    pub(super) fn plain(k: usize, n: usize) -> Self {
        Self {
            rows: vec![1.0; k],
            columns: vec![1.0; n],
            divisor: false,
        }
    }

    /// W' [k, n] of W.
    pub(super) fn apply(&self, weight: &[f32]) -> Vec<f32> {
        let mut scaled = multiply_inputs(weight, &self.rows, self.columns.len());
        for row in scaled.chunks_exact_mut(self.columns.len().max(1)) {
            row.iter_mut()
                .zip(&self.columns)
                .for_each(|(w, by)| *w /= by);
        }
        scaled
    }

    /// W of W' [k, n], in place.
    pub(super) fn undo(&self, scaled: &mut [f32]) {
        let rows = scaled.chunks_exact_mut(self.columns.len().max(1));
        for (row, &by) in rows.zip(&self.rows) {
            row.iter_mut()
                .zip(&self.columns)
                .for_each(|(w, column)| *w = *w / by * column);
        }
    }
}

/// Moves the scales `[k]` of a stage's input into what comes before it: the norm's tensor in
/// `overlay`, or the outputs of an earlier linear, of which `scaled` keeps account and whose bias
/// changes in `overlay`.
///
/// # Errors
/// [`QuantizeError::Model`] for tensors that are not there.
pub(super) fn fold(
    stage: &Stage,
    scales: &[f32],
    overlay: &mut Overlay<'_>,
    scaled: &mut HashMap<String, Scaled>,
) -> Result<(), QuantizeError> {
    for linear in &stage.linears {
        let entry = scaled
            .entry(linear.name.clone())
            .or_insert_with(|| Scaled::plain(linear.k, linear.n));
        entry.rows = scales.to_vec();
        entry.divisor = stage.fold == Fold::Nowhere;
    }
    match &stage.fold {
        Fold::Nowhere => {}
        Fold::Norm(name) => {
            let mut norm = overlay.tensor(name, &[scales.len()])?;
            norm.iter_mut().zip(scales).for_each(|(w, s)| *w /= s);
            overlay.set(name.clone(), norm);
        }
        Fold::Rows { linear, rows } => {
            let Some(before) = scaled.get_mut(linear) else {
                let limit = "a linear of an earlier stage";
                return Err(QuantizeError::unsupported("fold", linear, limit));
            };
            let mut by = vec![1.0; before.columns.len()];
            for (&row, &scale) in rows.iter().zip(scales) {
                by[row] = scale;
            }
            before
                .columns
                .iter_mut()
                .zip(&by)
                .for_each(|(column, by)| *column *= by);
            let name = format!("{linear}.bias");
            if overlay.shape(&name).is_some() {
                let mut bias = overlay.tensor(&name, &[by.len()])?;
                bias.iter_mut().zip(&by).for_each(|(b, by)| *b /= by);
                overlay.set(name, bias);
            }
        }
    }
    Ok(())
}

/// `{name}.weight` [n, k] as W [k, n].
pub(super) fn weight_of(
    weights: &dyn Weights,
    name: &str,
    k: usize,
    n: usize,
) -> Result<Vec<f32>, QuantizeError> {
    let stored = weights.tensor(&format!("{name}.weight"), &[n, k])?;
    Ok(transposed(&stored, n, k))
}

#[cfg(test)]
#[path = "../../tests/suite/tiny.rs"]
#[allow(dead_code)]
mod tiny;

#[cfg(test)]
mod tests {
    use flashcube_models::{LinearShape, Model};

    use super::*;

    /// Scales over three octaves, equal where channels share a row.
    fn scales(stage: &Stage) -> Vec<f32> {
        let scale = |i: usize| 2f32.powf(((i * 7) % 13) as f32 / 4.0 - 1.5);
        match &stage.fold {
            Fold::Rows { rows, .. } => rows.iter().map(|&row| scale(row)).collect(),
            _ => (0..stage.linears[0].k).map(scale).collect(),
        }
    }

    /// Folds made-up scales everywhere and compares what the block gives.
    fn check_block(model: &Model) {
        let architecture = model.architecture();
        let batch = &tiny::texts(1, 3)[0];
        let x = architecture.embed(model.weights(), batch).unwrap();
        let run = |weights: &dyn Weights| {
            let block = architecture.block(weights, 0).unwrap();
            let observe = &mut |_: usize, _: &[f32]| Ok(());
            block
                .forward(x.clone(), batch, &mut tiny::attend, observe)
                .unwrap()
        };
        let mut overlay = Overlay::new(model.weights());
        let mut scaled = HashMap::new();
        let stages = architecture.stages(0);
        for stage in &stages {
            fold(stage, &scales(stage), &mut overlay, &mut scaled).unwrap();
        }
        for linear in stages.iter().flat_map(|stage| &stage.linears) {
            let own = &scaled[&linear.name];
            let weight = weight_of(model.weights(), &linear.name, linear.k, linear.n).unwrap();
            let mut folded = own.apply(&weight);
            if own.divisor {
                crate::awq::divide_inputs(&mut folded, &own.rows, linear.n);
            }
            let stored = transposed(&folded, linear.k, linear.n);
            overlay.set(format!("{}.weight", linear.name), stored);
            let mut back = own.apply(&weight);
            own.undo(&mut back);
            let off = back
                .iter()
                .zip(&weight)
                .map(|(a, b)| (a - b).abs())
                .fold(0.0, f32::max);
            assert!(off < 1e-6, "{}: {off}", linear.name);
        }
        let (before, after) = (run(model.weights()), run(&overlay));
        let largest = before.iter().fold(0.0f32, |max, x| max.max(x.abs()));
        let off = before
            .iter()
            .zip(&after)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f32::max);
        assert!(off <= 1e-5 * largest, "{off} of {largest}");
    }

    #[test]
    fn folding_alone_leaves_a_grouped_decoder_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        check_block(&tiny::llama(folder.path(), 1));
    }

    #[test]
    fn folding_alone_leaves_an_encoder_with_biases_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        check_block(&tiny::bert(folder.path()));
    }

    /// Values are the last third of a fused projection: only those outputs change.
    #[test]
    fn fused_projections_are_folded_into_their_values_alone() {
        let folder = tempfile::tempdir().unwrap();
        let model = tiny::llama(folder.path(), 1);
        let linear = |name: &str, k, n| LinearShape {
            name: name.to_owned(),
            k,
            n,
        };
        let stage = Stage {
            linears: vec![linear("o", 4, 2)],
            fold: Fold::Rows {
                linear: "qkv".to_owned(),
                rows: vec![8, 9, 10, 11],
            },
            residual: None,
        };
        let mut scaled = HashMap::from([("qkv".to_owned(), Scaled::plain(3, 12))]);
        let mut overlay = Overlay::new(model.weights());
        let scales = [2.0, 4.0, 0.5, 1.0];
        fold(&stage, &scales, &mut overlay, &mut scaled).unwrap();
        assert_eq!(scaled["qkv"].columns[..8], [1.0; 8]);
        assert_eq!(scaled["qkv"].columns[8..], scales);
        assert_eq!(scaled["o"].rows, scales);
        let mut missing = HashMap::new();
        let error = fold(&stage, &scales, &mut overlay, &mut missing).unwrap_err();
        assert!(error.to_string().starts_with("fold is qkv"), "{error}");
    }
}
