//! docs/support-matrix.md, generated from the list of required rows.

use std::fmt::Write;

use flashcube::DType;

use crate::catalogue::problems;
use crate::required::{BackendName, FEATURES, Features, required};

/// The text of docs/support-matrix.md.
pub fn render() -> String {
    let mut text = String::from(
        "# Support matrix\n\n\
         Generated from the list of required rows; a test compares this file with the list.\n\
         A dtype in a cell means that the conformance run of that backend fails unless every\n\
         problem of the feature was executed in that dtype. `wgpu` stands for any adapter beside\n\
         the two software drivers; f16 runs there too where the adapter offers it. `-` means not\n\
         required: the device's storage buffers may not suffice (WebGPU promises 8, SwiftShader\n\
         has 9), and then the call answers NotAvailable. On SwiftShader `masks` leaves out MXFP4\n\
         weights, for whose kernels its compiler takes more than 20 GB. `refused` means that it must.\n\n\
         Every kernel has the tier `unit` (FMA, no plane operations), which is what ran. Only\n\
         features named `plane...` (mma.sync, CUDA devices of compute capability 8.0 and up),\n\
         `hopper...` (TMA, wgmma, 9.0) and `blackwell...` (TMA, tcgen05, 10.0 and 10.3) run, and\n\
         must run, on the tiers of their names. No Blackwell card has been at hand: those rows are\n\
         run on a simulated one (docs/ptx-sim.md).\n",
    );
    for features in &FEATURES {
        section(&mut text, features);
    }
    text
}

fn section(text: &mut String, features: &Features) {
    let kernel = features.kernel;
    let _ = write!(text, "\n## {kernel}\n\n| feature | problems |");
    for backend in BackendName::ALL {
        let _ = write!(text, " {backend} |");
    }
    let _ = writeln!(text, "\n|---|---|{}", "---|".repeat(BackendName::ALL.len()));
    let all = problems();
    let tiers = features.tiers.iter().map(|(feature, _)| feature);
    let listed = features.every.iter().chain(features.single);
    for &feature in listed.chain(tiers) {
        let count = all
            .iter()
            .filter(|p| p.kernel() == kernel && p.feature == feature)
            .count();
        let _ = write!(text, "| {feature} | {count} |");
        for backend in BackendName::ALL {
            let dtypes: Vec<String> = required(backend)
                .iter()
                .filter(|r| r.kernel == kernel && r.feature == feature)
                .map(|r| r.dtype)
                .collect::<Vec<DType>>()
                .iter()
                .map(DType::to_string)
                .collect();
            let cell = match dtypes.as_slice() {
                _ if feature == "split_roles" && !barriers(backend) => "refused".into(),
                [] => "-".into(),
                dtypes => dtypes.join(" "),
            };
            let _ = write!(text, " {cell} |");
        }
        text.push('\n');
    }
}

/// Whether cubes of the backend may meet at barriers in different places of the code; WGSL
/// forbids it, and a request for split roles is answered by NotAvailable.
fn barriers(backend: BackendName) -> bool {
    matches!(backend, BackendName::Cpu | BackendName::Cuda)
}
