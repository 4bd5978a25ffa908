use keyspace::{Keyspace, Kind, PackedBuilder, PackedValue, Value};
use proptest::prelude::*;

use super::*;
use crate::value::{read as read_value, read_next_part, type_code as code_of, write as write_value};

type Elements = Vec<Vec<u8>>;

fn stored_elements(parts: &[PackedValue<'_>], inspect: impl FnOnce(&Value<'_>)) -> Elements {
    let keyspace = Keyspace::new(1, 1);
    let key = keyspace.key(b"key");
    let mut slot = keyspace.lock(key.slot());
    let place = match parts {
        [whole] => slot.table(0).insert(&key, *whole, None),
        parts => {
            let mut large = keyspace::DetachedValue::empty_large(Kind::List);
            assert!(parts.iter().all(|part| large.add_part(*part, &keyspace::EncodingLimits::default())));
            slot.table(0).attach(&key, large, None)
        }
    };
    let value = slot.table(0).value(place);
    inspect(&value);
    let Value::List(list) = value else { panic!("a list was stored") };
    let (mut row, mut digits) = (Elements::new(), ItemDigits::default());
    list.for_each(&mut |item| row.push(item.bytes(&mut digits).to_vec()));
    row
}

fn decode(code: u8, body: &[u8]) -> Result<Elements, RdbErrorReason> {
    let mut buffer = ValueBuffer::new();
    let mut source = RdbReader::new(body, 64, 1 << 20, false);
    read_value(code, &mut source, &mut buffer).map_err(|error| error.reason)?;
    let mut parts = vec![(buffer.value().bytes().to_vec(), buffer.value().summary())];
    while buffer.is_part() {
        read_next_part(&mut source, &mut buffer).map_err(|error| error.reason)?;
        parts.push((buffer.value().bytes().to_vec(), buffer.value().summary()));
    }
    let parts: Vec<_> = parts.iter().map(|(bytes, about)| PackedValue::from_parts(bytes, *about)).collect();
    Ok(stored_elements(&parts, |_| {}))
}

fn encode_string(bytes: &[u8]) -> Vec<u8> {
    [&[bytes.len() as u8][..], bytes].concat()
}

fn encode_listpack(count: usize, entries: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    packed_encodings::wrap_listpack(&mut bytes, count, entries);
    encode_string(&bytes)
}

#[test]
fn every_encoding_is_read() {
    let zip = encode_string(&[&16u32.to_le_bytes()[..], b"\0\0\0\0\x02\0\0\x01a\x03\xf3\xff"].concat());
    let row: Elements = vec![b"a".to_vec(), b"2".to_vec()];
    let table: &[(u8, Vec<u8>)] = &[
        (TYPE_STRINGS, b"\x02\x01a\xc0\x02".to_vec()),
        (TYPE_ZIPLIST, zip.clone()),
        (TYPE_ZIPLISTS, [&b"\x01"[..], &zip].concat()),
        (TYPE_NODES, [&b"\x01\x02"[..], &encode_listpack(2, b"\x81a\x02\x02\x01")].concat()),
        (TYPE_NODES, [&b"\x02\x01\x01a\x02"[..], &encode_listpack(1, b"\x02\x01")].concat()),
        (TYPE_NODES, [&b"\x03\x02"[..], &encode_listpack(0, b""), b"\x01\x01a\x01\xc0\x02"].concat()),
    ];
    for (code, body) in table {
        assert_eq!(decode(*code, body).as_ref(), Ok(&row), "type {code}");
        for end in 0..body.len() {
            assert!(decode(*code, &body[..end]).is_err(), "type {code} cut at {end}");
        }
    }
}

#[test]
fn malformed_lists_are_rejected() {
    let table: &[(u8, &[u8], RdbErrorReason)] = &[
        (TYPE_STRINGS, b"\x00", EMPTY_LIST_ERROR),
        (TYPE_NODES, b"\x00", EMPTY_LIST_ERROR),
        (TYPE_NODES, &[&b"\x01\x02"[..], &encode_listpack(0, b"")].concat(), EMPTY_LIST_ERROR),
        (TYPE_NODES, b"\x01\x03\x01a", RdbErrorReason::BadValue("Quicklist integrity check failed.")),
        (TYPE_NODES, b"\x01\x02\x01a", RdbErrorReason::BadValue("Listpack integrity check failed.")),
        (TYPE_ZIPLIST, b"\x01a", RdbErrorReason::BadValue("List ziplist integrity check failed.")),
        (TYPE_STRINGS, b"\x81\xff\xff\xff\xff\xff\xff\xff\xff\x01a", RdbErrorReason::UnexpectedEnd),
    ];
    for (code, body, reason) in table {
        assert_eq!(decode(*code, body), Err(*reason), "type {code} {body:?}");
    }
}

fn round_trip(elements: &Elements) -> Elements {
    let mut builder = PackedBuilder::new(Kind::List);
    elements.iter().for_each(|element| builder.push_item(element));
    let (mut bytes, mut code) = (Vec::new(), 0);
    stored_elements(&[builder.packed()], |value| {
        code = code_of(value, Dialect::Redis);
        let mut encoder = Encoder::new(Vec::new(), true, false);
        write_value(code, value, &mut encoder).unwrap();
        bytes = encoder.finish().unwrap();
    });
    decode(code, &bytes).unwrap()
}

#[test]
fn lists_of_any_size_round_trip() {
    let long = |len: usize| vec![b'l'; len];
    for row in [
        vec![long(8190), long(8191), long(200_000), long(0)],
        (0..70_000i64).map(|number| (number * number * 31).to_string().into_bytes()).collect(),
        (0..500).map(long).collect(),
    ] {
        assert!(round_trip(&row) == row);
    }
}

proptest! {
    #[test]
    fn written_values_round_trip(row in prop::collection::vec(
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..90),
            any::<i64>().prop_map(|number| number.to_string().into_bytes()),
            (-5000..5000i64).prop_map(|number| number.to_string().into_bytes()),
        ],
        1..700,
    )) {
        prop_assert_eq!(&round_trip(&row), &row);
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(code in 0usize..4, body in prop::collection::vec(any::<u8>(), 0..80)) {
        let _ = decode([TYPE_STRINGS, TYPE_ZIPLIST, TYPE_ZIPLISTS, TYPE_NODES][code], &body);
    }
}
