//! `flashcube quantize` and the commands around it, on models of a few thousand weights.

use std::fs;
use std::path::Path;

use super::{Folder, expect, json};

#[path = "../../../quantize/tests/suite/tiny.rs"]
#[allow(dead_code)]
mod tiny;
#[path = "../../../quantize/tests/suite/tiny_gguf.rs"]
#[allow(dead_code)]
mod tiny_gguf;

/// A text of random words that the tiny models know.
fn text(folder: &Folder, words: usize) -> String {
    let file = folder.file("text.txt");
    let word = |i: usize| format!("w{}", (i * i * 7 + i / 3 * 11) % tiny::VOCAB);
    let lines: Vec<String> = (0..words / 8)
        .map(|line| {
            (0..8)
                .map(|i| word(line * 8 + i))
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect();
    fs::write(&file, lines.join("\n")).unwrap();
    file
}

/// `flashcube quantize` on the CPU with little text.
fn arguments<'a>(model: &'a str, out: &'a str, text: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let fixed = [
        "quantize",
        model,
        out,
        "--calib",
        text,
        "--backend",
        "cpu",
        "--sequences",
        "8",
        "--length",
        "12",
    ];
    [&fixed[..], more].concat()
}

/// No part of a checkpoint lies in the folder.
fn nothing_written(out: &str) {
    for file in [
        "config.json",
        "model.safetensors",
        "model.safetensors.index.json",
    ] {
        assert!(!Path::new(out).join(file).exists(), "{out}: {file}");
    }
}

#[test]
fn a_model_goes_through_every_command() {
    let folder = Folder::new("quantize");
    let model = folder.file("llama");
    tiny::llama(Path::new(&model), 2);
    let text = text(&folder, 600);
    let (out, svg) = (folder.file("out"), folder.file("errors.svg"));
    let options = [
        "--method",
        "gptq",
        "--bits",
        "4",
        "--group",
        "16",
        "--format",
        "gptq",
        "--held-out",
        "2",
        "--svg",
        &svg,
        "--json",
    ];
    let report = json(&arguments(&model, &out, &text, &options));
    let linears = report["linears"].as_array().unwrap();
    assert_eq!(linears.len(), 14);
    for linear in linears {
        let error = |name: &str| linear[name].as_f64().unwrap();
        assert!(error("loss") <= error("rtn_loss") * 1.001, "{linear}");
        assert!(linear["held_out"]["loss"].as_f64().unwrap() > 0.0);
    }
    assert!(fs::read_to_string(&svg).unwrap().starts_with("<svg"));
    assert!(Path::new(&out).join("quantize_config.json").exists());

    let found = json(&["inspect", &out, "--json"]);
    assert_eq!(found["quantization"]["bits"], 4);
    assert_eq!(found["linears"].as_array().unwrap().len(), 14);

    let measure = |model: &str| {
        let value = json(&[
            "perplexity",
            model,
            &text,
            "--window",
            "24",
            "--backend",
            "cpu",
            "--json",
        ]);
        value["perplexity"].as_f64().unwrap()
    };
    let quantized = measure(&out);
    let original = measure(&model);
    assert!(
        (quantized / original).ln().abs() < 0.7,
        "{quantized} {original}"
    );
    let mut from = out;
    for format in ["compressed-tensors", "awq", "gptq_v2", "f32"] {
        let to = folder.file(format);
        let written = json(&["convert", &from, &to, "--format", format, "--json"]);
        assert!(written["bytes"].as_u64().unwrap() > 0);
        assert_eq!(measure(&to), quantized, "{format}");
        from = to;
    }
}

/// Weights as they are stored give what the dequantized ones give, token by token, for every kind of
/// checkpoint.
#[test]
fn packed_linears_generate_what_dequantized_ones_do() {
    let folder = Folder::new("packed");
    let model = folder.file("llama");
    tiny::llama(Path::new(&model), 2);
    let text = text(&folder, 600);
    let symmetric = ["--method", "rtn", "--bits", "8", "--group", "-1", "--sym"];
    let ordered = [
        "--method",
        "gptq",
        "--bits",
        "3",
        "--group",
        "16",
        "--act-order",
        "--format",
        "gptq",
    ];
    let scaled = [
        "--method", "awq", "--bits", "4", "--group", "32", "--format", "awq",
    ];
    // Groups of 32 and 64.
    let wide = folder.file("wide");
    tiny::sized_llama(Path::new(&wide), 1, 64, 128);
    let cases = [
        (&model, &symmetric[..]),
        (&model, &ordered),
        (&model, &scaled),
        (&model, &["--method", "nvfp4"]),
        (&wide, &["--method", "nf4", "--group", "64"]),
        (&wide, &["--method", "mxfp4"]),
    ];
    for (i, (model, options)) in cases.into_iter().enumerate() {
        let out = folder.file(&format!("out{i}"));
        expect(0, &arguments(model, &out, &text, options), "");
        for dtype in ["f32", "f16"] {
            let found = json(&[
                "generate",
                &out,
                "w3 w1 w4 w1 w5",
                "--tokens",
                "24",
                "--packed",
                "--check",
                "--dtype",
                dtype,
                "--backend",
                "cpu",
                "--json",
            ]);
            assert_eq!(found["passed"], true, "{options:?} in {dtype}: {found}");
            assert_eq!(found["ids"].as_array().unwrap().len(), 24);
            assert!(
                found["largest"].as_f64().unwrap() > 0.0,
                "not compared with itself"
            );
            if dtype == "f32" {
                assert_eq!(found["agreeing"], 24, "{found}");
            }
        }
        let text = |more: &[&str]| {
            let command = [
                "generate",
                &out,
                "w3 w1",
                "--tokens",
                "6",
                "--backend",
                "cpu",
                "--json",
            ];
            let found = json(&[&command[..], more].concat());
            assert!(found["tokens_per_second"].as_f64().unwrap() > 0.0);
            found["ids"].clone()
        };
        assert_eq!(text(&["--packed"]), text(&[]));
    }
    let told = "its linears are not quantized";
    expect(
        2,
        &["generate", &model, "w1", "--packed", "--backend", "cpu"],
        told,
    );
    expect(
        2,
        &["generate", &model, "w1", "--check", "--backend", "cpu"],
        "--packed",
    );
}

