//! The whole demo with the f64 reference in the place of a kernel: no device, no compiler.
//!
//! ```text
//! cargo run --release -p flashcube-models --features demo --example demo_on_reference -- \
//!     page.html ["a sentence" ...]
//! ```

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use flashcube_models::demo::{Attended, Bound, DemoArgs, DemoBackend, page, run, table::Tables};
use flashcube_models::{AttentionCall, minilm_dir};
use flashcube_reference::{Options, Tensor4, forward};

/// The reference, its results rounded to f32.
fn attend(call: &AttentionCall<'_, f32>) -> Result<Attended, flashcube_reference::Error> {
    let shape = [call.b, call.h_q, call.s, call.d];
    let [q, k, v] = [call.q, call.k, call.v].map(|x| Tensor4::from_slice(shape, x));
    let options = Options {
        scale: call.scale,
        lengths_kv: Some(call.lengths),
        ..Options::default()
    };
    let result = forward(&q?, &k?, &v?, &options)?;
    Ok(Attended {
        out: result.out.data.iter().map(|&x| x as f32).collect(),
        lse: result.lse.iter().map(|&x| x as f32).collect(),
        blueprint: "reference/f64".into(),
    })
}

/// Half a unit in the last place of the largest value: the only error is the final rounding.
fn bound(call: &AttentionCall<'_, f32>, max_abs_score: f64) -> Bound {
    let half_ulp = f64::from(f32::EPSILON) / 2.0;
    let max_abs_v = call.v.iter().fold(0.0, |max: f32, v| max.max(v.abs()));
    let max_abs_lse = max_abs_score + (call.s.max(1) as f64).ln();
    Bound {
        out: half_ulp * f64::from(max_abs_v),
        lse: half_ulp * max_abs_lse,
    }
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments
        .next()
        .map(PathBuf::from)
        .ok_or("usage: demo_on_reference PAGE [SENTENCE]...")?;
    let args = DemoArgs {
        model: minilm_dir(),
        sentences: arguments.collect(),
    };
    let mut backends = [DemoBackend {
        name: "reference rounded to f32 (host)".into(),
        attend: Box::new(|call| attend(call).map_err(|e| e.to_string())),
    }];
    let report = run(&args, &bound, &mut backends)?;
    print!("{}", Tables(&report));
    page::write(&report, &path)?;
    println!("page: {}", path.display());
    Ok(if report.passed() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
