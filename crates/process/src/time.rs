//! The system clocks. Pure crates get the time as a parameter.

use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use clock::{Instant, Millis};

/// Returns the wall clock time. It may jump, so timeouts use [`monotonic_now`].
#[must_use]
pub fn now() -> Millis {
    Millis(unix_micros() / 1000)
}

/// Returns the monotonic time, for timeouts.
#[must_use]
pub fn monotonic_now() -> Instant {
    Instant::from_micros(nanos() / 1000)
}

/// Returns the wall clock time in microseconds since the Unix epoch.
#[must_use]
pub fn unix_micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// Returns the monotonic time in nanoseconds. This clock is read once per command, so it uses the processor's time
/// stamp counter where quanta considers that reliable (7 ns instead of 25).
#[must_use]
pub fn nanos() -> u64 {
    static CLOCK: OnceLock<quanta::Clock> = OnceLock::new();
    let clock = CLOCK.get_or_init(quanta::Clock::new);
    clock.delta_as_nanos(0, clock.raw())
}
