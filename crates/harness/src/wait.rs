//! Waits for conditions instead of sleeping for fixed times.

use std::thread;
use std::time::{Duration, Instant};

/// Time limit for operations that a healthy server completes within a few seconds, even on a busy machine.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Retries `attempt` until it returns a value.
///
/// # Panics
/// There is no value within a minute. The message contains `description`.
pub fn eventually<T>(description: &str, attempt: impl FnMut() -> Option<T>) -> T {
    eventually_within(DEFAULT_TIMEOUT, description, attempt)
}

/// Like [`eventually`], but with a different time limit.
///
/// # Panics
/// There is no value in time.
pub fn eventually_within<T>(
    time_limit: Duration,
    description: &str,
    mut attempt: impl FnMut() -> Option<T>,
) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(start.elapsed() < time_limit, "waited {time_limit:?} in vain: {description}");
        thread::sleep(RETRY_INTERVAL);
    }
}

/// Checks that `condition` stays false for `period`.
///
/// # Panics
/// The condition becomes true.
pub fn never_within(period: Duration, description: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while start.elapsed() < period {
        assert!(!condition(), "{description}");
        thread::sleep(RETRY_INTERVAL);
    }
}
