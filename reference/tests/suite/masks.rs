//! Every mask of the design, against known values and against explicit masks.

use flashcube_reference::{Alignment, Broadcast, Options, Output, Tensor4, forward, weights};
use proptest::prelude::*;

use crate::cases::{Case, any_case, assert_close};

fn run(case: &Case) -> Output {
    forward(&case.q, &case.k, &case.v, &case.options()).unwrap()
}

/// Which keys each query sees, read off the attention weights.
fn visible_keys(s_q: usize, s_kv: usize, options: &Options<'_>) -> Vec<Vec<usize>> {
    let q = Tensor4::zeros([1, 1, s_q, 1]);
    let k = Tensor4::zeros([1, 1, s_kv, 1]);
    let row = |i| weights(&q, &k, &k, options, (0, 0, i)).unwrap();
    (0..s_q)
        .map(|i| {
            let row = row(i);
            (0..s_kv).filter(|&j| row[j] > 0.0).collect()
        })
        .collect()
}

#[test]
fn causal_alignment_decides_the_diagonal() {
    let mut options = Options {
        causal: true,
        ..Options::default()
    };
    assert_eq!(
        visible_keys(2, 4, &options),
        [vec![0, 1, 2], vec![0, 1, 2, 3]]
    );
    assert_eq!(
        visible_keys(4, 2, &options),
        [vec![], vec![], vec![0], vec![0, 1]]
    );
    options.alignment = Alignment::TopLeft;
    assert_eq!(visible_keys(2, 4, &options), [vec![0], vec![0, 1]]);
    assert_eq!(
        visible_keys(4, 2, &options),
        [vec![0], vec![0, 1], vec![0, 1], vec![0, 1]]
    );
}

#[test]
fn windows_count_keys_on_each_side_of_the_diagonal() {
    let options = Options {
        window_left: Some(1),
        window_right: Some(0),
        ..Options::default()
    };
    assert_eq!(
        visible_keys(3, 4, &options),
        [vec![0, 1], vec![1, 2], vec![2, 3]]
    );
    let right = Options {
        window_right: Some(1),
        alignment: Alignment::TopLeft,
        ..Options::default()
    };
    assert_eq!(visible_keys(2, 4, &right), [vec![0, 1], vec![0, 1, 2]]);
    let unlimited = Options {
        window_left: Some(usize::MAX),
        window_right: Some(usize::MAX),
        ..Options::default()
    };
    assert_eq!(visible_keys(1, 3, &unlimited), [vec![0, 1, 2]]);
}

#[test]
fn lengths_move_the_bottom_right_diagonal() {
    let options = Options {
        causal: true,
        lengths_q: Some(&[2]),
        lengths_kv: Some(&[3]),
        ..Options::default()
    };
    // 2 of 3 queries, 3 of 5 keys: shift 1.
    assert_eq!(
        visible_keys(3, 5, &options),
        [vec![0, 1], vec![0, 1, 2], vec![]]
    );
}

#[test]
fn documents_and_masks_hide() {
    let options = Options {
        documents: Some((&[7, 9], &[9, 7, 7, 9])),
        ..Options::default()
    };
    assert_eq!(visible_keys(2, 4, &options), [vec![1, 2], vec![0, 3]]);
    let hidden = [true, false, false, true];
    let masked = Options {
        mask: Some(Broadcast {
            data: &hidden,
            shape: [1, 1, 1, 4],
        }),
        ..Options::default()
    };
    assert_eq!(visible_keys(2, 4, &masked), [vec![1, 2], vec![1, 2]]);
    let bias = [0.0, f64::NEG_INFINITY];
    let biased = Options {
        bias: Some(Broadcast {
            data: &bias,
            shape: [1, 1, 2, 1],
        }),
        ..Options::default()
    };
    assert_eq!(visible_keys(2, 3, &biased), [vec![0, 1, 2], vec![]]);
}

#[test]
fn causal_with_more_queries_than_keys_leaves_the_first_rows_empty() {
    let mut case = Case::plain(7, 1, (1, 1), (2048, 1024), (16, 16));
    case.causal = true;
    let result = run(&case);
    let (empty, rest) = result.lse.split_at(1024);
    assert!(empty.iter().all(|&lse| lse == f64::NEG_INFINITY));
    assert!(rest.iter().all(|lse| lse.is_finite()));
    assert!(result.out.data[..1024 * 16].iter().all(|&x| x == 0.0));
    // Row 1024 sees key 0 alone.
    assert_eq!(result.out.row(0, 0, 1024), case.v.row(0, 0, 0));
}

#[test]
fn window_with_unlimited_left_and_zero_right_equals_causal() {
    let mut causal = Case::plain(10, 2, (8, 8), (64, 64), (16, 16));
    let mut window = causal.clone();
    causal.causal = true;
    window.window_right = Some(0);
    assert_eq!(run(&causal), run(&window));
}

