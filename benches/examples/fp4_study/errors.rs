//! Errors of encoded weights against exact attention.

use std::fmt::Write;

use flashcube_reference::quant::direct::WeightFormat;
use flashcube_reference::quant::e8m0::ScaleRule;
use flashcube_reference::quant::float::{round_e2m1, round_e4m3};
use flashcube_reference::quant::operand::{OperandFormat, round_columns, round_rows};
use flashcube_reference::{Encoding, Options, Tensor4, forward, forward_encoded};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_distr::StandardNormal;

use crate::plot::{Line, lines};
use crate::{draw, replace};

/// Rows that errors are taken over.
const ROWS: usize = 48;
const D: usize = 64;

/// Errors of a result.
#[derive(Clone, Copy)]
struct Errors {
    /// Root of the mean square, relative to that of the exact result.
    rms: f64,
    /// 1 less the mean cosine of rows.
    angle: f64,
    /// Largest, in root mean squares of the exact result.
    max: f64,
}

fn compare(got: &Tensor4, exact: &Tensor4) -> Errors {
    let d = exact.shape[3];
    let square = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>();
    let size = (square(&exact.data) / exact.data.len() as f64).sqrt();
    let off: Vec<f64> = got
        .data
        .iter()
        .zip(&exact.data)
        .map(|(x, y)| x - y)
        .collect();
    let rows = got.data.chunks(d).zip(exact.data.chunks(d));
    let cosines = rows.map(|(x, y)| {
        let dot: f64 = x.iter().zip(y).map(|(x, y)| x * y).sum();
        dot / (square(x) * square(y)).sqrt()
    });
    let count = exact.data.len() / d;
    Errors {
        rms: (square(&off) / off.len() as f64).sqrt() / size,
        angle: 1.0 - cosines.sum::<f64>() / count as f64,
        max: off.iter().fold(0.0, |max: f64, x| max.max(x.abs())) / size,
    }
}

/// q, k, v of logits with this standard deviation.
struct Case {
    q: Tensor4,
    k: Tensor4,
    v: Tensor4,
    exact: Tensor4,
}

const OPTIONS: f64 = 1.0 / 8.0;

fn options() -> Options<'static> {
    Options {
        scale: OPTIONS,
        ..Options::default()
    }
}

impl Case {
    fn new(s_kv: usize, spread: f64, mean: f64) -> Self {
        let mut rng = StdRng::seed_from_u64(s_kv as u64 * 1000 + (spread * 8.0) as u64);
        let mut normal = |shape| Tensor4::from_fn(shape, |_| rng.sample::<f64, _>(StandardNormal));
        let mut q = normal([1, 1, ROWS, D]);
        q.data.iter_mut().for_each(|x| *x *= spread);
        let k = normal([1, 1, s_kv, D]);
        let mut v = normal([1, 1, s_kv, 32]);
        v.data.iter_mut().for_each(|x| *x += mean);
        let exact = forward(&q, &k, &v, &options()).expect("a problem").out;
        Self { q, k, v, exact }
    }

    fn encoded(&self, encoding: Encoding) -> Errors {
        let got = forward_encoded(&self.q, &self.k, &self.v, &options(), encoding);
        compare(&got.expect("a problem").out, &self.exact)
    }

    /// Everything quantized: scores in one format, values in another.
    fn quantized(&self, scores: OperandFormat, values: OperandFormat) -> Errors {
        let s_kv = self.k.shape[2];
        let round = |x: &Tensor4| round_rows(x, scores).expect("a format");
        let sequences = [std::iter::once(0..s_kv).collect()];
        let v = round_columns(&self.v, &sequences, values).expect("a format");
        let format = match values {
            OperandFormat::Nvfp4 { .. } => WeightFormat::Nvfp4,
            OperandFormat::Mxfp4(rule) => WeightFormat::Mxfp4(rule),
            OperandFormat::Mxfp8(_) | OperandFormat::Fp8 { .. } => WeightFormat::E4m3,
        };
        let (q, k) = (round(&self.q), round(&self.k));
        let got = forward_encoded(&q, &k, &v, &options(), Encoding::new(format));
        compare(&got.expect("a problem").out, &self.exact)
    }
}

/// Weights and how they are encoded, by name.
fn variants() -> Vec<(&'static str, Encoding)> {
    let new = Encoding::new;
    let low = |format| Encoding {
        raised: false,
        ..new(format)
    };
    let apart = |format| Encoding {
        sum_of_encoded: false,
        ..new(format)
    };
    let mx = |rule| new(WeightFormat::Mxfp4(rule));
    vec![
        ("E4M3", new(WeightFormat::E4m3)),
        ("E4M3, not raised", low(WeightFormat::E4m3)),
        ("NVFP4", new(WeightFormat::Nvfp4)),
        ("NVFP4, not raised", low(WeightFormat::Nvfp4)),
        ("NVFP4, exact sum", apart(WeightFormat::Nvfp4)),
        ("MXFP4, ceil", mx(ScaleRule::Ceil)),
        ("MXFP4, floor", mx(ScaleRule::Floor)),
        ("MXFP4, round even", mx(ScaleRule::RoundEven)),
        (
            "MXFP4, ceil, exact sum",
            apart(WeightFormat::Mxfp4(ScaleRule::Ceil)),
        ),
    ]
}

const SPREADS: [f64; 5] = [0.5, 1.0, 2.0, 4.0, 8.0];

pub(crate) fn run() -> Result<(), String> {
    weights(0.0, "weights of mean 0")?;
    weights(1.0, "weights of mean 1")?;
    lengths()?;
    scales()?;
    operands()
}

