//! Bad input gives an error that names tensor, value and limit.

use flashcube_reference::{
    Broadcast, Error, Options, Tensor4, backward, forward, forward_online, forward_rows,
};

fn zeros(b: usize, h: usize, s: usize, d: usize) -> Tensor4 {
    Tensor4::zeros([b, h, s, d])
}

#[track_caller]
fn assert_refused(options: &Options<'_>, message: &str) {
    let (q, k) = (zeros(2, 4, 3, 8), zeros(2, 2, 5, 8));
    let error = forward(&q, &k, &k, options).unwrap_err();
    assert_eq!(error.to_string(), message);
    let error = backward(&q, &k, &k, &q, options, None).unwrap_err();
    assert_eq!(error.to_string(), message);
}

#[test]
fn shapes_must_fit_together() {
    let q = zeros(2, 4, 3, 8);
    let options = Options::default();
    let refuse = |k: &Tensor4, v: &Tensor4| forward(&q, k, v, &options).unwrap_err().to_string();
    let good = zeros(2, 2, 5, 8);
    assert_eq!(
        refuse(&zeros(1, 2, 5, 8), &good),
        "k: axis b has size 1, not 2"
    );
    assert_eq!(
        refuse(&zeros(2, 2, 5, 7), &good),
        "k: axis d has size 7, not 8"
    );
    assert_eq!(
        refuse(&good, &zeros(2, 1, 5, 8)),
        "v: axis h_kv has size 1, not 2"
    );
    assert_eq!(
        refuse(&good, &zeros(2, 2, 4, 8)),
        "v: axis s_kv has size 4, not 5"
    );
    let mut torn = good.clone();
    torn.data.pop();
    assert_eq!(
        refuse(&good, &torn),
        "v: 159 elements, its shape asks for 160"
    );
    let absurd = Tensor4 {
        shape: [usize::MAX; 4],
        data: vec![],
    };
    assert!(forward(&absurd, &good, &good, &options).is_err());
    assert!(Tensor4::new([1, 2, 3, 4], vec![0.0; 23]).is_err());
}

#[test]
fn query_heads_must_be_a_multiple_of_key_heads() {
    for (h_q, h_kv) in [(3, 2), (33, 2), (1, 2), (1, 0)] {
        let (q, k) = (zeros(1, h_q, 1, 1), zeros(1, h_kv, 1, 1));
        let error = forward(&q, &k, &k, &Options::default()).unwrap_err();
        assert_eq!(error, Error::Heads { h_q, h_kv });
    }
    let (q, k) = (zeros(1, 48, 1, 1), zeros(1, 2, 1, 1));
    assert!(forward(&q, &k, &k, &Options::default()).is_ok());
}

#[test]
fn scalars_must_be_in_their_domain() {
    let scale = |scale| Options {
        scale,
        ..Options::default()
    };
    assert_refused(&scale(f64::NAN), "scale is NaN, it must be finite");
    assert_refused(&scale(f64::INFINITY), "scale is inf, it must be finite");
    let softcap = |softcap| Options {
        softcap: Some(softcap),
        ..Options::default()
    };
    assert_refused(
        &softcap(0.0),
        "softcap is 0, it must be finite and positive",
    );
    assert_refused(
        &softcap(f64::NAN),
        "softcap is NaN, it must be finite and positive",
    );
    let alibi = Options {
        alibi: Some(&[1.0, 1.0, 1.0, f64::INFINITY]),
        ..Options::default()
    };
    assert_refused(&alibi, "alibi slope is inf, it must be finite");
}

