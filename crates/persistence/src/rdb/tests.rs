mod files;

use std::io::{self, Read, Write};

use clock::Millis;
use keyspace::{
    EncodingHint, Kind, LfuSettings, PackedBuilder, PackedValue, SnapshotEntry, SnapshotValue, StringRef,
    Usage, Value,
};
use proptest::prelude::*;

use super::*;
use crate::Dialect;
use crate::ModuleType;
use crate::checksum::Checksum;
use crate::error::{RdbError, RdbErrorReason};

/// Columns: database, key, value, expiry.
type LoadedKey = (u16, Vec<u8>, Vec<u8>, Option<Millis>);

const REDIS_FILE: &[u8] = include_bytes!("../../testdata/redis-7.0-string.rdb");

fn rdb_info() -> RdbInfo<'static> {
    let replication = Some((&b"8371445ee3ad8a2ea4f4b3f8d9ee4dd9f0b1d5ab"[..], 1234, 0));
    RdbInfo {
        version: "7.2.4",
        created_at: Millis(1_700_000_000_000),
        used_memory: 1,
        replication_position: replication,
        is_aof_base: false,
        slot_states: "",
    }
}

fn write_rdb(keys: &[LoadedKey], options: WriteOptions) -> Vec<u8> {
    let mut writer = RdbWriter::new(Vec::new(), options, &rdb_info()).unwrap();
    for (db, key, value, expiry) in keys {
        let value = SnapshotValue::Whole(Value::String(StringRef {
            bytes: value,
            encoding_hint: EncodingHint::ByContent,
        }));
        let entry = SnapshotEntry { db: *db, key, value, expiry: *expiry, usage: Usage(0) };
        writer.write_entry(&entry, |db| (keys.iter().filter(|row| row.0 == db).count(), 0)).unwrap();
    }
    writer.finish().unwrap()
}

fn load_from(input: impl Read, limits: ReadLimits) -> Result<Vec<LoadedKey>, RdbError> {
    let mut loader = RdbLoader::new(input, limits)?;
    let mut rows = Vec::new();
    while let Some(item) = loader.next_item()? {
        if let RdbItem::Entry(RdbEntry { db, key, packed_value: value, expiry, .. }) = item {
            rows.push((db, key.to_vec(), value.bytes().to_vec(), expiry));
        }
    }
    Ok(rows)
}

fn load(bytes: &[u8]) -> Result<Vec<LoadedKey>, RdbError> {
    load_from(bytes, ReadLimits::default())
}

fn loaded_key(db: u16, key: &str, value: &str, expiry: Option<i64>) -> LoadedKey {
    (db, key.into(), value.into(), expiry.map(Millis))
}

