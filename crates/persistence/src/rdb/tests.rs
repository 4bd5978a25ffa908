use std::io::{self, Read, Write};

use clock::Millis;
use keyspace::{Naming, NewValue, SnapshotEntry, Str, Value};
use proptest::prelude::*;

use super::*;
use crate::checksum::Checksum;
use crate::error::{RdbError, Reason};

/// database, key, value, expiry
type Row = (u16, Vec<u8>, Vec<u8>, Option<Millis>);

/// Written by Redis 7.0.15: strings of every form, an expiry, two databases.
const OF_REDIS: &[u8] = include_bytes!("../../testdata/redis-7.0-strings.rdb");

fn info() -> Info<'static> {
    let replication = Some((&b"8371445ee3ad8a2ea4f4b3f8d9ee4dd9f0b1d5ab"[..], 1234, 0));
    Info {
        version: "7.2.4",
        created: Millis(1_700_000_000_000),
        used_memory: 1,
        replication,
        aof_base: false,
    }
}

fn written(rows: &[Row], options: WriteOptions) -> Vec<u8> {
    let mut writer = RdbWriter::new(Vec::new(), options, &info()).unwrap();
    for (db, key, value, expiry) in rows {
        let value = Value::String(Str { bytes: value, naming: Naming::ByContent });
        let entry = SnapshotEntry { db: *db, key, value, expiry: *expiry };
        writer.entry(&entry, |db| (rows.iter().filter(|row| row.0 == db).count(), 0)).unwrap();
    }
    writer.finish().unwrap()
}

fn loaded_from(input: impl Read, limits: Limits) -> Result<Vec<Row>, RdbError> {
    let mut loader = RdbLoader::new(input, limits)?;
    let mut rows = Vec::new();
    while let Some(item) = loader.next_item()? {
        if let Item::Entry(Entry { db, key, value, expiry }) = item {
            let NewValue::String(string) = value else { panic!("only strings were written") };
            rows.push((db, key.to_vec(), string.bytes.to_vec(), expiry));
        }
    }
    Ok(rows)
}

fn loaded(bytes: &[u8]) -> Result<Vec<Row>, RdbError> {
    loaded_from(bytes, Limits::default())
}

fn row(db: u16, key: &str, value: &str, expiry: Option<i64>) -> Row {
    (db, key.into(), value.into(), expiry.map(Millis))
}

#[test]
fn a_file_of_redis_is_read() {
    let expected = vec![
        row(0, "big", "12345678901234", None),
        row(0, "wide", "-70000", None),
        row(0, "soon", "x", Some(4_102_444_800_123)),
        row(0, "int", "7", None),
        row(0, "long", &"x".repeat(48), None),
        row(3, "other", "db", None),
    ];
    assert_eq!(loaded(OF_REDIS), Ok(expected));
}

#[test]
fn what_a_file_says_about_itself() {
    let bytes = written(&[], WriteOptions::default());
    let mut loader = RdbLoader::new(bytes.as_slice(), Limits::default()).unwrap();
    let mut fields = Vec::new();
    while let Some(item) = loader.next_item().unwrap() {
        let Item::Aux { name, value } = item else { panic!("the file has no keys") };
        fields.push(format!("{}={}", String::from_utf8_lossy(name), String::from_utf8_lossy(value)));
    }
    let expected = [
        "redis-ver=7.2.4",
        "redis-bits=64",
        "ctime=1700000000",
        "used-mem=1",
        "repl-stream-db=0",
        "repl-id=8371445ee3ad8a2ea4f4b3f8d9ee4dd9f0b1d5ab",
        "repl-offset=1234",
        "aof-base=0",
    ];
    assert_eq!(fields, expected);
    assert_eq!(loader.offset(), bytes.len() as u64);
}

#[test]
fn a_database_tells_its_sizes_once_however_often_it_is_selected() {
    let rows = [row(0, "a", "1", None), row(2, "b", "2", None), row(0, "c", "3", None)];
    let bytes = written(&rows, WriteOptions::default());
    let mut loader = RdbLoader::new(bytes.as_slice(), Limits::default()).unwrap();
    let mut sizes = Vec::new();
    while let Some(item) = loader.next_item().unwrap() {
        if let Item::Sizes { db, keys, volatile } = item {
            sizes.push((db, keys, volatile));
        }
    }
    assert_eq!(sizes, [(0, 2, 0), (2, 1, 0)]);
    assert_eq!(loaded(&bytes).as_deref(), Ok(&rows[..]));
}

