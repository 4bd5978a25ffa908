use clock::Millis;
use keyspace::{KeyLookup, Keyspace, Kind, PackedBuilder, PackedValue, Value};
use proptest::prelude::*;

use super::*;
use crate::value::{ValueBuffer, read as read_value, type_code as code_of, write as write_value};

type StoredField = (Vec<u8>, Vec<u8>, Option<Millis>);

fn stored_field(name: &str, value: &str, expiry: Option<i64>) -> StoredField {
    (name.into(), value.into(), expiry.map(Millis))
}

/// Stores `value` in a table and returns its fields, sorted because hashes are unordered.
fn stored_fields(value: PackedValue<'_>, inspect: impl FnOnce(&Value<'_>)) -> Vec<StoredField> {
    let keyspace = Keyspace::new(1, 1);
    let key = keyspace.key(b"key");
    let mut slot = keyspace.lock(key.slot());
    let place = slot.table(0).insert(&key, value, None);
    assert!(matches!(slot.table(0).find(&key, Millis(0)), KeyLookup::Live(_)));
    let value = slot.table(0).value(place);
    inspect(&value);
    let Value::Hash(hash) = value else { panic!("a hash was stored") };
    let mut rows = Vec::new();
    hash.for_each(&mut |field| rows.push((field.name.to_vec(), field.value.to_vec(), field.expiry)));
    rows.sort();
    rows
}

fn decode(code: u8, body: &[u8]) -> Result<Vec<StoredField>, RdbErrorReason> {
    let mut buffer = ValueBuffer::new();
    let mut source = RdbReader::new(body, 64, 1 << 20, false);
    read_value(code, &mut source, &mut buffer).map_err(|error| error.reason)?;
    Ok(stored_fields(buffer.value(), |_| {}))
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
    let timed = vec![stored_field("a", "1", Some(1007)), stored_field("b", "2", None)];
    let plain = vec![stored_field("a", "1", None), stored_field("b", "2", None)];
    let base = 1000i64.to_le_bytes();
    let with_base = |remaining: &[u8]| [&base[..], remaining].concat();
    let valkey =
        [&b"\x02\x01a\xc0\x01"[..], &1007i64.to_le_bytes(), b"\x01b\xc0\x02", &(-1i64).to_le_bytes()];
    let pairs = b"\x81a\x02\x01\x01\x81b\x02\x02\x01";
    let triples = b"\x81a\x02\x01\x01\xc3\xef\x02\x81b\x02\x02\x01\0\x01";
    let timed_pack = with_base(&encode_listpack(6, triples));
    let zip = encode_string(
        &[&21u32.to_le_bytes()[..], b"\0\0\0\0\x04\0\0\x01a\x03\xf2\x02\x01b\x03\xf3\xff"].concat(),
    );
    let table: &[(u8, Vec<u8>, &[StoredField])] = &[
        (TYPE_PAIRS, b"\x02\x01a\xc0\x01\x01b\xc0\x02".to_vec(), &plain),
        (TYPE_ZIPMAP, encode_string(b"\x02\x01a\x01\x00\x31\x01b\x01\x00\x32\xff"), &plain),
        (TYPE_ZIPLIST, zip, &plain),
        (TYPE_LISTPACK, encode_listpack(4, pairs), &plain),
        (TYPE_EXPIRY, with_base(b"\x02\x08\x01a\xc0\x01\x00\x01b\xc0\x02"), &timed),
        (TYPE_VALKEY_EXPIRY, valkey.concat(), &timed),
        (TYPE_EXPIRY_LISTPACK, timed_pack, &timed),
    ];
    for (code, body, rows) in table {
        assert_eq!(decode(*code, body).as_deref(), Ok(*rows), "type {code}");
        for end in 0..body.len() {
            assert!(decode(*code, &body[..end]).is_err(), "type {code} cut at {end}");
        }
    }
}

#[test]
fn malformed_hashes_are_rejected() {
    let table: &[(u8, &[u8], RdbErrorReason)] = &[
        (TYPE_PAIRS, b"\x00", RdbErrorReason::Empty("a hash without fields")),
        (
            TYPE_PAIRS,
            b"\x02\x01a\x01x\x01a\x01y",
            RdbErrorReason::BadValue("a hash with the same field twice"),
        ),
        (
            TYPE_LISTPACK,
            &encode_listpack(2, b"\x05\x01"),
            RdbErrorReason::BadValue("a packed hash with a field and no value"),
        ),
        (
            TYPE_LISTPACK,
            &encode_listpack(2, b"\x05\x01\xf9"),
            RdbErrorReason::BadValue("Hash listpack integrity check failed."),
        ),
        (TYPE_PAIRS, b"\x81\xff\xff\xff\xff\xff\xff\xff\xff\x01a\x01x", RdbErrorReason::UnexpectedEnd),
    ];
    for (code, body, reason) in table {
        assert_eq!(decode(*code, body), Err(*reason), "type {code} {body:?}");
    }
    let too_late = [&i64::MAX.to_le_bytes()[..], b"\x01\x05\x01a\x01b"].concat();
    assert_eq!(
        decode(TYPE_EXPIRY, &too_late),
        Err(RdbErrorReason::BadValue("a field that expires at an impossible time"))
    );
}

fn round_trip(fields: &[StoredField], dialect: Dialect) -> Vec<StoredField> {
    let mut builder = PackedBuilder::new(Kind::Hash);
    fields.iter().for_each(|(name, value, expiry)| builder.push_field(name, value, *expiry));
    let mut bytes = Vec::new();
    let mut code = 0;
    stored_fields(builder.packed(), |value| {
        code = code_of(value, dialect);
        let mut encoder = Encoder::new(Vec::new(), true, false);
        write_value(code, value, &mut encoder).unwrap();
        bytes = encoder.finish().unwrap();
    });
    decode(code, &bytes).unwrap()
}

proptest! {
    #[test]
    fn written_values_round_trip(
        fields in prop::collection::btree_map(
            prop::collection::vec(any::<u8>(), 0..10),
            (prop::collection::vec(0u8..3, 0..90), prop::option::of((1i64..4_000_000_000_000).prop_map(Millis))),
            1..700,
        ),
    ) {
        let rows: Vec<StoredField> = fields.into_iter().map(|(name, (value, expiry))| (name, value, expiry)).collect();
        for dialect in [Dialect::Redis, Dialect::Valkey] {
            prop_assert_eq!(&round_trip(&rows, dialect), &rows);
        }
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(code in 0usize..7, body in prop::collection::vec(any::<u8>(), 0..80)) {
        let codes = [TYPE_PAIRS, TYPE_ZIPMAP, TYPE_ZIPLIST, TYPE_LISTPACK, TYPE_VALKEY_EXPIRY, TYPE_EXPIRY, TYPE_EXPIRY_LISTPACK];
        let _ = decode(codes[code], &body);
    }
}