#[test]
fn metadata_fields_are_read() {
    let bytes = write_rdb(&[], WriteOptions::default());
    let mut loader = RdbLoader::new(bytes.as_slice(), ReadLimits::default()).unwrap();
    let mut fields = Vec::new();
    while let Some(item) = loader.next_item().unwrap() {
        let RdbItem::Aux { name, value } = item else { panic!("the file has no keys") };
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
fn database_sizes_are_written_once() {
    let rows = [loaded_key(0, "a", "1", None), loaded_key(2, "b", "2", None), loaded_key(0, "c", "3", None)];
    let bytes = write_rdb(&rows, WriteOptions::default());
    let mut loader = RdbLoader::new(bytes.as_slice(), ReadLimits::default()).unwrap();
    let mut sizes = Vec::new();
    while let Some(item) = loader.next_item().unwrap() {
        if let RdbItem::KeyCounts { db, keys, expiring_keys: volatile } = item {
            sizes.push((db, keys, volatile));
        }
    }
    assert_eq!(sizes, [(0, 2, 0), (2, 1, 0)]);
    assert_eq!(load(&bytes).as_deref(), Ok(&rows[..]));
}

/// Changes a small file at every byte, and truncates it there. Each case must give an error with a position or, if the
/// byte has no meaning, unchanged data, but never a panic. The checksum detects all other changes.
#[test]
fn corruption_anywhere_is_an_error() {
    let bytes = write_rdb(
        &[loaded_key(0, "key", "some longer value", Some(5)), loaded_key(1, "n", "12", None)],
        WriteOptions::default(),
    );
    for at in 0..bytes.len() {
        let cut = load(&bytes[..at]).unwrap_err();
        assert_eq!(cut, RdbError { offset: at as u64, reason: RdbErrorReason::UnexpectedEnd });
        for flip in [1, 0x80, 0xFF] {
            let mut wrong = bytes.clone();
            wrong[at] ^= flip;
            let error = load(&wrong).expect_err("the checksum sees every change");
            assert!(error.offset <= bytes.len() as u64);
        }
    }
}

#[test]
fn invalid_headers_are_rejected() {
    let table: &[(&[u8], RdbErrorReason)] = &[
        (b"", RdbErrorReason::UnexpectedEnd),
        (b"REDIS001", RdbErrorReason::UnexpectedEnd),
        (b"RADIS0010", RdbErrorReason::WrongSignature),
        (b"REDIS00+1", RdbErrorReason::WrongSignature),
        (b"REDIS0000", RdbErrorReason::UnknownVersion(0)),
        (b"REDIS0014", RdbErrorReason::UnknownVersion(14)),
        (b"REDIS0080", RdbErrorReason::UnknownVersion(80)),
        (b"VALKEY079", RdbErrorReason::UnknownVersion(79)),
        (b"VALKEY082", RdbErrorReason::UnknownVersion(82)),
    ];
    for (bytes, reason) in table {
        assert_eq!(load(bytes).unwrap_err().reason, *reason, "{bytes:?}");
    }
}

#[test]
fn every_item_type_is_read_or_rejected() {
    let file = |version: &str, body: &[u8]| {
        let mut bytes = version.as_bytes().to_vec();
        bytes.extend_from_slice(body);
        bytes.push(END_OF_FILE_OPCODE);
        bytes.extend_from_slice(&[0; 8]);
        load(&bytes).map_err(|error| error.reason)
    };
    let unread = RdbErrorReason::UnsupportedType { code: 23, name: "hash with expiring fields" };
    type ItemTypeCase = (&'static str, &'static [u8], Result<Vec<LoadedKey>, RdbErrorReason>);
    let table: &[ItemTypeCase] = &[
        ("REDIS0012", b"\xf4\x01\x01\x00\x00\x01k\x01v", Ok(vec![loaded_key(0, "k", "v", None)])),
        ("VALKEY080", b"\xf8\x05\xf9\x07\x00\x01k\x01v", Ok(vec![loaded_key(0, "k", "v", None)])),
        ("VALKEY080", b"\xf3\x03job\x01\x05\x07\x00\x01k\x01v", Ok(vec![loaded_key(0, "k", "v", None)])),
        ("VALKEY081", b"\xf4\x01\x01\x00\x00\x01k\x01v", Ok(vec![loaded_key(0, "k", "v", None)])),
        ("REDIS0006", b"\xfd\x02\x00\x00\x00\x00\x01k\x01v", Ok(vec![loaded_key(0, "k", "v", Some(2000))])),
        ("REDIS0010", b"\xf5\x03lib", Ok(vec![])),
        (
            "REDIS0010",
            b"\xf6\x03lib",
            Err(RdbErrorReason::BadValue("functions of a version before the release of Redis 7")),
        ),
        ("REDIS0010", b"\xf7\x03", Err(RdbErrorReason::ModuleData)),
        ("REDIS0010", b"\x06\x01k", Err(RdbErrorReason::ModuleData)),
        // A vector set as written by Redis 8.6.
        (
            "REDIS0013",
            b"\x07\x01v\x81\xbd\xe7\x2d\xa2\xbb\x1e\xb4\x00",
            Err(RdbErrorReason::ModuleType(ModuleType::from_number(0xBDE7_2DA2_BB1E_B400))),
        ),
        // A file with metadata of two modules.
        (
            "REDIS0013",
            b"\xf3\x02abcd\x01\x05\x02\x07\x05\x02xy\x00efgh\x03\0\0\0\0\x04\0\0\0\0\0\0\0\0\x00\x00\x01k\x01v",
            Ok(vec![loaded_key(0, "k", "v", None)]),
        ),
        ("REDIS0013", b"\x00\x01k\x01v", Ok(vec![loaded_key(0, "k", "v", None)])),
        // A file with collections without elements.
        ("REDIS0010", b"\x04\x01h\x00\x00\x01k\x01v\x02\x01s\x00", Ok(vec![loaded_key(0, "k", "v", None)])),
        ("REDIS0010", b"\x17\x01k", Err(unread)),
        ("REDIS0010", b"\x63\x01k", Err(RdbErrorReason::UnknownType(0x63))),
        ("REDIS0010", b"\xfe\x80\x00\x01\x00\x00", Err(RdbErrorReason::DatabaseOutOfRange(65536))),
    ];
    for (version, body, expected) in table {
        assert_eq!(file(version, body), *expected, "{version} {body:?}");
    }
}

#[test]
fn checksum_can_be_omitted_or_ignored() {
    let rows = [loaded_key(0, "k", "v", None)];
    let without = write_rdb(&rows, WriteOptions { checksum: false, ..WriteOptions::default() });
    assert_eq!(without[without.len() - 8..], [0; 8]);
    assert_eq!(load(&without).as_deref(), Ok(&rows[..]));

    let mut wrong = write_rdb(&rows, WriteOptions::default());
    *wrong.last_mut().unwrap() ^= 1;
    assert!(matches!(load(&wrong).unwrap_err().reason, RdbErrorReason::WrongChecksum { .. }));
    let limits = ReadLimits { verify_checksum: false, ..ReadLimits::default() };
    assert_eq!(load_from(wrong.as_slice(), limits).as_deref(), Ok(&rows[..]));

    let mut checksum = Checksum::new();
    checksum.update(&REDIS_FILE[..REDIS_FILE.len() - 8]);
    assert_eq!(checksum.value().to_le_bytes(), REDIS_FILE[REDIS_FILE.len() - 8..]);
}

/// A reader that returns at most a given number of bytes per call.
struct PiecewiseReader<'a>(&'a [u8], usize);

impl Read for PiecewiseReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.1.min(buffer.len());
        self.0.read(&mut buffer[..len])
    }
}

