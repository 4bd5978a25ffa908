//! How much memory is in use: what the general allocator gave, what the keyspace took from its own pool, and
//! what the system says the process occupies.

use std::sync::atomic::{AtomicUsize, Ordering};

use engine::{Heap, Turnover};
use keyspace::{pool_taken, pool_use};
use tikv_jemalloc_ctl::thread::{self, ThreadLocal};
use tikv_jemalloc_ctl::{Access as _, AsName as _, epoch, stats};

/// How a worker asks the allocator.
pub const HEAP: Heap = Heap { of_thread: heap_of_thread, of_all: heap };

/// One look at the allocator and at the system, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// In use by the server.
    pub used: usize,
    /// Given by the allocator and the pool.
    pub allocated: usize,
    /// In pages of the two that hold something.
    pub active: usize,
    /// Occupied by the two.
    pub resident: usize,
    /// Occupied by the process.
    pub rss: usize,
}

/// Remembers what can only be known over time.
#[derive(Debug, Default)]
pub struct Tracker {
    peak: AtomicUsize,
    startup: AtomicUsize,
}

/// The bytes in use: those that the allocator gave and did not get back, and those taken of the keyspace's pool. The
/// allocator keeps its figures by thread; this brings them together.
pub(crate) fn used() -> usize {
    heap() + pool_taken()
}

/// The bytes that the general allocator gave and did not get back. Brings its threads' figures together.
///
/// The allocator counts what its threads keep at hand for themselves as given. That is some hundred kilobytes, comes
/// and goes with the last operations, and is not in use.
fn heap() -> usize {
    // A process with another allocator (a test) has no figures.
    let _ = epoch::advance();
    let at_hand: usize = KEPT_BY_THREADS.name().read().unwrap_or(0);
    stats::allocated::read().unwrap_or(0).saturating_sub(at_hand)
}

/// The figure's name in the allocator; 4096 stands for all arenas.
const KEPT_BY_THREADS: &[u8] = b"stats.arenas.4096.tcache_bytes\0";

/// The bytes that the general allocator gave to this thread and got back from it.
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

/// Looks at the allocator, the pool and the system.
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

/// The process's resident set; 0 where the system does not say.
fn resident_set() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|word| word.parse::<usize>().ok());
    pages.unwrap_or(0) * rustix::param::page_size()
}

/// The machine's memory.
pub fn total_system() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram as u64 * u64::from(info.mem_unit)
}

impl Tracker {
    /// Notes what an empty server uses.
    pub fn start(&self) {
        let used = used();
        self.startup.store(used, Ordering::Relaxed);
        self.peak.store(used, Ordering::Relaxed);
    }

    /// Notes what is used now.
    pub fn note(&self, used: usize) {
        self.peak.fetch_max(used, Ordering::Relaxed);
    }

    /// The most bytes in use that were noted.
    pub fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    /// The bytes that the empty server used.
    pub fn startup(&self) -> usize {
        self.startup.load(Ordering::Relaxed)
    }
}

/// `1.50K`, `2.00M`: bytes as Redis shows them to people.
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
