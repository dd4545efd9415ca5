//! Bad input of decodes and appends: typed errors that name table, entry and limit.

use cubecl::prelude::Client;
use flashcube::attention::RopePairs;
use flashcube::{
    AppendOptions, AttendOptions, CascadeOptions, DType, DecodeOptions, DeviceWords, Error,
    InvalidProblem, KvView, PageTable, Rope, Tensor, append, attend_cascade, attend_decode,
};

use crate::invalid::f32s;

pub(super) fn client() -> Client {
    crate::invalid::client()
}

/// Two sequences of up to 3 pages of 4 keys, of a pool of 5.
fn decode(table: &[u32], attend: AttendOptions<'_>, splits: Option<usize>) -> InvalidProblem {
    let client = client();
    let pool = || f32s(&client, [5, 2, 4, 8]);
    let cache = KvView::paged(pool(), pool(), PageTable::checked(table, 3));
    let options = DecodeOptions {
        attend,
        splits,
        workspace: None,
    };
    refused(attend_decode(
        &client,
        &f32s(&client, [2, 4, 1, 8]),
        &cache,
        &options,
    ))
}

fn refused<T: std::fmt::Debug>(result: Result<T, Error>) -> InvalidProblem {
    match result {
        Err(Error::InvalidProblem(error)) => error,
        other => panic!("expected InvalidProblem, got {other:?}"),
    }
}

fn lengths(lengths: &[usize]) -> AttendOptions<'_> {
    AttendOptions {
        lengths_kv: Some(lengths),
        ..AttendOptions::default()
    }
}

const TABLE: [u32; 6] = [0, 1, 2, 3, 4, 0];

#[test]
fn a_page_that_does_not_exist_is_named_where_a_key_lies_in_it() {
    let mut table = TABLE;
    table[4] = 5;
    let error = decode(&table, lengths(&[12, 5]), None);
    let (name, index, value, limit) = ("pages", 4, 5, 4);
    let wanted = InvalidProblem::Entry {
        name,
        index,
        value,
        limit,
    };
    assert_eq!(error, wanted);
    assert_eq!(
        error.to_string(),
        "pages[4] = 5 is out of range, the limit is 4"
    );
}

#[test]
fn lengths_past_the_table_and_tables_of_another_size_are_refused() {
    let (name, index, value, limit) = ("lengths_kv", 1, 13, 12);
    assert_eq!(
        decode(&TABLE, lengths(&[12, 13]), None),
        InvalidProblem::Entry {
            name,
            index,
            value,
            limit
        }
    );
    let (name, found, expected) = ("pages", 5, 6);
    assert_eq!(
        decode(&TABLE[..5], lengths(&[12, 12]), None),
        InvalidProblem::Entries {
            name,
            found,
            expected
        }
    );
}

#[test]
fn splits_options_and_sinks_have_limits() {
    for splits in [0, 257] {
        let error = decode(&TABLE, AttendOptions::default(), Some(splits));
        let (name, value, limit) = ("splits", splits as i128, 256);
        assert_eq!(error, InvalidProblem::OutOfRange { name, value, limit });
    }
    let documents = AttendOptions {
        documents: Some((&[0, 0], &[0; 24])),
        ..AttendOptions::default()
    };
    let (option, with) = ("documents", "attend_decode");
    assert_eq!(
        decode(&TABLE, documents, None),
        InvalidProblem::Conflict { option, with }
    );
    let infinite = AttendOptions {
        sinks: Some(&[0.0, 0.0, f32::INFINITY, 0.0]),
        ..AttendOptions::default()
    };
    assert!(matches!(
        decode(&TABLE, infinite, None),
        InvalidProblem::NotFinite { name: "sinks", .. }
    ));
}

#[test]
fn words_of_the_device_must_fit_their_buffer_and_stand_alone() {
    let client = client();
    let handle = client.create_from_slice(&[0; 16]);
    // SAFETY: nothing is launched.
    let words = || unsafe { DeviceWords::unchecked(handle.clone(), 3) };
    let piece = || f32s(&client, [2, 2, 8, 8]);
    let q = f32s(&client, [2, 4, 1, 8]);
    let cache = KvView::contiguous(piece(), piece()).with_lengths(words());
    let error = refused(attend_decode(
        &client,
        &q,
        &cache,
        &DecodeOptions::default(),
    ));
    let (tensor, needed, available) = ("lengths of the device", 5, 4);
    assert_eq!(
        error,
        InvalidProblem::OutOfBounds {
            tensor,
            needed,
            available
        }
    );
    let both = DecodeOptions {
        attend: lengths(&[1, 2]),
        ..DecodeOptions::default()
    };
    let error = refused(attend_decode(&client, &q, &cache, &both));
    let (option, with) = ("lengths of the device", "lengths_kv");
    assert_eq!(error, InvalidProblem::Conflict { option, with });
}