#[test]
fn input_can_arrive_in_any_pieces() {
    let expected = load(REDIS_FILE);
    for piece in 1..40 {
        assert_eq!(load_from(PiecewiseReader(REDIS_FILE, piece), ReadLimits::default()), expected, "{piece}");
    }
}

#[test]
fn io_errors_differ_from_unexpected_end() {
    struct FailingReader;
    impl Read for FailingReader {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::ConnectionReset.into())
        }
    }
    let error = load_from((&REDIS_FILE[..50]).chain(FailingReader), ReadLimits::default()).unwrap_err();
    assert_eq!(error, RdbError { offset: 50, reason: RdbErrorReason::Io(io::ErrorKind::ConnectionReset) });
}

#[test]
fn full_disk_is_reported_by_the_writer() {
    struct FullDisk(usize);
    impl Write for FullDisk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let writer = RdbWriter::new(FullDisk(10), WriteOptions::default(), &rdb_info()).unwrap();
    assert_eq!(writer.finish().map(|_| ()).unwrap_err().kind(), io::ErrorKind::StorageFull);
}

proptest! {
    #[test]
    fn written_values_round_trip(
        rows in prop::collection::vec(
            (0u16..3, prop::collection::vec(any::<u8>(), 0..20), prop::collection::vec(0u8..3, 0..80),
             prop::option::of(any::<i64>().prop_map(Millis))),
            0..20,
        ),
        compress: bool,
    ) {
        let bytes = write_rdb(&rows, WriteOptions { compress, ..WriteOptions::default() });
        prop_assert_eq!(load(&bytes), Ok(rows));
    }

    #[test]
    fn arbitrary_bytes_after_header_do_not_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = b"REDIS0010".to_vec();
        bytes.extend_from_slice(&body);
        let _ = load(&bytes);
    }
}

/// A large hash arrives from a snapshot in parts and is one value in the file.
#[test]
fn large_hash_written_in_parts_is_read_as_one() {
    for dialect in [Dialect::Redis, Dialect::Valkey] {
        large_hash_in_parts(dialect);
    }
}

