//! Runs one command again and again through the whole path of the engine, without sockets: parsed from
//! a read buffer, prepared in a batch of sixteen, run, its reply written. For counting instructions
//! (`scripts/bench-instructions`) and for profiling.
//!
//! Usage: `command_path COMMAND BATCHES`

use clock::Millis;
use engine::{Engine, Flow, NoLog, Origin, Session};
use keyspace::Keyspace;
use resp::{Batch, Limits, Parser, encode_request};

const KEYS: usize = 20_000;
const PIPELINE: usize = 16;
const NOW: Millis = Millis(1_700_000_000_000);

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
        eprintln!("usage: command_path COMMAND BATCHES");
        std::process::exit(2);
    };
    let engine = Engine::new(Keyspace::new(1, 16), None, Box::new(NoLog));
    let mut worker = engine.worker(|| 0);
    let mut session = Session::new(1, Origin::Client, true);
    let (mut batch, mut parser, mut out) = (Batch::default(), Parser::new(), Vec::new());
    let mut run = |buffer: &mut [u8]| {
        batch.clear();
        out.clear();
        let parsed = parser.parse(buffer, &mut batch, &Limits::default());
        assert_eq!((parsed.consumed, parsed.error), (buffer.len(), None));
        let (_, flow) = engine.run(&mut worker, &mut session, NOW, buffer, &batch, 0, &mut out);
        assert_eq!(flow, Flow::Done);
        assert_ne!(out.first(), Some(&b'-'), "{}", String::from_utf8_lossy(&out));
    };
    // Any order will do that is not the order of the slots.
    let mut order = (0..).map(|n: usize| n.wrapping_mul(7919) % KEYS);
    for n in 0..KEYS {
        for command in ["set", if command.starts_with('h') { "hset" } else { "set" }] {
            run(&mut encoded(&request(command, n)));
        }
    }
    let mut buffers: Vec<Vec<u8>> = (0..KEYS / PIPELINE)
        .map(|_| order.by_ref().take(PIPELINE).flat_map(|n| encoded(&request(&command, n))).collect())
        .collect();
    let count = buffers.len();
    for number in 0..batches {
        run(&mut buffers[number % count]);
    }
}

fn encoded(words: &[String]) -> Vec<u8> {
    let mut wire = Vec::new();
    encode_request(&mut wire, words.iter().map(String::as_bytes).collect::<Vec<_>>());
    wire
}