/// Blocks of integers stay what they are in every format that holds them, and generate the same; minima have none.
#[test]
fn gguf_files_become_checkpoints() {
    use tiny_gguf::{Q4_0, Q4_1, Q8_0};

    let folder = Folder::new("gguf");
    for (kind, bits, format) in [(Q4_0, 4, "gptq"), (Q4_0, 4, "awq"), (Q8_0, 8, "gptq_v2")] {
        let file = folder.file("model.gguf");
        tiny_gguf::llama(Path::new(&file), [kind; 2]);
        let [out, theirs, ours] =
            ["out", "theirs", "ours"].map(|name| folder.file(&format!("{name}{kind}{format}")));
        expect(0, &["convert", &file, &out, "--format", format], "");
        let config: serde_json::Value =
            serde_json::from_slice(&fs::read(Path::new(&out).join("config.json")).unwrap())
                .unwrap();
        let quantized = &config["quantization_config"];
        assert_eq!(
            (&quantized["bits"], &quantized["group_size"]),
            (&bits.into(), &32.into())
        );
        expect(0, &["convert", &out, &ours, "--format", "f32"], "");
        expect(0, &["convert", &file, &theirs, "--format", "f32"], "");
        let weights = |out: &str| fs::read(Path::new(out).join("model.safetensors")).unwrap();
        assert!(
            weights(&ours) == weights(&theirs),
            "{format} of type {kind}"
        );
        let ids = |model: &str, more: &[&str]| {
            let command = [
                "generate",
                model,
                "a",
                "--tokens",
                "6",
                "--backend",
                "cpu",
                "--json",
            ];
            json(&[&command[..], more].concat())["ids"].clone()
        };
        assert_eq!(ids(&out, &["--packed"]), ids(&file, &[]));
    }
    let (file, out) = (folder.file("minima.gguf"), folder.file("refused"));
    tiny_gguf::llama(Path::new(&file), [Q4_1; 2]);
    expect(2, &["convert", &file, &out, "--format", "gptq"], "Q4_1");
    nothing_written(&out);
    tiny_gguf::llama(Path::new(&file), [Q4_0; 2]);
    expect(
        2,
        &["convert", &file, &out, "--format", "marlin"],
        "marlin cannot hold",
    );
    nothing_written(&out);
}

/// The files of a checkpoint cannot be written: every block is finished, and stays so.
#[test]
fn interrupted_runs_go_on_with_what_is_finished() {
    let folder = Folder::new("resume");
    let model = folder.file("llama");
    tiny::llama(Path::new(&model), 2);
    let text = text(&folder, 600);
    let (out, whole) = (folder.file("out"), folder.file("whole"));
    let options = ["--group", "16", "--json"];
    let obstacle = Path::new(&out).join("model.safetensors/in the way");
    fs::create_dir_all(&obstacle).unwrap();
    expect(
        2,
        &arguments(&model, &out, &text, &options),
        "model.safetensors",
    );
    assert!(!Path::new(&out).join("config.json").exists());
    fs::remove_dir_all(obstacle.parent().unwrap()).unwrap();

    let other = ["--group", "16", "--bits", "3"];
    let told = "unfinished run of other options";
    expect(2, &arguments(&model, &out, &text, &other), told);
    nothing_written(&out);

    let report = json(&arguments(&model, &out, &text, &options));
    assert_eq!(report["resumed"], 2);
    assert_eq!(report["linears"].as_array().unwrap().len(), 14);
    expect(0, &arguments(&model, &whole, &text, &options), "");
    let bytes = |folder: &str| fs::read(Path::new(folder).join("model.safetensors")).unwrap();
    assert!(bytes(&out) == bytes(&whole), "resumed run differs");
    assert!(!Path::new(&out).join("unfinished").exists());
}