fn large_hash_in_parts(dialect: Dialect) {
    let keyspace = std::sync::Arc::new(keyspace::Keyspace::new(7, 1));
    let mut builder = PackedBuilder::new(Kind::Hash);
    let field = |number: usize| (format!("field:{number}"), format!("value of {number}").repeat(3));
    for number in 0..5000 {
        let expiry = (number % 3 == 0).then_some(Millis(2_000_000_000_000 + number as i64));
        builder.push_field(field(number).0.as_bytes(), field(number).1.as_bytes(), expiry);
    }
    for name in [&b"large"[..], b"small"] {
        let key = keyspace.key(name);
        let value = if name == b"large" { builder.packed() } else { PackedValue::string(b"x") };
        let mut slot = keyspace.lock(key.slot());
        let _ = slot.table(0).insert(&key, value, Some(Millis(9)));
    }
    let (mut snapshot, ()) = keyspace
        .prepare_snapshot()
        .take(&keyspace.acquire_global_lock(), || ())
        .expect("no other snapshot is under way");
    let mut writer =
        RdbWriter::new(Vec::new(), WriteOptions { dialect, ..WriteOptions::default() }, &rdb_info()).unwrap();
    let mut parts = 0;
    for slot in slot_routing::Slot::all() {
        snapshot.walk(slot, &mut |entry| {
            parts += 1;
            writer.write_entry(&entry, |_| (2, 2)).unwrap();
        });
    }
    assert!(parts > 3, "the hash came in parts");
    let bytes = writer.finish().unwrap();
    let mut loader = RdbLoader::new(bytes.as_slice(), ReadLimits::default()).unwrap();
    let (mut keys, mut fields, mut parts, mut largest) = (Vec::new(), 0, 0, 0);
    while let Some(item) = loader.next_item().unwrap() {
        let part = match item {
            RdbItem::Entry(entry) => {
                assert_eq!(entry.expiry, Some(Millis(9)));
                keys.push(entry.key.to_vec());
                if entry.packed_value.kind() == Kind::String {
                    continue;
                }
                assert!(entry.is_part);
                entry.packed_value
            }
            RdbItem::NextPart { part, is_last } => {
                assert_eq!(is_last, fields + part.len() == 5000);
                part
            }
            _ => continue,
        };
        (fields, parts, largest) = (fields + part.len(), parts + 1, largest.max(part.bytes().len()));
    }
    keys.sort();
    assert_eq!(keys, [b"large", b"small"]);
    assert_eq!(fields, 5000);
    assert!(parts > 1 && largest < 200_000, "{parts} parts of at most {largest} bytes");
}

/// Regression test: one field of a large hash loses its expiry after the snapshot is taken, but before the hash is
/// written. The file must contain the state at the time of the snapshot, in which the field still expires.
#[test]
fn expiry_removed_after_the_snapshot_is_still_saved() {
    for dialect in [Dialect::Redis, Dialect::Valkey] {
        let keyspace = std::sync::Arc::new(keyspace::Keyspace::new(7, 1));
        let mut builder = PackedBuilder::new(Kind::Hash);
        let time = Some(Millis(2_000_000_000_000));
        for number in 0..5000 {
            builder.push_field(
                format!("field:{number}").as_bytes(),
                b"value",
                time.filter(|_| number == 4321),
            );
        }
        let key = keyspace.key(b"large");
        let place = keyspace.lock(key.slot()).table(0).insert(&key, builder.packed(), None);
        let (mut snapshot, ()) = keyspace
            .prepare_snapshot()
            .take(&keyspace.acquire_global_lock(), || ())
            .expect("no other snapshot is under way");
        let mut slot = keyspace.lock(key.slot());
        assert!(slot.table(0).hash_set_expiry(place, &key, b"field:4321", None).1);
        drop(slot);
        let options = WriteOptions { dialect, ..WriteOptions::default() };
        let mut writer = RdbWriter::new(Vec::new(), options, &rdb_info()).unwrap();
        snapshot.walk(key.slot(), &mut |entry| writer.write_entry(&entry, |_| (1, 0)).unwrap());
        let bytes = writer.finish().unwrap();
        let mut loader = RdbLoader::new(bytes.as_slice(), ReadLimits::default()).unwrap();
        let mut timed = 0;
        while let Some(item) = loader.next_item().unwrap() {
            let (RdbItem::Entry(RdbEntry { packed_value: part, .. }) | RdbItem::NextPart { part, .. }) = item
            else {
                continue;
            };
            timed += usize::from(part.has_expiring_elements());
        }
        assert_eq!(timed, 1, "one part of the hash has the field with its time");
    }
}

