//! Faults planted in the text of kernels that pass: each must be found.

use flashcube_ptx_sim::Schedule;

use super::ours::{D64, Failure, HOPPER_D64, PLANE, PLANE_D64, Shape, Tile, simulate};
use super::triton::{ATTN_SM100, ATTN_SM100_SHARED, attention};

/// Replaces occurrence `nth` (from 0) of a line that contains `needle` by `change` of it.
fn edit(source: &str, needle: &str, nth: usize, change: impl Fn(&str) -> String) -> String {
    let mut seen = 0;
    let mut edited = String::new();
    for line in source.lines() {
        let found = line.contains(needle);
        if found && seen == nth {
            edited += &change(line);
        } else {
            edited += line;
        }
        seen += usize::from(found);
        edited.push('\n');
    }
    assert!(seen > nth, "`{needle}` occurs {seen} times");
    edited
}

fn dropped(_: &str) -> String {
    String::new()
}

/// A wait that is over at once.
fn no_wait(line: &str) -> String {
    let done = line
        .split_whitespace()
        .nth(1)
        .map_or("", |word| word.trim_end_matches(','));
    format!("setp.eq.u32 {done}, 0, 0;")
}

fn with(from: &'static str, to: &'static str) -> impl Fn(&str) -> String {
    move |line| {
        assert!(line.contains(from), "{line}");
        line.replace(from, to)
    }
}

/// Runs a kernel with a fault on a shape of several tiles and blocks; what was found.
fn found(source: &str, tile: Tile) -> String {
    let shape = Shape {
        h: 2,
        s_q: 193,
        s_kv: 600,
    };
    match simulate(source, tile, &shape, Schedule::Latest) {
        Ok(_) => "nothing".to_owned(),
        Err(Failure::Sim(error)) => match error.fault() {
            Some(fault) => format!("{fault:?}"),
            None => panic!("{error}"),
        },
        Err(Failure::Numbers(error)) => format!("Numbers: {error}"),
    }
}

