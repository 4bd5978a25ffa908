//! Slowing writers down for a replica that cannot keep up.
//!
//! A replica for which more waits than its limit (`client-output-buffer-limit replica`) is given up and comes back for
//! a full synchronisation. While that goes on, more piles up than before: at the same rate of writes it is given up
//! again, and again. So after a replica was given up for that, writers are slowed down while what waits for one is in
//! the upper half of its limit, the more the nearer it comes: nothing at half of it, a second a batch at the limit.
//!
//! It is bounded: within [`PERIOD`] writers are slowed down for [`MOST`] of it, then no more, since a replica that
//! never keeps up is not worth a master that stands still. Where no replica is ever given up, nobody is slowed down.

use std::time::Duration;

use clock::Instant;

use super::OutputLimit;

/// For so long after a replica was given up writers may be slowed down.
pub(super) const PERIOD: Duration = Duration::from_secs(600);
/// As long as they are slowed down within that, in all.
pub(super) const MOST: Duration = Duration::from_secs(60);
/// The longest delay after one batch of a writer.
const LONGEST: Duration = Duration::from_secs(1);

/// The decision.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    /// Since when writers may be slowed down.
    granted: Option<Instant>,
    /// How long they were, since then.
    used: Duration,
    /// When they were last slowed down, if they still are.
    since: Option<Instant>,
}

impl Throttle {
    /// A replica was given up: too much waited for it.
    pub(super) fn on_given_up(&mut self, now: Instant) {
        if self.granted.is_none_or(|at| now.since(at) >= PERIOD) {
            (self.granted, self.used) = (Some(now), Duration::ZERO);
        }
    }

    /// How long a writer waits after a batch, while so much waits for the slowest replica.
    pub(super) fn delay(&mut self, now: Instant, pending: u64, limit: OutputLimit) -> Duration {
        if let Some(since) = self.since.take() {
            self.used += now.since(since);
        }
        let may = self.granted.is_some_and(|at| now.since(at) < PERIOD) && self.used < MOST;
        let delay = if may { wanted(pending, limit) } else { Duration::ZERO };
        self.since = Some(now).filter(|_| !delay.is_zero());
        delay
    }
}

/// By how much of its limit is used up; the lower one, since that, too, is passed for a while only.
fn wanted(pending: u64, limit: OutputLimit) -> Duration {
    let Some(limit) = [limit.hard, limit.soft].into_iter().filter(|bytes| *bytes > 0).min() else {
        return Duration::ZERO;
    };
    let half = limit / 2;
    let over = pending.saturating_sub(half) as f64 / (limit - half) as f64;
    LONGEST.mul_f64(over.min(1.0).powi(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: OutputLimit = OutputLimit { hard: 1000, soft: 0, soft_for: Duration::ZERO };

    fn at(seconds: u64) -> Instant {
        Instant::from_millis(seconds * 1000)
    }

    #[test]
    fn nobody_is_slowed_down_before_a_replica_was_given_up() {
        let mut throttle = Throttle::default();
        assert_eq!(throttle.delay(at(0), 1000, LIMIT), Duration::ZERO);
        throttle.on_given_up(at(1));
        assert!(throttle.delay(at(1), 1000, LIMIT) > Duration::ZERO);
    }

    #[test]
    fn the_nearer_the_limit_the_longer() {
        let soft = OutputLimit { hard: 4000, soft: 1000, soft_for: Duration::from_secs(60) };
        let none = OutputLimit { hard: 0, soft: 0, soft_for: Duration::ZERO };
        // bytes that wait, the limit, milliseconds
        let table = [
            (0, LIMIT, 0),
            (500, LIMIT, 0),
            (600, LIMIT, 40),
            (750, LIMIT, 250),
            (1000, LIMIT, 1000),
            (u64::MAX, LIMIT, 1000),
            (750, soft, 250),
            (u64::MAX, none, 0),
        ];
        for (pending, limit, millis) in table {
            let mut throttle = Throttle::default();
            throttle.on_given_up(at(0));
            let delay = throttle.delay(at(0), pending, limit);
            assert_eq!(delay.as_micros() / 100, millis * 10, "{pending}");
        }
    }

    #[test]
    fn a_replica_that_never_keeps_up_slows_writers_down_for_a_while_only() {
        let mut throttle = Throttle::default();
        let mut slow = 0;
        for second in 0..1200 {
            // It is given up twice a minute.
            if second % 30 == 0 {
                throttle.on_given_up(at(second));
            }
            slow += u64::from(!throttle.delay(at(second), 900, LIMIT).is_zero());
        }
        assert_eq!(slow, 2 * MOST.as_secs());
    }

    #[test]
    fn one_that_has_caught_up_is_forgotten() {
        let mut throttle = Throttle::default();
        throttle.on_given_up(at(0));
        assert!(!throttle.delay(at(1), 900, LIMIT).is_zero());
        assert!(throttle.delay(at(2), 100, LIMIT).is_zero());
        assert!(!throttle.delay(at(500), 900, LIMIT).is_zero(), "the time between was not used up");
        assert!(throttle.delay(at(601), 900, LIMIT).is_zero(), "it has kept up for long");
    }
}
