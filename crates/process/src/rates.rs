//! Per-second rates, averaged over the most recent samples.

use std::collections::VecDeque;
use std::time::Duration;

use clock::Instant;
use parking_lot::Mutex;

/// Averaging window: 16 samples at ten per second.
const AVERAGING_WINDOW: Duration = Duration::from_millis(1600);

/// A counter whose rate per second is shown in INFO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    /// Executed commands.
    Commands,
    /// Bytes received from clients.
    InputBytes,
    /// Bytes sent to clients.
    OutputBytes,
    /// Bytes received from the master.
    ReplicaInputBytes,
    /// Bytes sent to replicas.
    ReplicaOutputBytes,
    /// Reads from client sockets, one per event loop cycle.
    Reads,
}

/// Number of variants of [`Rate`].
pub const RATE_COUNT: usize = 6;

/// All counters at one time.
type Sample = (Instant, [u64; RATE_COUNT]);

/// The counter samples of the averaging window.
#[derive(Debug, Default)]
pub struct Rates(Mutex<VecDeque<Sample>>);

impl Rates {
    /// Adds a sample. `counters` has one value for each variant of [`Rate`], in that order.
    pub fn sample(&self, now: Instant, counters: [u64; RATE_COUNT]) {
        let mut samples = self.0.lock();
        // A counter that decreased was reset, so the older samples are useless.
        if samples.back().is_some_and(|(_, last)| last.iter().zip(&counters).any(|(last, now)| last > now)) {
            samples.clear();
        }
        samples.push_back((now, counters));
        // An idle server samples once per second, so keep at least two samples of any age.
        while samples.len() > 2 && now.since(samples[0].0) > AVERAGING_WINDOW {
            samples.pop_front();
        }
    }

    /// Drops all samples (CONFIG RESETSTAT).
    pub fn reset(&self) {
        self.0.lock().clear();
    }

    /// Returns the mean rate per second over the window, or 0 with fewer than two samples.
    pub fn per_second(&self, rate: Rate) -> f64 {
        let samples = self.0.lock();
        let (Some((from, first)), Some((to, last))) = (samples.front(), samples.back()) else { return 0.0 };
        let seconds = to.since(*from).as_secs_f64();
        if seconds > 0.0 { (last[rate as usize] - first[rate as usize]) as f64 / seconds } else { 0.0 }
    }
}
