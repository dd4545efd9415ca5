//! The `flashcube` command as its users meet it: exit codes, help, JSON, files.

mod bench;
mod quantize;
mod sanitize;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A folder of a test's own, removed when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("flashcube-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn flashcube(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flashcube"));
    command.args(arguments);
    command
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Exit code and stderr must be as expected; stdout is returned.
fn expect(code: i32, arguments: &[&str], told: &str) -> String {
    let output = flashcube(arguments);
    let errors = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
    assert!(errors.contains(told), "{arguments:?}: {errors}");
    stdout(&output)
}

fn json(arguments: &[&str]) -> Value {
    let text = expect(0, arguments, "");
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{arguments:?}: {e}: {text}"))
}

const COMMANDS: [&str; 14] = [
    "doctor",
    "demo",
    "verify",
    "export-problem",
    "lower",
    "bench",
    "compare",
    "sanitize",
    "quantize",
    "inspect",
    "convert",
    "perplexity",
    "drift",
    "generate",
];

#[test]
fn every_command_explains_itself_with_examples() {
    let overview = expect(0, &["--help"], "");
    for command in COMMANDS {
        assert!(overview.contains(command), "{overview}");
        let help = expect(0, &[command, "--help"], "");
        assert!(help.contains("Examples:"), "{help}");
        assert!(help.contains(&format!("flashcube {command}")), "{help}");
        assert!(help.contains("--json"), "{help}");
    }
}

#[test]
fn bad_usage_is_exit_code_2_with_a_hint() {
    expect(2, &[], "Usage");
    for (arguments, told) in [
        (&["no-such-command"][..], "unrecognized subcommand"),
        (&["lower"], "required"),
        (&["lower", "no_such_kernel"], "--list"),
        (&["lower", "merge_partials"], "merge_partials_f32_d128"),
        (
            &["lower", "merge_partials_f32_d128", "--arch", "sm_75"],
            "sm_90a",
        ),
        (&["verify", "--backend", "tpu"], "possible values"),
        (&["verify", "--kernel", "conv2d"], "attend_forward"),
        (&["verify", "--backend", "cpu", "--repeat", "1"], "2.."),
        (
            &["verify", "--backend", "cpu", "--case", "no/such/case"],
            "export-problem --list",
        ),
        (&["verify", "--against", "/no/such/file"], "/no/such/file"),
        (
            &["export-problem", "no_such_problem", "out.safetensors"],
            "--list",
        ),
        (&["bench", "--suite", "sorting"], "possible values"),
        (
            &["bench", "--backend", "cpu", "--row", "no such row"],
            "--row",
        ),
        (
            &["compare", "/no/such/file", "/no/such/file"],
            "bench --json",
        ),
        (
            &["demo", "--backend", "lavapipe", "--backend", "swiftshader"],
            "one Vulkan driver",
        ),
    ] {
        // The demo looks for its model first.
        if arguments[0] == "demo" && !model_present() {
            continue;
        }
        expect(2, arguments, told);
    }
}

fn model_present() -> bool {
    let report = json(&["doctor", "--backend", "cpu", "--json"]);
    let present = report["model"]["state"] == "present";
    let required = std::env::var("FLASHCUBE_REQUIRE_MODEL").is_ok_and(|value| value == "1");
    assert!(present || !required, "{}", report["model"]);
    present
}

#[test]
fn demo_without_its_model_says_how_to_get_it() {
    let folder = Folder::new("no-model");
    let output = command(&["demo", "--backend", "cpu"])
        .env("XDG_DATA_HOME", &folder.0)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let errors = stderr(&output);
    assert!(errors.contains("cargo xtask bootstrap model"), "{errors}");
}

#[test]
fn demo_checks_every_layer_and_writes_a_page() {
    if !model_present() {
        eprintln!("not run: the model is not there");
        return;
    }
    let folder = Folder::new("demo");
    let page = folder.file("page.html");
    let report = json(&[
        "demo",
        "--backend",
        "cpu",
        "--json",
        "--html",
        &page,
        "A cat sat.",
        "Rain tonight.",
    ]);
    assert_eq!(report["passed"], true, "{report}");
    let backend = &report["backends"][0];
    assert_eq!(backend["layers"].as_array().unwrap().len(), 6);
    for layer in backend["layers"].as_array().unwrap() {
        let blueprint = layer["blueprint"].as_str().unwrap();
        assert!(
            blueprint.starts_with("attn_fwd/unit/f32/d32/"),
            "{blueprint}"
        );
        assert!(layer["out"]["bound"].as_f64().unwrap() > 0.0);
    }
    assert!(fs::read_to_string(&page).unwrap().contains("<svg"));
}

