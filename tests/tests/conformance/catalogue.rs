//! The catalogue itself: unique names, required rows that exist, faults that have problems.

use std::collections::HashSet;

use flashcube::Fault;
use flashcube_catalogue::{
    BackendName, Inputs, Kernel, Outputs, check, mutants, problem, problems, required, support,
};

#[test]
fn names_are_unique_and_lead_back() {
    let all = problems();
    let names: HashSet<&str> = all.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names.len(), all.len());
    assert_eq!(problem(&all[7].name).as_ref(), Some(&all[7]));
    assert_eq!(problem("attend_forward/no/such"), None);
}

#[test]
fn every_required_row_has_a_problem_and_every_feature_is_required() {
    let all = problems();
    for backend in BackendName::ALL {
        for row in required(backend) {
            let exists = all.iter().any(|p| {
                p.kernel() == row.kernel && p.feature == row.feature && p.dtype == row.dtype
            });
            assert!(exists, "{row} has no problem");
        }
    }
    let rows: Vec<_> = BackendName::ALL.into_iter().flat_map(required).collect();
    for p in &all {
        let named = rows
            .iter()
            .any(|r| r.kernel == p.kernel() && r.feature == p.feature);
        assert!(named, "{} is of a feature that nothing requires", p.name);
    }
    for kernel in Kernel::ALL {
        assert!(rows.iter().any(|r| r.kernel == kernel));
    }
}

#[test]
fn every_fault_has_problems() {
    for fault in Fault::ALL.into_iter().chain([Fault::BarrierDropped]) {
        for name in mutants::problems_for(fault) {
            let case = format!("attend_forward/{name}/f32");
            assert!(problem(&case).is_some(), "{fault}: {case}");
        }
        assert!(!mutants::problems_for(fault).is_empty());
    }
}

#[test]
fn inputs_depend_on_the_seed_and_on_nothing_else() {
    let p = problem("attend_forward/combined/every_hook/f32").unwrap();
    assert_eq!(Inputs::generate(&p, 1), Inputs::generate(&p, 1));
    assert_ne!(Inputs::generate(&p, 1), Inputs::generate(&p, 2));
}

#[test]
fn wrong_missing_and_short_outputs_fail() {
    let p = problem("merge_partials/partials/n3/f32").unwrap();
    let verdict = |outputs: Outputs| check(&p, 3, |_| outputs).unwrap();
    assert!(!verdict(Outputs::default()).passed());
    let rows = 2 * 3 * 33;
    let short = Outputs::default()
        .with("out", vec![0.0; 5])
        .with("lse", vec![0.0; rows]);
    let failures = verdict(short)
        .failures()
        .map(str::to_owned)
        .collect::<Vec<_>>();
    assert_eq!(failures[0], "out has 5 elements, expected 3168");
    let nan = Outputs::default()
        .with("out", vec![f32::NAN; rows * 16])
        .with("lse", vec![f32::NAN; rows]);
    assert_eq!(verdict(nan).failures().count(), 2);
}

#[test]
fn support_matrix_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/support-matrix.md");
    if std::env::var_os("FLASHCUBE_WRITE_SUPPORT_MATRIX").is_some() {
        std::fs::write(path, support::render()).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap();
    assert_eq!(
        committed,
        support::render(),
        "set FLASHCUBE_WRITE_SUPPORT_MATRIX and run this test to write the file anew"
    );
}

#[test]
fn the_table_of_numerics_md_is_the_one_in_use() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/numerics.md");
    let text = std::fs::read_to_string(path).unwrap();
    let documented = |name: &str| -> f64 {
        let row = text
            .lines()
            .find(|line| line.starts_with(&format!("| {name} |")));
        let row = row.unwrap_or_else(|| panic!("no row {name}"));
        row.split('|').nth(2).unwrap().trim().parse().unwrap()
    };
    let table = flashcube_catalogue::bounds::TABLE;
    let constants = [
        ("exp_ulps", table.exp_ulps),
        ("exp_ulps_per_argument", table.exp_ulps_per_argument),
        ("log_ulps", table.log_ulps),
        ("log_absolute", table.log_absolute),
        ("division_ulps", table.division_ulps),
        ("tanh_absolute", table.tanh_absolute),
        ("exp2_ulps", table.exp2_ulps),
        ("matrix_ulps", table.matrix_ulps),
        ("matrix_fp8", table.matrix_fp8),
        ("weight_deviations", table.weight_deviations),
        ("ideal", table.ideal),
        ("delta", table.delta),
    ];
    for (name, value) in constants {
        assert_eq!(documented(name), value, "{name}");
    }
}