/// Returns a file with a compressed string and hashes in every supported encoding, with expiry, idle time and
/// frequency, and a valid checksum.
fn file_with_every_encoding() -> Vec<u8> {
    let string = |bytes: &[u8]| [&[bytes.len() as u8][..], bytes].concat();
    let listpack = |count: u8, items: &[u8]| {
        let len = (items.len() as u32 + 7).to_le_bytes();
        string(&[&len[..], &[count, 0], items, b"\xff"].concat())
    };
    let base = 1000i64.to_le_bytes();
    let zip = [&21u32.to_le_bytes()[..], b"\0\0\0\0\x04\0\0\x01a\x03\xf2\x02\x01b\x03\xf3\xff"].concat();
    let timed = listpack(6, b"\x81a\x02\x01\x01\xc3\xef\x02\x81b\x02\x02\x01\0\x01");
    let minus_one = (-1i64).to_le_bytes();
    let bodies: [(u8, Vec<u8>); 8] = [
        (0, [&[0xC3, 5, 21, 0, b'x', 0xE0, 11, 0][..]].concat()),
        (4, b"\x02\x01a\xc0\x01\x01b\xc0\x02".to_vec()),
        (9, string(b"\x02\x01a\x01\x00\x31\x01b\x01\x00\x32\xff")),
        (13, string(&zip)),
        (16, listpack(4, b"\x81a\x02\x01\x01\x81b\x02\x02\x01")),
        (22, [&b"\x02\x01a\xc0\x01"[..], &1007i64.to_le_bytes(), b"\x01b\xc0\x02", &minus_one].concat()),
        (24, [&base[..], b"\x02\x08\x01a\xc0\x01\x00\x01b\xc0\x02"].concat()),
        (25, [&base[..], &timed].concat()),
    ];
    let mut bytes = b"REDIS0012\xfa\x04name\x05value\xfe\x00\xfb\x08\x01".to_vec();
    bytes.extend_from_slice(b"\xfc\x05\0\0\0\0\0\0\0");
    for (number, (code, body)) in bodies.iter().enumerate() {
        // Keys alternate between no usage, an idle time, and a frequency.
        bytes.extend_from_slice([&b""[..], b"\xf8\x40\x64", b"\xf9\x2a"][number % 3]);
        bytes.extend_from_slice(&[*code, 1, b'0' + number as u8]);
        bytes.extend_from_slice(body);
    }
    bytes.push(END_OF_FILE_OPCODE);
    let mut checksum = Checksum::new();
    checksum.update(&bytes);
    bytes.extend_from_slice(&checksum.value().to_le_bytes());
    bytes
}

/// Fields with their values and expiry.
type Fields = Vec<(String, String, Option<i64>)>;

/// Reads a complete file and stores its hashes in `keyspace`. Returns the keys with their usage and fields.
fn stored_fields(
    keyspace: &keyspace::Keyspace,
    bytes: &[u8],
    limits: ReadLimits,
) -> Result<Vec<(String, AccessMetadata, Fields)>, RdbError> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut loader = RdbLoader::new(bytes, limits)?;
    let mut keys = Vec::new();
    while let Some(item) = loader.next_item()? {
        let RdbItem::Entry(entry) = item else { continue };
        let key = keyspace.key(entry.key);
        let mut slot = keyspace.lock(key.slot());
        let place = slot.table(0).insert(&key, entry.packed_value, entry.expiry);
        let mut fields = Fields::new();
        if let Value::Hash(hash) = slot.table(0).value(place) {
            hash.for_each(&mut |field| {
                fields.push((text(field.name), text(field.value), field.expiry.map(|Millis(at)| at)));
            });
        }
        drop(slot.table(0).remove(place, &key));
        keys.push((text(entry.key), entry.access_metadata, fields));
    }
    Ok(keys)
}

