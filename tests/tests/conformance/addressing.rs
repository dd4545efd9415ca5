//! 64-bit addressing, forced on tensors that do not need it: those that do hold 8 GiB.

use flashcube::{Backend, DType, Policy};
use flashcube_catalogue::{Attend, Memory, Outcome, Problem, Task, Values, run_one};

/// Hooks that index tensors of their own beside q, k, v and the results.
fn problem(task: Task) -> Problem {
    Problem {
        name: "addressing".into(),
        feature: "addressing",
        task,
        dtype: DType::F32,
        values: Values::Normal,
        memory: Memory::Offset(3),
        core: false,
    }
}

fn attend() -> Attend {
    Attend {
        causal: true,
        bias: Some([1, 4, 37, 61]),
        lengths_kv: Some(vec![61, 40]),
        policy: Policy {
            wide: true,
            ..Policy::default()
        },
        ..Attend::plain(2, (4, 2), (37, 61), (24, 16))
    }
}

fn runs_wide(task: Task) {
    let client = Backend::Cpu.open().expect("the CPU backend");
    let row = run_one(&client, &problem(task), 11);
    let blueprint = row.blueprint.expect("a kernel ran");
    assert!(blueprint.contains("/wide"), "{blueprint}");
    assert_eq!(row.outcome, Outcome::Passed, "{blueprint}");
}

#[test]
fn forward_when_addresses_are_64_bits_wide_conforms() {
    runs_wide(Task::Forward(attend()));
}

#[test]
fn backward_when_addresses_are_64_bits_wide_conforms() {
    runs_wide(Task::Backward(attend()));
}
