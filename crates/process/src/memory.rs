//! Memory usage according to the general allocator, the keyspace's pool and the system.

use std::sync::atomic::{AtomicUsize, Ordering};

use engine::{AllocatorStats, ThreadAllocations};
use keyspace::{pool_usage, pool_used_bytes};
use tikv_jemalloc_ctl::thread::{self, ThreadLocal};
use tikv_jemalloc_ctl::{Access as _, AsName as _, epoch, stats};

/// Lets each worker query the allocator's statistics.
pub const ALLOCATOR_STATS: AllocatorStats =
    AllocatorStats { thread_totals: thread_allocations, total_bytes: heap_bytes };

/// Memory usage at one moment, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Bytes in use by the server: live allocations of the general allocator and of the keyspace's pool.
    pub used_bytes: usize,
    /// Bytes allocated from the general allocator and from the pool.
    pub allocated_bytes: usize,
    /// Bytes of the general allocator's pages that are in use, and of the pool's mapped memory.
    pub active_bytes: usize,
    /// Bytes of the allocator and the pool that are physically resident.
    pub resident_bytes: usize,
    /// The resident set size of the process, which also includes code and stacks.
    pub rss_bytes: usize,
}

/// Remembers the peak of memory usage, and the usage of the empty server.
#[derive(Debug, Default)]
pub struct MemoryTracker {
    peak_bytes: AtomicUsize,
    startup_bytes: AtomicUsize,
}

/// Returns the bytes in use: live allocations of the general allocator plus those of the keyspace's pool. Refreshes the
/// allocator's statistics.
pub(crate) fn used_bytes() -> usize {
    heap_bytes() + pool_used_bytes()
}

/// Returns the live bytes of the general allocator. Refreshes its statistics.
///
/// The allocator counts its thread caches as allocated. These few hundred kilobytes vary with recent operations and
/// hold no data, so they are subtracted.
fn heap_bytes() -> usize {
    // A process with another allocator, such as a test, has no statistics, so errors are ignored.
    let _ = epoch::advance();
    let cached: usize = THREAD_CACHE_BYTES.name().read().unwrap_or(0);
    stats::allocated::read().unwrap_or(0).saturating_sub(cached)
}

/// The name of jemalloc's statistic for the thread caches. 4096 stands for all arenas.
const THREAD_CACHE_BYTES: &[u8] = b"stats.arenas.4096.tcache_bytes\0";

/// Returns how many bytes this thread has allocated and freed so far.
fn thread_allocations() -> ThreadAllocations {
    thread_local! {
        static THREAD_COUNTERS: Option<(ThreadLocal<u64>, ThreadLocal<u64>)> =
            thread::allocatedp::read().ok().zip(thread::deallocatedp::read().ok());
    }
    THREAD_COUNTERS.with(|counters| {
        let counters = counters.as_ref();
        counters.map_or_else(ThreadAllocations::default, |(taken, returned)| ThreadAllocations {
            allocated: taken.get(),
            freed: returned.get(),
        })
    })
}

/// Queries the allocator, the keyspace's pool and the system.
pub fn memory_usage() -> MemoryUsage {
    let (used, pool) = (used_bytes(), pool_usage());
    MemoryUsage {
        used_bytes: used,
        allocated_bytes: used,
        active_bytes: stats::active::read().unwrap_or(0) + pool.mapped_bytes,
        resident_bytes: stats::resident::read().unwrap_or(0) + pool.mapped_bytes,
        rss_bytes: resident_set_size(),
    }
}

/// Returns the resident set size of the process in bytes, or 0 if it is unknown.
fn resident_set_size() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|word| word.parse::<usize>().ok());
    pages.unwrap_or(0) * rustix::param::page_size()
}

/// Returns the machine's total memory in bytes.
pub fn total_system_memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram as u64 * u64::from(info.mem_unit)
}

impl MemoryTracker {
    /// Records the memory usage of the empty server.
    pub fn record_startup(&self) {
        let used = used_bytes();
        self.startup_bytes.store(used, Ordering::Relaxed);
        self.peak_bytes.store(used, Ordering::Relaxed);
    }

    /// Raises the recorded peak to `used_bytes` if the peak is lower.
    pub fn record_peak(&self, used_bytes: usize) {
        self.peak_bytes.fetch_max(used_bytes, Ordering::Relaxed);
    }

    /// Peak usage in bytes.
    pub fn peak_bytes(&self) -> usize {
        self.peak_bytes.load(Ordering::Relaxed)
    }

    /// Memory usage of the empty server in bytes.
    pub fn startup_bytes(&self) -> usize {
        self.startup_bytes.load(Ordering::Relaxed)
    }
}

/// Formats a size as Redis does, for instance `1.50K`.
pub fn format_human(bytes: u64) -> String {
    const BYTE_UNITS: [&str; 5] = ["K", "M", "G", "T", "P"];
    if bytes < 1024 {
        return format!("{bytes}B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < BYTE_UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.2}{}", BYTE_UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_formatted_as_in_redis() {
        let table = [(0, "0B"), (1023, "1023B"), (1024, "1.00K"), (1_658_848, "1.58M"), (1 << 40, "1.00T")];
        for (bytes, text) in table {
            assert_eq!(format_human(bytes), text);
        }
    }

    #[test]
    fn reads_process_and_system_memory() {
        assert!(memory_usage().rss_bytes > 0);
        assert!(total_system_memory() > memory_usage().rss_bytes as u64);
    }
}