#[test]
fn sentences_calibrate_an_encoder_that_follows_the_original() {
    let folder = Folder::new("encoder");
    let model = folder.file("bert");
    tiny::bert(Path::new(&model));
    let text = text(&folder, 1200);
    let drift = |name: &str, more: &[&str]| {
        let out = folder.file(name);
        let fixed = [
            "quantize",
            &model,
            &out,
            "--calib",
            &text,
            "--backend",
            "cpu",
            "--lines",
            "--sequences",
            "64",
            "--bits",
            "3",
            "--group",
            "16",
        ];
        expect(0, &[&fixed[..], more].concat(), "");
        let found = json(&[
            "drift",
            &model,
            &out,
            &text,
            "--sentences",
            "40",
            "--backend",
            "cpu",
            "--json",
        ]);
        assert_eq!(found["pairs"], 40 * 39 / 2);
        found["mean"].as_f64().unwrap()
    };
    let rounded = drift("rtn", &["--method", "rtn"]);
    let followed = drift(
        "follow",
        &["--method", "gptq", "--bias-correction", "--follow-original"],
    );
    assert!(followed < 0.8 * rounded, "{followed} {rounded}");
}

#[test]
fn what_cannot_be_quantized_is_refused_and_nothing_is_written() {
    let folder = Folder::new("refused");
    let (llama, bert, out) = (
        folder.file("llama"),
        folder.file("bert"),
        folder.file("out"),
    );
    tiny::llama(Path::new(&llama), 1);
    tiny::bert(Path::new(&bert));
    let text = text(&folder, 600);
    let refuse = |model: &str, more: &[&str], told: &str| {
        let fixed = ["quantize", model, &out, "--backend", "cpu"];
        expect(2, &[&fixed[..], more].concat(), told);
        nothing_written(&out);
    };
    let with_text = |more: &[&'static str]| -> Vec<&str> {
        let text = ["--calib", &text, "--sequences", "8", "--length", "12"];
        [&text[..], more].concat()
    };
    for (more, told) in [
        (&["--bits", "5"][..], "bits = 5"),
        (&["--group", "0"], "group"),
        (&["--group", "-7"], "--group -7"),
        (&["--format", "nvfp4"], "nvfp4"),
        (&["--format", "marlin", "--sym", "--group", "16"], "marlin"),
        (&["--damping", "-1", "--group", "16"], "damping is -1"),
        (&["--method", "magic"], "possible values"),
    ] {
        refuse(&llama, &with_text(more), told);
    }
    let many = ["--calib", &text, "--length", "12", "--sequences", "100000"];
    refuse(&llama, &many, "calibration is 100000 x 12");
    refuse(&llama, &["--calib", &text, "--lines"], "a decoder");
    refuse(&llama, &["--calib", "/no/such/file"], "/no/such/file");
    let awq = ["--method", "awq", "--group", "16", "--format", "awq"];
    let lines = ["--calib", &text, "--sequences", "8", "--lines"];
    refuse(&bert, &[&lines[..], &awq].concat(), "--unfoldable skip");
    refuse("/no/such/model", &[], "/no/such/model");
}

/// Whatever a damaged model gives, it is an error that names the file or the tensor.
#[test]
fn damaged_models_are_refused_and_nothing_is_written() {
    let folder = Folder::new("damaged");
    let (model, out) = (folder.file("llama"), folder.file("out"));
    tiny::llama(Path::new(&model), 1);
    let text = text(&folder, 600);
    let weights = Path::new(&model).join("model.safetensors");
    let whole = fs::read(&weights).unwrap();
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let refuse = |bytes: &[u8], told: &str| {
        fs::write(&weights, bytes).unwrap();
        expect(2, &arguments(&model, &out, &text, &["--group", "16"]), told);
        nothing_written(&out);
        let _ = fs::remove_dir_all(&out);
    };
    refuse(&whole[..whole.len() / 2], "model.safetensors");
    refuse(
        &[&u64::MAX.to_le_bytes()[..], &whole[8..]].concat(),
        "model.safetensors",
    );
    let mut overlapping = whole.clone();
    let offsets = String::from_utf8_lossy(&whole[..header])
        .find("\"data_offsets\":[")
        .unwrap();
    overlapping[offsets + 16] = b'9';
    refuse(&overlapping, "model.safetensors");
    let mut nan = whole.clone();
    for word in nan[header..].chunks_exact_mut(4) {
        word.copy_from_slice(&f32::NAN.to_le_bytes());
    }
    refuse(&nan, "NaN is not finite");
    let gguf = folder.file("hostile.gguf");
    fs::write(&gguf, [&b"GGUF\x03\0\0\0"[..], &[0xff; 64]].concat()).unwrap();
    expect(2, &arguments(&gguf, &out, &text, &[]), "hostile.gguf");
    nothing_written(&out);
}
