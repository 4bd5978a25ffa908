//! Runs one command again and again through the whole path of the engine, without sockets: parsed from
//! a read buffer, prepared in a batch of sixteen, run, its reply written. For counting instructions
//! (`scripts/bench-instructions`) and for profiling.
//!
//! Usage: `command_path COMMAND BATCHES [KEYS]`

use std::time::Instant;

#[path = "../tests/path/mod.rs"]
mod path;

use path::{PIPELINE, Path, encoded};

/// Few enough that valgrind is soon done.
const KEYS: usize = 20_000;

/// The words of the command for key number `n`; the key and its slot differ from one to the next.
fn request(command: &str, n: usize) -> Vec<String> {
    let key = format!("key:{n:012}");
    let value = "v".repeat(32);
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
    let keys = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(KEYS);
    let mut path = Path::new();
    // Any order will do that is not the order of the slots.
    let mut order = (0..).map(|n: usize| n.wrapping_mul(7919) % keys);
    for n in 0..keys {
        path.run(&mut encoded(&request("set", n)));
        if command.starts_with('h') {
            path.run(&mut encoded(&request(if command == "hget" { "hset" } else { &command }, n)));
        }
    }
    let mut buffers: Vec<Vec<u8>> = (0..keys / PIPELINE)
        .map(|_| order.by_ref().take(PIPELINE).flat_map(|n| encoded(&request(&command, n))).collect())
        .collect();
    let count = buffers.len();
    let start = Instant::now();
    for number in 0..batches {
        path.run(&mut buffers[number % count]);
    }
    println!("{:.1} ns a command", start.elapsed().as_nanos() as f64 / (batches * PIPELINE) as f64);
}
