use keyspace::{DetachedValue, EncodingLimits, Key, KeyLookup, Keyspace, Kind, PackedValue, Stream, Value};
use proptest::prelude::*;

use super::*;
use crate::InputChecks;
use crate::dump::{RestoreError, RestoredValue, dump, restore};

/// Payload made by Redis 7.0.15: XADD of `a 1 b two` as 1-1, `a 300 b -5` as 1-2, `c 1` as 5-0, XDEL of 1-2.
const REDIS_PAYLOAD: &[u8] = b"\x13\x01\x10\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x01@BB\0\0\0\x19\0\x02\x01\x01\x01\x02\x01\x81a\
    \x02\x81b\x02\0\x01\x02\x01\0\x01\0\x01\x01\x01\x83two\x04\x05\x01\x03\x01\0\x01\x01\x01\xc1,\x02\xdf\xfb\x02\x05\
    \x01\0\x01\x04\x01\xdf\xff\x02\x01\x01\x81c\x02\x01\x01\x06\x01\xff\x02\x05\0\x01\x01\x01\x02\x03\0\n\0`\xa96\"\xd9\
    \xac\xc4l";
/// Payload of the stream in `REDIS_PAYLOAD` with two groups: `g`, whose consumers alice and bob own 1-1 and 5-0, and
/// `h` with last id 3, which has read seven entries.
const GROUPS_PAYLOAD: &[u8] = b"\x13\x01\x10\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x01@BB\0\0\0\x19\0\x02\x01\x01\x01\x02\x01\
    \x81a\x02\x81b\x02\0\x01\x02\x01\0\x01\0\x01\x01\x01\x83two\x04\x05\x01\x03\x01\0\x01\x01\x01\xc1,\x02\xdf\xfb\x02\
    \x05\x01\0\x01\x04\x01\xdf\xff\x02\x01\x01\x81c\x02\x01\x01\x06\x01\xff\x02\x05\0\x01\x01\x01\x02\x03\x02\x01g\x05\
    \0\x03\x02\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x01\xd0\x07\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\0\xe8\x03\0\0\
    \0\0\0\0\t\x02\x05alice\xa3N5\x05\xa2\x01\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x01\x03bob\x9dN5\x05\xa2\x01\0\0\
    \x01\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\0\x01h\x03\0\x07\0\0\n\0<\x97$\x0eit\xc6\x13";
/// Payload of the stream in `GROUPS_PAYLOAD`, made by Valkey 9.1.
const VALKEY_PAYLOAD: &[u8] = b"\x15\x01\x10\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x01@BB\0\0\0\x19\0\x02\x01\x01\x01\x02\x01\x81a\
    \x02\x81b\x02\0\x01\x02\x01\0\x01\0\x01\x01\x01\x83two\x04\x05\x01\x03\x01\0\x01\x01\x01\xc1,\x02\xdf\xfb\x02\x05\
    \x01\0\x01\x04\x01\xdf\xff\x02\x01\x01\x81c\x02\x01\x01\x06\x01\xff\x02\x05\0\x01\x01\x01\x02\x03\x02\x01g\x05\0\
    \x03\x02\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x01\xd0\x07\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\0\xe8\x03\0\0\0\
    \0\0\0\t\x02\x05alice\x89Q5\x05\xa2\x01\0\0\x89Q5\x05\xa2\x01\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x01\x03bobwQ5\
    \x05\xa2\x01\0\0wQ5\x05\xa2\x01\0\0\x01\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\0\x01h\x03\0\x07\0\0P\0^6\x94n~L\r<";

