//! Keeps background threads from delaying command processing.
//!
//! A running thread keeps its core for a time slice of up to 4 milliseconds on Linux, even if a worker wakes up. So
//! background threads yield every fraction of a millisecond, which costs nothing while there is an idle core. A lower
//! priority does not help: on a single contended core, the thread would wait longer for its time slices, but still use
//! them up.
//!
//! With many busy workers, yielding leaves a background thread little CPU time, and an unfinished snapshot keeps
//! overwritten values in memory. When these values exceed a share of the data, the thread stops yielding.

use keyspace::snapshot_only_bytes;

/// Time between yields, in nanoseconds.
const YIELD_INTERVAL_NANOS: u64 = 200_000;
/// The thread stops yielding once the overwritten values exceed the data size divided by this number.
const MAX_KEPT_BYTES_DIVISOR: usize = 25;

/// Decides when one background thread yields.
#[derive(Debug)]
pub struct YieldPace {
    /// Time of the last yield; `None` if the thread never yields.
    last_yield: Option<u64>,
    max_kept_bytes: usize,
}

impl YieldPace {
    /// Creates a pace that never yields, for work that others wait for.
    pub(crate) fn unlimited() -> Self {
        Self { last_yield: None, max_kept_bytes: 0 }
    }

    /// Creates a pace that yields regularly while overwritten values take less than a share of `used` bytes.
    pub fn yielding(used_bytes: usize) -> Self {
        Self { last_yield: Some(process::time::nanos()), max_kept_bytes: used_bytes / MAX_KEPT_BYTES_DIVISOR }
    }

    /// Yields to other threads if the interval has passed. The caller must hold no locks.
    pub(crate) fn yield_if_due(&mut self) {
        let Some(last_yield) = &mut self.last_yield else { return };
        if process::time::nanos().saturating_sub(*last_yield) >= YIELD_INTERVAL_NANOS {
            if snapshot_only_bytes() <= self.max_kept_bytes {
                std::thread::yield_now();
            }
            *last_yield = process::time::nanos();
        }
    }
}
