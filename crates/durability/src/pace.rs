//! Keeps background threads from delaying command processing.
//!
//! A running thread keeps its core for a time slice of up to 4 milliseconds on Linux, even if a worker wakes up. So
//! background threads yield every fraction of a millisecond, which costs nothing while there is an idle core. A lower
//! priority does not help: with a single contended core, the thread would wait longer for its time slices, but still
//! use them up.
//!
//! With many busy workers, yielding leaves a background thread little CPU time, and an unfinished snapshot keeps
//! overwritten values in memory. When these exceed a share of the data, the thread stops yielding.

use keyspace::kept_bytes;

/// Time between yields, in nanoseconds.
const STINT: u64 = 200_000;
/// Divisor of the data size: above this share of overwritten values, the thread stops yielding.
const KEPT_SHARE: usize = 25;

/// The pace of one background thread.
#[derive(Debug)]
pub struct Pace {
    /// Time of the last yield; `None` if the thread never yields.
    since: Option<u64>,
    most_kept: usize,
}

impl Pace {
    /// Never yields.
    pub(crate) fn full() -> Self {
        Self { since: None, most_kept: 0 }
    }

    /// Yields regularly, while overwritten values take less than a share of `used` bytes.
    pub fn behind_commands(used: usize) -> Self {
        Self { since: Some(process::time::nanos()), most_kept: used / KEPT_SHARE }
    }

    /// Yields to other threads, if it is time. The caller must hold no locks.
    pub(crate) fn step_back(&mut self) {
        let Some(since) = &mut self.since else { return };
        if process::time::nanos().saturating_sub(*since) >= STINT {
            if kept_bytes() <= self.most_kept {
                std::thread::yield_now();
            }
            *since = process::time::nanos();
        }
    }
}
