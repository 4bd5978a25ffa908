//! Traffic counters and rates for INFO.

use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// Counters of the traffic of client connections, and of rejected and closed connections.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    pub(super) input: AtomicU64,
    pub(super) output: AtomicU64,
    pub(super) reads: AtomicU64,
    pub(super) writes: AtomicU64,
    pub(super) rejected_connections: AtomicU64,
    pub(super) errors: AtomicU64,
    /// Number of connections closed because the client's request was too large.
    pub(super) query_limit_disconnections: AtomicU64,
    pub(super) output_limit_disconnections: AtomicU64,
}

/// Rates of commands, received bytes and sent bytes over the last complete period.
#[derive(Debug)]
pub(super) struct RecentRates {
    period_start: Instant,
    counts: [u64; 3],
    pub(super) per_second: [f64; 3],
}

impl RecentRates {
    /// The interval over which a rate is measured.
    const RATE_PERIOD: Duration = Duration::from_secs(1);

    pub(super) fn new(now: Instant) -> Self {
        Self { period_start: now, counts: [0; 3], per_second: [0.0; 3] }
    }

    /// Updates the rates with the current counters. Must be called before the rates are read.
    pub(super) fn update(&mut self, now: Instant, counts: [u64; 3]) {
        let passed = now.duration_since(self.period_start);
        if passed < Self::RATE_PERIOD {
            return;
        }
        let grown = std::array::from_fn(|at| counts[at].saturating_sub(self.counts[at]) as f64);
        (self.period_start, self.counts) = (now, counts);
        self.per_second = grown.map(|grown| grown / passed.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_covers_the_last_complete_period() {
        let began = Instant::now();
        let mut recent_rates = RecentRates::new(began);
        recent_rates.update(began + Duration::from_millis(500), [50, 0, 0]);
        assert_eq!(recent_rates.per_second, [0.0; 3], "not long enough");
        recent_rates.update(began + Duration::from_secs(2), [100, 2048, 10]);
        assert_eq!(recent_rates.per_second, [50.0, 1024.0, 5.0]);
        recent_rates.update(began + Duration::from_secs(3), [100, 2048, 10]);
        assert_eq!(recent_rates.per_second, [0.0; 3]);
    }
}