/// P alone: v exact, logits of several spreads.
fn weights(mean: f64, name: &str) -> Result<(), String> {
    let cases = SPREADS.map(|spread| Case::new(1024, spread, mean));
    let mut text = String::from("| P |");
    SPREADS.iter().for_each(|spread| {
        let _ = write!(text, " sd {spread} |");
    });
    text += "\n|---|---|---|---|---|---|\n";
    let mut plotted = Vec::new();
    for (variant, encoding) in variants() {
        let errors: Vec<Errors> = cases.iter().map(|case| case.encoded(encoding)).collect();
        row(&mut text, variant, &errors);
        let points = SPREADS
            .iter()
            .zip(&errors)
            .map(|(x, e)| (*x, e.rms))
            .collect();
        plotted.push(Line {
            name: variant.into(),
            points,
        });
    }
    replace(name, &text)?;
    let title =
        format!("relative RMS error of out over the spread of logits, 1024 keys, V of mean {mean}");
    draw(
        &format!("fp4-weights-mean{mean}.svg"),
        &lines(&title, "sd of logits", &plotted),
    )
}

fn row(text: &mut String, name: &str, errors: &[Errors]) {
    let _ = write!(text, "| {name} |");
    for Errors { rms, angle, max } in errors {
        let _ = write!(text, " {rms:.4} / {angle:.0e} / {max:.2} |");
    }
    text.push('\n');
}

/// P alone over the number of keys.
fn lengths() -> Result<(), String> {
    const LENGTHS: [usize; 4] = [64, 512, 4096, 16384];
    let cases = LENGTHS.map(|s_kv| Case::new(s_kv, 2.0, 0.5));
    let mut text = String::from("| P |");
    LENGTHS.iter().for_each(|s| {
        let _ = write!(text, " {s} keys |");
    });
    text += "\n|---|---|---|---|---|\n";
    let mut plotted = Vec::new();
    for (variant, encoding) in variants() {
        let errors: Vec<Errors> = cases.iter().map(|case| case.encoded(encoding)).collect();
        row(&mut text, variant, &errors);
        let points = LENGTHS
            .iter()
            .zip(&errors)
            .map(|(x, e)| (*x as f64, e.rms))
            .collect();
        plotted.push(Line {
            name: variant.into(),
            points,
        });
    }
    replace("lengths", &text)?;
    let title = "relative RMS error of out over the number of keys, logits of sd 2, V of mean 0.5";
    draw("fp4-lengths.svg", &lines(title, "keys", &plotted))
}

/// What rounding the scale of NVFP4 costs, and what taking codes over the rounded one would gain.
fn scales() -> Result<(), String> {
    let mut text = String::from("| codes over | times |");
    SPREADS.iter().for_each(|spread| {
        let _ = write!(text, " sd {spread} |");
    });
    text += "\n|---|---|---|---|---|---|---|\n";
    for (names, over_rounded, by_rounded) in [
        ("unrounded | unrounded", false, false),
        ("unrounded | rounded (ours)", false, true),
        ("rounded | rounded", true, true),
    ] {
        let _ = write!(text, "| {names} |");
        for spread in SPREADS {
            let mut rng = StdRng::seed_from_u64(11);
            let (mut off, mut size) = (0.0, 0.0);
            for _ in 0..4000 {
                let mut normal = || rng.sample::<f64, _>(StandardNormal) * std::f64::consts::LOG2_E;
                let p: Vec<f64> = (0..16).map(|_| (spread * normal()).exp2()).collect();
                let top = p.iter().copied().fold(0.0, f64::max);
                // Of a group somewhere below the row's maximum.
                let exact = (-8.0 * rng.random::<f64>()).exp2();
                let rounded = round_e4m3(exact * 256.0) / 256.0;
                let of = |rounds| if rounds { rounded } else { exact };
                for p in p {
                    let p = p / top * exact;
                    let got = round_e2m1(6.0 * p / of(over_rounded)) / 6.0 * of(by_rounded);
                    // Groups weigh alike.
                    off += ((got - p) / exact).powi(2);
                    size += (p / exact).powi(2);
                }
            }
            let _ = write!(text, " {:.4} |", (off / size).sqrt());
        }
        text.push('\n');
    }
    replace("scales", &text)
}

/// Everything quantized, as kernels are given it.
fn operands() -> Result<(), String> {
    let nvfp4 = OperandFormat::Nvfp4 { exponent: 0 };
    let (mxfp4, mxfp8) = (
        OperandFormat::Mxfp4(ScaleRule::Ceil),
        OperandFormat::Mxfp8(ScaleRule::Ceil),
    );
    let cases = SPREADS.map(|spread| Case::new(1024, spread, 0.0));
    let mut text = String::from("| q and k | v and P |");
    SPREADS.iter().for_each(|spread| {
        let _ = write!(text, " sd {spread} |");
    });
    text += "\n|---|---|---|---|---|---|---|\n";
    for (scores, values, names) in [
        (nvfp4, nvfp4, "NVFP4 | NVFP4"),
        (nvfp4, mxfp8, "NVFP4 | MXFP8"),
        (mxfp4, mxfp4, "MXFP4 | MXFP4"),
        (mxfp4, mxfp8, "MXFP4 | MXFP8"),
        (mxfp8, nvfp4, "MXFP8 | NVFP4"),
        (mxfp8, mxfp8, "MXFP8 | MXFP8"),
    ] {
        let errors: Vec<Errors> = cases
            .iter()
            .map(|case| case.quantized(scores, values))
            .collect();
        row(&mut text, names, &errors);
    }
    replace("operands", &text)
}