#[test]
fn tables_must_fit_the_problem() {
    let lengths = |lengths| Options {
        lengths_kv: Some(lengths),
        ..Options::default()
    };
    assert_refused(&lengths(&[5, 6]), "lengths_kv[1] is 6, at most 5");
    assert_refused(
        &lengths(&[5]),
        "lengths_kv: 1 elements, its shape asks for 2",
    );
    let queries = Options {
        lengths_q: Some(&[4, 0]),
        ..Options::default()
    };
    assert_refused(&queries, "lengths_q[0] is 4, at most 3");
    let documents = Options {
        documents: Some((&[0; 6], &[0; 5])),
        ..Options::default()
    };
    assert_refused(
        &documents,
        "documents of kv: 5 elements, its shape asks for 10",
    );
    let mask = Options {
        mask: Some(Broadcast {
            data: &[false; 2],
            shape: [1, 2, 1, 1],
        }),
        ..Options::default()
    };
    assert_refused(&mask, "mask: axis h_q has size 2, neither 4 nor 1");
    let bias = Options {
        bias: Some(Broadcast {
            data: &[0.0; 4],
            shape: [1, 1, 1, 5],
        }),
        ..Options::default()
    };
    assert_refused(&bias, "bias: 4 elements, its shape asks for 5");
    let alibi = Options {
        alibi: Some(&[1.0; 2]),
        ..Options::default()
    };
    assert_refused(&alibi, "alibi: 2 elements, its shape asks for 4");
}

#[test]
fn rows_blocks_and_output_gradients_are_checked() {
    let (q, k) = (zeros(2, 4, 3, 8), zeros(2, 2, 5, 8));
    let options = Options::default();
    let error = forward_rows(&q, &k, &k, &options, &[(0, 0, 0), (1, 4, 2)]).unwrap_err();
    assert_eq!(error.to_string(), "rows: h[1] is 4, at most 3");
    let none = zeros(2, 4, 0, 8);
    assert!(forward_rows(&none, &k, &k, &options, &[(0, 0, 0)]).is_err());
    assert!(forward_rows(&none, &k, &k, &options, &[]).is_ok());
    let error = forward_online(&q, &k, &k, &options, 0).unwrap_err();
    assert_eq!(error.to_string(), "block is 0, it must be at least 1");
    let error = backward(&q, &k, &k, &zeros(2, 4, 3, 7), &options, None).unwrap_err();
    assert_eq!(error.to_string(), "d_out: axis d_v has size 7, not 8");
    let error = backward(&q, &k, &k, &q, &options, Some(&[0.0])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "d_lse: 1 elements, its shape asks for 24"
    );
}

#[test]
fn cumulative_lengths_must_start_at_zero_never_fall_and_end_inside() {
    let (q, k) = (zeros(1, 4, 6, 8), zeros(1, 2, 5, 8));
    let refuse = |cu_q: &[usize], cu_kv: &[usize]| {
        let options = Options {
            cu_seqlens: Some((cu_q, cu_kv)),
            ..Options::default()
        };
        forward(&q, &k, &k, &options).unwrap_err().to_string()
    };
    let good = &[0, 2, 5];
    assert_eq!(
        refuse(&[1, 2, 5], good),
        "cu_seqlens of q[0] is 1, at most 0"
    );
    assert_eq!(
        refuse(good, &[0, 4, 3]),
        "cu_seqlens of kv[1] is 4, at most 3"
    );
    assert_eq!(
        refuse(&[0, 2, 7], good),
        "cu_seqlens of q[2] is 7, at most 6"
    );
    assert_eq!(
        refuse(&[0, 2, 3, 6], good),
        "cu_seqlens of kv: 3 elements, its shape asks for 4"
    );
    assert_eq!(
        refuse(&[], &[]),
        "cu_seqlens of q: 0 elements, its shape asks for 1"
    );
    let options = Options {
        cu_seqlens: Some((good, good)),
        ..Options::default()
    };
    assert_refused(&options, "cu_seqlens of q[2] is 5, at most 3");
    let short: &[usize] = &[0, 1];
    let options = Options {
        cu_seqlens: Some((short, short)),
        ..Options::default()
    };
    assert_refused(&options, "q, beside cu_seqlens: axis b has size 2, not 1");
    let lengths: &[usize] = &[3];
    let options = Options {
        lengths_q: Some(lengths),
        ..options
    };
    let error = forward(&q, &k, &k, &options).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cu_seqlens cannot be combined with lengths"
    );
}
