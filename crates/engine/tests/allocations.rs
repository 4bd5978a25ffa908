//! The path of a command allocates nothing: from the bytes of a read to the bytes of the reply.
//!
//! A counting allocator is in place for this whole program, so it holds one test only.

use clock::Millis;
use engine::{Engine, Flow, NoLog, Origin, Session};
use keyspace::Keyspace;
use resp::{Batch, Limits, Parser, Request, encode_request};

#[global_allocator]
static COUNTING: dhat::Alloc = dhat::Alloc;

const NOW: Millis = Millis(1_700_000_000_000);
const PIPELINE: usize = 16;

fn pipeline(line: &str) -> Vec<u8> {
    let request: Request = line.split(' ').collect();
    let mut wire = Vec::new();
    for _ in 0..PIPELINE {
        encode_request(&mut wire, request.args().iter());
    }
    wire
}

#[test]
fn common_commands_allocate_nothing() {
    let _counting = dhat::Profiler::builder().testing().build();
    let engine = Engine::new(Keyspace::new(1, 16), None, Box::new(NoLog));
    let mut worker = engine.worker(|| 0);
    let mut session = Session::new(1, Origin::Client, true);
    let (mut batch, mut parser) = (Batch::default(), Parser::new());
    let mut out = Vec::with_capacity(64 * 1024);
    let mut run = |buffer: &mut [u8]| {
        batch.clear();
        out.clear();
        let parsed = parser.parse(buffer, &mut batch, &Limits::default());
        assert_eq!((parsed.consumed, parsed.error), (buffer.len(), None));
        let (_, flow) = engine.run(&mut worker, &mut session, NOW, buffer, &batch, 0, &mut out);
        assert_eq!(flow, Flow::Done);
        assert_ne!(out.first(), Some(&b'-'), "{}", String::from_utf8_lossy(&out));
    };
    // Each line once to set things up (the entry, its time, the scratch buffers), then counted.
    let lines = [
        "set key value-of-32-bytes-000000000000000",
        "get key",
        "get missing",
        "expire key 1000",
        "incr counter",
        "ping",
    ];
    for line in lines {
        let mut buffer = pipeline(line);
        run(&mut buffer);
        let before = dhat::HeapStats::get().total_blocks;
        run(&mut buffer);
        let blocks = dhat::HeapStats::get().total_blocks - before;
        assert_eq!(blocks, 0, "{PIPELINE} times '{line}' allocated {blocks} blocks");
    }
}
