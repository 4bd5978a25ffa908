//! How much happens in a second, as the mean of the last samples.

use std::collections::VecDeque;
use std::time::Duration;

use clock::Instant;
use parking_lot::Mutex;

/// The mean is taken over about so long: 16 samples at ten a second.
const WINDOW: Duration = Duration::from_millis(1600);

/// The figures whose rates are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    /// Commands that were run.
    Commands,
    /// Bytes that clients sent.
    InputBytes,
    /// Bytes that were sent to clients.
    OutputBytes,
    /// Bytes that came from the master.
    ReplicaInputBytes,
    /// Bytes that were sent to replicas.
    ReplicaOutputBytes,
    /// Reads from clients' sockets, each a turn of an event loop.
    Reads,
}

/// How many figures there are in [`Rate`].
pub const RATES: usize = 6;

/// The counters at one moment.
type Sample = (Instant, [u64; RATES]);

/// The last samples.
#[derive(Debug, Default)]
pub struct Rates(Mutex<VecDeque<Sample>>);

impl Rates {
    /// Takes note of the counters, given in the order of [`Rate`].
    pub fn sample(&self, now: Instant, counters: [u64; RATES]) {
        let mut samples = self.0.lock();
        // After a reset the counters begin anew.
        if samples.back().is_some_and(|(_, last)| last.iter().zip(&counters).any(|(last, now)| last > now)) {
            samples.clear();
        }
        samples.push_back((now, counters));
        // A server at rest takes one a second: the last but one stays, however old it is.
        while samples.len() > 2 && now.since(samples[0].0) > WINDOW {
            samples.pop_front();
        }
    }

    /// Forgets the samples (CONFIG RESETSTAT).
    pub fn reset(&self) {
        self.0.lock().clear();
    }

    /// How many there are in a second, as the mean of the samples that are kept; 0 before there are two.
    pub fn per_second(&self, rate: Rate) -> f64 {
        let samples = self.0.lock();
        let (Some((from, first)), Some((to, last))) = (samples.front(), samples.back()) else { return 0.0 };
        let seconds = to.since(*from).as_secs_f64();
        if seconds > 0.0 { (last[rate as usize] - first[rate as usize]) as f64 / seconds } else { 0.0 }
    }
}
