//! The latency monitor (LATENCY): events that took longer than `latency-monitor-threshold`.
//!
//! For each kind of event it stores the maximum and the last samples, at most one per second (the slowest).

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use clock::Millis;
use parking_lot::Mutex;

/// Maximum number of samples stored per kind of event.
const MAX_SAMPLES: usize = 160;
const NANOS_PER_MILLISECOND: u64 = 1_000_000;

/// Samples of slow events, by event name.
#[derive(Debug)]
pub struct LatencyMonitor {
    /// Threshold in nanoseconds; `u64::MAX` disables the monitor.
    threshold: AtomicU64,
    events: Mutex<BTreeMap<&'static str, LatencyEvent>>,
}

/// The samples of one kind of event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LatencyEvent {
    /// Time in seconds since the epoch and duration in milliseconds, oldest first.
    pub samples: VecDeque<(i64, u64)>,
    /// Maximum duration in milliseconds.
    pub max_millis: u64,
    /// Sum of all durations in milliseconds.
    pub total_millis: u64,
    /// Number of events.
    pub count: u64,
}

impl Default for LatencyMonitor {
    fn default() -> Self {
        Self { threshold: AtomicU64::new(u64::MAX), events: Mutex::default() }
    }
}

impl LatencyMonitor {
    /// Sets the threshold in milliseconds; 0 disables the monitor.
    pub fn configure(&self, threshold_millis: u64) {
        let nanos = if threshold_millis == 0 {
            u64::MAX
        } else {
            threshold_millis.saturating_mul(NANOS_PER_MILLISECOND)
        };
        self.threshold.store(nanos, Ordering::Relaxed);
    }

    /// Returns whether the monitor is enabled.
    pub fn is_enabled(&self) -> bool {
        self.threshold.load(Ordering::Relaxed) != u64::MAX
    }

    #[inline]
    pub(crate) fn reaches_threshold(&self, nanos: u64) -> bool {
        nanos >= self.threshold.load(Ordering::Relaxed)
    }

    /// Records an event if it reaches the threshold.
    #[inline]
    pub fn record_if_slow(&self, event: &'static str, now: Millis, nanos: u64) {
        if self.reaches_threshold(nanos) {
            self.record(event, now, nanos / NANOS_PER_MILLISECOND);
        }
    }

    #[cold]
    fn record(&self, event: &'static str, now: Millis, millis: u64) {
        let mut events = self.events.lock();
        let event = events.entry(event).or_default();
        event.max_millis = event.max_millis.max(millis);
        event.total_millis = event.total_millis.saturating_add(millis);
        event.count += 1;
        match event.samples.back_mut() {
            Some((second, worst)) if *second == now.secs() => *worst = (*worst).max(millis),
            _ => event.samples.push_back((now.secs(), millis)),
        }
        if event.samples.len() > MAX_SAMPLES {
            event.samples.pop_front();
        }
    }

    /// Returns the samples of all events.
    pub fn events(&self) -> BTreeMap<&'static str, LatencyEvent> {
        self.events.lock().clone()
    }

    /// Finds an event by name, ignoring case.
    pub fn event(&self, name: &[u8]) -> Option<LatencyEvent> {
        let events = self.events.lock();
        events
            .iter()
            .find(|(known, _)| name.eq_ignore_ascii_case(known.as_bytes()))
            .map(|(_, event)| event.clone())
    }

    /// Removes the named events, or all events if `names` is empty; returns how many were removed.
    pub fn reset(&self, names: &[&[u8]]) -> usize {
        let mut events = self.events.lock();
        let before = events.len();
        events.retain(|known, _| {
            !names.is_empty() && !names.iter().any(|name| name.eq_ignore_ascii_case(known.as_bytes()))
        });
        before - events.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worst_sample_per_second_is_kept() {
        let monitor = LatencyMonitor::default();
        monitor.record_if_slow("command", Millis(1000), u64::MAX - 1);
        assert!(!monitor.is_enabled() && monitor.events().is_empty());
        monitor.configure(10);
        for (at, millis) in [(1000, 9), (1500, 10), (1900, 30), (1950, 20), (3000, 12)] {
            monitor.record_if_slow("command", Millis(at), millis * NANOS_PER_MILLISECOND);
        }
        let event = monitor.event(b"COMMAND").unwrap();
        assert_eq!((Vec::from(event.samples), event.max_millis), (vec![(1, 30), (3, 12)], 30));
        assert_eq!((event.total_millis, event.count), (72, 4));
        for second in 0..200 {
            monitor.record_if_slow("fork", Millis(second * 1000), 10 * NANOS_PER_MILLISECOND);
        }
        assert_eq!(monitor.event(b"fork").unwrap().samples.len(), MAX_SAMPLES);
        assert_eq!(monitor.reset(&[b"fork", b"nosuch"]), 1);
        assert_eq!(monitor.reset(&[]), 1);
    }
}
