use serde::{Deserialize, Serialize};

/// How one linear went. Errors are mean squares over tokens of the layer's output, against the
/// float layer on the same inputs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinearReport {
    /// The linear.
    pub name: String,
    /// Its block.
    pub block: usize,
    /// Input features.
    pub k: usize,
    /// Output features.
    pub n: usize,
    /// Mean square of the float output.
    pub output: f64,
    /// Error on the calibration inputs.
    pub loss: f64,
    /// The same, rounded to nearest on the same grid.
    pub rtn_loss: f64,
    /// On text that calibration did not see.
    pub held_out: Option<HeldOut>,
    /// GPTQ: the damping that the factorization needed.
    pub damping: Option<f64>,
    /// GPTQ: channels that were 0 in all of the calibration.
    pub dead: usize,
    /// GPTQ was no better than rounding, which was taken.
    pub took_rtn: bool,
    /// AWQ: the exponent of the scales, None where no scale was best.
    pub ratio: Option<f32>,
    /// AWQ: the input's divisor is kept beside the weight.
    pub divisor: bool,
    /// AWQ: scale candidates whose error was not finite.
    pub not_finite: usize,
    /// Wall time of the search and the rounding.
    pub seconds: f64,
}

/// A linear's errors on held-out text.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HeldOut {
    /// Mean square of the float output.
    pub output: f64,
    /// Error.
    pub loss: f64,
    /// Error of rounding to nearest.
    pub rtn_loss: f64,
}

impl LinearReport {
    /// Error as a part of the output: sqrt(loss / output).
    pub fn relative(&self) -> f64 {
        relative(self.loss, self.output)
    }

    /// The same of rounding to nearest.
    pub fn rtn_relative(&self) -> f64 {
        relative(self.rtn_loss, self.output)
    }
}

/// sqrt(loss / output), 0 where there is no output.
fn relative(loss: f64, output: f64) -> f64 {
    if output > 0.0 {
        (loss.max(0.0) / output).sqrt()
    } else {
        0.0
    }
}

/// How a model went.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelReport {
    /// `gptq`, `awq`, `rtn`, `nvfp4`.
    pub method: String,
    /// Name of the format written.
    pub format: String,
    /// Calibration tokens.
    pub tokens: usize,
    /// Blocks that an earlier run had finished.
    pub resumed: usize,
    /// Every linear, in order.
    pub linears: Vec<LinearReport>,
    /// Wall time of this run.
    pub seconds: f64,
    /// Bytes of the tensors written.
    pub bytes: u64,
}

impl ModelReport {
    /// Mean over the linears of (error, error of rounding), relative to the outputs.
    pub fn mean_relative(&self) -> (f64, f64) {
        let count = self.linears.len().max(1) as f64;
        let mean = |of: fn(&LinearReport) -> f64| self.linears.iter().map(of).sum::<f64>() / count;
        (
            mean(LinearReport::relative),
            mean(LinearReport::rtn_relative),
        )
    }

    /// The same on held-out text, where it was measured.
    pub fn mean_held_out(&self) -> Option<(f64, f64)> {
        let all: Option<Vec<HeldOut>> = self.linears.iter().map(|linear| linear.held_out).collect();
        let all = all.filter(|all| !all.is_empty())?;
        let mean = |of: fn(&HeldOut) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
        Some((
            mean(|h| relative(h.loss, h.output)),
            mean(|h| relative(h.rtn_loss, h.output)),
        ))
    }
}
