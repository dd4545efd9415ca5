//! A small model trained on text with attention's forward in few bits.

use std::fmt::Write;

use flashcube_reference::quant::direct::WeightFormat;
use flashcube_reference::quant::e8m0::ScaleRule;
use flashcube_reference::quant::operand::OperandFormat;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_distr::StandardNormal;

use crate::model::{CONTEXT, Model, Precision, VOCABULARY};
use crate::plot::{Line, lines};
use crate::{draw, replace};

const BATCH: usize = 4;
const STEPS: usize = 500;
const RATES: [f32; 2] = [0.003, 0.01];
const RULE: ScaleRule = ScaleRule::Ceil;

/// Bytes -> the most frequent `VOCABULARY` - 1 ones and 0 for the others.
fn tokens(text: &[u8]) -> Vec<u8> {
    let mut counts = [0usize; 256];
    text.iter().for_each(|&byte| counts[byte as usize] += 1);
    let mut order: Vec<usize> = (0..256).collect();
    order.sort_by_key(|&byte| std::cmp::Reverse(counts[byte]));
    let mut code = [0u8; 256];
    for (place, &byte) in order.iter().take(VOCABULARY - 1).enumerate() {
        code[byte] = place as u8 + 1;
    }
    text.iter().map(|&byte| code[byte as usize]).collect()
}

/// First P and V alone, then scores as well.
fn precisions() -> [(&'static str, Precision); 7] {
    let nvfp4 = OperandFormat::Nvfp4 { exponent: 0 };
    let (mxfp4, mxfp8) = (OperandFormat::Mxfp4(RULE), OperandFormat::Mxfp8(RULE));
    let of = |scores, values| Precision { scores, values };
    let fp8 = Some((mxfp8, WeightFormat::E4m3));
    let nv = Some((nvfp4, WeightFormat::Nvfp4));
    let mx = Some((mxfp4, WeightFormat::Mxfp4(RULE)));
    [
        ("f64", of(None, None)),
        ("exact scores, FP8 P", of(None, fp8)),
        ("exact scores, NVFP4 P", of(None, nv)),
        ("exact scores, MXFP4 P", of(None, mx)),
        ("NVFP4 scores, FP8 P", of(Some(nvfp4), fp8)),
        ("NVFP4 scores, NVFP4 P", of(Some(nvfp4), nv)),
        ("MXFP4 scores, MXFP4 P", of(Some(mxfp4), mx)),
    ]
}

/// Losses in training, and the held-out one of the end in that precision.
struct Run {
    losses: Vec<f32>,
    held_out: f32,
    /// Largest norm of a step's gradient in the second half.
    norm: f32,
}

fn train(text: &[u8], precision: Precision, rate: f32) -> Run {
    let mut rng = StdRng::seed_from_u64(7);
    let mut model = Model::new(|| rng.sample(StandardNormal));
    let zeros = || -> Vec<Vec<f32>> { model.weights.iter().map(|w| vec![0.0; w.len()]).collect() };
    let (mut first, mut second) = (zeros(), zeros());
    let cut = text.len() * 9 / 10;
    let mut batch = |from: usize, to: usize| -> Vec<u8> {
        let mut at = || rng.random_range(from..to - CONTEXT - 1);
        (0..BATCH)
            .map(|_| at())
            .flat_map(|at| text[at..at + CONTEXT + 1].to_vec())
            .collect()
    };
    let (mut losses, mut norm) = (Vec::new(), 0.0f32);
    for step in 1..=STEPS {
        let mut gradients: Vec<Vec<f32>> =
            model.weights.iter().map(|w| vec![0.0; w.len()]).collect();
        losses.push(model.loss(&batch(0, cut), precision, Some(&mut gradients)));
        let square: f32 = gradients.iter().flatten().map(|g| g * g).sum();
        if step > STEPS / 2 {
            norm = norm.max(square.sqrt());
        }
        // Adam with a warm-up, without clipping: what diverges shall be seen to.
        let rate = rate * (step as f32 / 50.0).min(1.0);
        let (b1, b2) = (0.9f32, 0.99f32);
        let corrections = (1.0 - b1.powi(step as i32), 1.0 - b2.powi(step as i32));
        let matrices = model
            .weights
            .iter_mut()
            .zip(&gradients)
            .zip(first.iter_mut().zip(second.iter_mut()));
        for ((w, g), (m, v)) in matrices {
            for ((w, g), (m, v)) in w.iter_mut().zip(g).zip(m.iter_mut().zip(v.iter_mut())) {
                *m = b1 * *m + (1.0 - b1) * g;
                *v = b2 * *v + (1.0 - b2) * g * g;
                *w -= rate * (*m / corrections.0) / ((*v / corrections.1).sqrt() + 1e-8);
            }
        }
    }
    let held: f32 = (0..8)
        .map(|_| model.loss(&batch(cut, text.len()), precision, None))
        .sum();
    Run {
        losses,
        held_out: held / 8.0,
        norm,
    }
}

pub(crate) fn run(path: &str) -> Result<(), String> {
    let text = std::fs::read(path).map_err(|error| format!("{path}: {error}"))?;
    let text = tokens(&text);
    let mut table = String::from(
        "| learning rate | forward of attention | loss, steps 1-50 | last 50 steps | held out | largest gradient norm, second half |\n|---|---|---|---|---|---|\n",
    );
    for rate in RATES {
        let mut plotted = Vec::new();
        for (name, precision) in precisions() {
            let run = train(&text, precision, rate);
            let mean = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len() as f32;
            let _ = writeln!(
                table,
                "| {rate} | {name} | {:.3} | {:.3} | {:.3} | {:.3e} |",
                mean(&run.losses[..50]),
                mean(&run.losses[STEPS - 50..]),
                run.held_out,
                run.norm
            );
            println!("{}", table.lines().last().unwrap_or_default());
            let windows = run.losses.chunks(25).enumerate();
            let points = windows.map(|(at, part)| (25.0 * (at + 1) as f64, f64::from(mean(part))));
            plotted.push(Line {
                name: name.into(),
                points: points.collect(),
            });
        }
        let title = format!("training loss (nats a byte), learning rate {rate}");
        draw(
            &format!("fp4-training-{rate}.svg"),
            &lines(&title, "steps", &plotted),
        )?;
    }
    replace("training", &table)
}
