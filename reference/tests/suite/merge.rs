//! The merge of partial results.

use flashcube_reference::{Tensor4, forward, merge, merge_row};
use proptest::prelude::*;

use crate::cases::{Case, assert_close};

const EMPTY: f64 = f64::NEG_INFINITY;

#[test]
fn empty_partials_merge_to_empty() {
    assert_eq!(merge_row(&[], 2), Ok((vec![0.0; 2], EMPTY)));
    let empty: (&[f64], f64) = (&[0.0, 0.0], EMPTY);
    assert_eq!(merge_row(&[empty, empty], 2), Ok((vec![0.0; 2], EMPTY)));
    assert_eq!(merge(&[], 3, 1), Ok((vec![0.0; 3], vec![EMPTY; 3])));
    assert_eq!(merge(&[], 0, 1), Ok((vec![], vec![])));
}

#[test]
fn an_empty_partial_is_not_read() {
    let poisoned: (&[f64], f64) = (&[f64::NAN], EMPTY);
    let full: (&[f64], f64) = (&[5.0], -3.0);
    assert_eq!(merge_row(&[poisoned, full], 1), Ok((vec![5.0], -3.0)));
}

#[test]
fn large_lse_values_merge_without_overflow() {
    for base in [1e4, -1e4, 1e300] {
        let (out, lse) = merge_row(&[(&[1.0], base), (&[3.0], base)], 1).unwrap();
        assert_eq!(out, [2.0]);
        assert!(lse.is_finite());
    }
}

#[test]
fn wrong_sizes_are_named() {
    let short = merge_row(&[(&[1.0], 0.0)], 2).unwrap_err();
    assert_eq!(
        short.to_string(),
        "partial out: 1 elements, its shape asks for 2"
    );
    assert!(merge(&[(&[1.0, 2.0], &[0.0])], 2, 1).is_err());
}

proptest! {
    /// Any split of the keys, parts without keys included, merges to the whole.
    #[test]
    fn merged_splits_equal_the_whole(
        seed: u64,
        s_kv in 0usize..40,
        cuts in prop::collection::vec(0usize..40, 0..12),
        causal: bool,
    ) {
        let mut case = Case::plain(seed, 1, (2, 1), (5, s_kv), (6, 3));
        case.causal = causal;
        let whole = forward(&case.q, &case.k, &case.v, &case.options()).unwrap();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(s_kv)).collect();
        cuts.extend([0, s_kv]);
        cuts.sort_unstable();
        let parts: Vec<_> = cuts.windows(2).map(|cut| {
            let hidden: Vec<bool> = (0..s_kv).map(|j| j < cut[0] || j >= cut[1]).collect();
            let part = Case { mask: Some((hidden, [1, 1, 1, s_kv])), ..case.clone() };
            forward(&part.q, &part.k, &part.v, &part.options()).unwrap()
        }).collect();
        let partials: Vec<(&[f64], &[f64])> =
            parts.iter().map(|part| (&part.out.data[..], &part.lse[..])).collect();
        let (out, lse) = merge(&partials, 10, 3).unwrap();
        let out = Tensor4::new([1, 2, 5, 3], out).unwrap();
        assert_close(&out.data, &whole.out.data, 1e-13);
        assert_close(&lse, &whole.lse, 1e-13);
    }
}
