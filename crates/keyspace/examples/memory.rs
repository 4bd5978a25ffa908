//! Measures the resident bytes per key, for the memory table in docs/keyspace.md. Each row runs in its own process.
//!
//! `cargo run --release -p keyspace --example memory [percent of the keys]`

use std::process::Command;

use clock::Millis;
use keyspace::{EncodingLimits, Field, Key, Keyspace, Kind, PackedBuilder, PackedValue, Table, pool_usage};

#[derive(Clone, Copy)]
enum TestData {
    /// A string: key and value length in bytes, and whether the key has a TTL.
    String(usize, usize, bool),
    /// A hash of eleven fields, 282 bytes in total, including one value of 144 bytes.
    SmallHash,
    /// A hash with this many fields, each with a 14-byte name and a 75-byte value.
    Hash(usize),
}

/// Columns: name, the data of a key, number of keys in a full run, and fields per key, by which the bytes per key are
/// divided to get bytes per field.
const TEST_CASES: &[(&str, TestData, u64, usize)] = &[
    ("string 16+32", TestData::String(16, 32, false), 2_000_000, 1),
    ("string 16+32 with a TTL", TestData::String(16, 32, true), 2_000_000, 1),
    ("string 10+8", TestData::String(10, 8, false), 2_000_000, 1),
    ("string 20+300", TestData::String(20, 300, false), 1_000_000, 1),
    ("string 20+1000", TestData::String(20, 1000, false), 400_000, 1),
    ("string 20+3000", TestData::String(20, 3000, false), 200_000, 1),
    ("hash of 11 fields, 282 bytes", TestData::SmallHash, 1_000_000, 1),
    ("the same, fewer", TestData::SmallHash, 200_000, 1),
    ("hash of 200 fields, a field", TestData::Hash(200), 20_000, 200),
    ("hash of 2000000 fields, a field", TestData::Hash(2_000_000), 1, 2_000_000),
];

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: usize = status.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
    pages * 4096
}

fn key_name(number: u64, len: usize) -> Vec<u8> {
    format!("{number:0len$}").into_bytes()
}

fn fill_keyspace(table: &mut Table, key: &Key<'_>, data: TestData, number: u64) {
    match data {
        TestData::String(_, value, expires) => {
            let expiry = expires.then(|| Millis(1_700_000_000_000 + number as i64));
            let _ = table.insert(key, PackedValue::string(&vec![b'v'; value]), expiry);
        }
        TestData::SmallHash => {
            // Ten fields of 2 + 9 bytes (110 in total), one of 12 + 144 bytes, and a 16-byte key: 282 bytes.
            let mut hash = PackedBuilder::new(Kind::Hash);
            (0..10).for_each(|field| hash.push_field(format!("f{field}").as_bytes(), b"123456789", None));
            hash.push_field(b"long-field-0", &[b'v'; 144], None);
            hash.choose_encoding(&EncodingLimits::default());
            let _ = table.insert(key, hash.packed(), None);
        }
        TestData::Hash(fields) => {
            let mut place = table.insert(key, PackedValue::empty(Kind::Hash), None);
            for field in 0..fields {
                let name = format!("field-{field:08}");
                let field = Field { name: name.as_bytes(), value: &[b'v'; 75], expiry: None };
                place = table.hash_set(place, key, field, EncodingLimits::default().hash).0;
            }
        }
    }
}

fn measure_case(case_index: usize, keys: u64) {
    let (name, data, _, divide) = TEST_CASES[case_index];
    let key_len = if let TestData::String(len, ..) = data { len } else { 16 };
    let before_all = resident_bytes();
    let keyspace = Keyspace::new(1, 16);
    let before = resident_bytes();
    for number in 0..keys {
        let bytes = key_name(number.wrapping_mul(0x9e37_79b1) % 10_000_000_000, key_len);
        let key = keyspace.key(&bytes);
        fill_keyspace(keyspace.lock(key.slot()).table(0), &key, data, number);
    }
    let things = keys as usize * divide;
    println!(
        "{name:32} {keys:9} keys  {:6.1} resident  {:6.1} taken from the pool  (empty {} KB)",
        (resident_bytes() - before) as f64 / things as f64,
        pool_usage().used_bytes as f64 / things as f64,
        (before - before_all) / 1024,
    );
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    match args.as_slice() {
        [_, row, keys] => measure_case(row.parse().expect("a row"), keys.parse().expect("a number")),
        _ => {
            let percent: u64 = args.get(1).map_or(100, |percent| percent.parse().expect("a number"));
            for (row, (_, _, keys, _)) in TEST_CASES.iter().enumerate() {
                let keys = (keys * percent / 100).max(1).to_string();
                let this = std::env::current_exe().expect("an executable");
                Command::new(this).args([&row.to_string(), &keys]).status().expect("it runs again");
            }
        }
    }
}