/// Every byte of a small file, changed and cut: an error with a place in the file, or (where the byte
/// belongs to nothing that matters) the same data, but never a panic. The checksum catches the rest.
#[test]
fn a_corrupt_byte_anywhere_is_an_error() {
    let bytes = written(
        &[row(0, "key", "some longer value", Some(5)), row(1, "n", "12", None)],
        WriteOptions::default(),
    );
    for at in 0..bytes.len() {
        let cut = loaded(&bytes[..at]).unwrap_err();
        assert_eq!(cut, RdbError { offset: at as u64, reason: Reason::UnexpectedEnd });
        for flip in [1, 0x80, 0xFF] {
            let mut wrong = bytes.clone();
            wrong[at] ^= flip;
            let error = loaded(&wrong).expect_err("the checksum sees every change");
            assert!(error.offset <= bytes.len() as u64);
        }
    }
}

#[test]
fn headers_that_are_refused() {
    let table: &[(&[u8], Reason)] = &[
        (b"", Reason::UnexpectedEnd),
        (b"REDIS001", Reason::UnexpectedEnd),
        (b"RADIS0010", Reason::WrongSignature),
        (b"REDIS00+1", Reason::WrongSignature),
        (b"REDIS0000", Reason::UnknownVersion(0)),
        (b"REDIS0013", Reason::UnknownVersion(13)),
        (b"VALKEY079", Reason::UnknownVersion(79)),
        (b"VALKEY081", Reason::UnknownVersion(81)),
    ];
    for (bytes, reason) in table {
        assert_eq!(loaded(bytes).unwrap_err().reason, *reason, "{bytes:?}");
    }
}

#[test]
fn items_of_every_sort_and_what_is_refused() {
    let file = |version: &str, body: &[u8]| {
        let mut bytes = version.as_bytes().to_vec();
        bytes.extend_from_slice(body);
        bytes.push(END);
        bytes.extend_from_slice(&[0; 8]);
        loaded(&bytes).map_err(|error| error.reason)
    };
    let list = Reason::UnsupportedType { code: 18, name: "list as a quicklist of listpacks" };
    type Case = (&'static str, &'static [u8], Result<Vec<Row>, Reason>);
    let table: &[Case] = &[
        ("REDIS0012", b"\xf4\x01\x01\x00\x00\x01k\x01v", Ok(vec![row(0, "k", "v", None)])),
        ("VALKEY080", b"\xf8\x05\xf9\x07\x00\x01k\x01v", Ok(vec![row(0, "k", "v", None)])),
        ("REDIS0006", b"\xfd\x02\x00\x00\x00\x00\x01k\x01v", Ok(vec![row(0, "k", "v", Some(2000))])),
        ("REDIS0010", b"\xf5\x03lib", Ok(vec![])),
        (
            "REDIS0010",
            b"\xf6\x03lib",
            Err(Reason::BadValue("functions of a version before the release of Redis 7")),
        ),
        ("REDIS0010", b"\xf7\x03", Err(Reason::ModuleData)),
        ("REDIS0010", b"\x07\x01k", Err(Reason::ModuleData)),
        ("REDIS0010", b"\x12\x01k", Err(list)),
        ("REDIS0010", b"\x63\x01k", Err(Reason::UnknownType(0x63))),
        ("REDIS0010", b"\xfe\x80\x00\x01\x00\x00", Err(Reason::DatabaseOutOfRange(65536))),
    ];
    for (version, body, expected) in table {
        assert_eq!(file(version, body), *expected, "{version} {body:?}");
    }
}

#[test]
fn checksums_may_be_left_out_or_left_alone() {
    let rows = [row(0, "k", "v", None)];
    let without = written(&rows, WriteOptions { checksum: false, ..WriteOptions::default() });
    assert_eq!(without[without.len() - 8..], [0; 8]);
    assert_eq!(loaded(&without).as_deref(), Ok(&rows[..]));

    let mut wrong = written(&rows, WriteOptions::default());
    *wrong.last_mut().unwrap() ^= 1;
    assert!(matches!(loaded(&wrong).unwrap_err().reason, Reason::WrongChecksum { .. }));
    let limits = Limits { verify_checksum: false, ..Limits::default() };
    assert_eq!(loaded_from(wrong.as_slice(), limits).as_deref(), Ok(&rows[..]));

    let mut checksum = Checksum::new();
    checksum.update(&OF_REDIS[..OF_REDIS.len() - 8]);
    assert_eq!(checksum.value().to_le_bytes(), OF_REDIS[OF_REDIS.len() - 8..]);
}

