//! Compares the hit ratios of the eviction policies with those of a Redis server that holds as many keys, under
//! Zipf-distributed accesses and a scan. `EVICTION_SECONDS` sets the duration; `scripts/bench-eviction` prints the
//! results.

use std::time::{Duration, Instant};

use harness::{Connection, Node, Program, Reply};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The total number of keys, of which about [`RESIDENT_KEYS`] fit into the cache.
const KEY_COUNT: usize = 200_000;
const RESIDENT_KEYS: i64 = 20_000;
/// Every fourth access is part of a scan of keys that are not accessed otherwise.
const SCAN_INTERVAL: usize = 4;
const ZIPF_EXPONENT: f64 = 0.99;
const BATCH_SIZE: usize = 100;
const BATCHES_PER_SECOND: u32 = 250;
const VALUE_LEN: usize = 200;

const MAX_ATTEMPTS: usize = 3;

fn measurement_seconds() -> u32 {
    std::env::var("EVICTION_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(10)
}

/// Sends all commands in one write and reads their replies.
fn run_pipeline(connection: &mut Connection, commands: impl Iterator<Item = Vec<String>>) -> Vec<Reply> {
    let (mut wire, mut count) = (String::new(), 0);
    for command in commands {
        wire += &format!("*{}\r\n", command.len());
        command.iter().for_each(|word| wire += &format!("${}\r\n{word}\r\n", word.len()));
        count += 1;
    }
    connection.send_raw(wire.as_bytes()).expect("sent");
    (0..count).map(|_| connection.read().expect("a reply")).collect()
}

fn set_command(key: &str) -> Vec<String> {
    vec!["SET".to_owned(), key.to_owned(), "v".repeat(VALUE_LEN)]
}

fn used_memory(node: &Node) -> i64 {
    node.info("memory", "used_memory").and_then(|text| text.parse().ok()).expect("it is there")
}

/// Starts a server whose memory limit keeps about [`RESIDENT_KEYS`] keys under `policy`.
fn start_cache(program: &Program, policy: &str) -> Node {
    let node = Node::start(program, &format!("--save  --maxmemory-policy {policy}"));
    let mut connection = node.connect();
    let empty = used_memory(&node);
    for chunk in (0..RESIDENT_KEYS).collect::<Vec<_>>().chunks(BATCH_SIZE) {
        run_pipeline(&mut connection, chunk.iter().map(|n| set_command(&format!("z{n:06}"))));
    }
    let each = (used_memory(&node) - empty) / RESIDENT_KEYS;
    let mut limit = used_memory(&node);
    // The server's memory overhead depends on its history, so the limit is adjusted until [`RESIDENT_KEYS`] keys fit.
    for round in 0..6 {
        connection.call_line(&format!("CONFIG SET maxmemory {limit}")).expect_ok();
        for chunk in (0..RESIDENT_KEYS * 2).collect::<Vec<_>>().chunks(BATCH_SIZE) {
            run_pipeline(&mut connection, chunk.iter().map(|n| set_command(&format!("w{round}{n:06}"))));
        }
        limit += (RESIDENT_KEYS - connection.call_line("DBSIZE").int()) * each;
    }
    connection.call_line(&format!("CONFIG SET maxmemory {limit}")).expect_ok();
    node
}

/// Reads keys and stores the missing ones at a fixed rate, because the policies measure ages in seconds. Returns the
/// hit ratio of the second half and the final number of keys.
fn measure_hit_ratio(node: &Node) -> (f64, i64) {
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=KEY_COUNT)
        .map(|rank| {
            sum += (rank as f64).powf(-ZIPF_EXPONENT);
            sum
        })
        .collect();
    let (mut random, mut connection) = (ChaCha8Rng::seed_from_u64(7), node.connect());
    let (begin, batches, mut scanned) = (Instant::now(), measurement_seconds() * BATCHES_PER_SECOND, 0);
    let (mut hits, mut asked) = (0, 0);
    for batch in 0..batches {
        let keys: Vec<String> = (0..BATCH_SIZE)
            .map(|number| {
                if number % SCAN_INTERVAL == 0 {
                    scanned += 1;
                    return format!("s{scanned:06}");
                }
                let at = random.random::<f64>() * sum;
                format!("z{:06}", sums.partition_point(|sum| *sum < at))
            })
            .collect();
        let got = run_pipeline(&mut connection, keys.iter().map(|key| vec!["GET".to_owned(), key.clone()]));
        let missed: Vec<&String> = keys
            .iter()
            .zip(&got)
            .filter(|(_, value)| matches!(value, Reply::NullBulk))
            .map(|(key, _)| key)
            .collect();
        if batch * 2 >= batches {
            hits += BATCH_SIZE - missed.len();
            asked += BATCH_SIZE;
        }
        run_pipeline(&mut connection, missed.iter().map(|key| set_command(key)));
        std::thread::sleep(
            (begin + (batch + 1) * Duration::from_secs(1) / BATCHES_PER_SECOND)
                .saturating_duration_since(Instant::now()),
        );
    }
    (hits as f64 / asked as f64, connection.call_line("DBSIZE").int())
}

/// Runs Redoubt and Redis at the same time. The memory overhead may change after the limit was set if the machine is
/// busy. If the numbers of keys differ too much, the comparison is invalid and is repeated.
fn compare_with_redis(policy: &str) -> [(f64, i64); 2] {
    let attempt = || {
        std::thread::scope(|scope| {
            let runs = [Program::redoubt(), Program::redis()]
                .map(|program| scope.spawn(move || measure_hit_ratio(&start_cache(&program, policy))));
            runs.map(|run| run.join().expect("a result"))
        })
    };
    let mut found = attempt();
    for _ in 1..MAX_ATTEMPTS {
        if have_similar_key_counts(found[0].1, found[1].1) {
            break;
        }
        found = attempt();
    }
    found
}

fn have_similar_key_counts(our_count: i64, their_count: i64) -> bool {
    (our_count - their_count).abs() * 20 < RESIDENT_KEYS
}

#[test]
fn hit_ratio_matches_redis_with_equal_key_count() {
    let policies = ["allkeys-lru", "allkeys-lfu", "allkeys-random"];
    let found = std::thread::scope(|scope| {
        let runs = policies.map(|policy| scope.spawn(move || compare_with_redis(policy)));
        runs.map(|run| run.join().expect("a result"))
    });
    for (policy, [(ours, our_keys), (theirs, their_keys)]) in policies.iter().zip(found) {
        println!(
            "{policy}: {:.2} % of {our_keys} keys; Redis {:.2} % of {their_keys}",
            ours * 100.0,
            theirs * 100.0
        );
        assert!(have_similar_key_counts(our_keys, their_keys), "{policy}: {our_keys} and {their_keys} keys");
        assert!(ours > theirs - 0.02, "{policy}: hit ratio {ours:.4}, Redis {theirs:.4}");
    }
}