/// Checks a list of (name, source with the fault, what must be found).
fn all_found(base: &str, list: Vec<(&str, String, &[&str])>, run: impl Fn(&str) -> String) {
    assert_eq!(run(base), "nothing", "without a fault");
    let mut missed = Vec::new();
    for (name, source, wanted) in list {
        let what = run(&source);
        eprintln!("{name}: {}", what.chars().take(200).collect::<String>());
        if !wanted.iter().any(|wanted| what.starts_with(wanted)) {
            missed.push(format!("{name}: wanted {wanted:?}, found {what}"));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn faults_of_the_plane_kernel_are_found() {
    let cut = |needle: &str, nth| edit(PLANE_D64, needle, nth, dropped);
    let list: Vec<(&str, String, &[&str])> = vec![
        (
            "first cp.async wait",
            cut("cp.async.wait_group", 0),
            &["MemoryOwned"],
        ),
        (
            "second cp.async wait",
            cut("cp.async.wait_group", 1),
            &["MemoryOwned"],
        ),
        (
            "first barrier",
            cut("bar.sync", 0),
            &["Race", "MemoryOwned", "Uninitialised"],
        ),
        (
            "second barrier",
            cut("bar.sync", 1),
            &["Race", "MemoryOwned"],
        ),
        (
            "warp barrier before the store",
            cut("bar.warp.sync", 1),
            &["Race"],
        ),
        (
            "commit of copies",
            cut("cp.async.commit_group", 1),
            &["MemoryOwned"],
        ),
        (
            "stage of the values",
            edit(
                PLANE_D64,
                "ldmatrix.sync.aligned.m8n8.x4.trans",
                5,
                with("+", "+16+"),
            ),
            &["Numbers", "Race", "MemoryOwned", "Misaligned"],
        ),
    ];
    all_found(PLANE_D64, list, |source| found(source, PLANE));
}

#[test]
fn faults_of_the_hopper_kernel_are_found() {
    let cut = |needle: &str, nth| edit(HOPPER_D64, needle, nth, dropped);
    let now = |nth| edit(HOPPER_D64, "mbarrier.try_wait", nth, no_wait);
    let swap = |needle, from, to| edit(HOPPER_D64, needle, 0, with(from, to));
    let list: Vec<(&str, String, &[&str])> = vec![
        (
            "barrier after mbarrier.init",
            cut("bar.sync \t0", 0),
            &["Race", "Mbarrier"],
        ),
        (
            "wait for the first scores",
            cut("wgmma.wait_group.sync.aligned 0", 0),
            &["RegisterOwned"],
        ),
        (
            "wait that leaves too much in flight",
            edit(
                HOPPER_D64,
                "wgmma.wait_group.sync.aligned 1",
                1,
                with(" 1", " 2"),
            ),
            &["RegisterOwned"],
        ),
        (
            "wgmma.fence before P V",
            cut("wgmma.fence", 4),
            &["MissingWgmmaFence"],
        ),
        (
            "wait for the tile",
            now(0),
            &["Uninitialised", "Race", "MemoryOwned"],
        ),
        (
            "wait for keys",
            now(1),
            &["MemoryOwned", "Race", "Uninitialised"],
        ),
        (
            "wait for values",
            now(3),
            &["MemoryOwned", "Race", "Uninitialised"],
        ),
        (
            "release of a stage",
            cut("mbarrier.arrive.shared::cta", 1),
            &["Deadlock", "Mbarrier"],
        ),
        (
            "too few bytes expected",
            swap(
                "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r478]",
                "%r1318",
                "128",
            ),
            &["Mbarrier"],
        ),
        (
            "too many bytes expected",
            swap(
                "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r478]",
                "%r1318",
                "65536",
            ),
            &["Deadlock"],
        ),
        (
            "values into the stage of the keys",
            swap("[%r483], [%rd2", "%r483", "%r480"),
            &["MemoryOwned"],
        ),
        (
            "tensor map of the wrong tensor",
            swap("[%r480], [%rd1", "%rd1", "%rd2"),
            &["Numbers"],
        ),
        (
            "turn not passed on",
            cut("bar.arrive %r599", 0),
            &["Deadlock"],
        ),
        (
            "descriptor without its swizzle",
            edit(
                HOPPER_D64,
                "4611686293305360384",
                0,
                with("4611686293305360384", "274877972480"),
            ),
            &["Numbers", "Uninitialised", "MemoryOwned", "Race"],
        ),
    ];
    all_found(HOPPER_D64, list, |source| found(source, D64));
}

#[test]
fn faults_of_a_blackwell_kernel_are_found() {
    let cut = |needle: &str, nth| edit(ATTN_SM100, needle, nth, dropped);
    let run = |source: &str| match attention(source, ATTN_SM100_SHARED, false, Schedule::Latest) {
        Ok(()) => "nothing".to_owned(),
        Err(error) => match error.split_once("Some(") {
            Some((_, fault)) => fault.to_owned(),
            None => format!("Numbers: {error}"),
        },
    };
    let list: Vec<(&str, String, &[&str])> = vec![
        (
            "wait for tensor-memory loads",
            cut("tcgen05.wait::ld", 0),
            &["RegisterOwned"],
        ),
        (
            "wait for tensor-memory stores",
            cut("tcgen05.wait::st", 2),
            &["MemoryOwned"],
        ),
        ("deallocation", cut("tcgen05.dealloc", 0), &["Leak"]),
        (
            "commit",
            cut("tcgen05.commit", 0),
            &["Deadlock", "MemoryOwned"],
        ),
        (
            "wait for the first scores",
            edit(ATTN_SM100, "mbarrier.try_wait", 2, no_wait),
            &["MemoryOwned", "Race", "Mbarrier"],
        ),
        (
            "instruction descriptor with half the columns",
            edit(ATTN_SM100, "135267472", 0, with("135267472", "134743184")),
            &["Numbers", "Uninitialised", "Race"],
        ),
    ];
    all_found(ATTN_SM100, list, run);
}
