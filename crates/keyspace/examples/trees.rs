//! Measures the speed and memory of large lists and of the pending entries of consumer groups, which use the same tree
//! structure. Times are CPU times, the minimum over several rounds, to reduce noise from other work.
//!
//! `cargo run --release -p keyspace --example trees`

use clock::Millis;
use keyspace::{Group, Keyspace, ListEnd, ListLimit, Stream, StreamId, Table};

const LIMIT: ListLimit = ListLimit(-2);
const ELEMENT_COUNT: usize = 200_000;
const ROUNDS: usize = 7;

struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }
}

/// Returns the CPU time of this thread in nanoseconds.
fn cpu_time() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    stat.split(' ').next().and_then(|nanos| nanos.parse().ok()).expect("a number")
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: usize = status.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
    pages * 4096
}

/// The best time per operation of each step so far.
#[derive(Default)]
struct Times(Vec<(&'static str, f64)>);

impl Times {
    fn measure_step(&mut self, name: &'static str, count: usize, mut step: impl FnMut()) {
        let start = cpu_time();
        step();
        let each = (cpu_time() - start) as f64 / count as f64;
        match self.0.iter_mut().find(|(other, _)| *other == name) {
            Some((_, least)) => *least = least.min(each),
            None => self.0.push((name, each)),
        }
    }
}

fn measure_lists(times: &mut Times) {
    let keyspace = Keyspace::new(1, 16);
    let key = keyspace.key(b"list");
    let mut guard = keyspace.lock(key.slot());
    let table: &mut Table = guard.table(0);
    let (mut random, element) = (Rng(7), [b'e'; 75]);
    let one = || std::iter::once(&element[..]);
    let mut place = table.list_create(&key, ListEnd::Tail, one(), LIMIT);
    times.measure_step("list: push at the tail", ELEMENT_COUNT, || {
        (1..ELEMENT_COUNT).for_each(|_| place = table.list_push(place, &key, ListEnd::Tail, one(), LIMIT));
    });
    let get = |table: &Table, index| table.list(place).and_then(|list| list.get(index)).is_some();
    times.measure_step("list: get", ELEMENT_COUNT, || {
        assert!((0..ELEMENT_COUNT).all(|_| get(table, random.below(ELEMENT_COUNT))));
    });
    times.measure_step("list: visit 100", ELEMENT_COUNT / 10, || {
        for _ in 0..ELEMENT_COUNT / 10 {
            let mut seen = 0;
            let Some(list) = table.list(place) else { continue };
            list.visit_from(random.below(ELEMENT_COUNT - 100), &mut |_| {
                seen += 1;
                seen < 100
            });
            assert_eq!(seen, 100);
        }
    });
    times.measure_step("list: set", ELEMENT_COUNT, || {
        for _ in 0..ELEMENT_COUNT {
            place = table.list_set(place, &key, random.below(ELEMENT_COUNT), &element, LIMIT);
        }
    });
    times.measure_step("list: insert", ELEMENT_COUNT, || {
        for _ in 0..ELEMENT_COUNT {
            place = table.list_insert(place, &key, random.below(ELEMENT_COUNT), &element, LIMIT);
        }
    });
    for (name, end, count) in [
        ("list: pop at the head", ListEnd::Head, 1),
        ("list: pop at the tail", ListEnd::Tail, 1),
        ("list: pop ten", ListEnd::Head, 10),
    ] {
        times.measure_step(name, ELEMENT_COUNT / 2 / count, || {
            for _ in 0..ELEMENT_COUNT / 2 / count {
                place = table.list_remove_ends(place, &key, end, count, LIMIT).0;
            }
        });
    }
}

fn measure_pending(times: &mut Times) {
    let mut stream = Stream::default();
    stream.insert_group(b"group", Group::new(StreamId::MIN, None));
    let Some(group) = stream.group_mut(b"group") else { return };
    group.create_consumer(b"one", Millis(1));
    let Some(name) = group.consumer_name(b"one") else { return };
    let id = |number: usize| StreamId { millis: 1 + number as u64, sequence: 0 };
    let mut random = Rng(9);
    times.measure_step("pending: assign", ELEMENT_COUNT, || {
        (0..ELEMENT_COUNT).for_each(|number| group.assign(id(number), &name, Millis(number as i64), 1));
    });
    times.measure_step("pending: find", ELEMENT_COUNT, || {
        assert!((0..ELEMENT_COUNT).all(|_| group.pending(id(random.below(ELEMENT_COUNT))).is_some()));
    });
    times.measure_step("pending: assign again", ELEMENT_COUNT, || {
        for _ in 0..ELEMENT_COUNT {
            group.assign(id(random.below(ELEMENT_COUNT)), &name, Millis(1), 2);
        }
    });
    times.measure_step("pending: acknowledge", ELEMENT_COUNT, || {
        assert!((0..ELEMENT_COUNT).all(|number| group.acknowledge(id(number))));
    });
}

fn measure_bytes() {
    let keyspace = Keyspace::new(1, 16);
    let key = keyspace.key(b"list");
    let mut guard = keyspace.lock(key.slot());
    let table: &mut Table = guard.table(0);
    let (element, before, many) = ([b'e'; 75], resident_bytes(), 10 * ELEMENT_COUNT);
    let mut place = table.list_create(&key, ListEnd::Tail, std::iter::once(&element[..]), LIMIT);
    for _ in 1..many {
        place = table.list_push(place, &key, ListEnd::Tail, std::iter::once(&element[..]), LIMIT);
    }
    println!(
        "list of {many} elements of 75 bytes: {:.2} bytes each",
        (resident_bytes() - before) as f64 / many as f64
    );
}

fn main() {
    measure_bytes();
    let mut times = Times::default();
    for _ in 0..ROUNDS {
        measure_lists(&mut times);
        measure_pending(&mut times);
    }
    for (name, nanos) in times.0 {
        println!("{name}: {nanos:.0} ns");
    }
}
