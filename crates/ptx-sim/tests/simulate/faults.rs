//! Faults planted in the text of kernels that pass: each must be found.

use flashcube_ptx_sim::Schedule;

use super::ours::{D64, Failure, HOPPER_D64, PLANE, PLANE_D64, Shape, Tile, simulate};
use super::triton::{ATTN_SM100, ATTN_SM100_SHARED, attention};

/// Replaces the occurrences that `which` picks (counted from 0) of lines that contain `needle` by `change` of them.
fn edit_some(
    source: &str,
    needle: &str,
    which: impl Fn(usize) -> bool,
    change: impl Fn(&str) -> String,
) -> String {
    let mut seen = 0;
    let mut changed = 0;
    let mut edited = String::new();
    for line in source.lines() {
        let found = line.contains(needle);
        if found && which(seen) {
            edited += &change(line);
            changed += 1;
        } else {
            edited += line;
        }
        seen += usize::from(found);
        edited.push('\n');
    }
    assert!(changed > 0, "`{needle}` occurs {seen} times");
    edited
}

/// Occurrence `nth` alone.
fn edit(source: &str, needle: &str, nth: usize, change: impl Fn(&str) -> String) -> String {
    edit_some(source, needle, |seen| seen == nth, change)
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

/// Other byte counts where a constant is made for expect_tx; stage addresses, masked with the same number, stay.
fn only_moves(to: &'static str) -> impl Fn(&str) -> String {
    move |line| {
        if line.starts_with("mov.u32") {
            line.replace("16384", to)
        } else {
            line.to_owned()
        }
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
    let all = |needle: &str, change: &dyn Fn(&str) -> String| {
        edit_some(HOPPER_D64, needle, |_| true, change)
    };
    let now =
        |which: &dyn Fn(usize) -> bool| edit_some(HOPPER_D64, "mbarrier.try_wait", which, no_wait);
    // The producer's loop is unrolled, so that a shape runs some of its copies only: what it does is changed in all.
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
            "wgmma.fence",
            all("wgmma.fence", &dropped),
            &["MissingWgmmaFence"],
        ),
        (
            "wait for the tile",
            now(&|nth| nth == 0),
            &["Uninitialised", "Race", "MemoryOwned"],
        ),
        (
            "wait for keys",
            now(&|nth| nth == 1),
            &["MemoryOwned", "Race", "Uninitialised"],
        ),
        (
            "wait for values",
            now(&|nth| matches!(nth, 3 | 5 | 6)),
            &["MemoryOwned", "Race", "Uninitialised"],
        ),
        (
            "wait for free stages",
            now(&|nth| nth > 8),
            &["MemoryOwned", "Race", "Mbarrier"],
        ),
        (
            "release of stages",
            all("mbarrier.arrive.shared::cta", &dropped),
            &["Deadlock"],
        ),
        (
            "too few bytes expected",
            all(", 16384;", &only_moves("128")),
            &["Mbarrier"],
        ),
        (
            "too many bytes expected",
            all(", 16384;", &only_moves("65536")),
            &["Deadlock"],
        ),
        (
            "tensor map of the wrong tensor",
            all("[%rd1, {", &with("%rd1", "%rd2")),
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
            &["Numbers"],
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