/// Restores a payload into a table and returns what `inspect` returns for the stored value.
fn stored_stream<R>(payload: &[u8], inspect: impl FnOnce(&Value<'_>) -> R) -> Result<R, RestoreError> {
    let keyspace = Keyspace::new(1, 1);
    let key: Key<'_> = keyspace.key(b"key");
    let mut slot = keyspace.lock(key.slot());
    let mut buffer = ValueBuffer::new();
    let place =
        match restore(payload, 1 << 29, EncodingLimits::default(), InputChecks::default(), &mut buffer)? {
            RestoredValue::Whole(value) => slot.table(0).insert(&key, value, None),
            RestoredValue::Multipart(value) => slot.table(0).attach(&key, value, None),
        };
    assert!(matches!(slot.table(0).find(&key, Millis(0)), KeyLookup::Live(_)));
    Ok(inspect(&slot.table(0).value(place)))
}

fn restore_stream(payload: &[u8]) -> Result<Stream, RestoreError> {
    stored_stream(payload, |value| match value {
        Value::Stream(stream) => stream.to_stream().into_owned(),
        _ => panic!("a stream was stored"),
    })
}

fn dump_stream(stream: &Stream) -> Vec<u8> {
    let keyspace = Keyspace::new(1, 1);
    let key = keyspace.key(b"key");
    let mut slot = keyspace.lock(key.slot());
    let place = slot.table(0).insert(&key, PackedValue::empty(Kind::Stream), None);
    let (place, ()) = slot.table(0).edit_stream(place, &key, |empty| *empty = stream.clone());
    dump(&slot.table(0).value(place), Dialect::Redoubt, true)
}

fn id(millis: u64, sequence: u64) -> StreamId {
    StreamId { millis, sequence }
}

#[test]
fn payloads_match_redis() {
    for payload in [REDIS_PAYLOAD, GROUPS_PAYLOAD] {
        let again = stored_stream(payload, |value| dump(value, Dialect::Redis, true)).expect("it is sound");
        assert_eq!(again, payload);
    }
    let stream = restore_stream(REDIS_PAYLOAD).expect("it is sound");
    let ids: Vec<_> = stream.range(StreamId::MIN, StreamId::MAX).map(|entry| entry.id).collect();
    assert_eq!(ids, [id(1, 1), id(5, 0)]);
    assert_eq!(
        stream.head(),
        StreamHead { len: 2, last_id: id(5, 0), max_deleted_id: id(1, 2), entries_added: 3 }
    );
}

#[test]
fn groups_of_redis_and_valkey_are_read() {
    for (payload, active) in [(GROUPS_PAYLOAD, 1_795_383_709_347), (VALKEY_PAYLOAD, 1_795_383_710_089)] {
        let stream = restore_stream(payload).expect("it is sound");
        let group = stream.group(b"g").expect("it is there");
        assert_eq!((group.last_delivered, group.entries_read), (id(5, 0), Some(3)));
        let pending: Vec<_> = group
            .pending_from(StreamId::MIN)
            .map(|(id, pending)| {
                (id, pending.consumer.to_vec(), pending.delivery_time.0, pending.delivery_count)
            })
            .collect();
        let expected = [(id(1, 1), b"alice".to_vec(), 2000, 2), (id(5, 0), b"bob".to_vec(), 1000, 9)];
        assert_eq!(pending, expected);
        let alice = group.consumer(b"alice").expect("it is there");
        assert_eq!((alice.last_seen, alice.last_active), (Millis(active), Some(Millis(active))));
        let other = stream.group(b"h").expect("it is there");
        assert_eq!(
            (other.last_delivered, other.entries_read, other.consumer_count()),
            (id(3, 0), Some(7), 0)
        );
    }
}

#[test]
fn large_stream_round_trips_in_parts() {
    let mut stream = Stream::default();
    let bounds = EncodingLimits::default().stream;
    let long = [b'x'; 200];
    for number in 1..5000u64 {
        stream.append(id(number, 0), &[b"number", number.to_string().as_bytes(), b"text", &long], bounds);
    }
    let mut group = keyspace::Group::new(id(4000, 0), Some(4000));
    let names: Vec<std::sync::Arc<[u8]>> = vec![(*b"a").into(), (*b"b").into()];
    for name in &names {
        group.create_consumer(name, Millis(5));
    }
    for number in 1..=4000u64 {
        group.assign(id(number, 0), &names[(number % 2) as usize], Millis(7), number);
    }
    stream.insert_group(b"g", group);
    let payload = dump_stream(&stream);
    let again = restore_stream(&payload).expect("it is sound");
    assert_eq!(again.head(), stream.head());
    let entries = |stream: &Stream| {
        stream.range(StreamId::MIN, StreamId::MAX).map(|entry| entry.id).collect::<Vec<_>>()
    };
    assert_eq!(entries(&again), entries(&stream));
    let of_b = again.group(b"g").and_then(|group| group.consumer(b"b")).expect("it is there");
    assert_eq!(of_b.pending_len(), 2000);
    assert_eq!(dump_stream(&again), payload);
}

/// Restores a corrupted payload that has a valid checksum. It must give an error, or a stream that can be read and
/// written.
fn assert_restores_or_fails(body: &[u8]) {
    let mut buffer = ValueBuffer::new();
    let mut source = RdbReader::new(&body[1..], 64, 1 << 20, false);
    if super::super::read(body[0], &mut source, &mut buffer).is_err() || buffer.value().kind() != Kind::Stream
    {
        return;
    }
    let mut large = DetachedValue::empty_large(Kind::Stream);
    loop {
        if !large.add_part(buffer.value(), &EncodingLimits::default()) {
            return;
        }
        if !buffer.is_part() {
            break;
        }
        if super::super::read_next_part(&mut source, &mut buffer).is_err() {
            return;
        }
    }
    let keyspace = Keyspace::new(1, 1);
    let key = keyspace.key(b"key");
    let mut slot = keyspace.lock(key.slot());
    let place = slot.table(0).attach(&key, large, None);
    let again = dump(&slot.table(0).value(place), Dialect::Redis, true);
    assert!(restore_stream(&again).is_ok(), "{body:?}");
}

#[test]
fn truncated_payloads_are_rejected() {
    let body = &GROUPS_PAYLOAD[1..GROUPS_PAYLOAD.len() - 10];
    for end in 0..body.len() {
        let mut source = RdbReader::new(&body[..end], 64, 1 << 20, false);
        assert!(
            super::super::read(TYPE_WITH_COUNTS, &mut source, &mut ValueBuffer::new()).is_err(),
            "cut at {end}"
        );
    }
}

#[test]
fn inconsistent_streams_are_rejected() {
    let body = &REDIS_PAYLOAD[..REDIS_PAYLOAD.len() - 10];
    let head = body.len() - 9;
    // Corrupt the last id, the length of a node id, or the backward lengths.
    for (at, with) in [(head + 1, 4), (2, 15), (35, 1), (35, 3), (40, 2)] {
        let mut wrong = body.to_vec();
        wrong[at] = with;
        let mut source = RdbReader::new(&wrong[1..], 64, 1 << 20, false);
        let read = super::super::read(TYPE_WITH_COUNTS, &mut source, &mut ValueBuffer::new());
        assert!(read.is_err(), "{with} at {at}");
    }
}

/// Some old Redis versions wrote a wrong number of entries.
#[test]
fn stored_entry_count_is_ignored() {
    let head = REDIS_PAYLOAD.len() - 10 - 9;
    for (stored, added) in [(0, 3), (1, 3), (3, 3), (63, 3)] {
        let mut body = REDIS_PAYLOAD[..REDIS_PAYLOAD.len() - 10].to_vec();
        body[head] = stored;
        let mut buffer = ValueBuffer::new();
        super::super::read(
            TYPE_WITH_COUNTS,
            &mut RdbReader::new(&body[1..], 64, 1 << 20, false),
            &mut buffer,
        )
        .expect("it is read");
        let head = buffer.value().pieces().find_map(|piece| match piece {
            StreamPiece::Head { head, .. } => Some(head),
            _ => None,
        });
        assert_eq!(head.map(|head| (head.len, head.entries_added)), Some((2, added)), "{stored}");
    }
}

/// Payload made by Redis 8.6: three entries added by producers `p1` (iids i1, sent twice, and i2) and `prod2` (abc); a
/// group `g` whose consumer `c` owns the first entry and whose consumer `idle` has received nothing.
const REDIS_8_6_PAYLOAD: &[u8] = b"\x1a\x01\x10\0\0\x01\xa2\x1f\xfcl\xed\0\0\0\0\0\0\0\0\xc3/4\x114\0\0\0\x14\0\x03\x01\0\x01\x01\
    \x01\x81f\x02\0\x01\x02 \n\x05\0\x01\x81v\x02\x04 \n\0\n\xe0\x01\n\0\x0f \n\x06\x82v2\x03\x04\x01\xff\x03\x81\0\0\
    \x01\xa2\x1f\xfcl\xfc\0\x81\0\0\x01\xa2\x1f\xfcl\xed\0\0\0\x03\x01\x01g\x81\0\0\x01\xa2\x1f\xfcl\xed\0\x01\x01\0\0\x01\
    \xa2\x1f\xfcl\xed\0\0\0\0\0\0\0\0\x07m\xfc\x1f\xa2\x01\0\0\x01\x02\x01c\x07m\xfc\x1f\xa2\x01\0\0\x07m\xfc\x1f\xa2\x01\0\0\
    \x01\0\0\x01\xa2\x1f\xfcl\xed\0\0\0\0\0\0\0\0\x04idle\x0cm\xfc\x1f\xa2\x01\0\0\xff\xff\xff\xff\xff\xff\xff\xff\0@d@d\x02\
    \x02p1\x02\x02i1\x81\0\0\x01\xa2\x1f\xfcl\xed\0\x02i2\x81\0\0\x01\xa2\x1f\xfcl\xf7\0\x05prod2\x01\x03abc\x81\0\0\x01\
    \xa2\x1f\xfcl\xfc\0\x03\x01\r\0\x99\xc8(\xde\xec?\xc2\xb0";

#[test]
fn redis_8_6_streams_keep_active_times() {
    let first = restore_stream(REDIS_8_6_PAYLOAD).expect("it is sound");
    let again = restore_stream(&dump_stream(&first)).expect("it is sound");
    for stream in [first, again] {
        assert_eq!((stream.head().len, stream.head().entries_added), (3, 3));
        let group = stream.group(b"g").expect("it is there");
        let times =
            |name: &[u8]| group.consumer(name).map(|consumer| (consumer.last_seen, consumer.last_active));
        let seen = Millis(1_795_832_966_407);
        assert_eq!(times(b"c"), Some((seen, Some(seen))));
        assert_eq!(times(b"idle"), Some((Millis(1_795_832_966_412), None)));
    }
    let again = dump_stream(&restore_stream(REDIS_8_6_PAYLOAD).expect("it is sound"));
    assert_eq!(again[0], TYPE_WITH_PRODUCERS);
    let again = restore_stream(&again).expect("it is sound");
    let producers = again.producers().expect("they were written");
    assert_eq!((producers.producer_count(), producers.iid_count()), (2, 3));
    assert_eq!((producers.lifetime_totals().added, producers.lifetime_totals().duplicates), (3, 1));
    assert!(producers.find(b"p1", b"i2").is_some() && producers.find(b"prod2", b"i2").is_none());
}

/// Redis 5 does not record how many entries a group has read, so the number is derived.
#[test]
fn redis_5_entries_read_is_derived() {
    let remaining = StreamProgress {
        entries_added: 3,
        first_id: Some(id(1, 0)),
        last_id: id(9, 0),
        ..StreamProgress::default()
    };
    let table =
        [(id(0, 0), Some(0)), (id(1, 0), Some(1)), (id(5, 0), None), (id(9, 0), Some(3)), (id(9, 1), None)];
    for (at, read) in table {
        assert_eq!(remaining.entries_read_up_to(at), read, "{at}");
    }
    assert_eq!(StreamProgress::default().entries_read_up_to(id(7, 0)), Some(0));
}

proptest! {
    #[test]
    fn corrupted_payloads_do_not_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut body = GROUPS_PAYLOAD[..GROUPS_PAYLOAD.len() - 10].to_vec();
        for (at, with) in changes {
            let at = at.index(body.len() - 1) + 1;
            body[at] = with;
        }
        assert_restores_or_fails(&body);
    }
}
