//! The peers' script as a child process that lives as long as the run: one line of JSON asks, one
//! line answers, so that the two processes take turns on one device.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::report::BenchReport;
use crate::backend::{BackendName, Device};
use crate::failure::{Failure, Result};

/// The running script.
pub(super) struct Peers {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    pub(super) implementations: Vec<Implementation>,
}

/// One way to compute attention, or a product, that the script knows.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Implementation {
    pub(super) name: String,
    /// `bhsd` or `bshd`: order of the axes in memory; `linear` for products.
    pub(super) layout: String,
}

#[derive(Deserialize)]
struct Hello {
    implementations: Vec<Implementation>,
}

/// What a peer answers when it is asked to compute something.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Answer {
    /// Median of the round; absent where nothing was timed.
    pub(super) median_seconds: Option<f64>,
    /// Why the peer does not take the problem.
    pub(super) refused: Option<String>,
}

impl Peers {
    /// Starts `python script --serve --device cuda`, or cpu.
    ///
    /// # Errors
    /// [`Failure::Missing`] when the script or its PyTorch is not there.
    pub(super) fn start(
        python: &OsStr,
        script: &Path,
        device: &Device,
        seed: u64,
        marlin: Option<&Path>,
    ) -> Result<Self> {
        let hint = "peers are timed with PyTorch on the same card: see docs/benchmarks.md";
        let missing = |what: String| Failure::missing(what, hint);
        let mut child = Command::new(python)
            .arg(script)
            .args(["--serve", "--device", torch_device(device)])
            .args(
                marlin
                    .iter()
                    .flat_map(|library| [Path::new("--marlin"), library]),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| missing(format!("cannot start {}: {e}", python.display())))?;
        let (Some(requests), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::failed("the peers' script has no pipes"));
        };
        let mut peers = Self {
            child,
            requests,
            answers: BufReader::new(answers),
            implementations: Vec::new(),
        };
        let hello: Hello = peers
            .ask(&json!({"op": "hello", "seed": seed}))
            .map_err(|e| missing(e.to_string()))?;
        peers.implementations = hello.implementations;
        Ok(peers)
    }

    /// Those that attend.
    pub(super) fn attention(&self) -> Vec<Implementation> {
        let attends = |peer: &&Implementation| peer.layout != "linear";
        let found = self.implementations.iter().filter(attends);
        found.cloned().collect()
    }

    /// One round of a problem.
    pub(super) fn measure(&mut self, implementation: &str, problem: &Value) -> Result<Answer> {
        self.ask(&json!({"op": "measure", "implementation": implementation, "problem": problem}))
    }

    /// The problem's rounds are over: sampled rows are checked, memory is freed.
    pub(super) fn finish(&mut self, problem: &Value) -> Result<()> {
        self.ask(&json!({"op": "finish", "problem": problem}))
    }

    /// Attention over q, k, v [b, h, s, d] in files of f32, written as f32 to another.
    pub(super) fn attend(
        &mut self,
        implementation: &str,
        dtype: &str,
        shape: [usize; 4],
        inputs: &[&Path; 3],
        output: &Path,
    ) -> Result<Answer> {
        self.ask(&json!({
            "op": "attend", "implementation": implementation, "dtype": dtype, "shape": shape,
            "inputs": inputs, "output": output,
        }))
    }

    /// Everything measured so far.
    pub(super) fn report(&mut self) -> Result<BenchReport> {
        self.ask(&json!({"op": "report"}))
    }

    fn ask<T: DeserializeOwned>(&mut self, request: &Value) -> Result<T> {
        let failed = |what: String| Failure::failed(format!("the peers' script: {what}"));
        writeln!(self.requests, "{request}")
            .and_then(|()| self.requests.flush())
            .map_err(|e| failed(format!("cannot ask {}: {e}", request["op"])))?;
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(0) => return Err(failed(format!("ended at {}", request["op"]))),
            Ok(_) => {}
            Err(e) => return Err(failed(format!("cannot read its answer: {e}"))),
        }
        let answer: Value =
            serde_json::from_str(&line).map_err(|e| failed(format!("{e}: {}", line.trim())))?;
        if let Some(error) = answer.get("error") {
            return Err(failed(error.to_string()));
        }
        serde_json::from_value(answer).map_err(|e| failed(format!("{e}: {}", line.trim())))
    }
}

/// PyTorch's name for what `device` is.
fn torch_device(device: &Device) -> &'static str {
    match device.backend {
        BackendName::Cuda => "cuda",
        _ => "cpu",
    }
}

impl Drop for Peers {
    /// A script that still computes is not waited for.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