/// The access metadata that the eviction policy needs is written for each key and read back unchanged.
#[test]
fn access_metadata_round_trips() {
    let now = Millis(1_700_000_000_000);
    let said = |uses: UsageFormat, usage: Usage| {
        let options = WriteOptions { usage_format: uses, ..WriteOptions::default() };
        let mut writer = RdbWriter::new(Vec::new(), options, &rdb_info()).unwrap();
        let value = SnapshotValue::Whole(Value::String(StringRef {
            bytes: b"v",
            encoding_hint: EncodingHint::ByContent,
        }));
        writer
            .write_entry(&SnapshotEntry { db: 0, key: b"k", value, expiry: None, usage }, |_| (1, 0))
            .unwrap();
        let bytes = writer.finish().unwrap();
        stored_fields(&keyspace::Keyspace::new(1, 1), &bytes, ReadLimits::default()).unwrap()[0].1
    };
    let settings = LfuSettings { log_factor: 10, decay_minutes: 1 };
    assert_eq!(said(UsageFormat::None, Usage::with_idle_time(now, 7)), AccessMetadata::default());
    let idle = AccessMetadata { idle_seconds: Some(7000), frequency: None };
    assert_eq!(said(UsageFormat::Idle(now), Usage::with_idle_time(now, 7000)), idle);
    let often = AccessMetadata { idle_seconds: None, frequency: Some(198) };
    let later = Millis(now.0 + 120_000);
    assert_eq!(said(UsageFormat::Frequency(later, settings), Usage::with_frequency(now, 200)), often);
}

#[test]
fn all_hash_encodings_and_access_metadata_are_read() {
    let keyspace = keyspace::Keyspace::new(1, 1);
    let read = stored_fields(&keyspace, &file_with_every_encoding(), ReadLimits::default()).unwrap();
    let used = [
        AccessMetadata::default(),
        AccessMetadata { idle_seconds: Some(100), frequency: None },
        AccessMetadata { idle_seconds: None, frequency: Some(42) },
    ];
    for (number, (key, said, fields)) in read.iter().enumerate() {
        assert_eq!((key.as_str(), *said), (number.to_string().as_str(), used[number % 3]));
        let time = (number >= 5).then_some(1007);
        let expected = [("a".to_owned(), "1".to_owned(), time), ("b".to_owned(), "2".to_owned(), None)];
        assert_eq!(fields.as_slice(), if number == 0 { &[][..] } else { &expected[..] }, "{key}");
    }
    assert_eq!(read.len(), 8);
}

/// With the checksum, every changed byte causes an error. Without it, no change causes a panic, and every error has a
/// position within the file.
#[test]
fn corrupted_hash_encodings_never_panic() {
    let keyspace = keyspace::Keyspace::new(1, 1);
    let bytes = file_with_every_encoding();
    let unchecked = ReadLimits { verify_checksum: false, ..ReadLimits::default() };
    for at in 0..bytes.len() {
        let cut = stored_fields(&keyspace, &bytes[..at], ReadLimits::default()).unwrap_err();
        assert_eq!(cut, RdbError { offset: at as u64, reason: RdbErrorReason::UnexpectedEnd });
        for value in 0..=u8::MAX {
            let mut wrong = bytes.clone();
            wrong[at] = value;
            // Files before version 5 have no checksum.
            let version: Option<u16> =
                std::str::from_utf8(&wrong[5..9]).ok().and_then(|text| text.parse().ok());
            if wrong != bytes && version.is_none_or(|version| version >= 5) {
                let error = stored_fields(&keyspace, &wrong, ReadLimits::default())
                    .expect_err("the checksum sees every change");
                assert!(error.offset <= bytes.len() as u64);
            }
            if let Err(error) = stored_fields(&keyspace, &wrong, unchecked) {
                assert!(error.offset <= bytes.len() as u64);
            }
        }
    }
}
