//! How long a command takes, as a distribution: LATENCY HISTOGRAM and INFO latencystats.
//!
//! Sixteen buckets for each power of two, so a value is known to about a sixteenth of itself. Counting is
//! one addition; the memory is taken when a command is first counted.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::counter::add;

/// Buckets for each power of two, as a power of two.
const FINE: u32 = 4;
/// Times up to about a minute are told apart.
const POWERS: usize = 36;
const BUCKETS: usize = (POWERS - FINE as usize + 1) << FINE;

/// One thread's times of one command. Only that thread counts.
#[derive(Debug, Default)]
pub struct Histogram(OnceLock<Box<[AtomicU64]>>);

impl Histogram {
    #[inline]
    pub(crate) fn count(&self, nanos: u64) {
        let buckets = self.0.get_or_init(|| (0..BUCKETS).map(|_| AtomicU64::new(0)).collect());
        add(&buckets[bucket(nanos)], 1);
    }

    pub(crate) fn reset(&self) {
        for bucket in self.0.get().into_iter().flatten() {
            bucket.store(0, Ordering::Relaxed);
        }
    }
}

/// The sum of threads' times of one command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Distribution(Vec<u64>);

impl Distribution {
    /// Adds what another has counted.
    pub fn add(&mut self, histogram: &Histogram) {
        let Some(buckets) = histogram.0.get() else { return };
        self.0.resize(BUCKETS, 0);
        for (sum, bucket) in self.0.iter_mut().zip(buckets) {
            *sum += bucket.load(Ordering::Relaxed);
        }
    }

    /// How many calls were counted.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The time in nanoseconds that so many percent of the calls do not exceed.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> u64 {
        let wanted = (self.calls() as f64 * percent / 100.0).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (index, count) in self.0.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return last_of(index);
            }
        }
        0
    }

    /// How many calls took at most 1, 2, 4, ... microseconds, wherever that grows.
    #[must_use]
    pub fn cumulative(&self) -> Vec<(u64, u64)> {
        let mut points: Vec<(u64, u64)> = Vec::new();
        let mut seen = 0;
        for (index, count) in self.0.iter().enumerate().filter(|(_, count)| **count > 0) {
            seen += count;
            let micros = last_of(index).div_ceil(1000).next_power_of_two();
            match points.last_mut() {
                Some((last, calls)) if *last == micros => *calls = seen,
                _ => points.push((micros, seen)),
            }
        }
        points
    }
}

#[inline]
fn bucket(nanos: u64) -> usize {
    if nanos < 1 << FINE {
        return nanos as usize;
    }
    let power = nanos.ilog2();
    let index =
        ((power - FINE + 1) as usize) << FINE | (nanos >> (power - FINE)) as usize & ((1 << FINE) - 1);
    index.min(BUCKETS - 1)
}

/// The largest time in a bucket.
fn last_of(index: usize) -> u64 {
    let (power, fine) = (index >> FINE, (index & ((1 << FINE) - 1)) as u64);
    if power == 0 {
        return fine;
    }
    let step = 1 << (power - 1);
    ((1 << FINE) + fine + 1) * step - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_lies_in_its_bucket_and_is_known_to_a_sixteenth() {
        for nanos in (0..5000).chain([1 << 20, (1 << 30) + 12345, (1 << 35) + 7]) {
            let last = last_of(bucket(nanos));
            assert!(last >= nanos && last - nanos <= nanos / 16, "{nanos}: {last}");
            assert!(nanos == 0 || last_of(bucket(nanos - 1)) <= last);
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_and_powers_of_two() {
        let histogram = Histogram::default();
        let mut all = Distribution::default();
        all.add(&histogram);
        assert_eq!((all.calls(), all.percentile(50.0), all.cumulative()), (0, 0, vec![]));
        for micros in 1..=100 {
            histogram.count(micros * 1000 - 100);
        }
        all.add(&histogram);
        assert_eq!(all.calls(), 100);
        assert!((48_000..53_000).contains(&all.percentile(50.0)), "{}", all.percentile(50.0));
        assert!(all.percentile(100.0) >= 99_900);
        assert_eq!(all.cumulative().last(), Some(&(128, 100)));
        histogram.reset();
        let mut none = Distribution::default();
        none.add(&histogram);
        assert_eq!(none.calls(), 0);
    }
}
