//! Safetensors in and out.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use flashcube_formats::*;
use half::{bf16, f16};

fn sample() -> BTreeMap<String, TensorData> {
    // An odd number of bytes first in name order: whatever follows has no alignment to rely on.
    let named =
        |name: &str, data: Result<TensorData, FormatError>| (name.to_owned(), data.unwrap());
    BTreeMap::from([
        named("a.flags", TensorData::new(&[3], &[true, false, true])),
        named("b.bytes", TensorData::new(&[5], &[1u8, 2, 3, 4, 255])),
        named(
            "c.f32",
            TensorData::new(&[2, 2], &[1.0f32, -0.0, f32::INFINITY, 1e-40]),
        ),
        named(
            "d.f16",
            TensorData::new(&[3], &[f16::ONE, f16::MIN, f16::EPSILON]),
        ),
        named("e.bf16", TensorData::new(&[1, 2], &[bf16::MAX, bf16::ONE])),
        named("f.i32", TensorData::new(&[2], &[i32::MIN, 7])),
        named("g.empty", TensorData::new::<f32>(&[0, 4], &[])),
        named("h.scalar", TensorData::new(&[], &[3.5f64])),
    ])
}

fn metadata() -> BTreeMap<String, String> {
    BTreeMap::from([
        ("format".to_owned(), "pt".to_owned()),
        ("made by".to_owned(), "a \"test\"".to_owned()),
    ])
}

fn saved(folder: &Path) -> PathBuf {
    let path = folder.join("model.safetensors");
    save(&path, &sample(), &metadata()).unwrap();
    path
}

fn check_sample(checkpoint: &Checkpoint) {
    assert_eq!(
        checkpoint.names().collect::<Vec<_>>(),
        sample().keys().collect::<Vec<_>>()
    );
    for (name, data) in sample() {
        let view = checkpoint.tensor(&name).unwrap();
        assert_eq!(
            (view.dtype, view.shape, view.bytes),
            (data.dtype(), data.shape(), data.bytes()),
            "{name}"
        );
    }
    let read = |name| checkpoint.tensor(name).unwrap();
    assert_eq!(
        read("a.flags").to_vec::<bool>().unwrap(),
        [true, false, true]
    );
    assert_eq!(read("c.f32").to_f32().unwrap()[3], 1e-40);
    assert_eq!(
        read("d.f16").to_f32().unwrap(),
        [1.0, -65504.0, f16::EPSILON.to_f32()]
    );
    assert_eq!(read("e.bf16").to_f32().unwrap(), [bf16::MAX.to_f32(), 1.0]);
    assert_eq!(read("f.i32").to_words().unwrap(), [0x8000_0000, 7]);
    assert!(read("g.empty").to_vec::<f32>().unwrap().is_empty());
    assert_eq!(read("h.scalar").to_vec::<f64>().unwrap(), [3.5]);
}

#[test]
fn single_file_round_trips_with_its_metadata() {
    let folder = tempfile::tempdir().unwrap();
    let path = saved(folder.path());
    for opened in [&path, folder.path()] {
        let checkpoint = Checkpoint::open(opened).unwrap();
        check_sample(&checkpoint);
        assert_eq!(checkpoint.metadata(), &metadata());
    }
    let first = fs::read(&path).unwrap();
    saved(folder.path());
    assert_eq!(
        first,
        fs::read(&path).unwrap(),
        "the same input gives the same bytes"
    );
}

#[test]
fn the_safetensors_crate_reads_what_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = fs::read(saved(folder.path())).unwrap();
    let parsed = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    for (name, data) in sample() {
        let view = parsed.tensor(&name).unwrap();
        assert_eq!(
            (view.dtype(), view.shape(), view.data()),
            (data.dtype(), data.shape(), data.bytes())
        );
    }
}

#[test]
fn bytes_are_read_at_any_alignment() {
    // A header of odd length, as other writers make it, puts every f32 at an odd address of the
    // page-aligned map.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("odd.safetensors");
    let mut header = br#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#.to_vec();
    while (8 + header.len()).is_multiple_of(2) {
        header.push(b' ');
    }
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(&header);
    file.extend(1.5f32.to_le_bytes());
    file.extend((-2.0f32).to_le_bytes());
    fs::write(&path, file).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let view = checkpoint.tensor("x").unwrap();
    assert!(!(view.bytes.as_ptr() as usize).is_multiple_of(2));
    assert_eq!(view.to_vec::<f32>().unwrap(), [1.5, -2.0]);
}

