//! Many seeds, on every core.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::{Plan, sentinels};

/// How a search went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explored {
    /// A seed that violates something, and what.
    pub failed: Option<(u64, String)>,
    /// Replicas promoted in all runs.
    pub promotions: usize,
}

/// Runs the plan of each seed until one fails.
pub fn explore(seeds: Range<u64>, plan: impl Fn(u64) -> Plan + Sync) -> Explored {
    let (next, promotions) = (AtomicU64::new(seeds.start), AtomicUsize::new(0));
    let failed = Mutex::new(None);
    let search = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let outcome = sentinels::run(plan(seed), false);
            promotions.fetch_add(outcome.promotions, Ordering::Relaxed);
            if let Some(violation) = outcome.violation {
                failed.lock().expect("no run panics").get_or_insert((seed, violation));
                next.store(seeds.end, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(search);
        }
    });
    Explored { failed: failed.into_inner().expect("no run panics"), promotions: promotions.into_inner() }
}
