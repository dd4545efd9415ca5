//! `flashcube bench` and `flashcube compare`.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::{Folder, expect, json as printed};

#[test]
fn bench_is_checked_timed_and_compared() {
    let folder = Folder::new("bench");
    let (first, second) = (folder.file("first.json"), folder.file("second.json"));
    let table = expect(
        0,
        &[
            "bench",
            "--backend",
            "cpu",
            "--suite",
            "merge",
            "--row",
            "/f32/n16",
            "--json",
            &first,
        ],
        "",
    );
    assert!(table.contains("merge/unit/f32/d128"), "{table}");
    let mut report: Value = serde_json::from_slice(&fs::read(&first).unwrap()).unwrap();
    assert!(report["copy_gb_per_s"].as_f64().unwrap() > 0.0);
    assert_eq!(report["rows"].as_array().unwrap().len(), 1);
    let row = &mut report["rows"][0];
    assert!(row["worst_share_of_bound"].as_f64().unwrap() <= 1.0);
    assert!(row["repeats"].as_u64().unwrap() >= 5);

    let median = row["median_seconds"].as_f64().unwrap();
    row["median_seconds"] = (2.0 * median).into();
    fs::write(&second, report.to_string()).unwrap();
    expect(0, &["compare", &first, &first, "--at-least", "1"], "");
    expect(0, &["compare", &first, &second, "--at-least", "0.5"], "");
    expect(
        1,
        &["compare", &first, &second, "--at-least", "0.6"],
        "merge_partials",
    );
    let rows = printed(&["compare", &first, &second, "--json"]);
    assert!((rows[0]["ratio"].as_f64().unwrap() - 0.5).abs() < 1e-9);
}

const PEERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../benches/peers/peers.py");

#[test]
fn the_peers_script_lists_the_same_problems() {
    for seed in ["1", "77"] {
        let ours = printed(&["bench", "--list", "--seed", seed]);
        let script = Command::new("python3")
            .args([PEERS, "--list", "--seed", seed])
            .output()
            .unwrap();
        let theirs: Value = serde_json::from_slice(&script.stdout).unwrap();
        assert_eq!(ours, theirs);
        assert_eq!(ours.as_array().unwrap().len(), 2 * (14 + 10 + 4));
    }
    let ours = printed(&["bench", "--suite", "decode", "--list"]);
    let script = Command::new("python3")
        .args([PEERS, "--suite", "decode", "--list"])
        .output()
        .unwrap();
    let theirs: Value = serde_json::from_slice(&script.stdout).unwrap();
    assert_eq!(ours, theirs);
    // Seven caches, in one piece and in pages, two of them as graphs and one as codes too.
    assert_eq!(ours.as_array().unwrap().len(), 2 * 2 * (7 + 2 + 1));
}

/// A script that speaks the protocol of benches/peers/peers.py, notes what it is asked, and has two
/// peers: `slow` takes 1000 s for everything, `picky` refuses f16.
const SCRIPT: &str = r#"
import json, pathlib, sys
notes = pathlib.Path(__file__).with_suffix(".log").open("w")
rows = {}
for line in sys.stdin:
    asked = json.loads(line)
    op, name = asked["op"], asked.get("implementation", "")
    print(op, name, file=notes, flush=True)
    answer = {}
    if op == "hello":
        assert asked["seed"] == 5
        answer["implementations"] = [{"name": n, "layout": "bhsd"} for n in ("slow", "picky")]
    elif op == "measure" and name == "picky":
        answer["refused"] = "no such dtype"
    elif op == "measure":
        problem = asked["problem"]
        row = rows.setdefault(problem["name"], {
            "name": problem["name"] + "/slow", "implementation": name, "blueprint": "slow 1",
            "median_seconds": 1000.0, "fastest_seconds": 1000.0, "repeats": 1, "clock": "device",
            "bytes": problem["bytes"], "flops": problem["flops"], "ceiling": "matmul",
            "fraction_of_ceiling": 0.0, "worst_share_of_bound": 0.0, "failure": None,
            "cell": {"problem": problem["name"], "dtype": problem["dtype"], "mask": problem["mask"],
                     "layout": "bhsd", "round_seconds": [], "tflop_per_s": 1e-9}})
        row["cell"]["round_seconds"].append(1000.0)
        answer["median_seconds"] = 1000.0
    elif op == "finish":
        answer = None
    elif op == "attend":
        data = [pathlib.Path(path).read_bytes() for path in asked["inputs"]]
        elements = asked["shape"][1] * asked["shape"][2] * asked["shape"][3]
        assert asked["shape"][0] == 1 and all(len(x) == 4 * elements for x in data)
        # Every value is 0.
        pathlib.Path(asked["output"]).write_bytes(bytes(4 * elements))
    elif op == "report":
        answer = {"version": "slow 1", "backend": "peers", "device": "a card", "seed": 5,
                  "rows": list(rows.values())}
    print(json.dumps(answer), flush=True)
"#;

