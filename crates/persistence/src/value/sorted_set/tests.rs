use keyspace::{Keyspace, Kind, PackedBuilder, PackedValue, Value};
use proptest::prelude::*;

use super::*;
use crate::value::{ValueBuffer, read as read_value, type_code as code_of, write as write_value};

type ScoredName = (f64, Vec<u8>);

/// Stores `value` in a table and returns its members with their scores, in order.
fn stored_members(value: PackedValue<'_>, inspect: impl FnOnce(&Value<'_>)) -> Vec<ScoredName> {
    let keyspace = Keyspace::new(1, 1);
    let key = keyspace.key(b"key");
    let mut slot = keyspace.lock(key.slot());
    let place = slot.table(0).insert(&key, value, None);
    let value = slot.table(0).value(place);
    inspect(&value);
    let Value::SortedSet(set) = value else { panic!("a sorted set was stored") };
    let mut rows = Vec::new();
    set.visit(0..set.len(), false, &mut |member| {
        rows.push((member.score, member.name.to_vec()));
        true
    });
    rows
}

fn decode(code: u8, body: &[u8]) -> Result<Vec<ScoredName>, RdbErrorReason> {
    let mut buffer = ValueBuffer::new();
    let mut source = RdbReader::new(body, 64, 1 << 20, false);
    read_value(code, &mut source, &mut buffer).map_err(|error| error.reason)?;
    Ok(stored_members(buffer.value(), |_| {}))
}

fn encode_string(bytes: &[u8]) -> Vec<u8> {
    [&[bytes.len() as u8][..], bytes].concat()
}

fn encode_listpack(count: u8, items: &[u8]) -> Vec<u8> {
    let len = (items.len() as u32 + 7).to_le_bytes();
    encode_string(&[&len[..], &[count, 0], items, b"\xff"].concat())
}

#[test]
fn every_encoding_is_read() {
    let rows = vec![(f64::NEG_INFINITY, b"c".to_vec()), (1.0, b"a".to_vec()), (2.5, b"b".to_vec())];
    let binary = [
        &b"\x03\x01b"[..],
        &2.5f64.to_le_bytes(),
        b"\x01a",
        &1f64.to_le_bytes(),
        b"\x01c",
        &f64::NEG_INFINITY.to_le_bytes(),
    ];
    let pack = b"\x81c\x02\x84-inf\x05\x81a\x02\x01\x01\x81b\x02\x832.5\x04";
    let items = b"\0\x01c\x03\x04-inf\x06\x01a\x03\xf2\x02\x01b\x03\x032.5";
    let total = 10 + items.len() as u32 + 1;
    let zip = [&total.to_le_bytes()[..], b"\0\0\0\0\x06\0", items, b"\xff"].concat();
    let table: &[(u8, Vec<u8>)] = &[
        (TYPE_TEXT_SCORES, b"\x03\x01a\x011\x01c\xff\x01b\x032.5".to_vec()),
        (TYPE_BINARY_SCORES, binary.concat()),
        (TYPE_ZIPLIST, encode_string(&zip)),
        (TYPE_LISTPACK, encode_listpack(6, pack)),
    ];
    for (code, body) in table {
        assert_eq!(decode(*code, body).as_deref(), Ok(&*rows), "type {code}");
        for end in 0..body.len() {
            assert!(decode(*code, &body[..end]).is_err(), "type {code} cut at {end}");
        }
    }
}

#[test]
fn malformed_sorted_sets_are_rejected() {
    let twice = [&b"\x02\x01a"[..], &[0; 8], b"\x01a", &[0; 8]].concat();
    let nan = [&b"\x01\x01a"[..], &f64::NAN.to_le_bytes()].concat();
    let table: &[(u8, &[u8], RdbErrorReason)] = &[
        (TYPE_BINARY_SCORES, b"\x00", RdbErrorReason::Empty("a sorted set without members")),
        (TYPE_BINARY_SCORES, &twice, DUPLICATE_MEMBER_ERROR),
        (TYPE_BINARY_SCORES, &nan, INVALID_SCORE_ERROR),
        (TYPE_TEXT_SCORES, b"\x01\x01a\xfd", INVALID_SCORE_ERROR),
        (TYPE_TEXT_SCORES, b"\x01\x01a\x02xy", INVALID_SCORE_ERROR),
        (TYPE_LISTPACK, &encode_listpack(2, b"\x81a\x02\x81b\x02"), INVALID_SCORE_ERROR),
        (TYPE_LISTPACK, &encode_listpack(2, b"\x81a\x02\x83nan\x04"), INVALID_SCORE_ERROR),
        (
            TYPE_LISTPACK,
            &encode_listpack(1, b"\x81a\x02"),
            RdbErrorReason::BadValue("a packed sorted set with a member and no score"),
        ),
        (
            TYPE_LISTPACK,
            &encode_listpack(2, b"\x05\x01\xf9"),
            RdbErrorReason::BadValue("Zset listpack integrity check failed."),
        ),
        (
            TYPE_BINARY_SCORES,
            b"\x81\xff\xff\xff\xff\xff\xff\xff\xff\x01a\x01x",
            RdbErrorReason::UnexpectedEnd,
        ),
    ];
    for (code, body, reason) in table {
        assert_eq!(decode(*code, body), Err(*reason), "type {code} {body:?}");
    }
}

fn round_trip(members: &[ScoredName]) -> Vec<ScoredName> {
    let mut builder = PackedBuilder::new(Kind::SortedSet);
    members.iter().for_each(|(score, name)| builder.push_scored_member(name, *score));
    builder.sort_scored_members();
    let (mut bytes, mut code) = (Vec::new(), 0);
    stored_members(builder.packed(), |value| {
        code = code_of(value, Dialect::Redis);
        let mut encoder = Encoder::new(Vec::new(), true, false);
        write_value(code, value, &mut encoder).unwrap();
        bytes = encoder.finish().unwrap();
    });
    decode(code, &bytes).unwrap()
}

proptest! {
    #[test]
    fn written_values_round_trip(
        members in prop::collection::btree_map(
            prop::collection::vec(any::<u8>(), 0..10),
            prop_oneof![any::<f64>().prop_filter("a number", |score| !score.is_nan()), (0i32..5).prop_map(f64::from)],
            1..700,
        ),
    ) {
        let mut rows: Vec<ScoredName> = members.into_iter().map(|(name, score)| (score, name)).collect();
        rows.sort_by(|one, other| one.partial_cmp(other).unwrap());
        prop_assert_eq!(&round_trip(&rows), &rows);
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(code in 0usize..4, body in prop::collection::vec(any::<u8>(), 0..80)) {
        let _ = decode([TYPE_TEXT_SCORES, TYPE_BINARY_SCORES, TYPE_ZIPLIST, TYPE_LISTPACK][code], &body);
    }
}
