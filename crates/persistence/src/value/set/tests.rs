use keyspace::{Keyspace, Kind, PackedBuilder, PackedValue};
use proptest::prelude::*;

use super::*;
use crate::value::{ValueBuffer, read as read_value, type_code as code_of, write as write_value};

/// Stores `value` in a table and returns its members and the encoding of the set.
fn stored_members(
    value: PackedValue<'_>,
    inspect: impl FnOnce(&keyspace::Value<'_>),
) -> (Vec<Vec<u8>>, &'static str) {
    let keyspace = Keyspace::new(1, 1);
    let key = keyspace.key(b"key");
    let mut slot = keyspace.lock(key.slot());
    let place = slot.table(0).insert(&key, value, None);
    inspect(&slot.table(0).value(place));
    let set = slot.table(0).set(place).expect("a set was stored");
    let mut members = Vec::new();
    set.for_each(&mut |member| members.push(member.to_vec()));
    members.sort();
    (members, set.encoding())
}

fn decode(code: u8, body: &[u8]) -> Result<(Vec<Vec<u8>>, &'static str), RdbErrorReason> {
    let mut buffer = ValueBuffer::new();
    let mut source = RdbReader::new(body, 64, 1 << 20, false);
    read_value(code, &mut source, &mut buffer).map_err(|error| error.reason)?;
    Ok(stored_members(buffer.value(), |_| {}))
}

fn encode_string(bytes: &[u8]) -> Vec<u8> {
    [&[bytes.len() as u8][..], bytes].concat()
}

fn encode_intset(width: u32, count: u32, integers: &[u8]) -> Vec<u8> {
    encode_string(&[&width.to_le_bytes()[..], &count.to_le_bytes(), integers].concat())
}

fn encode_listpack(count: u8, items: &[u8]) -> Vec<u8> {
    let len = (items.len() as u32 + 7).to_le_bytes();
    encode_string(&[&len[..], &[count, 0], items, b"\xff"].concat())
}

#[test]
fn every_encoding_is_read() {
    let wide = [i64::MIN.to_le_bytes(), 7i64.to_le_bytes()].concat();
    let table: &[(u8, Vec<u8>, &[&str], &str)] = &[
        (TYPE_MEMBERS, b"\x02\x01a\xc0\x05".to_vec(), &["5", "a"], "listpack"),
        (TYPE_MEMBERS, b"\x02\xc0\x07\xc0\x05".to_vec(), &["5", "7"], "intset"),
        (TYPE_INTSET, encode_intset(2, 2, b"\xff\xff\x05\0"), &["-1", "5"], "intset"),
        (TYPE_INTSET, encode_intset(4, 1, b"\0\0\x01\0"), &["65536"], "intset"),
        (TYPE_INTSET, encode_intset(8, 2, &wide), &["-9223372036854775808", "7"], "intset"),
        (TYPE_LISTPACK, encode_listpack(2, b"\x81a\x02\x05\x01"), &["5", "a"], "listpack"),
    ];
    for (code, body, members, name) in table {
        let members = members.iter().map(|member| member.as_bytes().to_vec()).collect();
        assert_eq!(decode(*code, body), Ok((members, *name)), "type {code}");
        for end in 0..body.len() {
            assert!(decode(*code, &body[..end]).is_err(), "type {code} cut at {end}");
        }
    }
}

#[test]
fn malformed_sets_are_rejected() {
    let broken = RdbErrorReason::BadValue("Intset integrity check failed.");
    let unordered = RdbErrorReason::BadValue("an intset that is not in order");
    let empty = RdbErrorReason::Empty("a set without members");
    let table: &[(u8, &[u8], RdbErrorReason)] = &[
        (TYPE_MEMBERS, b"\x00", empty),
        (TYPE_MEMBERS, b"\x02\x01a\x01a", DUPLICATE_MEMBER_ERROR),
        (TYPE_MEMBERS, b"\x02\x015\xc0\x05", DUPLICATE_MEMBER_ERROR),
        (TYPE_MEMBERS, b"\x03\xc0\x05\x01a\x015", DUPLICATE_MEMBER_ERROR),
        (TYPE_MEMBERS, b"\x81\xff\xff\xff\xff\xff\xff\xff\xff\x01a", RdbErrorReason::UnexpectedEnd),
        (TYPE_INTSET, &encode_intset(2, 0, b""), empty),
        (TYPE_INTSET, &encode_intset(2, 2, b"\x05\0\x05\0"), unordered),
        (TYPE_INTSET, &encode_intset(2, 2, b"\x06\0\x05\0"), unordered),
        (TYPE_INTSET, &encode_intset(2, 3, b"\x05\0\x06\0"), broken),
        (TYPE_INTSET, &encode_intset(2, u32::MAX, b"\x05\0\x06\0"), broken),
        (TYPE_INTSET, &encode_intset(3, 1, b"\x05\0\0"), broken),
        (TYPE_INTSET, &encode_intset(0, 1, b""), broken),
        (TYPE_INTSET, &encode_string(b"\x02\0\0\0"), broken),
        (TYPE_LISTPACK, &encode_listpack(2, b"\x81a\x02\x81a\x02"), DUPLICATE_MEMBER_ERROR),
        (
            TYPE_LISTPACK,
            &encode_listpack(1, b"\xf9"),
            RdbErrorReason::BadValue("Set listpack integrity check failed."),
        ),
        (TYPE_LISTPACK, &encode_listpack(0, b""), empty),
    ];
    for (code, body, reason) in table {
        assert_eq!(decode(*code, body), Err(*reason), "type {code} {body:?}");
    }
}

fn round_trip(members: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut builder = PackedBuilder::new(Kind::Set);
    members.iter().for_each(|member| assert!(builder.push_member(member)));
    let (mut bytes, mut code) = (Vec::new(), 0);
    stored_members(builder.packed(), |value| {
        code = code_of(value, Dialect::Redis);
        let mut encoder = Encoder::new(Vec::new(), true, false);
        write_value(code, value, &mut encoder).unwrap();
        bytes = encoder.finish().unwrap();
    });
    decode(code, &bytes).unwrap().0
}

proptest! {
    #[test]
    fn written_values_round_trip(
        strings in prop::collection::btree_set(prop::collection::vec(any::<u8>(), 0..90), 0..300),
        integers in prop::collection::btree_set(any::<i64>(), 1..700),
    ) {
        let integers = integers.iter().map(|value| value.to_string().into_bytes());
        let mut members: Vec<_> = strings.into_iter().chain(integers).collect();
        members.sort();
        members.dedup();
        prop_assert_eq!(&round_trip(&members), &members);
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(code in 0usize..3, body in prop::collection::vec(any::<u8>(), 0..80)) {
        let _ = decode([TYPE_MEMBERS, TYPE_INTSET, TYPE_LISTPACK][code], &body);
    }
}
