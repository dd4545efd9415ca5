//! When the query heads of a group share a tile.

use flashcube::{AttendKey, AttendOp, Policy};

use super::{apple, forced_hopper, gpus, half_key, key, select};

#[test]
fn heads_are_packed_where_that_saves_tiles() {
    let h200 = &gpus()[3];
    let pack = |s_q, group, policy| {
        let wanted = AttendKey {
            s_q,
            group,
            ..half_key(128, 128)
        };
        select(&wanted, h200, policy).map(|blueprint| blueprint.pack)
    };
    // Tiles of 128 rows: one query fills 1 of them, 8 heads of it 8.
    let free = Policy::default();
    for (s_q, group, wanted) in [
        (1, 8, 8),
        (1, 1, 1),
        (16, 8, 8),
        (128, 8, 1),
        (129, 8, 8),
        (4096, 8, 1),
        (4097, 4, 1),
        // 128 rows are no multiple of 3 or 5.
        (1, 3, 1),
        (1, 5, 1),
    ] {
        assert_eq!(pack(s_q, group, free), Ok(wanted), "{s_q} {group}");
    }
    let force = |pack| Policy {
        pack: Some(pack),
        ..forced_hopper()
    };
    assert_eq!(pack(4096, 8, force(true)), Ok(8));
    assert_eq!(pack(1, 8, force(false)), Ok(1));
    let refused = pack(1, 3, force(true)).unwrap_err();
    let limit = "rows of a tile that packed heads divide";
    assert_eq!(
        (
            refused.limit,
            refused.needed.as_str(),
            refused.available.as_str()
        ),
        (limit, "3", "128")
    );
    let refused = pack(1 << 30, 8, force(true)).unwrap_err();
    assert_eq!(refused.limit, "rows of packed heads");
    let wanted = AttendKey {
        s_q: 1,
        group: 8,
        ..half_key(128, 128)
    };
    let line = select(&wanted, h200, free).unwrap().to_string();
    assert!(line.contains("/q128xkv128/st2/vec8/pack8/"), "{line}");
}

#[test]
fn the_unit_tier_packs_heads_on_request_only() {
    let wanted = AttendKey {
        group: 3,
        ..key(64, 2)
    };
    let apple = apple();
    assert_eq!(select(&wanted, &apple, Policy::default()).unwrap().pack, 1);
    let policy = Policy {
        pack: Some(true),
        ..Policy::default()
    };
    let packed = select(&wanted, &apple, policy).unwrap();
    assert_eq!((packed.pack, packed.rows), (3, 8));
    let backward = AttendKey {
        op: AttendOp::Backward,
        ..wanted
    };
    assert_eq!(select(&backward, &apple, policy).unwrap().pack, 1);
}
