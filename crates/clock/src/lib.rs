//! Defines the time types of the pure crates.
//!
//! Pure crates never read a clock: their caller passes the time in. [`Instant`] is monotonic and serves timeouts.
//! [`Millis`] is wall-clock time, which may jump; it serves times that users see and that are stored (expiry times,
//! `LASTSAVE`, `ping_sent`). They are distinct types so that they cannot be mixed up.
#![forbid(unsafe_code)]

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// A point in time of a monotonic clock, in microseconds since an origin that the caller chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// The origin of the clock, microsecond zero.
    pub const ORIGIN: Self = Self(0);

    /// Returns the instant `micros` microseconds after the origin.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Returns the instant `millis` milliseconds after the origin.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis * 1000)
    }

    /// Returns the microseconds since the origin.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns the milliseconds since the origin, rounded down.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0 / 1000
    }

    /// Returns the time elapsed since `earlier`, or zero if `earlier` is later than `self`.
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

/// Wall-clock time in milliseconds since the Unix epoch. Users can pass negative values (`PEXPIREAT
/// key -1`), which lie in the past.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Millis(pub i64);

impl Millis {
    /// Returns the seconds since the Unix epoch, rounded down.
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
    fn seconds_round_down_before_the_epoch() {
        assert_eq!(Millis(-1).secs(), -1);
        assert_eq!(Millis(1999).secs(), 1);
    }
}