#[test]
fn doctor_tells_the_tier_of_every_kernel() {
    let report = json(&["doctor", "--backend", "cpu", "--json"]);
    let cpu = &report["backends"][0];
    assert_eq!(
        (&cpu["backend"], &cpu["state"]),
        (&"cpu".into(), &"present".into())
    );
    let kernels = cpu["kernels"].as_array().unwrap();
    assert!(kernels.len() > 40);
    for kernel in kernels {
        // Those that ask for a tier by name, and instructions, say what the device lacks for it.
        if let Some(reason) = kernel["not_available"].as_str() {
            assert!(reason.contains("compute capability"), "{reason}");
            continue;
        }
        let blueprint = kernel["blueprint"]
            .as_str()
            .unwrap_or_else(|| panic!("{kernel}"));
        assert_eq!(blueprint.split('/').nth(1), Some("unit"), "{blueprint}");
    }
    assert!(cpu["limits"]["units_per_cube"].as_u64().unwrap() >= 1);
}

#[test]
fn lower_prints_sources_without_any_toolkit() {
    let listed = json(&["lower", "--list", "--json"]);
    let names: Vec<&str> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|kernel| kernel["kernel"].as_str().unwrap())
        .collect();
    assert!(names.contains(&"attend_forward_bf16_d128_causal"));
    let nowhere = |arguments: &[&str]| {
        let output = command(arguments)
            .env("FLASHCUBE_CUDA", "/no/such/toolkit")
            .output();
        output.unwrap()
    };
    let kernel = "merge_partials_f32_d128";
    let cuda = nowhere(&["lower", kernel, "--arch", "sm_80", "--emit", "cuda"]);
    assert!(cuda.status.success(), "{}", stderr(&cuda));
    assert!(stdout(&cuda).contains("__global__"));
    let wgsl = nowhere(&["lower", kernel, "--target", "wgsl"]);
    assert!(stdout(&wgsl).contains("@compute"), "{}", stderr(&wgsl));
    let report = nowhere(&["lower", kernel]);
    assert_eq!(report.status.code(), Some(2));
    assert!(
        stderr(&report).contains("cargo xtask bootstrap"),
        "{}",
        stderr(&report)
    );
}

#[test]
fn lower_reports_registers_and_instructions() {
    let doctor = json(&["doctor", "--backend", "cpu", "--json"]);
    let required = std::env::var("FLASHCUBE_REQUIRE_CUDA_TOOLKIT").is_ok_and(|value| value == "1");
    if doctor["cuda_toolkit"]["state"] != "present" && !required {
        eprintln!("not run: no CUDA toolkit");
        return;
    }
    let report = json(&[
        "lower",
        "attend_forward_f32_d64",
        "--arch",
        "sm_80",
        "--json",
    ]);
    assert_eq!(report["tier"], "unit");
    assert_eq!(report["arch"], "sm_80");
    assert!(report["registers"].as_u64().unwrap() > 16);
    assert!(
        report["instructions"]["FFMA"].as_u64().unwrap() > 64,
        "{report}"
    );
    assert_eq!(report["violations"], serde_json::json!([]));
    let sass = [
        "lower",
        "attend_forward_f32_d64",
        "--arch",
        "sm_80",
        "--emit",
        "sass",
    ];
    assert!(expect(0, &sass, "").contains("FFMA"));
}

#[test]
fn verify_counts_what_it_ran() {
    let arguments = ["verify", "--backend", "cpu", "--case", "sizes/q37xkv65/f32"];
    let text = expect(0, &arguments, "");
    assert!(
        text.contains("pass     attend_forward/sizes/q37xkv65/f32"),
        "{text}"
    );
    assert!(text.contains("1 passed, 0 failed, 0 not run"), "{text}");
    let report = json(&[&arguments[..], &["--json", "--seed", "9"]].concat());
    assert_eq!(report["summary"]["passed"], 1);
    assert_eq!(report["seed"], 9);
    let blueprint = report["rows"][0]["blueprint"].as_str().unwrap();
    assert!(blueprint.starts_with("attn_fwd/unit/f32/"), "{blueprint}");
}

