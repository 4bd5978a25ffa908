//! Measures what a snapshot costs while one writer overwrites random keys as fast as it can: how long all slots are
//! locked, the peak memory overhead, by how much the writer slows down, and its longest wait.
//!
//! `cargo run --release -p keyspace --example snapshot [keys]`; with `hash` as the second argument, the writer updates
//! one hash that has `keys` fields.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clock::Millis;
use keyspace::{
    EncodingLimits, Field, KeyLookup, Keyspace, Kind, PackedValue, PartElements, SnapshotValue, Value,
    ValuePart, pool_usage,
};
use slot_routing::Slot;

fn set(keyspace: &Keyspace, name: &[u8], value: &[u8]) {
    let key = keyspace.key(name);
    let mut guard = keyspace.lock(key.slot());
    let table = guard.table(0);
    match table.find(&key, Millis(0)) {
        KeyLookup::Missing => drop(table.insert(&key, PackedValue::string(value), None)),
        KeyLookup::Live(place) | KeyLookup::Expired(place) => {
            drop(table.replace(place, &key, PackedValue::string(value), None));
        }
    }
}

fn hset(keyspace: &Keyspace, name: &[u8], value: &[u8]) {
    let key = keyspace.key(b"the one hash");
    let mut guard = keyspace.lock(key.slot());
    let table = guard.table(0);
    let place = match table.find(&key, Millis(0)) {
        KeyLookup::Missing => table.insert(&key, PackedValue::empty(Kind::Hash), None),
        KeyLookup::Live(place) | KeyLookup::Expired(place) => place,
    };
    table.hash_set(place, &key, Field { name, value, expiry: None }, EncodingLimits::default().hash);
}

#[derive(Default)]
struct Writer {
    stop: AtomicBool,
    commands_done: AtomicU64,
    /// Duration of the writer's slowest command in microseconds.
    longest_command: AtomicUsize,
}

impl Writer {
    fn run(&self, keyspace: &Keyspace, keys: u64, write: fn(&Keyspace, &[u8], &[u8])) {
        let mut random = 88_172_645_463_325_252u64;
        while !self.stop.load(Ordering::Relaxed) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let name = format!("{:016}", random % keys);
            let start = Instant::now();
            write(keyspace, name.as_bytes(), &[b'w'; 32]);
            self.longest_command.fetch_max(start.elapsed().as_micros() as usize, Ordering::Relaxed);
            self.commands_done.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the writer's throughput in millions of writes per second while `work` runs, its longest wait, and the
    /// result of `work`.
    fn writes_per_second<R>(&self, work: impl FnOnce() -> R) -> (f64, usize, R) {
        self.longest_command.store(0, Ordering::Relaxed);
        let (before, start) = (self.commands_done.load(Ordering::Relaxed), Instant::now());
        let result = work();
        let done = self.commands_done.load(Ordering::Relaxed) - before;
        (
            done as f64 / start.elapsed().as_micros() as f64,
            self.longest_command.load(Ordering::Relaxed),
            result,
        )
    }
}

/// Measures for how long a slot is locked when a second snapshot reaches a large value that the first one still pins.
/// Two strategies are compared: to pin the value again, and to write it out for the first snapshot at once.
fn measure_second_pin(keyspace: &Arc<Keyspace>) -> (Duration, Duration) {
    let longest = |step: &mut dyn FnMut(Slot)| {
        let timed = Slot::all().map(|slot| {
            let start = Instant::now();
            step(slot);
            start.elapsed()
        });
        timed.max().expect("there are slots")
    };
    let (mut first, ()) =
        keyspace.prepare_snapshot().take(&keyspace.acquire_global_lock(), || ()).expect("no other snapshot");
    longest(&mut |slot| drop(keyspace.lock(slot)));
    let (second, ()) =
        keyspace.prepare_snapshot().take(&keyspace.acquire_global_lock(), || ()).expect("only one other");
    let pinned = longest(&mut |slot| drop(keyspace.lock(slot)));
    let written = longest(&mut |slot| first.walk(slot, &mut |_| {}));
    drop(second);
    (pinned, written)
}

fn main() {
    let keys: u64 = std::env::args().nth(1).and_then(|keys| keys.parse().ok()).unwrap_or(4_000_000);
    let write = if std::env::args().nth(2).as_deref() == Some("hash") { hset } else { set };
    let keyspace = Arc::new(Keyspace::new(1, 16));
    (0..keys).for_each(|number| write(&keyspace, format!("{number:016}").as_bytes(), &[b'v'; 32]));
    let writer = Arc::new(Writer::default());
    let handle = {
        let (keyspace, writer) = (keyspace.clone(), writer.clone());
        std::thread::spawn(move || writer.run(&keyspace, keys, write))
    };
    let (alone, longest_alone, ()) = writer.writes_per_second(|| std::thread::sleep(Duration::from_secs(1)));
    let before = pool_usage().used_bytes;
    let (during, longest, (held, peak, visited, took)) = writer.writes_per_second(|| {
        let ready = keyspace.prepare_snapshot();
        let start = Instant::now();
        let (mut snapshot, ()) =
            ready.take(&keyspace.acquire_global_lock(), || ()).expect("no other snapshot");
        let held = start.elapsed();
        let (mut peak, mut visited) = (0, 0);
        let mut out: Vec<u8> = Vec::new();
        for slot in Slot::all() {
            snapshot.walk(slot, &mut |entry| {
                out.clear();
                out.extend_from_slice(entry.key);
                match entry.value {
                    SnapshotValue::Whole(Value::String(string)) => {
                        out.extend_from_slice(string.bytes);
                        visited += 1;
                    }
                    SnapshotValue::Part(ValuePart { elements: PartElements::Hash(part), .. }) => part
                        .for_each(&mut |field| {
                            out.extend_from_slice(field.value);
                            visited += 1;
                        }),
                    _ => {}
                }
            });
            peak = peak.max(pool_usage().used_bytes);
        }
        (held, peak, visited, start.elapsed())
    });
    writer.stop.store(true, Ordering::Relaxed);
    handle.join().expect("the writer does not panic");
    assert_eq!(visited, keys);
    println!(
        "{keys} keys or fields: cut {held:?}, walk {took:?}, peak memory +{:.1} %",
        (peak.saturating_sub(before)) as f64 * 100.0 / before as f64
    );
    println!(
        "writer: {alone:.2} million a second alone (longest wait {longest_alone} us), {during:.2} during ({longest} us)"
    );
    let (pinned, written) = measure_second_pin(&keyspace);
    println!(
        "a second snapshot meets a slot: held {pinned:?} to pin it again, {written:?} to write it out instead"
    );
}
