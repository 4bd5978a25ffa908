//! Measures GET and SET in process, one at a time and in prefetched batches, with one and two threads. All times are
//! CPU times, which other work on the machine disturbs less. The total for two threads is valid only if each thread has
//! its own core.
//!
//! `cargo run --release -p keyspace --example speed [keys]`

use std::sync::Arc;

use clock::Millis;
use keyspace::{Key, KeyLookup, Keyspace, PackedValue, Value};

const BATCH: usize = 16;

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

fn get(keyspace: &Keyspace, key: &Key<'_>) -> usize {
    let mut guard = keyspace.lock(key.slot());
    let table = guard.table(0);
    match table.find(key, Millis(0)) {
        KeyLookup::Live(place) => match table.value(place) {
            Value::String(string) => usize::from(string.bytes[0]),
            _ => 0,
        },
        _ => 0,
    }
}

fn set(keyspace: &Keyspace, key: &Key<'_>, value: &[u8]) {
    let mut guard = keyspace.lock(key.slot());
    let table = guard.table(0);
    match table.find(key, Millis(0)) {
        KeyLookup::Missing => drop(table.insert(key, PackedValue::string(value), None)),
        KeyLookup::Live(place) | KeyLookup::Expired(place) => {
            drop(table.replace(place, key, PackedValue::string(value), None));
        }
    }
}

/// Returns the CPU time of this thread in nanoseconds.
fn cpu_time() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    stat.split(' ').next().and_then(|nanos| nanos.parse().ok()).expect("a number")
}

/// Runs `count` commands on random keys and returns the nanoseconds per command.
fn run(keyspace: &Keyspace, keys: u64, count: usize, sweeps: bool, write: bool, seed: u64) -> f64 {
    let mut random = Rng(seed);
    let mut batch: Vec<[u8; 16]> = vec![[0; 16]; BATCH];
    let value = [b'w'; 32];
    let mut sum = 0;
    let start = cpu_time();
    for _ in 0..count / BATCH {
        for key in &mut batch {
            write_key(key, random.next() % keys);
        }
        let hashed: [Key<'_>; BATCH] = std::array::from_fn(|index| keyspace.key(&batch[index]));
        if sweeps {
            hashed.iter().for_each(|key| keyspace.prefetch_slot(key));
            keyspace.prefetch_entries(0, hashed.iter());
        }
        for key in &hashed {
            if write {
                set(keyspace, key, &value);
            } else {
                sum += get(keyspace, key);
            }
        }
    }
    let elapsed = cpu_time() - start;
    assert!(write || sum > 0);
    elapsed as f64 / count as f64
}

fn write_key(key: &mut [u8; 16], mut number: u64) {
    for digit in key.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

fn run_threads(keyspace: &Arc<Keyspace>, keys: u64, count: usize, write: bool, threads: usize) -> f64 {
    let handles: Vec<_> = (0..threads)
        .map(|thread| {
            let keyspace = keyspace.clone();
            std::thread::spawn(move || run(&keyspace, keys, count, true, write, 99 + thread as u64))
        })
        .collect();
    handles.into_iter().map(|handle| 1000.0 / handle.join().expect("no panic")).sum()
}

fn main() {
    let keys: u64 = std::env::args().nth(1).and_then(|keys| keys.parse().ok()).unwrap_or(2_000_000);
    let keyspace = Arc::new(Keyspace::new(1, 16));
    let start = cpu_time();
    let mut key = [0; 16];
    for number in 0..keys {
        write_key(&mut key, number);
        set(&keyspace, &keyspace.key(&key), &[b'v'; 32]);
    }
    println!("{keys} keys of 16 + 32 bytes; insert {:.0} ns", (cpu_time() - start) as f64 / keys as f64);
    let count = 8_000_000;
    for (name, write) in [("GET", false), ("SET", true)] {
        let single = run(&keyspace, keys, count, false, write, 7);
        let swept = run(&keyspace, keys, count, true, write, 8);
        println!(
            "{name}: {single:.0} ns one by one, {swept:.0} ns in batches of {BATCH}, {:.1} times",
            single / swept
        );
    }
    for (name, write) in [("GET", false), ("SET", true)] {
        let one = run_threads(&keyspace, keys, count, write, 1);
        let two = run_threads(&keyspace, keys, count, write, 2);
        println!(
            "{name}: one thread {one:.1}, two threads {two:.1} million a second, {:.2} times",
            two / one
        );
    }
}
