//! The path of a command allocates nothing: from the bytes of a read to the bytes of the reply.
//!
//! A counting allocator is in place for this whole program, so it holds one test only.

mod path;

use path::{PIPELINE, Path, encoded};

#[global_allocator]
static COUNTING: dhat::Alloc = dhat::Alloc;

fn pipeline(line: &str) -> Vec<u8> {
    encoded(&line.split(' ').collect::<Vec<_>>()).repeat(PIPELINE)
}

#[test]
fn common_commands_allocate_nothing() {
    let _counting = dhat::Profiler::builder().testing().build();
    let mut path = Path::new();
    // Each line once to set things up (the entry, its time, the scratch buffers), then counted.
    let lines = [
        "set key value-of-32-bytes-000000000000000",
        "get key",
        "get missing",
        "expire key 1000",
        "incr counter",
        "hset hash field value-of-32-bytes-000000000000000",
        "hget hash field",
        "hget hash missing",
        "hset large field:77 value-of-32-bytes-000000000000000",
        "hget large field:77",
        "ping",
    ];
    // A hash that is no longer packed.
    for field in 0..1000 {
        path.run(&mut pipeline(&format!("hset large field:{field} value-of-32-bytes-111111111111111")));
    }
    for line in lines {
        let mut buffer = pipeline(line);
        path.run(&mut buffer);
        let before = dhat::HeapStats::get().total_blocks;
        path.run(&mut buffer);
        let blocks = dhat::HeapStats::get().total_blocks - before;
        assert_eq!(blocks, 0, "{PIPELINE} times '{line}' allocated {blocks} blocks");
    }
}
