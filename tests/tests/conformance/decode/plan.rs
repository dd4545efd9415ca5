//! How keys are split, on devices that are not at hand.

use flashcube::attention::LogitFeatures;
use flashcube::{
    AttendKey, AttendOp, DType, DecodeOptions, KvView, MAX_SPLITS, Policy, SplitPlan, SplitProblem,
    Tensor, TierName, plan_decode, plan_splits, select_attend,
};

use crate::selection::{cpu, gpus};

/// bf16, d 128, blocks of 32 keys, four cubes on each of an H200's multiprocessors.
fn h200(tiles: usize, keys: usize) -> SplitProblem {
    SplitProblem {
        tiles,
        blocks: keys.div_ceil(32),
        block: 32,
        block_bytes: 32 * 256 * 2,
        part_bytes: 4 * 129 * 4,
        multiprocessors: 132,
        resident: 4,
        busy: 3,
        merges: true,
        together: 4,
    }
}

fn splits(tiles: usize, keys: usize) -> usize {
    plan_splits(&h200(tiles, keys)).splits
}

#[test]
fn a_card_that_is_full_splits_nothing() {
    // b64 and b128 of 8 key heads.
    assert_eq!(splits(512, 4096), 1);
    assert_eq!(splits(1024, 2048), 1);
    // Few keys are not worth a merge, however empty the card.
    assert_eq!(splits(1, 64), 1);
    assert_eq!(splits(8, 0), 1);
}

#[test]
fn few_tiles_are_split_until_the_memory_is_busy() {
    for (tiles, keys) in [(8, 131_072), (128, 8192), (8, 8192), (32, 8192)] {
        let cubes = tiles * splits(tiles, keys);
        assert!((240..=1056).contains(&cubes), "{tiles} {keys}: {cubes}");
    }
    assert!(splits(1, 1 << 20) > 100);
    for keys in [0, 1, 63, 64, 65, 1000, 1 << 20, 1 << 30] {
        for tiles in [1, 7, 500, 5000] {
            let plan = plan_splits(&h200(tiles, keys));
            assert!((1..=MAX_SPLITS).contains(&plan.splits));
            // No part but the last is shorter than what is worth a cube.
            assert_eq!(plan.part, 2);
        }
    }
}

/// Cubes of a tile meet at a counter, of which there are 4096: more tiles are at most cut into one cube's parts.
#[test]
fn more_tiles_than_counters_leave_nothing_to_meet_for() {
    for tiles in [4097, 4753, 10_000] {
        for keys in [4096, 1 << 20] {
            let problem = h200(tiles, keys);
            let splits = plan_splits(&problem).splits;
            assert_eq!(problem.parts_of_a_cube(splits), splits, "{tiles} {keys}");
        }
    }
    // Of fewer, some are worth it.
    let problem = h200(530, 1 << 20);
    let splits = plan_splits(&problem).splits;
    assert!(problem.parts_of_a_cube(splits) < splits);
}

#[test]
fn a_larger_card_never_splits_less() {
    let on = |multiprocessors| {
        let problem = SplitProblem {
            multiprocessors,
            ..h200(8, 65_536)
        };
        plan_splits(&problem).splits
    };
    assert!(on(16) <= on(64) && on(64) <= on(132));
    assert_eq!(on(1), 1);
}

fn key(s_q: usize, group: usize, d: usize) -> AttendKey {
    AttendKey {
        op: AttendOp::Decode,
        dtype: DType::BF16,
        d,
        d_v: d,
        s_q,
        group,
        vector: 4,
        chunks: true,
        tma: true,
        positive_scale: true,
        reach: 1 << 20,
        features: LogitFeatures {
            unlisted: true,
            split: true,
            ..LogitFeatures::default()
        },
    }
}

#[test]
fn decodes_get_small_tiles_of_whole_groups_on_the_plane_tier() {
    for caps in &gpus() {
        for (s_q, group, rows) in [(1, 1, 16), (1, 8, 16), (1, 7, 16), (5, 4, 32), (24, 8, 64)] {
            for d in [64, 128, 256] {
                let blueprint = select_attend(&key(s_q, group, d), caps, &Policy::default());
                let blueprint = blueprint.unwrap_or_else(|e| panic!("{e}"));
                assert_eq!(blueprint.tier, TierName::Plane, "{}", caps.device);
                assert_eq!(
                    (blueprint.rows, blueprint.pack),
                    (rows, group),
                    "{blueprint}"
                );
                assert!((2..=8).contains(&blueprint.stages), "{blueprint}");
            }
        }
    }
}

#[test]
fn a_plan_says_how_much_workspace_a_call_takes() {
    let client = super::invalid::client();
    let tensor = |shape| Tensor::<4>::empty(&client, shape, DType::BF16);
    let (q, cache) = (
        tensor([1, 32, 1, 128]),
        KvView::contiguous(tensor([1, 8, 4096, 128]), tensor([1, 8, 4096, 128])),
    );
    let h200 = &gpus()[3];
    let with = |splits| DecodeOptions {
        splits,
        ..DecodeOptions::default()
    };
    let plan = |splits, caps| {
        plan_decode(&q, &cache, &with(splits), caps)
            .unwrap()
            .unwrap()
    };
    let asked = plan(Some(7), h200);
    assert_eq!(asked.split, SplitPlan { splits: 7, part: 1 });
    assert_eq!(asked.workspace, 7 * 32 * 129);
    assert!(asked.blueprint.to_string().ends_with("/split"));
    // Four parts to a cube where they come out even; a tile of one cube leaves nothing to merge.
    let even = plan(Some(12), h200);
    assert_eq!((even.blueprint.parts, even.workspace), (4, 3 * 32 * 129));
    let one = plan(Some(4), h200);
    assert_eq!((one.blueprint.parts, one.workspace), (4, 0));
    let whole = plan(Some(1), h200);
    assert_eq!((whole.split, whole.workspace), (SplitPlan::WHOLE, 0));
    assert!(plan(None, h200).split.splits > 16);
    // Cores of the host take cubes in turn.
    assert_eq!(plan(None, &cpu(8)).split.splits, 1);
}
