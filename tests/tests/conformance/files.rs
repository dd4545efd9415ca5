//! Problems and results through safetensors files.

use std::collections::BTreeMap;

use flashcube_catalogue::{
    FileError, Inputs, check_file, expected, export_problem, origin, problem,
};
use flashcube_formats::{Checkpoint, FormatError, TensorData, save};

const SEED: u64 = 5;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// The reference's own result of a merge, rounded to f32.
fn outputs() -> BTreeMap<String, TensorData> {
    let p = problem("merge_partials/partials/n3/f32").unwrap();
    let expected = expected(&p, &Inputs::generate(&p, SEED)).unwrap();
    let tensor = |e: &flashcube_catalogue::Expected| {
        let values: Vec<f32> = e.exact.iter().map(|&x| x as f32).collect();
        (
            e.name.to_owned(),
            TensorData::new(&e.shape, &values).unwrap(),
        )
    };
    expected.iter().map(tensor).collect()
}

#[test]
fn exported_problem_holds_every_input_and_its_origin() {
    let folder = folder();
    let path = folder.path().join("problem.safetensors");
    let p = problem("attend_forward/combined/every_hook/f32").unwrap();
    export_problem(&p, SEED, &path).unwrap();
    let file = Checkpoint::open(&path).unwrap();
    let inputs = Inputs::generate(&p, SEED);
    let names: Vec<&str> = file.names().collect();
    assert_eq!(names, inputs.arrays.keys().copied().collect::<Vec<_>>());
    assert_eq!(
        file.tensor("q").unwrap().to_f32().unwrap(),
        inputs.values("q")
    );
    assert_eq!(file.metadata()["causal"], "true");
    assert_eq!(origin(&path).unwrap(), (Some(p.name.clone()), Some(SEED)));
}

#[test]
fn right_outputs_pass_and_wrong_ones_fail() {
    let folder = folder();
    let path = folder.path().join("outputs.safetensors");
    let p = problem("merge_partials/partials/n3/f32").unwrap();
    save(&path, &outputs(), &BTreeMap::new()).unwrap();
    let verdict = check_file(&p, SEED, &path).unwrap();
    assert!(verdict.passed(), "{:?}", verdict.measures);
    assert!(!check_file(&p, SEED + 1, &path).unwrap().passed());
}

#[test]
fn damaged_and_foreign_files_are_typed_errors() {
    let folder = folder();
    let path = folder.path().join("outputs.safetensors");
    let p = problem("merge_partials/partials/n3/f32").unwrap();
    let format_error = |path| match check_file(&p, SEED, path) {
        Err(FileError::Format(error)) => error,
        other => panic!("{other:?}"),
    };
    assert!(matches!(format_error(&path), FormatError::Io { .. }));

    let mut tensors = outputs();
    save(
        &path,
        &tensors,
        &BTreeMap::from([("seed".into(), "6".into())]),
    )
    .unwrap();
    let error = check_file(&p, SEED, &path).unwrap_err();
    assert_eq!(
        error.to_string(),
        "seed of the file is 6, checked against 5"
    );

    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 7]).unwrap();
    assert!(matches!(format_error(&path), FormatError::Corrupt { .. }));

    let lse = tensors.remove("lse").unwrap();
    save(&path, &tensors, &BTreeMap::new()).unwrap();
    assert!(
        matches!(format_error(&path), FormatError::MissingTensor { tensor, .. } if tensor == "lse")
    );

    tensors.insert("lse".into(), TensorData::new(&[3], &[0i32; 3]).unwrap());
    save(&path, &tensors, &BTreeMap::new()).unwrap();
    assert!(
        matches!(format_error(&path), FormatError::WrongShape { tensor, .. } if tensor == "lse")
    );

    let words = vec![0i32; lse.bytes().len() / 4];
    tensors.insert("lse".into(), TensorData::new(lse.shape(), &words).unwrap());
    save(&path, &tensors, &BTreeMap::new()).unwrap();
    assert!(
        matches!(format_error(&path), FormatError::WrongDtype { tensor, .. } if tensor == "lse")
    );
}
