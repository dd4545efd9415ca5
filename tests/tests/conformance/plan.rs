//! The list of tiles: pure, checked against what every single query sees.

use std::ops::Range;

use flashcube::{
    Alignment, AttendOptions, Backend, Caps, DType, DocumentSpans, ListedTile, PlanBand, Sequence,
    Tensor, TileSizes, plan_tiles, workspace_bytes,
};
use proptest::prelude::*;

/// Keys that the band leaves to query `i`.
fn visible(s: &Sequence, band: PlanBand, i: usize) -> Range<i64> {
    let shift = match band.alignment {
        Alignment::TopLeft => 0,
        Alignment::BottomRight => s.len_kv as i64 - s.len_q as i64,
    };
    let diagonal = i as i64 + shift;
    let lo = band.left.map_or(0, |left| diagonal - left as i64).max(0);
    let hi = band
        .right
        .map_or(i64::MAX, |right| diagonal + right as i64 + 1);
    lo..hi.min(s.len_kv as i64)
}

/// Blocks that some query of the tile sees, one by one.
fn blocks(s: &Sequence, tile: &ListedTile, sizes: TileSizes, band: PlanBand) -> usize {
    let TileSizes { rows, pack, block } = sizes;
    let mut queries: Vec<usize> = (tile.row0..tile.row0 + rows)
        .map(|row| row / pack)
        .collect();
    queries.retain(|&i| i < s.len_q);
    let seen = |j: usize| {
        let keys = (j * block) as i64..((j + 1) * block) as i64;
        queries.iter().any(|&i| {
            let v = visible(s, band, i);
            v.start.max(keys.start) < v.end.min(keys.end)
        })
    };
    (0..s.len_kv.div_ceil(block)).filter(|&j| seen(j)).count()
}

fn sequences() -> impl Strategy<Value = Vec<Sequence>> {
    let one = (0usize..90, 0usize..20, 0usize..90);
    prop::collection::vec(one, 0..6).prop_map(|lengths| {
        let mut first = (0, 0);
        let of = |(len_q, spare, len_kv)| {
            let sequence = Sequence {
                first_q: first.0,
                len_q,
                rows_q: len_q + spare,
                first_kv: first.1,
                len_kv,
            };
            first = (first.0 + len_q + spare, first.1 + len_kv);
            sequence
        };
        lengths.into_iter().map(of).collect()
    })
}

fn band() -> impl Strategy<Value = PlanBand> {
    let edge = || prop::option::of(0usize..50);
    (edge(), edge(), any::<bool>()).prop_map(|(left, right, top_left)| PlanBand {
        left,
        right,
        alignment: match top_left {
            true => Alignment::TopLeft,
            false => Alignment::BottomRight,
        },
    })
}

proptest! {
    #[test]
    fn every_row_is_in_one_tile_and_the_longest_tiles_come_first(
        sequences in sequences(),
        (rows, pack, block) in (1usize..40, 1usize..6, 1usize..40),
        band in band(),
    ) {
        let sizes = TileSizes { rows, pack, block };
        let whole = |s: usize, _| 0..sequences[s].len_kv;
        let tiles = plan_tiles(&sequences, sizes, band, whole);
        let mut starts: Vec<(usize, usize)> = tiles.iter().map(|t| (t.sequence, t.row0)).collect();
        starts.sort_unstable();
        let wanted: Vec<(usize, usize)> = sequences
            .iter()
            .enumerate()
            .flat_map(|(s, x)| (0..x.rows_q * pack).step_by(rows).map(move |row0| (s, row0)))
            .collect();
        prop_assert_eq!(starts, wanted);
        let work: Vec<usize> = tiles
            .iter()
            .map(|t| blocks(&sequences[t.sequence], t, sizes, band))
            .collect();
        prop_assert!(work.is_sorted_by(|a, b| a >= b), "{:?}", work);
    }
}

#[test]
fn tiles_of_one_sequence_stay_together() {
    let of = |first, len| Sequence {
        first_q: first,
        len_q: len,
        rows_q: len,
        first_kv: first,
        len_kv: len,
    };
    let sequences = [of(0, 100), of(100, 300), of(400, 200)];
    let whole = |s: usize, _| 0..sequences[s].len_kv;
    let sizes = TileSizes {
        rows: 100,
        pack: 1,
        block: 10,
    };
    let tiles = plan_tiles(&sequences, sizes, PlanBand::default(), whole);
    let order: Vec<(usize, usize)> = tiles.iter().map(|t| (t.sequence, t.row0)).collect();
    assert_eq!(
        order,
        [(1, 0), (1, 100), (1, 200), (2, 0), (2, 100), (0, 0)]
    );
    // Words of the table: sequence, first row, keys.
    assert_eq!(tiles[4].words(), [2, 100, 0, 200]);
}

proptest! {
    #[test]
    fn document_spans_are_the_shortest_that_hold_every_key(
        keys in prop::collection::vec(0u32..6, 0..40),
        queries in prop::collection::vec(0u32..8, 0..12),
    ) {
        let seen: Vec<usize> = (0..keys.len()).filter(|&j| queries.contains(&keys[j])).collect();
        let wanted = match (seen.first(), seen.last()) {
            (Some(&first), Some(&last)) => first..last + 1,
            _ => 0..0,
        };
        prop_assert_eq!(DocumentSpans::of(&keys).covering(&queries), wanted);
    }
}

#[test]
fn workspace_is_the_table_and_never_a_matrix_of_scores() {
    let client = Backend::Cpu.open().expect("the CPU backend");
    let caps = Caps::of(&client);
    let (b, h, s) = (2, 4, 3000);
    let x = Tensor::<4>::empty(&client, [b, h, s, 8], DType::F32);
    let bytes = |options: &AttendOptions<'_>| workspace_bytes(&x, &x, &x, options, &caps).unwrap();
    let plain = AttendOptions {
        causal: true,
        window_left: Some(7),
        ..AttendOptions::default()
    };
    assert_eq!(bytes(&plain), 0);
    let alibi = AttendOptions {
        alibi: Some(&[0.5; 4]),
        ..plain.clone()
    };
    assert_eq!(bytes(&alibi), 4 * h);
    let lengths = AttendOptions {
        lengths_kv: Some(&[2000, 1]),
        ..plain.clone()
    };
    // Two lengths and the tiles of each entry.
    let tile = caps.units_per_cube.clamp(1, 32) as usize;
    let tiles = b * s.div_ceil(tile) * 16;
    assert_eq!(bytes(&lengths), 4 * 2 * b + tiles);
    let ids = vec![0; b * s];
    let documents = AttendOptions {
        documents: Some((&ids, &ids)),
        ..plain.clone()
    };
    assert_eq!(bytes(&documents), 4 * 2 * b * s + tiles);
    let none = Tensor::<4>::empty(&client, [b, h, 0, 8], DType::F32);
    assert_eq!(workspace_bytes(&none, &x, &x, &lengths, &caps), Ok(0));
}
