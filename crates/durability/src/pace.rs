//! How a background thread makes room for those that answer commands.
//!
//! A thread that has been given a processor keeps it for a slice of the system's time, up to 4 milliseconds on Linux,
//! whichever other thread wakes up meanwhile. So this one offers its processor to others after every stint of a
//! fraction of a millisecond. On a machine with a core to spare that costs nothing. A lower priority on top makes no
//! other thread wait less: where all want one core it only has the thread wait for its turns, and then take long ones.
//!
//! Where many keep every core busy it gets little done that way, and a snapshot that is not walked keeps what is
//! overwritten. Past a share of the data that it may keep, the thread works on until it is made to stop.

use keyspace::kept_bytes;

/// How long is worked at a stretch, in nanoseconds.
const STINT: u64 = 200_000;
/// The share of the data that may be kept for snapshots before the thread no longer offers its processor.
const KEPT_SHARE: usize = 25;

/// The pace of one thread.
#[derive(Debug)]
pub struct Pace {
    /// Since when it has worked; `None` if it never stands back.
    since: Option<u64>,
    most_kept: usize,
}

impl Pace {
    /// Works at full speed.
    pub(crate) fn full() -> Self {
        Self { since: None, most_kept: 0 }
    }

    /// Stands behind all others, while no more than a share of `used` bytes is kept for snapshots.
    pub fn behind_commands(used: usize) -> Self {
        Self { since: Some(process::time::nanos()), most_kept: used / KEPT_SHARE }
    }

    /// Lets others go first, if it is time. Nothing may be held.
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
