//! `attend_forward`: shapes, views, options, outputs.

use cubecl::prelude::Client;
use flashcube::attention::MaskWidth;
use flashcube::{AttendOptions, BoolMask, DType, Error, InvalidProblem, Tensor, attend_forward};

use super::{KV, Q, client, f32s, zeros};

/// The complaint about q, k, v as changed by `change`, and options as given.
fn complaint(
    change: impl FnOnce(&Client, &mut [Tensor<4>; 3]),
    options: impl FnOnce(&Client) -> AttendOptions<'static>,
) -> InvalidProblem {
    let client = client();
    let mut qkv = [Q, KV, KV].map(|shape| f32s(&client, shape));
    change(&client, &mut qkv);
    let [q, k, v] = &qkv;
    match attend_forward(&client, q, k, v, &options(&client)) {
        Err(Error::InvalidProblem(error)) => error,
        other => panic!("expected InvalidProblem, got {other:?}"),
    }
}

fn of_inputs(change: impl FnOnce(&Client, &mut [Tensor<4>; 3])) -> InvalidProblem {
    complaint(change, |_| AttendOptions::default())
}

fn of_options(options: AttendOptions<'static>) -> InvalidProblem {
    complaint(|_, _| {}, |_| options)
}

#[test]
fn mismatched_shapes_are_named() {
    let error = of_inputs(|client, qkv| qkv[1] = f32s(client, [2, 2, 7, 16]));
    let (tensor, axis) = ("k", "d");
    assert_eq!(
        error,
        InvalidProblem::Shape {
            tensor,
            axis,
            found: 16,
            expected: 8
        }
    );
    let error = of_inputs(|client, qkv| qkv[2] = f32s(client, [2, 2, 6, 8]));
    assert!(matches!(
        error,
        InvalidProblem::Shape {
            tensor: "v",
            found: 6,
            expected: 7,
            ..
        }
    ));
    let error = of_inputs(|client, qkv| qkv[1] = f32s(client, [3, 2, 7, 8]));
    assert!(matches!(
        error,
        InvalidProblem::Shape {
            tensor: "k",
            axis: "b",
            ..
        }
    ));
}

#[test]
fn uneven_head_groups_are_refused() {
    for (h_q, h_kv) in [(3, 2), (33, 2), (4, 0)] {
        let error = of_inputs(|client, qkv| {
            *qkv = [
                f32s(client, [1, h_q, 5, 8]),
                f32s(client, [1, h_kv, 7, 8]),
                f32s(client, [1, h_kv, 7, 8]),
            ];
        });
        assert_eq!(error, InvalidProblem::HeadGroups { h_q, h_kv });
    }
}

#[test]
fn head_dimension_zero_is_refused() {
    let error = of_inputs(|client, qkv| {
        qkv[0] = f32s(client, [2, 4, 5, 0]);
        qkv[1] = f32s(client, [2, 2, 7, 0]);
    });
    assert_eq!(
        error,
        InvalidProblem::OutOfRange {
            name: "d",
            value: 0,
            limit: 1
        }
    );
}

#[test]
fn a_strided_last_axis_is_refused() {
    let error = of_inputs(|client, qkv| {
        let wide = f32s(client, [2, 2, 7, 16]);
        qkv[1] = Tensor::strided(wide.handle, KV, [224, 112, 16, 2], 0, DType::F32);
    });
    assert_eq!(
        error,
        InvalidProblem::NotContiguous {
            tensor: "k",
            stride: 2
        }
    );
}

#[test]
fn views_past_their_buffer_are_refused() {
    let error = of_inputs(|_, qkv| qkv[2].offset = 1);
    let (needed, available) = (225, 224);
    assert_eq!(
        error,
        InvalidProblem::OutOfBounds {
            tensor: "v",
            needed,
            available
        }
    );
    let error = of_inputs(|_, qkv| qkv[0].strides[0] = usize::MAX);
    assert!(matches!(
        error,
        InvalidProblem::OutOfBounds {
            tensor: "q",
            available: 320,
            ..
        }
    ));
}

#[test]
fn mixed_dtypes_are_refused() {
    let error = of_inputs(|client, qkv| qkv[1] = zeros(client, KV, DType::F16));
    assert_eq!(error.to_string(), "k: dtype f16, expected f32");
}

#[test]
fn scalars_must_be_finite() {
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let error = of_options(AttendOptions {
            scale: Some(value),
            ..AttendOptions::default()
        });
        assert!(matches!(
            error,
            InvalidProblem::NotFinite { name: "scale", .. }
        ));
    }
    for value in [f32::NAN, f32::INFINITY] {
        let error = of_options(AttendOptions {
            softcap: Some(value),
            ..AttendOptions::default()
        });
        assert!(matches!(
            error,
            InvalidProblem::NotFinite {
                name: "softcap",
                ..
            }
        ));
    }
    for softcap in [0.0, -1.0] {
        let error = of_options(AttendOptions {
            softcap: Some(softcap),
            ..AttendOptions::default()
        });
        assert!(error.to_string().contains("softcap"), "{error}");
    }
    let error = of_options(AttendOptions {
        alibi: Some(&[0.5, 0.25, f32::NAN, 0.125]),
        ..AttendOptions::default()
    });
    assert!(matches!(
        error,
        InvalidProblem::NotFinite { name: "alibi", .. }
    ));
}