#[test]
fn variable_lengths_equal_the_separate_sequences() {
    // Heads 9/3, zero-length queries and keys among them.
    let (len_q, len_kv) = (vec![0, 1, 1, 3, 2], vec![3, 2, 0, 1, 5]);
    let mut case = Case::plain(12, 5, (9, 3), (3, 5), (8, 4));
    case.causal = true;
    case.lengths_q = Some(len_q.clone());
    case.lengths_kv = Some(len_kv.clone());
    let padded = run(&case);
    for b in 0..5 {
        let cut = |t: &Tensor4, s| {
            let shape = [1, t.shape[1], s, t.shape[3]];
            Tensor4::from_fn(shape, |[_, h, s, d]| t.row(b, h, s)[d])
        };
        let alone = Case {
            q: cut(&case.q, len_q[b]),
            k: cut(&case.k, len_kv[b]),
            v: cut(&case.v, len_kv[b]),
            lengths_q: None,
            lengths_kv: None,
            ..case.clone()
        };
        let alone = run(&alone);
        for h in 0..9 {
            for i in 0..3 {
                let lse = padded.lse[(b * 9 + h) * 3 + i];
                if i < len_q[b] {
                    assert_eq!(padded.out.row(b, h, i), alone.out.row(0, h, i));
                    assert_eq!(lse, alone.lse[h * len_q[b] + i]);
                } else {
                    assert_eq!(padded.out.row(b, h, i), [0.0; 4]);
                    assert_eq!(lse, f64::NEG_INFINITY);
                }
            }
        }
    }
}