#[test]
fn verify_repeats_on_several_streams() {
    let case = ["verify", "--backend", "cpu", "--case", "sizes/q37xkv65/f32"];
    let repeats = ["--repeat", "20", "--streams", "3"];
    let text = expect(0, &[&case[..], &repeats].concat(), "");
    assert!(text.contains("1 passed, 0 failed, 0 not run"), "{text}");
}

#[test]
fn verify_sums_up_several_backends() {
    let arguments = [
        "verify",
        "--backend",
        "cpu",
        "--backend",
        "cpu",
        "--case",
        "sizes/n64/f32",
    ];
    let text = expect(0, &arguments, "");
    assert!(
        text.trim_end().ends_with("2 passed, 0 failed, 0 not run"),
        "{text}"
    );
}

/// A safetensors file of one f32 tensor.
fn write_tensor(path: &str, name: &str, shape: &[usize], values: &[f32], problem: &str) {
    let header = serde_json::json!({
        "__metadata__": {"problem": problem, "seed": "7"},
        name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 4 * values.len()]},
    })
    .to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.extend(values.iter().flat_map(|x| x.to_le_bytes()));
    fs::write(path, bytes).unwrap();
}

/// Shape and values of an f32 tensor of a safetensors file.
fn read_tensor(path: impl AsRef<Path>, name: &str) -> (Vec<usize>, Vec<f32>) {
    let bytes = fs::read(path).unwrap();
    let (length, rest) = bytes.split_at(8);
    let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
    let (header, data) = rest.split_at(length);
    let header: Value = serde_json::from_slice(header).unwrap();
    let tensor = &header[name];
    assert_eq!(tensor["dtype"], "F32", "{header}");
    let numbers = |value: &Value| -> Vec<usize> { serde_json::from_value(value.clone()).unwrap() };
    let range = numbers(&tensor["data_offsets"]);
    let words = data[range[0]..range[1]].as_chunks::<4>().0;
    let values = words.iter().map(|&word| f32::from_le_bytes(word)).collect();
    (numbers(&tensor["shape"]), values)
}

#[test]
fn exported_problem_comes_back_right_or_wrong() {
    let folder = Folder::new("round-trip");
    let (inputs, outputs) = (
        folder.file("in.safetensors"),
        folder.file("out.safetensors"),
    );
    let problem = "hadamard_transform/sizes/n2/f32";
    let text = expect(0, &["export-problem", problem, &inputs, "--seed", "7"], "");
    assert!(text.contains("out ["), "{text}");

    // H of size 2 is [[1, 1], [1, -1]] / sqrt(2).
    let (shape, x) = read_tensor(&inputs, "x");
    let root = 2f32.sqrt();
    let mut y: Vec<f32> = x
        .chunks(2)
        .flat_map(|pair| [(pair[0] + pair[1]) / root, (pair[0] - pair[1]) / root])
        .collect();
    write_tensor(&outputs, "out", &shape, &y, problem);
    let against = ["verify", "--against", &outputs];
    assert!(expect(0, &against, "").contains("pass"));
    let verdict = json(&[&against[..], &["--json"]].concat());
    assert_eq!(
        (&verdict["passed"], &verdict["seed"]),
        (&true.into(), &7.into())
    );
    // Another seed means other inputs: the file says which it answers.
    expect(2, &[&against[..], &["--seed", "8"]].concat(), "seed");
    expect(
        2,
        &[
            &against[..],
            &["--problem", "hadamard_transform/sizes/n64/f32"],
        ]
        .concat(),
        "problem",
    );

    y[1] += 0.125;
    write_tensor(&outputs, "out", &shape, &y, problem);
    expect(1, &against, "expected");
    y[1] = f32::NAN;
    write_tensor(&outputs, "out", &shape, &y, problem);
    expect(1, &against, "NaN");
    write_tensor(&outputs, "result", &shape, &y, problem);
    expect(2, &against, "out");
    fs::write(&outputs, "no tensors here").unwrap();
    expect(2, &against, "out.safetensors");
}