#[test]
fn tables_of_the_wrong_length_or_with_wrong_entries_are_refused() {
    let error = of_options(AttendOptions {
        lengths_kv: Some(&[7, 8]),
        ..AttendOptions::default()
    });
    let (name, index, value, limit) = ("lengths_kv", 1, 8, 7);
    assert_eq!(
        error,
        InvalidProblem::Entry {
            name,
            index,
            value,
            limit
        }
    );
    let error = of_options(AttendOptions {
        lengths_q: Some(&[5]),
        ..AttendOptions::default()
    });
    let name = "lengths_q";
    assert_eq!(
        error,
        InvalidProblem::Entries {
            name,
            found: 1,
            expected: 2
        }
    );
    let error = of_options(AttendOptions {
        alibi: Some(&[0.5]),
        ..AttendOptions::default()
    });
    assert!(matches!(
        error,
        InvalidProblem::Entries {
            name: "alibi",
            found: 1,
            expected: 4
        }
    ));
    let error = of_options(AttendOptions {
        documents: Some((&[0; 10], &[0; 13])),
        ..AttendOptions::default()
    });
    assert!(matches!(
        error,
        InvalidProblem::Entries {
            found: 13,
            expected: 14,
            ..
        }
    ));
}

#[test]
fn masks_and_biases_must_broadcast_and_fit() {
    let mask = |client: &Client, shape: [usize; 4], bytes: usize| BoolMask {
        handle: client.create_from_slice(&vec![0; bytes]),
        shape,
        strides: [
            shape[1] * shape[2] * shape[3],
            shape[2] * shape[3],
            shape[3],
            1,
        ],
        offset: 0,
        width: MaskWidth::U8,
    };
    let error = complaint(
        |_, _| {},
        |client| AttendOptions {
            mask: Some(mask(client, [2, 4, 5, 6], 240)),
            ..AttendOptions::default()
        },
    );
    let (tensor, axis) = ("mask", "s_kv");
    assert_eq!(
        error,
        InvalidProblem::Shape {
            tensor,
            axis,
            found: 6,
            expected: 7
        }
    );
    let error = complaint(
        |_, _| {},
        |client| AttendOptions {
            mask: Some(mask(client, [1, 1, 5, 7], 32)),
            ..AttendOptions::default()
        },
    );
    assert_eq!(
        error,
        InvalidProblem::OutOfBounds {
            tensor,
            needed: 35,
            available: 32
        }
    );
    let error = complaint(
        |_, _| {},
        |client| AttendOptions {
            bias: Some(f32s(client, [2, 3, 5, 7])),
            ..AttendOptions::default()
        },
    );
    assert!(matches!(
        error,
        InvalidProblem::Shape {
            tensor: "bias",
            axis: "h_q",
            ..
        }
    ));
    let error = complaint(
        |_, _| {},
        |client| AttendOptions {
            bias: Some(zeros(client, [1, 1, 5, 7], DType::F16)),
            ..AttendOptions::default()
        },
    );
    assert!(matches!(
        error,
        InvalidProblem::Dtype { tensor: "bias", .. }
    ));
}

#[test]
fn unfit_outputs_are_refused_and_stay_untouched() {
    let client = client();
    let [q, k, v] = [Q, KV, KV].map(|shape| f32s(&client, shape));
    let bytes = vec![0x5au8; 320 * 4];
    let handle = client.create_from_slice(&bytes);
    let outs = [
        Tensor::strided(handle.clone(), [2, 4, 4, 8], [128, 32, 8, 1], 0, DType::F32),
        Tensor::strided(handle.clone(), Q, [160, 40, 8, 1], 0, DType::F16),
        // Rows of 8 elements 4 apart would be written twice.
        Tensor::strided(handle.clone(), Q, [80, 20, 4, 1], 0, DType::F32),
        Tensor::strided(handle.clone(), Q, [160, 40, 8, 1], 8, DType::F32),
    ];
    for out in outs {
        let options = AttendOptions {
            out: Some(out),
            ..AttendOptions::default()
        };
        let result = attend_forward(&client, &q, &k, &v, &options);
        let Err(Error::InvalidProblem(error)) = result else {
            panic!("{result:?}");
        };
        assert!(error.to_string().starts_with("out:"), "{error}");
    }
    assert_eq!(client.read_one(handle).unwrap().to_vec(), bytes);
    let options = AttendOptions {
        lse: Some(f32s(&client, [2, 4, 6])),
        ..AttendOptions::default()
    };
    let error = attend_forward(&client, &q, &k, &v, &options).unwrap_err();
    assert_eq!(error.to_string(), "lse: axis s is 6, expected 5");
}

#[test]
fn sequences_past_the_index_range_are_refused() {
    let error = of_inputs(|_, qkv| {
        qkv[1].shape[2] = 1 << 31;
        qkv[1].strides = [0, 0, 0, 1];
        qkv[2].shape[2] = 1 << 31;
        qkv[2].strides = [0, 0, 0, 1];
    });
    assert!(matches!(
        error,
        InvalidProblem::OutOfRange {
            name: "s_kv",
            value: 0x8000_0000,
            ..
        }
    ));
}