#[test]
fn a_workspace_that_is_too_small_says_by_how_much() {
    let client = client();
    let piece = || f32s(&client, [2, 2, 64, 8]);
    let options = DecodeOptions {
        splits: Some(3),
        workspace: Some(Tensor::empty(&client, [100], DType::F32)),
        ..DecodeOptions::default()
    };
    let cache = KvView::contiguous(piece(), piece());
    let q = f32s(&client, [2, 4, 1, 8]);
    let error = refused(attend_decode(&client, &q, &cache, &options));
    let (tensor, needed, available) = ("workspace", 3 * 8 * 9, 100);
    assert_eq!(
        error,
        InvalidProblem::OutOfBounds {
            tensor,
            needed,
            available
        }
    );
}

#[test]
fn appends_that_do_not_fit_are_refused_before_they_write() {
    let client = client();
    let pool = || f32s(&client, [5, 2, 4, 8]);
    let cache = KvView::paged(pool(), pool(), PageTable::checked(&TABLE, 3));
    let rows = |s| f32s(&client, [2, 2, s, 8]);
    let call = |s, options: &AppendOptions<'_>| {
        refused(append(&client, &cache, &rows(s), &rows(s), options))
    };
    let full = AppendOptions {
        lengths: Some(&[3, 10]),
        ..AppendOptions::default()
    };
    let (name, index, value, limit) = ("keys of a sequence", 1, 13, 12);
    assert_eq!(
        call(3, &full),
        InvalidProblem::Entry {
            name,
            index,
            value,
            limit
        }
    );
    let ragged = AppendOptions {
        rows: Some(&[(0, 2), (1, 3)]),
        ..AppendOptions::default()
    };
    let (name, index, value, limit) = ("rows", 1, 4, 3);
    assert_eq!(
        call(3, &ragged),
        InvalidProblem::Entry {
            name,
            index,
            value,
            limit
        }
    );
    let table = |columns| Tensor::<2>::empty(&client, [4, columns], DType::F32);
    let rope = |columns| AppendOptions {
        lengths: Some(&[3, 2]),
        rope: Some(Rope {
            cos: table(columns),
            sin: table(columns),
            pairs: RopePairs::HalfSplit,
        }),
        ..AppendOptions::default()
    };
    let (name, index, value, limit) = ("positions of the rotation", 0, 5, 4);
    assert_eq!(
        call(2, &rope(4)),
        InvalidProblem::Entry {
            name,
            index,
            value,
            limit
        }
    );
    let (name, value, limit) = ("columns of the rotation", 10, 8);
    assert_eq!(
        call(1, &rope(5)),
        InvalidProblem::OutOfRange { name, value, limit }
    );
    let other = Tensor::<4>::empty(&client, [2, 2, 1, 8], DType::F16);
    let error = refused(append(
        &client,
        &cache,
        &other,
        &other,
        &AppendOptions::default(),
    ));
    assert!(matches!(
        error,
        InvalidProblem::Dtype {
            tensor: "k_new",
            ..
        }
    ));
}

#[test]
fn cascades_refuse_hooks_that_count_from_the_first_key() {
    let client = client();
    let cache = |b, s| KvView::contiguous(f32s(&client, [b, 2, s, 8]), f32s(&client, [b, 2, s, 8]));
    let q = f32s(&client, [2, 4, 1, 8]);
    let call = |prefix: &KvView<'_>, attend| {
        let options = CascadeOptions {
            attend,
            ..CascadeOptions::default()
        };
        refused(attend_cascade(&client, &q, prefix, &cache(2, 4), &options))
    };
    let window = AttendOptions {
        window_left: Some(3),
        ..AttendOptions::default()
    };
    let (option, with) = ("window_left", "attend_cascade");
    assert_eq!(
        call(&cache(1, 6), window),
        InvalidProblem::Conflict { option, with }
    );
    let error = call(&cache(2, 6), AttendOptions::default());
    assert!(matches!(
        error,
        InvalidProblem::Shape {
            tensor: "prefix",
            found: 2,
            ..
        }
    ));
}
