//! The latency monitor: what took longer than `latency-monitor-threshold`, by kind of event.
//!
//! For each event the last samples, one a second, the worst of that second; and the worst ever.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use clock::Millis;
use parking_lot::Mutex;

/// Samples kept of one event.
const SAMPLES: usize = 160;
const NANOS_A_MILLISECOND: u64 = 1_000_000;

/// The monitor.
#[derive(Debug)]
pub struct LatencyMonitor {
    /// In nanoseconds; the largest number is never.
    threshold: AtomicU64,
    events: Mutex<BTreeMap<&'static str, Event>>,
}

/// The measurements of one kind of event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event {
    /// Seconds since the epoch, and milliseconds; the oldest first.
    pub samples: VecDeque<(i64, u64)>,
    /// The worst ever, in milliseconds.
    pub max: u64,
    /// The sum of all that were noted, in milliseconds.
    pub sum: u64,
    /// How many were noted.
    pub count: u64,
}

impl Default for LatencyMonitor {
    fn default() -> Self {
        Self { threshold: AtomicU64::new(u64::MAX), events: Mutex::default() }
    }
}

impl LatencyMonitor {
    /// From now on samples what takes at least so many milliseconds; 0 is nothing.
    pub fn configure(&self, threshold: u64) {
        let nanos = if threshold == 0 { u64::MAX } else { threshold.saturating_mul(NANOS_A_MILLISECOND) };
        self.threshold.store(nanos, Ordering::Relaxed);
    }

    /// Whether events are sampled.
    pub fn is_on(&self) -> bool {
        self.threshold.load(Ordering::Relaxed) != u64::MAX
    }

    /// Whether an event that took so long is noted.
    #[inline]
    pub(crate) fn wants(&self, nanos: u64) -> bool {
        nanos >= self.threshold.load(Ordering::Relaxed)
    }

    /// Takes note of an event, if it took long enough.
    #[inline]
    pub fn sample(&self, event: &'static str, now: Millis, nanos: u64) {
        if self.wants(nanos) {
            self.note(event, now, nanos / NANOS_A_MILLISECOND);
        }
    }

    #[cold]
    fn note(&self, event: &'static str, now: Millis, millis: u64) {
        let mut events = self.events.lock();
        let event = events.entry(event).or_default();
        event.max = event.max.max(millis);
        event.sum = event.sum.saturating_add(millis);
        event.count += 1;
        match event.samples.back_mut() {
            Some((second, worst)) if *second == now.secs() => *worst = (*worst).max(millis),
            _ => event.samples.push_back((now.secs(), millis)),
        }
        if event.samples.len() > SAMPLES {
            event.samples.pop_front();
        }
    }

    /// Every event that happened.
    pub fn events(&self) -> BTreeMap<&'static str, Event> {
        self.events.lock().clone()
    }

    /// The measurements of the event of this name, in upper or lower case.
    pub fn event(&self, name: &[u8]) -> Option<Event> {
        let events = self.events.lock();
        events
            .iter()
            .find(|(known, _)| name.eq_ignore_ascii_case(known.as_bytes()))
            .map(|(_, event)| event.clone())
    }

    /// Forgets the named events, or all, and says how many there were.
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
    fn the_worst_of_each_second_is_kept() {
        let monitor = LatencyMonitor::default();
        monitor.sample("command", Millis(1000), u64::MAX - 1);
        assert!(!monitor.is_on() && monitor.events().is_empty());
        monitor.configure(10);
        for (at, millis) in [(1000, 9), (1500, 10), (1900, 30), (1950, 20), (3000, 12)] {
            monitor.sample("command", Millis(at), millis * NANOS_A_MILLISECOND);
        }
        let event = monitor.event(b"COMMAND").unwrap();
        assert_eq!((Vec::from(event.samples), event.max), (vec![(1, 30), (3, 12)], 30));
        assert_eq!((event.sum, event.count), (72, 4));
        for second in 0..200 {
            monitor.sample("fork", Millis(second * 1000), 10 * NANOS_A_MILLISECOND);
        }
        assert_eq!(monitor.event(b"fork").unwrap().samples.len(), SAMPLES);
        assert_eq!(monitor.reset(&[b"fork", b"nosuch"]), 1);
        assert_eq!(monitor.reset(&[]), 1);
    }
}
