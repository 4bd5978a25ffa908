//! The fuzz targets of `make fuzz`. Each module has a function that takes the fuzzer's bytes and panics on a bug.
//!
//! With `--cfg fuzzing` (set by `cargo fuzz`), libFuzzer runs the targets. Without it, a target's program runs the
//! files named on its command line, so that `cargo run -p fuzz --bin TARGET -- FILE` reproduces a finding.
#![forbid(unsafe_code)]

use std::io::{self, Read};

pub mod aof;
pub mod bus;
pub mod keys;
pub mod rdb;
pub mod requests;
pub mod restore;
pub mod scripts;
#[path = "../../../crates/keyspace/tests/twin/main.rs"]
mod twin_driver;

/// Compares the keyspace with its reference model, on operations derived from the bytes.
pub mod twin {
    /// Derives all decisions of the test from `bytes` and panics on a difference.
    pub fn run(bytes: &[u8]) {
        super::twin_driver::run_with_choices(bytes);
    }
}

/// Defines the `main` function of a fuzz target.
#[macro_export]
macro_rules! target {
    ($run:path) => {
        #[cfg(fuzzing)]
        libfuzzer_sys::fuzz_target!(|bytes: &[u8]| $run(bytes));

        #[cfg(not(fuzzing))]
        fn main() -> std::io::Result<()> {
            $crate::replay_files($run)
        }
    };
}

/// Runs the target on each file named on the command line.
///
/// # Errors
/// A file cannot be read.
pub fn replay_files(target: fn(&[u8])) -> std::io::Result<()> {
    for file in std::env::args_os().skip(1) {
        target(&std::fs::read(file)?);
    }
    Ok(())
}

/// The read sizes with which a run is repeated, because its result must not depend on them.
const READ_SIZES: [usize; 3] = [1, 3, 64];

/// A reader that returns at most `len` bytes per read.
struct ChunkedReader<'a> {
    remaining: &'a [u8],
    max_read_size: usize,
}

impl Read for ChunkedReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.max_read_size.min(buffer.len());
        self.remaining.read(&mut buffer[..len])
    }
}
