//! Waiting for conditions.

use std::thread;
use std::time::{Duration, Instant};

/// How long anything may take that a healthy server does in a few seconds, on a machine with more to do.
const GENEROUS: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);

/// Returns the first value that `attempt` gives.
///
/// # Panics
/// If it does not within a minute; `what` says what was awaited.
pub fn eventually<T>(what: &str, attempt: impl FnMut() -> Option<T>) -> T {
    eventually_within(GENEROUS, what, attempt)
}

/// The same with another bound.
///
/// # Panics
/// If it takes longer than `bound`.
pub fn eventually_within<T>(bound: Duration, what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(start.elapsed() < bound, "waited {bound:?} in vain: {what}");
        thread::sleep(PAUSE);
    }
}

/// Checks that `condition` does not come true for as long as `period`: for what must not happen.
///
/// # Panics
/// If it does.
pub fn never_within(period: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while start.elapsed() < period {
        assert!(!condition(), "{what}");
        thread::sleep(PAUSE);
    }
}