#[test]
fn shards_round_trip_through_their_index() {
    for (limit, least) in [(1, 7), (16, 2), (usize::MAX, 1)] {
        let folder = tempfile::tempdir().unwrap();
        save_sharded(folder.path(), &sample(), &metadata(), limit).unwrap();
        let files = fs::read_dir(folder.path()).unwrap().count();
        assert!(files > least, "{files} files at {limit}");
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        check_sample(&checkpoint);
        let total: usize = sample().values().map(|data| data.bytes().len()).sum();
        assert_eq!(checkpoint.metadata()["total_size"], total.to_string());
        check_sample(
            &Checkpoint::open(folder.path().join("model.safetensors.index.json")).unwrap(),
        );
    }
}

#[test]
fn broken_indexes_are_typed_errors() {
    let folder = tempfile::tempdir().unwrap();
    saved(folder.path());
    let index = folder.path().join("model.safetensors.index.json");
    let open = |text: &str| {
        fs::write(&index, text).unwrap();
        Checkpoint::open(folder.path()).unwrap_err()
    };
    assert!(matches!(open("{"), FormatError::Corrupt { .. }));
    assert!(matches!(
        open(r#"{"weight_map": 3}"#),
        FormatError::Corrupt { .. }
    ));
    for outside in [
        "../model.safetensors",
        "/etc/hosts",
        "..",
        "",
        "sub/model.safetensors",
    ] {
        let error = open(&format!(r#"{{"weight_map": {{"a.flags": "{outside}"}}}}"#));
        assert!(
            error.to_string().contains("not a plain file name"),
            "{outside}: {error}"
        );
    }
    assert!(matches!(
        open(r#"{"weight_map": {"a.flags": "gone.safetensors"}}"#),
        FormatError::Io { .. }
    ));
    let error = open(r#"{"weight_map": {"z": "model.safetensors"}}"#);
    assert!(
        error
            .to_string()
            .ends_with("model.safetensors has no tensor `z`"),
        "{error}"
    );
}

#[test]
fn truncated_file_is_a_typed_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = saved(folder.path());
    let whole = fs::read(&path).unwrap();
    let cut = folder.path().join("cut.safetensors");
    for length in 0..whole.len() {
        fs::write(&cut, &whole[..length]).unwrap();
        let error = Checkpoint::open(&cut).unwrap_err();
        assert!(
            matches!(error, FormatError::Corrupt { .. }),
            "{length} bytes: {error}"
        );
    }
    let longer = [&whole[..], &[0]].concat();
    fs::write(&cut, longer).unwrap();
    assert!(matches!(
        Checkpoint::open(&cut),
        Err(FormatError::Corrupt { .. })
    ));
    assert!(matches!(
        Checkpoint::open(folder.path().join("absent.safetensors")),
        Err(FormatError::Io { .. })
    ));
    assert!(Checkpoint::open(tempfile::tempdir().unwrap().path()).is_err());
}

#[test]
fn hostile_headers_are_typed_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let headers = [
        r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#,
        r#"{"x":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#,
        r#"{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]}}"#,
        r#"{"x":{"dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,4]}}"#,
        r#"{"x":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},
            "y":{"dtype":"U8","shape":[3],"data_offsets":[1,4]}}"#,
        r#"{"x":{"dtype":"Q9","shape":[1],"data_offsets":[0,4]}}"#,
        r#"[]"#,
    ];
    for header in headers {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.extend([0; 4]);
        fs::write(&path, file).unwrap();
        assert!(
            matches!(Checkpoint::open(&path), Err(FormatError::Corrupt { .. })),
            "{header}"
        );
    }
    fs::write(&path, u64::MAX.to_le_bytes()).unwrap();
    assert!(matches!(
        Checkpoint::open(&path),
        Err(FormatError::Corrupt { .. })
    ));
}

#[test]
fn every_flipped_header_byte_opens_or_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let whole = fs::read(saved(folder.path())).unwrap();
    let path = folder.path().join("flipped.safetensors");
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    for at in 0..header {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x11;
        fs::write(&path, &bytes).unwrap();
        if let Ok(checkpoint) = Checkpoint::open(&path) {
            for name in checkpoint.names() {
                let view = checkpoint.tensor(name).unwrap();
                let bits = view.shape.iter().product::<usize>() * view.dtype.bitsize();
                assert_eq!(view.bytes.len() * 8, bits, "byte {at}");
            }
        }
    }
}

#[test]
fn wrong_requests_name_tensor_found_and_expected() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::open(saved(folder.path())).unwrap();
    let view = |name| checkpoint.tensor(name).unwrap();
    let message = view("d.f16").to_vec::<f32>().unwrap_err().to_string();
    assert_eq!(message, "tensor `d.f16` has dtype F16, expected F32");
    let message = view("f.i32").to_f32().unwrap_err().to_string();
    assert_eq!(
        message,
        "tensor `f.i32` has dtype I32, expected F32 or F16 or BF16"
    );
    let message = view("c.f32").with_shape(&[4]).unwrap_err().to_string();
    assert_eq!(message, "tensor `c.f32` has shape [2, 2], expected [4]");
    let message = checkpoint.tensor("nope").unwrap_err().to_string();
    assert!(
        message.ends_with("model.safetensors has no tensor `nope`"),
        "{message}"
    );
    assert!(checkpoint.optional("nope").unwrap().is_none());
    assert!(TensorData::new(&[2, 3], &[0.0f32; 5]).is_err());
    assert!(TensorData::from_bytes(Dtype::F8_E4M3, &[4], vec![0; 3]).is_err());
}