#[test]
fn ragged_causal_documents_equal_the_separate_sequences() {
    // Packed sequences of 17, 1 and 15 tokens.
    let ids: Vec<u32> = (0..33)
        .map(|s| u32::from(s >= 17) + u32::from(s >= 18))
        .collect();
    let mut packed = Case::plain(13, 1, (2, 2), (33, 33), (8, 8));
    packed.causal = true;
    packed.documents = Some((ids.clone(), ids));
    let whole = run(&packed);
    for (start, end) in [(0, 17), (17, 18), (18, 33)] {
        let cut = |t: &Tensor4| {
            let shape = [1, 2, end - start, 8];
            Tensor4::from_fn(shape, |[b, h, s, d]| t.row(b, h, start + s)[d])
        };
        let alone = run(&Case {
            q: cut(&packed.q),
            k: cut(&packed.k),
            v: cut(&packed.v),
            documents: None,
            ..packed.clone()
        });
        for h in 0..2 {
            for i in start..end {
                let want = alone.out.row(0, h, i - start);
                assert_close(whole.out.row(0, h, i), want, 1e-14);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// The predicate once more, written from the definition and handed over as an explicit mask.
    #[test]
    fn options_equal_their_explicit_mask(case in any_case()) {
        let [b, h_q, s_q, _] = case.q.shape;
        let s_kv = case.k.shape[2];
        let mut hidden = Vec::new();
        for n in 0..b * h_q * s_q * s_kv {
            let (b, h) = (n / s_kv / s_q / h_q, n / s_kv / s_q % h_q);
            let (i, j) = ((n / s_kv % s_q) as i64, (n % s_kv) as i64);
            let len_q = case.lengths_q.as_ref().map_or(s_q, |l| l[b]) as i64;
            let len_kv = case.lengths_kv.as_ref().map_or(s_kv, |l| l[b]) as i64;
            let shift = if case.alignment == Alignment::TopLeft { 0 } else { len_kv - len_q };
            let left = case.window_left.map_or(i64::MIN, |w| i + shift - w as i64);
            let right = case.window_right.map_or(i64::MAX, |w| i + shift + w as i64);
            let right = if case.causal { right.min(i + shift) } else { right };
            let other = case.documents.as_ref().is_some_and(|(q, kv)| {
                q[b * s_q + i as usize] != kv[b * s_kv + j as usize]
            });
            let masked = case.options().mask.is_some_and(|m| m.get(b, h, i as usize, j as usize));
            hidden.push(i >= len_q || j >= len_kv || j < left || j > right || other || masked);
        }
        let mut explicit = case.clone();
        explicit.causal = false;
        (explicit.window_left, explicit.window_right) = (None, None);
        explicit.documents = None;
        explicit.mask = Some((hidden, [b, h_q, s_q, s_kv]));
        if explicit.alibi.is_none() {
            explicit.lengths_kv = None;
            // A row past its length has no sink; one that the mask hides from all keys has.
            if explicit.sinks.is_none() {
                explicit.lengths_q = None;
            }
        }
        prop_assert_eq!(run(&case), run(&explicit));
    }

    /// NaN and infinities in hidden keys, values and queries change nothing.
    #[test]
    fn hidden_content_does_not_spread(case in any_case(), poison in prop_oneof![
        Just(f64::NAN), Just(f64::INFINITY), Just(f64::NEG_INFINITY)
    ]) {
        let [b, h_q, s_q, d] = case.q.shape;
        let [_, h_kv, s_kv, _] = case.k.shape;
        let mut poisoned = case.clone();
        let (mut q_seen, mut k_seen) = (vec![false; b * h_q * s_q], vec![false; b * h_kv * s_kv]);
        for (row, q_seen) in q_seen.iter_mut().enumerate() {
            let (b, h, i) = (row / s_q / h_q, row / s_q % h_q, row % s_q);
            let w = weights(&case.q, &case.k, &case.v, &case.options(), (b, h, i)).unwrap();
            for j in (0..s_kv).filter(|&j| w[j] > 0.0) {
                *q_seen = true;
                k_seen[(b * h_kv + h * h_kv / h_q) * s_kv + j] = true;
            }
        }
        let fill = |t: &mut Tensor4, seen: &[bool], d: usize| {
            for row in (0..seen.len()).filter(|&row| !seen[row]) {
                t.data[row * d..(row + 1) * d].fill(poison);
            }
        };
        fill(&mut poisoned.q, &q_seen, d);
        fill(&mut poisoned.k, &k_seen, d);
        fill(&mut poisoned.v, &k_seen, case.v.shape[3]);
        prop_assert_eq!(run(&case), run(&poisoned));
    }

    #[test]
    fn broadcast_equals_the_full_tensor(case in any_case()) {
        let [b, h_q, s_q, _] = case.q.shape;
        let full = [b, h_q, s_q, case.k.shape[2]];
        let mut expanded = case.clone();
        let options = case.options();
        let mut indices = Vec::new();
        Tensor4::from_fn(full, |at| {
            indices.push(at);
            0.0
        });
        let at = |[b, h, i, j]: [usize; 4]| (b, h, i, j);
        expanded.mask = options.mask.map(|mask| {
            let value = |(b, h, i, j)| mask.get(b, h, i, j);
            (indices.iter().map(|&index| value(at(index))).collect(), full)
        });
        expanded.bias = options.bias.map(|bias| {
            let value = |(b, h, i, j)| bias.get(b, h, i, j);
            (indices.iter().map(|&index| value(at(index))).collect(), full)
        });
        prop_assert_eq!(run(&case), run(&expanded));
    }
}

/// Rows `rows` of every head.
fn slice(t: &Tensor4, rows: std::ops::Range<usize>) -> Tensor4 {
    let [b, h, _, d] = t.shape;
    Tensor4::from_fn([b, h, rows.len(), d], |[b, h, s, x]| {
        t.row(b, h, rows.start + s)[x]
    })
}

proptest! {
    #[test]
    fn packed_sequences_are_as_many_problems(
        lengths in prop::collection::vec((0usize..6, 0usize..6), 0..5),
        (spare_q, spare_kv) in (0usize..3, 0usize..3),
        (causal, top_left, softcap) in (any::<bool>(), any::<bool>(), any::<bool>()),
        left in prop::option::of(0usize..4),
        right in prop::option::of(0usize..4),
    ) {
        let sums = |of: fn(&(usize, usize)) -> usize| {
            let mut sums = vec![0];
            for pair in &lengths {
                sums.push(sums[sums.len() - 1] + of(pair));
            }
            sums
        };
        let (cu_q, cu_kv) = (sums(|l| l.0), sums(|l| l.1));
        let n = lengths.len();
        let (total_q, total_kv) = (cu_q[n] + spare_q, cu_kv[n] + spare_kv);
        let wave = |shape, step: f64| {
            let mut x = 0.3;
            Tensor4::from_fn(shape, |_| { x += step; f64::sin(x) })
        };
        let q = wave([1, 4, total_q, 3], 1.3);
        let k = wave([1, 2, total_kv, 3], 0.7);
        let v = wave([1, 2, total_kv, 2], 2.1);
        let slopes = [0.5, 0.25, 0.125, 0.0625];
        let alone = Options {
            scale: 2.0,
            softcap: softcap.then_some(3.0),
            causal,
            alignment: if top_left { Alignment::TopLeft } else { Alignment::BottomRight },
            window_left: left,
            window_right: right,
            alibi: Some(&slopes),
            ..Options::default()
        };
        let packed = Options { cu_seqlens: Some((&cu_q, &cu_kv)), ..alone.clone() };
        let whole = forward(&q, &k, &v, &packed).unwrap();
        for x in 0..n {
            let (queries, keys) = (cu_q[x]..cu_q[x + 1], cu_kv[x]..cu_kv[x + 1]);
            let part = [(&q, &queries), (&k, &keys), (&v, &keys)]
                .map(|(t, rows)| slice(t, rows.clone()));
            let part = forward(&part[0], &part[1], &part[2], &alone).unwrap();
            prop_assert_eq!(slice(&whole.out, queries.clone()), part.out);
            for h in 0..4 {
                let lse = &whole.lse[h * total_q..][queries.clone()];
                prop_assert_eq!(lse, &part.lse[h * queries.len()..][..queries.len()]);
            }
        }
        // Rows of no sequence.
        for h in 0..4 {
            for i in cu_q[n]..total_q {
                prop_assert_eq!(whole.out.row(0, h, i), [0.0, 0.0]);
                prop_assert_eq!(whole.lse[h * total_q + i], f64::NEG_INFINITY);
            }
        }
    }
}
