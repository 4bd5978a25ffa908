//! A hostile payload of RESTORE with a valid checksum: an error or a value, and memory that the payload's own length
//! bounds.
//!
//! A counting allocator is in place for this whole program, so it holds one test only.

mod mutation;

use mutation::{mutated, seeds};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

#[global_allocator]
static COUNTING: dhat::Alloc = dhat::Alloc;

/// Three bytes of a compressed string may stand for 264; an element of two bytes in a listpack is told by 32 while it is
/// read; both once more where what is read is put together.
const TIMES: usize = 300;
/// The bytes that reading takes for any payload.
const ALWAYS: usize = 256 << 10;
const ROUNDS: usize = 4000;

#[test]
fn a_hostile_payload_takes_memory_by_its_own_length() {
    let (seeds, mut random) = (seeds("seeds/restore"), ChaCha8Rng::seed_from_u64(1));
    let (mut read, mut refused) = (0, 0);
    for _ in 0..ROUNDS {
        let payload = fuzz::restore::payload(&mutated(&mut random, &seeds));
        let counting = dhat::Profiler::builder().testing().build();
        match fuzz::restore::read(&payload) {
            true => read += 1,
            false => refused += 1,
        }
        let most = dhat::HeapStats::get().max_bytes;
        drop(counting);
        assert!(most <= ALWAYS + TIMES * payload.len(), "{most} bytes for {}: {payload:02x?}", payload.len());
    }
    println!("{read} read, {refused} refused");
    assert!(read > ROUNDS / 50 && refused > ROUNDS / 5, "{read} read, {refused} refused");
}
