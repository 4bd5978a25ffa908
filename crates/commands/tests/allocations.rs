//! Checks that the execution of common commands allocates no memory, from the bytes read to the bytes of the reply.
//!
//! The counting allocator is global to this program, so the file has only one test.

mod path;

use path::{CommandPath, PIPELINE_LEN, encode_words};

#[global_allocator]
static COUNTING_ALLOCATOR: dhat::Alloc = dhat::Alloc;

fn encode_pipeline(line: &str) -> Vec<u8> {
    encode_words(&line.split(' ').collect::<Vec<_>>()).repeat(PIPELINE_LEN)
}

#[test]
fn common_commands_allocate_nothing() {
    let _counting = dhat::Profiler::builder().testing().build();
    let mut path = CommandPath::new();
    // Run each line once to create the entry and fill scratch buffers, then count.
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
    // The hash is large enough to be stored as a hash table.
    for field in 0..1000 {
        path.run(&mut encode_pipeline(&format!(
            "hset large field:{field} value-of-32-bytes-111111111111111"
        )));
    }
    for line in lines {
        let mut buffer = encode_pipeline(line);
        path.run(&mut buffer);
        let before = dhat::HeapStats::get().total_blocks;
        path.run(&mut buffer);
        let blocks = dhat::HeapStats::get().total_blocks - before;
        assert_eq!(blocks, 0, "{PIPELINE_LEN} times '{line}' allocated {blocks} blocks");
    }
}
