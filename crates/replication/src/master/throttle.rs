//! Throttles writers for a replica that cannot keep up.
//!
//! A replica whose pending bytes exceed its limit (`client-output-buffer-limit replica`) is disconnected and reconnects
//! for a full synchronisation. During that synchronisation more data accumulates, so at the same write rate the replica
//! is disconnected again and again. After the first disconnection, writers are therefore delayed while the pending
//! bytes exceed half of the limit. The delay increases from zero at half of the limit to one second per batch at the
//! limit.
//!
//! The delay is bounded: at most [`MAX_TOTAL_DELAY`] within each [`THROTTLE_PERIOD`], since a replica that can never
//! keep up must not stop its master. Writers are throttled only after a replica was disconnected for exceeding its
//! limit.

use std::time::Duration;

use clock::Instant;

use super::OutputLimit;

/// How long writers may be throttled after a replica was disconnected.
pub(super) const THROTTLE_PERIOD: Duration = Duration::from_secs(600);
/// The maximum total delay within [`THROTTLE_PERIOD`].
pub(super) const MAX_TOTAL_DELAY: Duration = Duration::from_secs(60);
/// The maximum delay after one batch.
const MAX_DELAY: Duration = Duration::from_secs(1);

/// Decides how long writers are delayed for slow replicas.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    /// When the current [`THROTTLE_PERIOD`] began; `None` if writers are not throttled.
    period_start: Option<Instant>,
    /// The sum of all delays since the period began.
    total_delay: Duration,
    /// When the current uninterrupted throttling began.
    throttling_since: Option<Instant>,
}

impl Throttle {
    /// Starts a period of throttling after a replica was disconnected for exceeding its limit.
    pub(super) fn on_replica_closed(&mut self, now: Instant) {
        if self.period_start.is_none_or(|at| now.since(at) >= THROTTLE_PERIOD) {
            (self.period_start, self.total_delay) = (Some(now), Duration::ZERO);
        }
    }

    /// Returns the delay after a batch of writes, given the pending bytes of the slowest replica.
    pub(super) fn write_delay(&mut self, now: Instant, pending_bytes: u64, limit: OutputLimit) -> Duration {
        if let Some(since) = self.throttling_since.take() {
            self.total_delay += now.since(since);
        }
        let may = self.period_start.is_some_and(|at| now.since(at) < THROTTLE_PERIOD)
            && self.total_delay < MAX_TOTAL_DELAY;
        let delay = if may { wanted_delay(pending_bytes, limit) } else { Duration::ZERO };
        self.throttling_since = Some(now).filter(|_| !delay.is_zero());
        delay
    }
}

/// Returns the delay for `pending` bytes under this limit. The lower of the hard and the soft limit counts, although
/// the soft limit may be exceeded for a while.
fn wanted_delay(pending_bytes: u64, limit: OutputLimit) -> Duration {
    let Some(limit) = [limit.hard_bytes, limit.soft_bytes].into_iter().filter(|bytes| *bytes > 0).min()
    else {
        return Duration::ZERO;
    };
    let half = limit / 2;
    let over = pending_bytes.saturating_sub(half) as f64 / (limit - half) as f64;
    MAX_DELAY.mul_f64(over.min(1.0).powi(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST_OUTPUT_LIMIT: OutputLimit =
        OutputLimit { hard_bytes: 1000, soft_bytes: 0, soft_duration: Duration::ZERO };

    fn at_seconds(seconds: u64) -> Instant {
        Instant::from_millis(seconds * 1000)
    }

    #[test]
    fn writers_are_not_throttled_before_a_replica_was_closed() {
        let mut throttle = Throttle::default();
        assert_eq!(throttle.write_delay(at_seconds(0), 1000, TEST_OUTPUT_LIMIT), Duration::ZERO);
        throttle.on_replica_closed(at_seconds(1));
        assert!(throttle.write_delay(at_seconds(1), 1000, TEST_OUTPUT_LIMIT) > Duration::ZERO);
    }

    #[test]
    fn delay_grows_towards_the_limit() {
        let soft = OutputLimit { hard_bytes: 4000, soft_bytes: 1000, soft_duration: Duration::from_secs(60) };
        let none = OutputLimit { hard_bytes: 0, soft_bytes: 0, soft_duration: Duration::ZERO };
        // Columns: pending bytes, limit, delay in milliseconds
        let table = [
            (0, TEST_OUTPUT_LIMIT, 0),
            (500, TEST_OUTPUT_LIMIT, 0),
            (600, TEST_OUTPUT_LIMIT, 40),
            (750, TEST_OUTPUT_LIMIT, 250),
            (1000, TEST_OUTPUT_LIMIT, 1000),
            (u64::MAX, TEST_OUTPUT_LIMIT, 1000),
            (750, soft, 250),
            (u64::MAX, none, 0),
        ];
        for (pending, limit, millis) in table {
            let mut throttle = Throttle::default();
            throttle.on_replica_closed(at_seconds(0));
            let delay = throttle.write_delay(at_seconds(0), pending, limit);
            assert_eq!(delay.as_micros() / 100, millis * 10, "{pending}");
        }
    }

    #[test]
    fn total_delay_is_bounded_for_a_replica_that_never_keeps_up() {
        let mut throttle = Throttle::default();
        let mut slow = 0;
        for second in 0..1200 {
            // The replica is disconnected twice a minute.
            if second % 30 == 0 {
                throttle.on_replica_closed(at_seconds(second));
            }
            slow += u64::from(!throttle.write_delay(at_seconds(second), 900, TEST_OUTPUT_LIMIT).is_zero());
        }
        assert_eq!(slow, 2 * MAX_TOTAL_DELAY.as_secs());
    }

    #[test]
    fn throttling_ends_when_the_replica_has_caught_up() {
        let mut throttle = Throttle::default();
        throttle.on_replica_closed(at_seconds(0));
        assert!(!throttle.write_delay(at_seconds(1), 900, TEST_OUTPUT_LIMIT).is_zero());
        assert!(throttle.write_delay(at_seconds(2), 100, TEST_OUTPUT_LIMIT).is_zero());
        assert!(
            !throttle.write_delay(at_seconds(500), 900, TEST_OUTPUT_LIMIT).is_zero(),
            "the time between was not used up"
        );
        assert!(
            throttle.write_delay(at_seconds(601), 900, TEST_OUTPUT_LIMIT).is_zero(),
            "it has kept up for long"
        );
    }
}
