//! The thirty cases: every option alone, and those that meet in practice together.

use flashcube_reference::Alignment::{BottomRight, TopLeft};

use crate::case::{Case, Values};

/// In the order of the file. Sizes are b, h_q, h_kv, s_q, s_kv, d, d_v.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = shapes();
    cases.extend(diagonals());
    cases.extend(logits());
    cases.extend(masks());
    cases.extend(magnitudes());
    cases
}

/// Sizes, without any option.
fn shapes() -> Vec<Case> {
    let plain = Case::plain;
    vec![
        plain("plain", [2, 2, 2, 33, 33, 16, 16]),
        plain("MiniLM heads", [1, 12, 12, 40, 40, 32, 32]),
        plain("GQA 6/2", [2, 6, 2, 29, 31, 24, 24]),
        plain("MQA 8/1, one query", [2, 8, 1, 1, 129, 32, 32]),
        plain("d_v < d", [1, 4, 2, 37, 53, 48, 17]),
        plain("d_v > d", [1, 2, 2, 37, 53, 5, 40]),
        plain("one key", [3, 2, 1, 7, 1, 8, 8]),
        plain("no keys", [2, 2, 1, 5, 0, 8, 4]),
    ]
}

/// Everything that is anchored to the diagonal.
fn diagonals() -> Vec<Case> {
    let causal = |name, sizes, alignment| Case {
        causal: true,
        alignment,
        ..Case::plain(name, sizes)
    };
    let (wide, tall) = ([1, 4, 2, 30, 47, 16, 16], [1, 4, 2, 47, 30, 16, 16]);
    vec![
        causal("causal, square", [2, 4, 4, 48, 48, 32, 32], BottomRight),
        causal("causal bottom-right, s_q < s_kv", wide, BottomRight),
        causal("causal top-left, s_q < s_kv", wide, TopLeft),
        causal(
            "causal bottom-right, s_q > s_kv: rows without keys",
            tall,
            BottomRight,
        ),
        causal("causal top-left, s_q > s_kv", tall, TopLeft),
        Case {
            window_left: Some(9),
            ..causal("causal with window", [1, 4, 4, 64, 64, 16, 16], BottomRight)
        },
        Case {
            window_left: Some(3),
            window_right: Some(5),
            ..Case::plain("window on both sides, bottom-right", wide)
        },
        Case {
            window_left: Some(2),
            window_right: Some(0),
            alignment: TopLeft,
            ..Case::plain("window top-left: rows without keys", tall)
        },
    ]
}

/// Everything that changes a score.
fn logits() -> Vec<Case> {
    let sizes = [2, 4, 2, 31, 37, 16, 16];
    vec![
        Case {
            softcap: Some(1.5),
            ..Case::plain("softcap", sizes)
        },
        Case {
            alibi: true,
            causal: true,
            ..Case::plain("ALiBi, causal", sizes)
        },
        Case {
            alibi: true,
            softcap: Some(30.0),
            alignment: TopLeft,
            ..Case::plain("ALiBi on both sides, softcap, top-left", sizes)
        },
        Case {
            bias: Some([true, true, true, true]),
            ..Case::plain("bias, some entries -inf", sizes)
        },
        Case {
            bias: Some([false, true, true, true]),
            softcap: Some(2.0),
            ..Case::plain("bias broadcast over b, softcap", sizes)
        },
        Case {
            scale: Some(-0.7),
            d_lse: true,
            ..Case::plain("negative scale, gradient of lse", sizes)
        },
        Case {
            scale: Some(0.0),
            ..Case::plain("scale 0", sizes)
        },
    ]
}

/// Everything that hides keys.
fn masks() -> Vec<Case> {
    let sizes = [3, 4, 2, 28, 36, 16, 16];
    let lengths: (&[usize], &[usize]) = (&[28, 11, 0], &[36, 20, 7]);
    vec![
        Case {
            mask: Some([true, true, true, true]),
            ..Case::plain("boolean mask", sizes)
        },
        Case {
            mask: Some([true, false, false, true]),
            d_lse: true,
            ..Case::plain("boolean mask of keys, gradient of lse", sizes)
        },
        Case {
            lengths: Some(lengths),
            causal: true,
            ..Case::plain("lengths, causal bottom-right", sizes)
        },
        Case {
            documents: Some((10, 12)),
            causal: true,
            alignment: TopLeft,
            ..Case::plain("documents, causal top-left", sizes)
        },
    ]
}

/// Values that a wrong maximum, sum or index shows in.
fn magnitudes() -> Vec<Case> {
    let sizes = [1, 4, 2, 40, 44, 32, 32];
    vec![
        Case {
            values: Values::Large(40.0),
            d_lse: true,
            ..Case::plain("large logits, gradient of lse", sizes)
        },
        Case {
            values: Values::Outliers,
            causal: true,
            ..Case::plain("outliers, causal", sizes)
        },
        Case {
            values: Values::Indexed,
            lengths: Some((&[33], &[39])),
            window_left: Some(12),
            mask: Some([false, true, true, true]),
            bias: Some([false, false, true, true]),
            alibi: true,
            softcap: Some(4.0),
            causal: true,
            documents: Some((25, 21)),
            ..Case::plain("all options at once, index-valued v", sizes)
        },
    ]
}
