//! How a thread that nobody waits for makes room for those that answer commands.
//!
//! A lower priority alone does not do that: a thread that has been given a processor keeps it for a slice of the
//! system's time, up to 4 milliseconds on Linux, whoever else wakes up meanwhile. So it also offers the processor to
//! others after every stint of a fraction of a millisecond. On a machine with a core to spare that costs nothing.
//!
//! Where every core is busy it gets little done that way, and a snapshot that is not walked keeps what is overwritten.
//! Past a share of the data that it may keep, the thread works on as its priority lets it.

use keyspace::kept_bytes;

/// A tenth of the workers' share of a core that both want.
const NICENESS: i32 = 10;
/// How long is worked at a stretch, in nanoseconds.
const STINT: u64 = 200_000;
/// The share of the data that may be kept for snapshots before the thread no longer offers its processor.
const KEPT_SHARE: usize = 25;

/// The pace of one thread.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Since when it has worked; `None` if it never stands back.
    since: Option<u64>,
    most_kept: usize,
}

impl Pace {
    /// Works at full speed.
    pub(crate) fn full() -> Self {
        Self { since: None, most_kept: 0 }
    }

    /// From now on the calling thread stands behind all others, while no more than a share of `used` bytes is kept
    /// for snapshots. Not to be called while anything is held.
    pub(crate) fn behind_commands(used: usize) -> Self {
        // On Linux the priority is the thread's own. A system that refuses leaves it as it is.
        let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICENESS);
        Self { since: Some(crate::time::nanos()), most_kept: used / KEPT_SHARE }
    }

    /// Lets others go first, if it is time. Nothing may be held.
    pub(crate) fn step_back(&mut self) {
        let Some(since) = &mut self.since else { return };
        if crate::time::nanos().saturating_sub(*since) >= STINT {
            if kept_bytes() <= self.most_kept {
                std::thread::yield_now();
            }
            *since = crate::time::nanos();
        }
    }
}