fn edit(path: &str, change: impl FnOnce(&mut Value)) {
    let mut report: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    change(&mut report);
    fs::write(path, report.to_string()).unwrap();
}

#[test]
fn peers_take_turns_with_ours_and_are_compared() {
    let folder = Folder::new("peers");
    let (script, ours, peers) = (
        folder.file("peers.py"),
        folder.file("o.json"),
        folder.file("p.json"),
    );
    fs::write(&script, SCRIPT).unwrap();
    let run = [
        "bench",
        "--backend",
        "cpu",
        "--suite",
        "attention_forward",
        "--seed",
        "5",
    ];
    let rows = [
        "--row",
        "f16/b1_h8on2_q1xkv2048",
        "--row",
        "accuracy/f16/b1_h2_s128_d64/normal",
    ];
    let files = ["--json", &ours, "--peers", &script, "--peers-json", &peers];
    expect(0, &[&run[..], &rows, &files].concat(), "slow");

    let notes = fs::read_to_string(folder.file("peers.log")).unwrap();
    // bf16 holds the pattern f16 too: two problems of three rounds, picky is asked once for each.
    let each = "measure slow\nmeasure picky\nmeasure slow\nmeasure slow\nfinish \n";
    let attend = "attend slow\nattend picky\n";
    assert_eq!(notes, format!("hello \n{each}{attend}{each}report \n"));

    let report: Value = serde_json::from_slice(&fs::read(&ours).unwrap()).unwrap();
    let cell = &report["rows"][0]["cell"];
    assert_eq!(cell["round_seconds"].as_array().unwrap().len(), 3);
    assert!(cell["first_call_seconds"].as_f64().unwrap() > 0.0, "{cell}");
    assert!(report["accuracy"][0]["rmse"].as_f64().unwrap() < 1e-3);
    // An output of zeros is worse than ours.
    expect(0, &["compare", &ours, &peers, "--at-least", "1"], "");
    expect(
        1,
        &["compare", &ours, &peers, "--at-least", "1e9"],
        "f16/b1_h8on2_q1xkv2048_d64",
    );
    expect(
        1,
        &["compare", &ours, &peers, "--mean-at-least", "1e9"],
        "geometric mean of f16",
    );
    expect(2, &["compare", &ours, &peers, "--peer", "fa9"], "fa9");
    let errors = [
        "compare",
        &ours,
        &peers,
        "--at-least",
        "1",
        "--rmse-at-most",
        "1e-9",
    ];
    expect(1, &errors, "error");
    expect(
        1,
        &[&run[..], &rows, &["--budget", "0"]].concat(),
        "2 problems were not started",
    );
    judge_a_void_peer(&ours, &peers);
    judge_what_is_missing(&ours, &peers);
    draw(&ours, &peers, &folder.file("plot.svg"));
}

fn judge_a_void_peer(ours: &str, peers: &str) {
    edit(peers, |report| {
        report["rows"][0]["cell"]["void"] = "slower than before".into()
    });
    expect(
        1,
        &["compare", ours, peers, "--at-least", "1"],
        "slower than before",
    );
    expect(
        0,
        &["compare", ours, peers, "--at-least", "1", "--allow-void"],
        "",
    );
    edit(peers, |report| {
        report["rows"][0]["cell"]["void"] = Value::Null
    });
}

/// A problem that only the peers computed, and a goal whose other side is not there.
fn judge_what_is_missing(ours: &str, peers: &str) {
    let kept = fs::read(ours).unwrap();
    edit(ours, |report| {
        let goal = json!({"against": "attend_forward/f16/none", "at_least": 4.0});
        report["rows"][0]["cell"]["goal"] = goal;
    });
    expect(
        1,
        &["compare", ours, peers, "--at-least", "1"],
        "of f16/none, at least 4",
    );
    edit(ours, |report| report["rows"][0]["failure"] = "wrong".into());
    expect(
        1,
        &["compare", ours, peers, "--at-least", "1"],
        "not measured",
    );
    fs::write(ours, kept).unwrap();
}

fn draw(ours: &str, peers: &str, plot: &str) {
    expect(0, &["compare", ours, peers, "--plot", plot], "");
    let svg = fs::read_to_string(Path::new(plot)).unwrap();
    assert!(
        svg.starts_with("<svg") && svg.ends_with("</svg>\n"),
        "{svg}"
    );
    for name in ["ours bhsd", "slow", "f16/b1_h8on2_q1xkv2048_d64"] {
        assert!(svg.contains(&format!(">{name}</text>")), "{svg}");
    }
}

#[test]
fn peers_that_cannot_start_are_missing() {
    let run = [
        "bench",
        "--backend",
        "cpu",
        "--suite",
        "attention_forward",
        "--peers",
    ];
    expect(
        2,
        &[&run[..], &["/no/such/script.py"]].concat(),
        "docs/benchmarks.md",
    );
    let python = ["/no/such/script.py", "--python", "/no/such/python"];
    expect(2, &[&run[..], &python].concat(), "/no/such/python");
}
