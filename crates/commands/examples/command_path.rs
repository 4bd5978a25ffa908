//! Runs one command repeatedly through the whole engine without sockets: parse from a read buffer, prepare in a batch
//! of sixteen, execute, write the reply. Used for counting instructions (`scripts/bench-instructions`) and for
//! profiling.
//!
//! Usage: `command_path COMMAND BATCHES [KEYS]`

use std::time::Instant;

#[path = "../tests/path/mod.rs"]
mod path;

use path::{CommandPath, PIPELINE_LEN, encode_words};

/// A typical lock script: four or five commands on one key.
const LOCK_SCRIPT: &str = "local owner = redis.call('hget', KEYS[1], ARGV[1])
if not owner then
  if redis.call('exists', KEYS[1]) == 1 then
    return redis.call('pttl', KEYS[1])
  end
end
redis.call('hincrby', KEYS[1], ARGV[1], 1)
redis.call('pexpire', KEYS[1], ARGV[2])
redis.call('hincrby', KEYS[1], ARGV[1], -1)
return nil";

/// The default number of keys, small enough that a run under valgrind ends soon.
const DEFAULT_KEY_COUNT: usize = 20_000;

/// The arguments of the command for a key. Consecutive key numbers give different keys in different slots.
fn build_request(command: &str, key_number: usize) -> Vec<String> {
    let key = format!("key:{key_number:012}");
    let value = "v".repeat(32);
    if command == "evalsha" {
        let sha = String::from_utf8_lossy(&scripting::sha1_hex(LOCK_SCRIPT.as_bytes())).into_owned();
        let words = ["evalsha", &sha, "1", &format!("lock:{key}"), "owner:1", "30000"];
        return words.map(str::to_owned).to_vec();
    }
    let words: &[&str] = match command {
        "get" => &["get", &key],
        "set" => &["set", &key, &value],
        "incr" => &["incr", "counter:{a}"],
        "expire" => &["expire", &key, "1000"],
        "hget" => &["hget", &format!("hash:{key}"), "field"],
        "hset" => &["hset", &format!("hash:{key}"), "field", &value],
        "hset-large" => &["hset", "hash", &key, &value],
        "ping" => &["ping"],
        other => panic!("no such command in this bench: {other}"),
    };
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (command, batches) = (arguments.next(), arguments.next());
    let (Some(command), Some(batches)) = (command, batches.and_then(|text| text.parse::<usize>().ok()))
    else {
        eprintln!("usage: command_path COMMAND BATCHES [KEYS]");
        std::process::exit(2);
    };
    let keys = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(DEFAULT_KEY_COUNT);
    let mut path = CommandPath::new();
    // The key order must differ from slot order; any permutation that does is suitable.
    let mut order = (0..).map(|n: usize| n.wrapping_mul(7919) % keys);
    path.run(&mut encode_words(&["script", "load", LOCK_SCRIPT]));
    for n in 0..keys {
        path.run(&mut encode_words(&build_request("set", n)));
        if command.starts_with('h') || command == "evalsha" {
            path.run(&mut encode_words(&build_request(if command == "hget" { "hset" } else { &command }, n)));
        }
    }
    let mut buffers: Vec<Vec<u8>> = (0..keys / PIPELINE_LEN)
        .map(|_| {
            order
                .by_ref()
                .take(PIPELINE_LEN)
                .flat_map(|n| encode_words(&build_request(&command, n)))
                .collect()
        })
        .collect();
    let count = buffers.len();
    let start = Instant::now();
    for number in 0..batches {
        path.run(&mut buffers[number % count]);
    }
    println!("{:.1} ns a command", start.elapsed().as_nanos() as f64 / (batches * PIPELINE_LEN) as f64);
}
