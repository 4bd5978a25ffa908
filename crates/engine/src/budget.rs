//! Memory accounting against `maxmemory`, exact at each command.
//!
//! The page pool knows its usage at any time. The general allocator's usage is tracked per thread: each worker reports
//! before each command what it has allocated and freed since its last report ([`Budget::report_allocations`]). Other
//! threads' usage is included when the allocator's total is read ([`Budget::measure`]), many times a second. So memory
//! taken by one command is visible to the next command on any thread.
//!
//! Allocations made while the total is being read may or may not be included in it. Small allocations are ignored until
//! the next reading. After a large one the thread reads the total again, so that five values of 20 MB never fit into
//! space for four.
//!
//! Without a limit none of this is done.
//!
//! As in Redis, some memory does not count: replica output beyond the backlog; pages kept only for a snapshot, which
//! with fork would belong to the child; Lua memory, up to the limit of one thread's state; and values in the lazy-free
//! queue and memory of evicted clients, which are being freed.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

/// Maximum number of bytes that a thread may allocate and free in total without a new reading. Reading the allocator's
/// total takes about ten microseconds; filling this much memory takes ten times that.
const LARGE_ALLOCATION_BYTES: u64 = 1 << 20;

/// The memory limit and the accounted usage.
#[derive(Debug)]
pub struct Budget {
    /// The limit in bytes; `usize::MAX` means unlimited.
    limit: AtomicUsize,
    /// Estimate of the bytes allocated from the general allocator: its total at the last reading plus what the threads
    /// have reported after that reading.
    heap_bytes: AtomicI64,
    /// Number of times the allocator's total was read. A thread compares it with the count at its last report, to see
    /// whether a reading already includes its allocations.
    reading_count: AtomicU32,
    /// Held while the allocator's total is read and while a thread reports a large allocation.
    reading_lock: Mutex<()>,
    /// Whether `maxmemory-clients` is set.
    has_client_limit: AtomicBool,
    /// Whether memory is checked before each command, because either limit is set.
    is_checked_per_command: AtomicBool,
    /// Time since which usage exceeds the limit, in nanoseconds of the workers' clock; 0 while usage is within the
    /// limit.
    over_limit_since: AtomicU64,
    past_millis_over_limit: AtomicU64,
}

/// Callbacks that read the general allocator's statistics.
#[derive(Debug, Clone, Copy)]
pub struct AllocatorStats {
    /// Returns how much the calling thread has allocated and freed since its start.
    pub thread_totals: fn() -> ThreadAllocations,
    /// Returns the bytes currently allocated by all threads.
    pub total_bytes: fn() -> usize,
}

/// A thread's allocation totals since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThreadAllocations {
    /// Number of bytes that the thread has allocated.
    pub allocated: u64,
    /// Number of bytes that the thread has freed, including memory allocated by other threads.
    pub freed: u64,
}

impl ThreadAllocations {
    fn growth_since(self, before: Self) -> i64 {
        (self.allocated - before.allocated) as i64 - (self.freed - before.freed) as i64
    }

    /// Returns whether the thread has allocated and freed a large amount in total since `before`. Freeing one buffer
    /// and allocating another cancels out in the balance, but the allocator's total may have been read in between.
    fn has_grown_much_since(self, before: Self) -> bool {
        (self.allocated - before.allocated) + (self.freed - before.freed) >= LARGE_ALLOCATION_BYTES
    }
}

/// The allocations that a thread has reported so far.
#[derive(Debug)]
pub(crate) struct ReportedAllocations {
    pub(crate) allocator: AllocatorStats,
    last_report: ThreadAllocations,
    last_reading: u32,
}

impl ReportedAllocations {
    pub(crate) fn without_allocator() -> Self {
        let heap = AllocatorStats { thread_totals: ThreadAllocations::default, total_bytes: || 0 };
        Self { allocator: heap, last_report: ThreadAllocations::default(), last_reading: 0 }
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            limit: AtomicUsize::new(usize::MAX),
            heap_bytes: AtomicI64::new(0),
            reading_count: AtomicU32::new(0),
            reading_lock: Mutex::new(()),
            has_client_limit: AtomicBool::new(false),
            is_checked_per_command: AtomicBool::new(false),
            over_limit_since: AtomicU64::new(0),
            past_millis_over_limit: AtomicU64::new(0),
        }
    }
}

