//! The fuzz targets of `make fuzz`: a module each, with a function that is given bytes and panics if they show a fault.
//!
//! libFuzzer chooses the bytes by the code that they reach (`cargo fuzz`, which builds with `--cfg fuzzing`). Built
//! without that, a target's program runs the files that it is given: what was found is looked at with
//! `cargo run -p fuzz --bin TARGET -- FILE`, without libFuzzer.
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

/// The keyspace and its naive twin, driven by what the bytes say.
pub mod twin {
    /// The twin, its decisions made out of these bytes.
    pub fn run(bytes: &[u8]) {
        super::twin_driver::run_given(bytes);
    }
}

/// Makes the program of a target out of its function.
#[macro_export]
macro_rules! target {
    ($run:path) => {
        #[cfg(fuzzing)]
        libfuzzer_sys::fuzz_target!(|bytes: &[u8]| $run(bytes));

        #[cfg(not(fuzzing))]
        fn main() -> std::io::Result<()> {
            $crate::replay($run)
        }
    };
}

/// Runs a target with each of the files that the program was given.
///
/// # Errors
/// A file that cannot be read.
pub fn replay(target: fn(&[u8])) -> std::io::Result<()> {
    for file in std::env::args_os().skip(1) {
        target(&std::fs::read(file)?);
    }
    Ok(())
}

/// The pieces in which an input is read a second time, which must not matter.
const PIECES: [usize; 3] = [1, 3, 64];

/// Gives no more than so many bytes a read.
struct Pieces<'a> {
    left: &'a [u8],
    len: usize,
}

impl Read for Pieces<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let len = self.len.min(into.len());
        self.left.read(&mut into[..len])
    }
}
