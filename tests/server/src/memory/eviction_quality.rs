//! The keys left in a cache by `maxmemory-policy`, beside a real Redis that keeps as many keys: Zipf's accesses with a
//! scan through them. `EVICTION_SECONDS` makes it longer; `scripts/bench-eviction` prints what it finds.

use std::time::{Duration, Instant};

use harness::{Connection, Node, Program, Value};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// How many keys there are, and how many of them are to be in the cache.
const KEYS: usize = 200_000;
const RESIDENT: i64 = 20_000;
/// Every so many accesses one is the next of a scan through keys that no other access is to.
const SCAN_EVERY: usize = 4;
const SKEW: f64 = 0.99;
const BATCH: usize = 100;
const BATCHES_A_SECOND: u32 = 250;
const VALUE: usize = 200;

const ATTEMPTS: usize = 3;

fn seconds() -> u32 {
    std::env::var("EVICTION_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(10)
}

/// Sends commands together and reads their replies.
fn pipeline(connection: &mut Connection, commands: impl Iterator<Item = Vec<String>>) -> Vec<Value> {
    let (mut wire, mut count) = (String::new(), 0);
    for command in commands {
        wire += &format!("*{}\r\n", command.len());
        command.iter().for_each(|word| wire += &format!("${}\r\n{word}\r\n", word.len()));
        count += 1;
    }
    connection.send_raw(wire.as_bytes()).expect("sent");
    (0..count).map(|_| connection.read().expect("a reply")).collect()
}

fn set(key: &str) -> Vec<String> {
    vec!["SET".to_owned(), key.to_owned(), "v".repeat(VALUE)]
}

fn used(node: &Node) -> i64 {
    node.info("memory", "used_memory").and_then(|text| text.parse().ok()).expect("it is there")
}

/// A node that keeps [`RESIDENT`] keys under `policy`.
fn cache(program: &Program, policy: &str) -> Node {
    let node = Node::start(program, &format!("--save  --maxmemory-policy {policy}"));
    let mut connection = node.connect();
    let empty = used(&node);
    for chunk in (0..RESIDENT).collect::<Vec<_>>().chunks(BATCH) {
        pipeline(&mut connection, chunk.iter().map(|n| set(&format!("z{n:06}"))));
    }
    let each = (used(&node) - empty) / RESIDENT;
    let mut limit = used(&node);
    // The memory that the server needs besides depends on its history: the limit is brought to one that keeps so many.
    for round in 0..6 {
        connection.run(&format!("CONFIG SET maxmemory {limit}")).expect_ok();
        for chunk in (0..RESIDENT * 2).collect::<Vec<_>>().chunks(BATCH) {
            pipeline(&mut connection, chunk.iter().map(|n| set(&format!("w{round}{n:06}"))));
        }
        limit += (RESIDENT - connection.run("DBSIZE").int()) * each;
    }
    connection.run(&format!("CONFIG SET maxmemory {limit}")).expect_ok();
    node
}

/// Asks for keys, stores those that are not there, and says which part of the later half was there, and how many keys
/// are there at the end. At the same pace everywhere: ages are counted in seconds.
fn hit_ratio(node: &Node) -> (f64, i64) {
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=KEYS)
        .map(|rank| {
            sum += (rank as f64).powf(-SKEW);
            sum
        })
        .collect();
    let (mut random, mut connection) = (ChaCha8Rng::seed_from_u64(7), node.connect());
    let (begin, batches, mut scanned) = (Instant::now(), seconds() * BATCHES_A_SECOND, 0);
    let (mut hits, mut asked) = (0, 0);
    for batch in 0..batches {
        let keys: Vec<String> = (0..BATCH)
            .map(|number| {
                if number % SCAN_EVERY == 0 {
                    scanned += 1;
                    return format!("s{scanned:06}");
                }
                let at = random.random::<f64>() * sum;
                format!("z{:06}", sums.partition_point(|sum| *sum < at))
            })
            .collect();
        let got = pipeline(&mut connection, keys.iter().map(|key| vec!["GET".to_owned(), key.clone()]));
        let missed: Vec<&String> = keys
            .iter()
            .zip(&got)
            .filter(|(_, value)| matches!(value, Value::NullBulk))
            .map(|(key, _)| key)
            .collect();
        if batch * 2 >= batches {
            hits += BATCH - missed.len();
            asked += BATCH;
        }
        pipeline(&mut connection, missed.iter().map(|key| set(key)));
        std::thread::sleep(
            (begin + (batch + 1) * Duration::from_secs(1) / BATCHES_A_SECOND)
                .saturating_duration_since(Instant::now()),
        );
    }
    (hits as f64 / asked as f64, connection.run("DBSIZE").int())
}

/// Ours and Redis's, at the same time. The memory that a server needs besides its keys may change after its limit was
/// set, when other processes have the processor: a run that does not hold as many keys is no comparison, and is
/// repeated.
fn side_by_side(policy: &str) -> [(f64, i64); 2] {
    let attempt = || {
        std::thread::scope(|scope| {
            let runs = [Program::redoubt(), Program::redis()]
                .map(|program| scope.spawn(move || hit_ratio(&cache(&program, policy))));
            runs.map(|run| run.join().expect("a result"))
        })
    };
    let mut found = attempt();
    for _ in 1..ATTEMPTS {
        if are_as_many(found[0].1, found[1].1) {
            break;
        }
        found = attempt();
    }
    found
}

fn are_as_many(ours: i64, theirs: i64) -> bool {
    (ours - theirs).abs() * 20 < RESIDENT
}

#[test]
fn as_much_is_found_in_the_cache_as_in_a_redis_with_as_many_keys() {
    let policies = ["allkeys-lru", "allkeys-lfu", "allkeys-random"];
    let found = std::thread::scope(|scope| {
        let runs = policies.map(|policy| scope.spawn(move || side_by_side(policy)));
        runs.map(|run| run.join().expect("a result"))
    });
    for (policy, [(ours, our_keys), (theirs, their_keys)]) in policies.iter().zip(found) {
        println!(
            "{policy}: {:.2} % of {our_keys} keys; Redis {:.2} % of {their_keys}",
            ours * 100.0,
            theirs * 100.0
        );
        assert!(are_as_many(our_keys, their_keys), "{policy}: {our_keys} and {their_keys} keys");
        assert!(ours > theirs - 0.02, "{policy}: {ours:.4} of accesses were found, in Redis {theirs:.4}");
    }
}
