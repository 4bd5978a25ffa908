//! Time as a parameter.
//!
//! The pure crates never read a clock: their drivers hand the time in. Two notions must not
//! be mixed, so each has a type. [`Instant`] only grows and is for timeouts; [`Millis`] is the wall
//! clock, may jump, and is for what users see and store (expiry times, `LASTSAVE`, `ping_sent`).
#![forbid(unsafe_code)]

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// A point of a monotonic clock, in microseconds since an origin that the driver chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// The driver's origin.
    pub const ORIGIN: Self = Self(0);

    /// The instant `micros` microseconds after the origin.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// The instant `millis` milliseconds after the origin.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis * 1000)
    }

    /// Microseconds since the origin.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Whole milliseconds since the origin.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0 / 1000
    }

    /// How long ago `earlier` was; zero if it lies ahead.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(rhs.as_micros()).unwrap_or(u64::MAX)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, rhs: Duration) {
        *self = *self + rhs;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, rhs: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(rhs.as_micros()).unwrap_or(u64::MAX)))
    }
}

/// Wall-clock time: milliseconds since the Unix epoch. Negative values can come from users
/// (`PEXPIREAT key -1`) and mean the past.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Millis(pub i64);

impl Millis {
    /// Whole seconds since the Unix epoch, rounded down.
    #[must_use]
    pub const fn secs(self) -> i64 {
        self.0.div_euclid(1000)
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_saturate_instead_of_wrapping() {
        let start = Instant::from_millis(5);
        assert_eq!(start - Duration::from_secs(1), Instant::ORIGIN);
        assert_eq!(start.since(start + Duration::from_secs(1)), Duration::ZERO);
        assert_eq!((start + Duration::from_millis(3)).since(start), Duration::from_millis(3));
    }

    #[test]
    fn seconds_round_down_before_the_epoch_too() {
        assert_eq!(Millis(-1).secs(), -1);
        assert_eq!(Millis(1999).secs(), 1);
    }
}
