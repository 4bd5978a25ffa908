//! Latency distributions of commands: LATENCY HISTOGRAM and INFO latencystats.
//!
//! Each power of two has sixteen buckets, so the relative error is about 1/16. Recording a value is one addition; the
//! buckets are allocated when a command first runs.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::counter::add;

/// Base-2 logarithm of the number of buckets per power of two.
const SUB_BUCKET_BITS: u32 = 4;
/// Number of powers of two: enough to distinguish times up to about a minute.
const POWERS_OF_TWO: usize = 36;
const BUCKET_COUNT: usize = (POWERS_OF_TWO - SUB_BUCKET_BITS as usize + 1) << SUB_BUCKET_BITS;

/// Execution times of one command on one thread, which is the only writer.
#[derive(Debug, Default)]
pub struct Histogram(OnceLock<Box<[AtomicU64]>>);

impl Histogram {
    #[inline]
    pub(crate) fn count(&self, nanos: u64) {
        let buckets = self.0.get_or_init(|| (0..BUCKET_COUNT).map(|_| AtomicU64::new(0)).collect());
        add(&buckets[bucket_index(nanos)], 1);
    }

    pub(crate) fn reset(&self) {
        for bucket in self.0.get().into_iter().flatten() {
            bucket.store(0, Ordering::Relaxed);
        }
    }
}

/// Execution times of one command, summed over threads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Distribution(Vec<u64>);

impl Distribution {
    /// Adds the counts of one thread.
    pub fn add(&mut self, histogram: &Histogram) {
        let Some(buckets) = histogram.0.get() else { return };
        self.0.resize(BUCKET_COUNT, 0);
        for (sum, bucket) in self.0.iter_mut().zip(buckets) {
            *sum += bucket.load(Ordering::Relaxed);
        }
    }

    /// Returns the number of calls.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the time in nanoseconds within which `percent` percent of the calls completed.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> u64 {
        let wanted = (self.calls() as f64 * percent / 100.0).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (index, count) in self.0.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return bucket_upper_bound(index);
            }
        }
        0
    }

    /// Returns cumulative counts of calls that took at most 1, 2, 4, ... microseconds. Entries whose count equals that
    /// of the previous entry are omitted.
    #[must_use]
    pub fn cumulative_counts(&self) -> Vec<(u64, u64)> {
        let mut points: Vec<(u64, u64)> = Vec::new();
        let mut seen = 0;
        for (index, count) in self.0.iter().enumerate().filter(|(_, count)| **count > 0) {
            seen += count;
            let micros = bucket_upper_bound(index).div_ceil(1000).next_power_of_two();
            match points.last_mut() {
                Some((last, calls)) if *last == micros => *calls = seen,
                _ => points.push((micros, seen)),
            }
        }
        points
    }
}

#[inline]
fn bucket_index(nanos: u64) -> usize {
    if nanos < 1 << SUB_BUCKET_BITS {
        return nanos as usize;
    }
    let power = nanos.ilog2();
    let index = ((power - SUB_BUCKET_BITS + 1) as usize) << SUB_BUCKET_BITS
        | (nanos >> (power - SUB_BUCKET_BITS)) as usize & ((1 << SUB_BUCKET_BITS) - 1);
    index.min(BUCKET_COUNT - 1)
}

/// Returns the largest time in nanoseconds of a bucket.
fn bucket_upper_bound(index: usize) -> u64 {
    let (power, fine) = (index >> SUB_BUCKET_BITS, (index & ((1 << SUB_BUCKET_BITS) - 1)) as u64);
    if power == 0 {
        return fine;
    }
    let step = 1 << (power - 1);
    ((1 << SUB_BUCKET_BITS) + fine + 1) * step - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_have_relative_error_of_one_sixteenth() {
        for nanos in (0..5000).chain([1 << 20, (1 << 30) + 12345, (1 << 35) + 7]) {
            let last = bucket_upper_bound(bucket_index(nanos));
            assert!(last >= nanos && last - nanos <= nanos / 16, "{nanos}: {last}");
            assert!(nanos == 0 || bucket_upper_bound(bucket_index(nanos - 1)) <= last);
        }
        assert_eq!(bucket_index(u64::MAX), BUCKET_COUNT - 1);
    }

    #[test]
    fn percentiles_and_cumulative_counts_are_computed() {
        let histogram = Histogram::default();
        let mut all = Distribution::default();
        all.add(&histogram);
        assert_eq!((all.calls(), all.percentile(50.0), all.cumulative_counts()), (0, 0, vec![]));
        for micros in 1..=100 {
            histogram.count(micros * 1000 - 100);
        }
        all.add(&histogram);
        assert_eq!(all.calls(), 100);
        assert!((48_000..53_000).contains(&all.percentile(50.0)), "{}", all.percentile(50.0));
        assert!(all.percentile(100.0) >= 99_900);
        assert_eq!(all.cumulative_counts().last(), Some(&(128, 100)));
        histogram.reset();
        let mut none = Distribution::default();
        none.add(&histogram);
        assert_eq!(none.calls(), 0);
    }
}
