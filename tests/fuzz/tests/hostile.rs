//! Checks that RESTORE of a hostile payload uses memory in proportion to the payload's length, whatever lengths the
//! payload claims.
//!
//! The counting allocator applies to the whole program, so this file has one test only.

mod mutation;

use mutation::{mutate_seeds, read_seeds};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// The maximum ratio of memory to payload length. Three bytes of compressed data can expand to 264 bytes, a listpack
/// element of two bytes takes 32 bytes while it is read, and both are copied once more.
const MAX_MEMORY_RATIO: usize = 300;
/// The memory used for any payload, in bytes.
const BASE_MEMORY_BYTES: usize = 256 << 10;
const ROUND_COUNT: usize = 4000;

#[test]
fn memory_use_of_restore_is_limited_by_the_payload_length() {
    let (seeds, mut random) = (read_seeds("seeds/restore"), ChaCha8Rng::seed_from_u64(1));
    let (mut read, mut refused) = (0, 0);
    for _ in 0..ROUND_COUNT {
        let payload = fuzz::restore::payload_with_trailer(&mutate_seeds(&mut random, &seeds));
        let counting = dhat::Profiler::builder().testing().build();
        match fuzz::restore::is_restorable(&payload) {
            true => read += 1,
            false => refused += 1,
        }
        let most = dhat::HeapStats::get().max_bytes;
        drop(counting);
        assert!(
            most <= BASE_MEMORY_BYTES + MAX_MEMORY_RATIO * payload.len(),
            "{most} bytes for {}: {payload:02x?}",
            payload.len()
        );
    }
    println!("{read} read, {refused} refused");
    assert!(read > ROUND_COUNT / 50 && refused > ROUND_COUNT / 5, "{read} read, {refused} refused");
}