#[test]
fn bool_bytes_other_than_0_and_1_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bool.safetensors");
    let flags = TensorData::from_bytes(Dtype::BOOL, &[3], vec![1, 0, 2]).unwrap();
    save(
        &path,
        &BTreeMap::from([("mask".to_owned(), flags)]),
        &BTreeMap::new(),
    )
    .unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let error = checkpoint
        .tensor("mask")
        .unwrap()
        .to_vec::<bool>()
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "tensor `mask`, element 2: 2 is not in 0..2"
    );
}

#[test]
fn scales_narrow_to_f16_only_where_that_is_exact() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("scales.safetensors");
    let tensors = BTreeMap::from([
        (
            "exact".to_owned(),
            TensorData::new(&[2], &[bf16::from_f32(0.0625), bf16::from_f32(-3.5)]).unwrap(),
        ),
        (
            "tiny".to_owned(),
            TensorData::new(&[2], &[1.0f32, 1e-9]).unwrap(),
        ),
        (
            "huge".to_owned(),
            TensorData::new(&[1], &[bf16::from_f32(1e6)]).unwrap(),
        ),
    ]);
    save(&path, &tensors, &BTreeMap::new()).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let narrow = |name| checkpoint.tensor(name).unwrap().to_f16_exact();
    assert_eq!(
        narrow("exact").unwrap(),
        [f16::from_f32(0.0625), f16::from_f32(-3.5)]
    );
    assert!(matches!(
        narrow("tiny"),
        Err(FormatError::Inexact { index: 1, .. })
    ));
    assert!(matches!(
        narrow("huge"),
        Err(FormatError::Inexact { index: 0, .. })
    ));
}

#[test]
fn failed_write_leaves_the_old_file_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = saved(folder.path());
    let before = fs::read(&path).unwrap();
    let reserved = BTreeMap::from([(
        "__metadata__".to_owned(),
        TensorData::new(&[1], &[1u8]).unwrap(),
    )]);
    assert!(matches!(
        save(&path, &reserved, &BTreeMap::new()),
        Err(FormatError::Unsupported { .. })
    ));
    assert_eq!(before, fs::read(&path).unwrap());
    // The target is a folder, so that the rename at the end fails.
    let blocked = folder.path().join("blocked.safetensors");
    fs::create_dir(&blocked).unwrap();
    assert!(matches!(
        save(&blocked, &sample(), &metadata()),
        Err(FormatError::Io { .. })
    ));
    assert!(matches!(
        save(
            folder.path().join("no/such/folder.safetensors"),
            &sample(),
            &metadata()
        ),
        Err(FormatError::Io { .. })
    ));
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        2,
        "no temporary file stays"
    );
}

#[cfg(unix)]
#[test]
fn written_files_are_readable_like_any_other_output() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let plain = folder.path().join("plain");
    fs::write(&plain, b"").unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&saved(folder.path())), mode(&plain));
}
