//! Runs many seeds in parallel on all cores.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::{RunPlan, run};

/// The result of runs with many seeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchResult {
    /// The first seed that was found to fail, with a description of the violation; `None` if all passed.
    pub failure: Option<(u64, String)>,
    /// The number of promotions in all runs.
    pub promotion_count: usize,
}

/// Runs the plan of each seed, on all cores, until one run fails.
pub fn explore(seeds: Range<u64>, plan: impl Fn(u64) -> RunPlan + Sync) -> SearchResult {
    let (next, promotions) = (AtomicU64::new(seeds.start), AtomicUsize::new(0));
    let failed = Mutex::new(None);
    let search = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let outcome = run(plan(seed), false);
            promotions.fetch_add(outcome.promotion_count, Ordering::Relaxed);
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
    SearchResult {
        failure: failed.into_inner().expect("no run panics"),
        promotion_count: promotions.into_inner(),
    }
}

/// Runs a part of a simulation and turns a panic into a violation.
pub(crate) fn catch_panic(action: impl FnOnce()) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(action))
        .map_err(|panic| format!("panicked: {}", panic_message(panic.as_ref())))
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a word")
}