impl Budget {
    /// Sets the limit in bytes; 0 means unlimited.
    pub(crate) fn set_limit(&self, bytes: usize) {
        self.limit.store(if bytes == 0 { usize::MAX } else { bytes }, Ordering::Relaxed);
        self.update_is_checked_per_command();
    }

    /// Sets whether `maxmemory-clients` is in force.
    pub(crate) fn set_clients_limited(&self, limited: bool) {
        self.has_client_limit.store(limited, Ordering::Relaxed);
        self.update_is_checked_per_command();
    }

    fn update_is_checked_per_command(&self) {
        let watched = self.is_limited() || self.has_client_limit.load(Ordering::Relaxed);
        self.is_checked_per_command.store(watched, Ordering::Relaxed);
    }

    /// Returns whether memory is checked before each command.
    #[inline]
    #[must_use]
    pub fn is_checked_per_command(&self) -> bool {
        self.is_checked_per_command.load(Ordering::Relaxed)
    }

    /// Returns whether there is a memory limit.
    #[inline]
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.limit.load(Ordering::Relaxed) != usize::MAX
    }

    /// Returns the limit in bytes, if any.
    #[must_use]
    pub fn limit(&self) -> Option<usize> {
        Some(self.limit.load(Ordering::Relaxed)).filter(|limit| *limit != usize::MAX)
    }

    /// Reads the allocator's total and returns it.
    pub fn measure(&self, read_total_bytes: fn() -> usize) -> usize {
        self.read_total(read_total_bytes, &self.reading_lock.lock())
    }

    fn read_total(&self, read_total_bytes: fn() -> usize, _reading_guard: &MutexGuard<'_, ()>) -> usize {
        // Threads may report while the total is read. Such reports are part of the total, or small.
        let before = self.heap_bytes.load(Ordering::Relaxed);
        let heap = read_total_bytes();
        self.heap_bytes.fetch_add(heap as i64 - before, Ordering::Relaxed);
        self.reading_count.fetch_add(1, Ordering::Relaxed);
        heap
    }

    /// Reports what the calling thread has allocated and freed since its last report.
    #[inline]
    pub(crate) fn report_allocations(&self, reported: &mut ReportedAllocations) {
        let (now, measured) =
            ((reported.allocator.thread_totals)(), self.reading_count.load(Ordering::Relaxed));
        if now.has_grown_much_since(reported.last_report) {
            return self.report_large_change(reported);
        }
        if reported.last_reading == measured && reported.last_report != now {
            self.heap_bytes.fetch_add(now.growth_since(reported.last_report), Ordering::Relaxed);
        }
        // After a newer reading, the allocations since the last report are already part of the total.
        (reported.last_reading, reported.last_report) = (measured, now);
    }

    #[cold]
    fn report_large_change(&self, reported: &mut ReportedAllocations) {
        let measuring = self.reading_lock.lock();
        let now = (reported.allocator.thread_totals)();
        if reported.last_reading == self.reading_count.load(Ordering::Relaxed) {
            self.heap_bytes.fetch_add(now.growth_since(reported.last_report), Ordering::Relaxed);
        } else {
            self.read_total(reported.allocator.total_bytes, &measuring);
        }
        (reported.last_reading, reported.last_report) = (self.reading_count.load(Ordering::Relaxed), now);
    }

    /// Returns the bytes by which usage exceeds the limit. `exempt_bytes` returns the bytes that do not count.
    #[inline]
    pub(crate) fn excess_bytes(&self, exempt_bytes: impl FnOnce() -> usize) -> usize {
        let limit = self.limit.load(Ordering::Relaxed);
        let used = self.heap_bytes.load(Ordering::Relaxed).max(0) as usize + keyspace::pool_used_bytes();
        if used <= limit {
            return 0;
        }
        used.saturating_sub(exempt_bytes()).saturating_sub(limit)
    }

    /// Records whether usage exceeds the limit; `clock_nanos` is the workers' clock.
    pub(crate) fn record_over_limit(&self, is_over: bool, clock_nanos: fn() -> u64) {
        let since = self.over_limit_since.load(Ordering::Relaxed);
        if is_over == (since != 0) {
            return;
        }
        let now = clock_nanos();
        // If several threads notice that usage crossed the limit, only one of them counts the period.
        let next = if is_over { now.max(1) } else { 0 };
        let mine =
            self.over_limit_since.compare_exchange(since, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if mine && !is_over {
            self.past_millis_over_limit.fetch_add(now.saturating_sub(since), Ordering::Relaxed);
        }
    }

    /// Resets the time spent over the limit (CONFIG RESETSTAT).
    pub fn reset_over_limit(&self, now: u64) {
        self.past_millis_over_limit.store(0, Ordering::Relaxed);
        let since = self.over_limit_since.load(Ordering::Relaxed);
        if since != 0 {
            // If usage has fallen below the limit since it was checked, another thread has already counted the period.
            let _ = self.over_limit_since.compare_exchange(
                since,
                now.max(1),
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
    }

    /// Returns the milliseconds spent over the limit in total and in the current period, at `now` on the workers'
    /// clock.
    #[must_use]
    pub fn millis_over_limit(&self, now: u64) -> (u64, u64) {
        let since = self.over_limit_since.load(Ordering::Relaxed);
        let current = if since == 0 { 0 } else { now.saturating_sub(since) };
        let total = self.past_millis_over_limit.load(Ordering::Relaxed) + current;
        (total / 1_000_000, current / 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static THREAD_TOTALS: Cell<ThreadAllocations> = const { Cell::new(ThreadAllocations { allocated: 0, freed: 0 }) };
        static OTHER_THREADS_BYTES: Cell<usize> = const { Cell::new(0) };
    }

    fn total_bytes() -> usize {
        let ThreadAllocations { allocated: taken, freed: returned } = THREAD_TOTALS.get();
        OTHER_THREADS_BYTES.get() + (taken - returned) as usize
    }

    fn reported_allocations() -> ReportedAllocations {
        ReportedAllocations {
            allocator: AllocatorStats { thread_totals: || THREAD_TOTALS.get(), total_bytes },
            ..ReportedAllocations::without_allocator()
        }
    }

    fn allocate(bytes: u64) {
        THREAD_TOTALS.set(ThreadAllocations {
            allocated: THREAD_TOTALS.get().allocated + bytes,
            ..THREAD_TOTALS.get()
        });
    }

    fn free(bytes: u64) {
        THREAD_TOTALS
            .set(ThreadAllocations { freed: THREAD_TOTALS.get().freed + bytes, ..THREAD_TOTALS.get() });
    }

    fn heap_bytes(budget: &Budget) -> i64 {
        budget.heap_bytes.load(Ordering::Relaxed)
    }

    #[test]
    fn reported_allocations_count_immediately() {
        let (budget, mut told) = (Budget::default(), reported_allocations());
        for (taken, returned, known) in
            [(10, 0, 10), (20 << 20, 0, (20 << 20) + 10), (0, 20 << 20, 10), (0, 10, 0)]
        {
            allocate(taken);
            free(returned);
            budget.report_allocations(&mut told);
            assert_eq!(heap_bytes(&budget), known);
        }
    }

    #[test]
    fn measuring_includes_allocations_of_other_threads() {
        let (budget, mut told) = (Budget::default(), reported_allocations());
        allocate(10);
        OTHER_THREADS_BYTES.set(500);
        assert_eq!(budget.measure(total_bytes), 510);
        budget.report_allocations(&mut told);
        assert_eq!(heap_bytes(&budget), 510, "what the thread took is part of it");
    }

    /// A thread may allocate or free memory after the total was read, but before the total is stored.
    #[test]
    fn large_allocations_during_measuring_are_counted() {
        const VALUE_BYTES: u64 = 20 << 20;
        let changes: [fn() -> usize; 3] = [
            || (total_bytes(), allocate(VALUE_BYTES)).0,
            || (total_bytes(), free(VALUE_BYTES)).0,
            // At this moment the buffer of the previous request is freed and the next one is not allocated yet.
            || {
                free(VALUE_BYTES);
                (total_bytes(), allocate(VALUE_BYTES)).0
            },
        ];
        for change in changes {
            let (budget, mut told) = (Budget::default(), reported_allocations());
            allocate(2 * VALUE_BYTES);
            budget.report_allocations(&mut told);
            budget.measure(change);
            assert_ne!(heap_bytes(&budget), total_bytes() as i64);
            budget.report_allocations(&mut told);
            assert_eq!(heap_bytes(&budget), total_bytes() as i64);
        }
    }
}
