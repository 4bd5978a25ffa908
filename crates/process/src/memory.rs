//! Memory usage according to the general allocator, the keyspace's pool and the system.

use std::sync::atomic::{AtomicUsize, Ordering};

use engine::{Heap, Turnover};
use keyspace::{pool_taken, pool_use};
use tikv_jemalloc_ctl::thread::{self, ThreadLocal};
use tikv_jemalloc_ctl::{Access as _, AsName as _, epoch, stats};

/// Lets workers query the allocator.
pub const HEAP: Heap = Heap { of_thread: heap_of_thread, of_all: heap };

/// Memory usage at one time, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Used by the server.
    pub used: usize,
    /// Allocated from the general allocator and the pool.
    pub allocated: usize,
    /// In pages of both that are in use.
    pub active: usize,
    /// Physically resident, of both.
    pub resident: usize,
    /// Resident set of the process.
    pub rss: usize,
}

/// Tracks peak and startup memory.
#[derive(Debug, Default)]
pub struct Tracker {
    peak: AtomicUsize,
    startup: AtomicUsize,
}

/// Bytes in use: live allocations of the general allocator plus those of the keyspace's pool. Refreshes the allocator's
/// statistics.
pub(crate) fn used() -> usize {
    heap() + pool_taken()
}

/// Live bytes of the general allocator. Refreshes its statistics.
///
/// The allocator counts its thread caches as allocated. These few hundred kilobytes vary with recent operations and
/// hold no data, so they are subtracted.
fn heap() -> usize {
    // Reads fail in a process with another allocator (tests).
    let _ = epoch::advance();
    let at_hand: usize = KEPT_BY_THREADS.name().read().unwrap_or(0);
    stats::allocated::read().unwrap_or(0).saturating_sub(at_hand)
}

/// jemalloc's statistic for the thread caches; 4096 stands for all arenas.
const KEPT_BY_THREADS: &[u8] = b"stats.arenas.4096.tcache_bytes\0";

/// Bytes that this thread has allocated and freed so far.
fn heap_of_thread() -> Turnover {
    thread_local! {
        static COUNTERS: Option<(ThreadLocal<u64>, ThreadLocal<u64>)> =
            thread::allocatedp::read().ok().zip(thread::deallocatedp::read().ok());
    }
    COUNTERS.with(|counters| {
        let counters = counters.as_ref();
        counters.map_or_else(Turnover::default, |(taken, returned)| Turnover {
            taken: taken.get(),
            returned: returned.get(),
        })
    })
}

/// Queries the allocator, the pool and the system.
pub fn usage() -> Usage {
    let (used, pool) = (used(), pool_use());
    Usage {
        used,
        allocated: used,
        active: stats::active::read().unwrap_or(0) + pool.held,
        resident: stats::resident::read().unwrap_or(0) + pool.held,
        rss: resident_set(),
    }
}

/// Resident set size of the process; 0 if unknown.
fn resident_set() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|word| word.parse::<usize>().ok());
    pages.unwrap_or(0) * rustix::param::page_size()
}

/// Total memory of the machine in bytes.
pub fn total_system() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram as u64 * u64::from(info.mem_unit)
}

impl Tracker {
    /// Records the memory usage of the empty server.
    pub fn start(&self) {
        let used = used();
        self.startup.store(used, Ordering::Relaxed);
        self.peak.store(used, Ordering::Relaxed);
    }

    /// Updates the peak.
    pub fn note(&self, used: usize) {
        self.peak.fetch_max(used, Ordering::Relaxed);
    }

    /// Peak usage in bytes.
    pub fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    /// Usage of the empty server in bytes.
    pub fn startup(&self) -> usize {
        self.startup.load(Ordering::Relaxed)
    }
}

/// Formats a size as Redis does, for instance `1.50K`.
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["K", "M", "G", "T", "P"];
    if bytes < 1024 {
        return format!("{bytes}B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.2}{}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_units() {
        let table = [(0, "0B"), (1023, "1023B"), (1024, "1.00K"), (1_658_848, "1.58M"), (1 << 40, "1.00T")];
        for (bytes, text) in table {
            assert_eq!(human(bytes), text);
        }
    }

    #[test]
    fn the_system_knows_this_process() {
        assert!(usage().rss > 0);
        assert!(total_system() > usage().rss as u64);
    }
}