/// A reader that gives its bytes in the pieces it is told.
struct Pieces<'a>(&'a [u8], usize);

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.1.min(buffer.len());
        self.0.read(&mut buffer[..len])
    }
}

#[test]
fn a_stream_may_come_in_any_pieces() {
    let expected = loaded(OF_REDIS);
    for piece in 1..40 {
        assert_eq!(loaded_from(Pieces(OF_REDIS, piece), Limits::default()), expected, "{piece}");
    }
}

#[test]
fn a_reader_that_fails_is_told_apart_from_a_file_that_ends() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::ConnectionReset.into())
        }
    }
    let error = loaded_from((&OF_REDIS[..50]).chain(Broken), Limits::default()).unwrap_err();
    assert_eq!(error, RdbError { offset: 50, reason: Reason::Io(io::ErrorKind::ConnectionReset) });
}

#[test]
fn a_full_disk_is_the_writers_error() {
    struct Full(usize);
    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let writer = RdbWriter::new(Full(10), WriteOptions::default(), &info()).unwrap();
    assert_eq!(writer.finish().map(|_| ()).unwrap_err().kind(), io::ErrorKind::StorageFull);
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        rows in prop::collection::vec(
            (0u16..3, prop::collection::vec(any::<u8>(), 0..20), prop::collection::vec(0u8..3, 0..80),
             prop::option::of(any::<i64>().prop_map(Millis))),
            0..20,
        ),
        compress: bool,
    ) {
        let bytes = written(&rows, WriteOptions { compress, checksum: true });
        prop_assert_eq!(loaded(&bytes), Ok(rows));
    }

    #[test]
    fn no_bytes_after_a_good_header_make_it_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = b"REDIS0010".to_vec();
        bytes.extend_from_slice(&body);
        let _ = loaded(&bytes);
    }
}

/// A large hash comes out of a snapshot in parts; in the file it is one.
#[test]
fn a_large_hash_is_written_in_parts_and_read_as_one() {
    let keyspace = std::sync::Arc::new(keyspace::Keyspace::new(7, 1));
    let mut builder = keyspace::HashBuilder::new();
    let field = |number: usize| (format!("field:{number}"), format!("value of {number}").repeat(3));
    for number in 0..5000 {
        let expiry = (number % 3 == 0).then_some(Millis(2_000_000_000_000 + number as i64));
        builder.push(field(number).0.as_bytes(), field(number).1.as_bytes(), expiry);
    }
    for name in [&b"large"[..], b"small"] {
        let key = keyspace.key(name);
        let value = if name == b"large" { NewValue::Hash(&builder) } else { NewValue::string(b"x") };
        let mut slot = keyspace.lock(key.slot());
        let _ = slot.table(0).insert(&key, value, Some(Millis(9)));
    }
    let (mut snapshot, ()) = keyspace.cut(|| ()).expect("no other snapshot is under way");
    let mut writer = RdbWriter::new(Vec::new(), WriteOptions::default(), &info()).unwrap();
    let mut parts = 0;
    for slot in slot_routing::Slot::all() {
        snapshot.walk(slot, &mut |entry| {
            parts += 1;
            writer.entry(&entry, |_| (2, 2)).unwrap();
        });
    }
    assert!(parts > 3, "the hash came in parts");
    let bytes = writer.finish().unwrap();
    let mut loader = RdbLoader::new(bytes.as_slice(), Limits::default()).unwrap();
    let mut keys = Vec::new();
    while let Some(item) = loader.next_item().unwrap() {
        let Item::Entry(entry) = item else { continue };
        assert_eq!(entry.expiry, Some(Millis(9)));
        if let NewValue::Hash(read) = entry.value {
            assert_eq!(read.len(), 5000);
        }
        keys.push(entry.key.to_vec());
    }
    keys.sort();
    assert_eq!(keys, [b"large", b"small"]);
}
