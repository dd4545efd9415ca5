//! `attend_forward`: cumulative lengths, and what they exclude.

use flashcube::{
    AttendOptions, BoolMask, DType, Error, InvalidProblem, Tensor, attend_backward, attend_forward,
};

use super::{client, f32s};

const Q: [usize; 4] = [1, 4, 6, 8];
const KV: [usize; 4] = [1, 2, 5, 8];

/// The complaint about sequences in 6 query and 5 key rows.
fn complaint(options: AttendOptions<'_>) -> InvalidProblem {
    let client = client();
    let [q, k, v] = [Q, KV, KV].map(|shape| f32s(&client, shape));
    match attend_forward(&client, &q, &k, &v, &options) {
        Err(Error::InvalidProblem(error)) => error,
        other => panic!("expected InvalidProblem, got {other:?}"),
    }
}

fn packed<'a>(cu_q: &'a [usize], cu_kv: &'a [usize]) -> AttendOptions<'a> {
    AttendOptions {
        cu_seqlens: Some((cu_q, cu_kv)),
        ..AttendOptions::default()
    }
}

#[test]
fn cumulative_lengths_that_do_not_fit_are_named() {
    let good: &[usize] = &[0, 2, 5];
    let (q, kv) = ("cu_seqlens_q", "cu_seqlens_kv");
    for (cu_q, cu_kv, name, index, value, limit) in [
        // Not from 0 on.
        (&[1, 2, 5][..], good, q, 0, 1, 0),
        (good, &[2, 2, 5][..], kv, 0, 2, 0),
        // Falling.
        (&[0, 4, 3][..], good, q, 1, 4, 3),
        // Past the tensor.
        (&[0, 2, 7][..], good, q, 2, 7, 6),
        (good, &[0, 2, 6][..], kv, 2, 6, 5),
        (good, &[0, usize::MAX, 5][..], kv, 1, usize::MAX, 5),
    ] {
        let expected = InvalidProblem::Entry {
            name,
            index,
            value,
            limit,
        };
        assert_eq!(complaint(packed(cu_q, cu_kv)), expected);
    }
    for (cu_q, cu_kv, name, found, expected) in [
        (good, &[0, 5][..], kv, 2, 3),
        (&[][..], &[][..], q, 0, 1),
        (&[0][..], &[][..], kv, 0, 1),
    ] {
        let expected = InvalidProblem::Entries {
            name,
            found,
            expected,
        };
        assert_eq!(complaint(packed(cu_q, cu_kv)), expected);
    }
}

#[test]
fn options_that_packed_sequences_exclude_are_named() {
    let starts: &[usize] = &[0, 2, 5];
    let client = client();
    let mask = BoolMask {
        handle: client.create_from_slice(&[0; 4]),
        shape: [1; 4],
        strides: [1; 4],
        offset: 0,
        width: flashcube::attention::MaskWidth::U32,
    };
    let base = || packed(starts, starts);
    for (with, options) in [
        (
            "lengths_q",
            AttendOptions {
                lengths_q: Some(&[6]),
                ..base()
            },
        ),
        (
            "lengths_kv",
            AttendOptions {
                lengths_kv: Some(&[5]),
                ..base()
            },
        ),
        (
            "documents",
            AttendOptions {
                documents: Some((&[0; 6], &[0; 5])),
                ..base()
            },
        ),
        (
            "mask",
            AttendOptions {
                mask: Some(mask),
                ..base()
            },
        ),
        (
            "bias",
            AttendOptions {
                bias: Some(f32s(&client, [1; 4])),
                ..base()
            },
        ),
    ] {
        let option = "cu_seqlens";
        assert_eq!(
            complaint(options),
            InvalidProblem::Conflict { option, with }
        );
    }
}

#[test]
fn packed_sequences_have_one_batch_entry() {
    let client = client();
    let x = f32s(&client, [2, 2, 5, 8]);
    let options = packed(&[0, 5], &[0, 5]);
    let error = attend_forward(&client, &x, &x, &x, &options).unwrap_err();
    assert_eq!(error.to_string(), "q: axis b is 2, expected 1");
}

#[test]
fn backward_over_packed_sequences_is_not_available() {
    let client = client();
    let x = f32s(&client, [1, 2, 5, 8]);
    let lse = Tensor::empty(&client, [1, 2, 5], DType::F32);
    let options = packed(&[0, 5], &[0, 5]);
    let result = attend_backward(&client, &x, &x, &x, &x, &lse, &x, &options);
    let Err(Error::NotAvailable(error)) = result else {
        panic!("{result:?}");
    };
    assert_eq!(error.needed, "cu_seqlens");
}

#[test]
fn packed_tokens_come_back_as_packed_tokens() {
    let client = client();
    let tokens = |h| Tensor::<3>::empty(&client, [5, h, 8], DType::F32).packed();
    let options = packed(&[0, 2, 5], &[0, 2, 5]);
    let attended = attend_forward(&client, &tokens(4), &tokens(2), &tokens(2), &options).unwrap();
    assert_eq!(attended.out.shape, [1, 4, 5, 8]);
    assert_eq!(attended.out.strides, [160, 8, 32, 1]);
    assert_eq!(attended.lse.shape, [1, 4, 5]);
    let blueprint = attended.blueprint.unwrap().to_string();
    assert!(blueprint.ends_with("/varlen"), "{blueprint}");
}
