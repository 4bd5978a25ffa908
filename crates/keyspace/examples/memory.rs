//! Resident bytes per key, for the rows of the memory table in docs/keyspace.md.
//!
//! `cargo run --release -p keyspace --example memory [keys]`: each row in a process of its own.

use std::process::Command;

use clock::Millis;
use keyspace::{Keyspace, NewValue, pool_use};

/// Name, bytes of key, bytes of value, whether it expires.
const ROWS: &[(&str, usize, usize, bool)] = &[
    ("string 16+32", 16, 32, false),
    ("string 16+32 with a TTL", 16, 32, true),
    ("string 10+8", 10, 8, false),
    ("string 20+300", 20, 300, false),
    ("string 20+3000", 20, 3000, false),
];

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: usize = status.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
    pages * 4096
}

fn key(number: u64, len: usize) -> Vec<u8> {
    format!("{number:0len$}").into_bytes()
}

fn measure(row: usize, keys: u64) {
    let (name, key_len, value_len, expires) = ROWS[row];
    let value = vec![b'v'; value_len];
    let before_all = resident();
    let keyspace = Keyspace::new(1, 16);
    let before = resident();
    for number in 0..keys {
        let bytes = key(number.wrapping_mul(0x9e37_79b1) % 10_000_000_000, key_len);
        let key = keyspace.key(&bytes);
        let expiry = expires.then(|| Millis(1_700_000_000_000 + number as i64));
        let _ = keyspace.lock(key.slot()).table(0).insert(&key, NewValue::string(&value), expiry);
    }
    let grown = resident() - before;
    println!(
        "{name:26} {keys:9} keys  {:6.1} resident  {:6.1} taken from the pool  (empty {} KB)",
        grown as f64 / keys as f64,
        pool_use().taken as f64 / keys as f64,
        (before - before_all) / 1024,
    );
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    match args.as_slice() {
        [_, row, keys] => measure(row.parse().expect("a row"), keys.parse().expect("a number")),
        _ => {
            let keys = args.get(1).map_or("2000000", String::as_str);
            for row in 0..ROWS.len() {
                let keys = if row == 4 { "200000" } else { keys };
                let this = std::env::current_exe().expect("an executable");
                Command::new(this).args([&row.to_string(), keys]).status().expect("it runs again");
            }
        }
    }
}
