//! Sabotaged kernels: a suite that lets one of them pass proves nothing.

use cubecl::prelude::Client;
use flashcube::{Error, Fault, MatmulFault, Policy};
use serde::Serialize;

use crate::catalogue::problem;
use crate::inputs::Inputs;
use crate::launch::launch;
use crate::oracle;
use crate::problem::{Problem, Task};
use crate::verdict::Verdict;

/// One fault on one problem that can show it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Mutant {
    /// The fault.
    pub fault: String,
    /// The problem.
    pub case: String,
    /// The blueprint that ran.
    pub blueprint: Option<String>,
    /// What the suite said of it; `None` if it noticed nothing, which is this row's failure.
    pub caught: Option<String>,
    /// Why it could not be tried.
    pub error: Option<String>,
}

impl Mutant {
    /// Whether the fault was noticed.
    pub fn passed(&self) -> bool {
        self.caught.is_some()
    }
}

/// Problems that show a fault.
pub fn problems_for(fault: Fault) -> &'static [&'static str] {
    match fault {
        Fault::LastKeyDropped => &["sizes/q37xkv65", "sizes/q37xkv1", "values/index_v"],
        Fault::BandRightOffByOne => &["causal/bottom_right_q37xkv37", "window/left_5_right_2"],
        Fault::BandLeftOffByOne => &["window/left_5_right_2", "window/left_4_right_all"],
        Fault::RescaleSkipped => &["values/peak", "sizes/q37xkv65"],
        Fault::F16Accumulate => &["head_dims/d8v8", "sizes/q37xkv65"],
        Fault::WeightsRounded => &["head_dims/d8v8", "values/one_hot_v"],
        Fault::WrongKvHead => &["heads/h9on3", "heads/h48on2"],
        Fault::LseBase2 => &["sizes/q37xkv65"],
        Fault::LastRowNotStored => &["strides/poisoned", "causal/bottom_right_q37xkv37"],
        Fault::HiddenValuesLeak => &["hidden/lengths", "hidden/mask"],
        Fault::MaskOfFirstBatch => &["mask/u8_b1qk", "bias/bhqk"],
        Fault::SoftcapDropped => &["softcap/cap1"],
        Fault::SlopeOfFirstHead => &["alibi/bottom_right"],
        Fault::WrongAlignment => &["causal/bottom_right_q33xkv97", "alibi/top_left"],
        Fault::KeysWhereQueriesStand => &["varlen/mixed", "varlen/causal_top_left"],
        Fault::DocumentsCutShort => &["documents/long", "documents/scattered"],
        Fault::PackedHeadsSwapped => &["packed_heads/h4on2_q37xkv61", "packed_heads/h9on3_q5xkv61"],
        Fault::BarrierDropped => &["split_roles/split_plain", "split_roles/split_causal"],
    }
}

/// Products that show a fault.
pub fn products_for(fault: MatmulFault) -> &'static [&'static str] {
    match fault {
        MatmulFault::ScaleOfFirstGroup => &["sizes/m9n127k1024g128", "sizes/m8n96k96g32"],
        MatmulFault::ZeroPointOffByOne => &["sizes/m3n65k130g128_zeros", "sizes/m1n64k64g64"],
        MatmulFault::ColumnsSwapped => &["sizes/m1n64k64g64", "bits/b3_m2"],
        MatmulFault::LastTileDropped => &["sizes/m3n65k130g128", "sizes/m1n1k1g64"],
        MatmulFault::GatherIgnored => &["gathered/gathered_m37"],
        MatmulFault::BiasDropped => &["bias/bias_m20"],
    }
}

/// Runs of sabotaged kernels there are.
pub fn count() -> usize {
    let attention = Fault::ALL.iter().map(|&fault| problems_for(fault).len());
    let products = MatmulFault::ALL
        .iter()
        .map(|&fault| products_for(fault).len());
    attention.chain(products).sum()
}

/// Launches every fault on every problem that can show it.
pub fn run(client: &Client, seed: u64, mut progress: impl FnMut(&Mutant)) -> Vec<Mutant> {
    let mut mutants = Vec::new();
    for fault in Fault::ALL {
        for mutant in plant(client, fault, seed) {
            progress(&mutant);
            mutants.push(mutant);
        }
    }
    for fault in MatmulFault::ALL {
        for name in products_for(fault) {
            let mutant = try_product(client, fault, name, seed);
            progress(&mutant);
            mutants.push(mutant);
        }
    }
    mutants
}

/// Launches one fault on every problem that can show it.
pub fn plant(client: &Client, fault: Fault, seed: u64) -> impl Iterator<Item = Mutant> {
    let names = problems_for(fault).iter();
    names.map(move |name| try_fault(client, fault, name, seed))
}

fn try_fault(client: &Client, fault: Fault, name: &str, seed: u64) -> Mutant {
    let case = format!("attend_forward/{name}/f32");
    let plant = |problem: Problem| {
        let policy = Policy {
            tier: Some(problem.tier()),
            fault: Some(fault),
            ..problem.attend().map(|a| a.policy).unwrap_or_default()
        };
        (problem, policy)
    };
    try_case(client, fault.to_string(), case, seed, plant)
}

fn try_product(client: &Client, fault: MatmulFault, name: &str, seed: u64) -> Mutant {
    let plant = |mut problem: Problem| {
        if let Task::Linear(sizes) = &mut problem.task {
            sizes.policy.fault = Some(fault);
        }
        let policy = Policy {
            tier: Some(problem.tier()),
            ..Policy::default()
        };
        (problem, policy)
    };
    let case = format!("w4a16/{name}/f32");
    try_case(client, fault.to_string(), case, seed, plant)
}

fn try_case(
    client: &Client,
    fault: String,
    case: String,
    seed: u64,
    plant: impl FnOnce(Problem) -> (Problem, Policy),
) -> Mutant {
    let mut mutant = Mutant {
        fault,
        case: case.clone(),
        blueprint: None,
        caught: None,
        error: None,
    };
    let Some(problem) = problem(&case) else {
        mutant.error = Some("the catalogue has no such problem".into());
        return mutant;
    };
    let inputs = Inputs::generate(&problem, seed);
    let (problem, policy) = plant(problem);
    let launched: Result<_, Error> = launch(client, &problem, &inputs, policy);
    match (launched, oracle::expected(&problem, &inputs)) {
        (Ok(launched), Ok(expected)) => {
            let verdict = Verdict::of(&expected, &launched.outputs);
            mutant.caught = verdict.failures().next().map(str::to_owned);
            mutant.blueprint = launched.blueprint;
        }
        (Err(error), _) => mutant.error = Some(error.to_string()),
        (_, Err(error)) => mutant.error = Some(error.to_string()),
    }
    mutant
}
