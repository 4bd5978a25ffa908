//! Checks that readers of RDB files and AOFs use memory in proportion to the bytes that they read, whatever lengths a
//! file claims.

use std::path::Path;

use persistence::aof::check_aof;
use persistence::{RdbLoader, ReadLimits};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// The memory that a reader uses for any input, in bytes: its buffers, and one chunk of a large value.
const BASE_MEMORY_BYTES: usize = 1 << 20;
/// The maximum ratio of memory to file length: compressed strings expand to at most 88 times their length and are held
/// twice.
const MAX_MEMORY_RATIO: usize = 200;
const ROUND_COUNT: usize = 3000;

fn peak_heap_bytes(run: impl FnOnce()) -> usize {
    let profiler = dhat::Profiler::builder().testing().build();
    run();
    let most = dhat::HeapStats::get().max_bytes;
    drop(profiler);
    most
}

fn load_rdb(file: &[u8]) {
    let limits = ReadLimits { verify_checksum: false, ..ReadLimits::default() };
    let Ok(mut loader) = RdbLoader::new(file, limits) else { return };
    while let Ok(Some(_)) = loader.next_item() {}
}

fn assert_memory_is_bounded(file: &[u8], run: impl FnOnce(&[u8])) {
    let (most, len) = (peak_heap_bytes(|| run(file)), file.len());
    assert!(
        most <= BASE_MEMORY_BYTES + MAX_MEMORY_RATIO * len,
        "{most} bytes for {len}: {}",
        file.escape_ascii()
    );
}

/// Overwrites random positions of valid files with huge lengths.
#[test]
fn claimed_lengths_allocate_no_memory() {
    let claims: [&[u8]; 6] = [
        b"\x80\x7f\xff\xff\xff",
        b"\x80\x1f\xff\xff\xff",
        b"\x81\x00\x00\x00\x00\xff\xff\xff\xff",
        b"\x81\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\xc3\x05\x80\x1f\xff\xff\xff",
        b"\x7f\xff",
    ];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/persistence/testdata");
    let files = folder.read_dir().expect("there are files");
    let files: Vec<Vec<u8>> = files.map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect();
    let mut random = ChaCha8Rng::seed_from_u64(20);
    for round in 0..ROUND_COUNT {
        let mut file = files[round % files.len()].clone();
        let claim = claims[random.random_range(0..claims.len())];
        let at = random.random_range(9..file.len());
        file.splice(at..(at + random.random_range(0..3)).min(file.len()), claim.iter().copied());
        assert_memory_is_bounded(&file, load_rdb);
    }
    for claim in ["*1000000000\r\n", "*2\r\n$4294967295\r\nabc", "*3\r\n$3\r\nSET\r\n$-1\r\n", "#TS:1"] {
        assert_memory_is_bounded(claim.as_bytes(), |file| drop(check_aof(file, None)));
    }
}
