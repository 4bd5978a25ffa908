//! Memory accounting against `maxmemory`, exact at each command.
//!
//! The page pool knows its usage at any time. The general allocator's usage is tracked per thread: each worker reports
//! before each command what it has allocated and freed since its last report ([`Budget::tell`]). Other threads' usage
//! is included when the allocator's total is read ([`Budget::measure`]), many times a second. So memory taken by one
//! command is visible to the next command on any thread.
//!
//! Allocations made while the total is being read may or may not be included in it. Small ones are ignored until the
//! next reading. For large ones the thread reads the total again, so that five values of 20 MB never fit into space for
//! four.
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
const MUCH: u64 = 1 << 20;

/// The memory limit and the accounted usage.
#[derive(Debug)]
pub struct Budget {
    /// `usize::MAX` means unlimited.
    limit: AtomicUsize,
    /// Bytes allocated from the general allocator, as far as reported.
    heap: AtomicI64,
    /// Number of readings of the allocator's total; earlier reports of threads are included in the last one.
    measured: AtomicU32,
    /// Held while the allocator's total is read, and during large reports.
    measuring: Mutex<()>,
    /// Whether `maxmemory-clients` is set.
    clients_limited: AtomicBool,
    /// Whether memory is checked before each command, because either limit is set.
    watched: AtomicBool,
    /// Since when usage exceeds the limit (on the workers' clock), and the total of earlier periods, in nanoseconds.
    over_limit_since: AtomicU64,
    over_before: AtomicU64,
}

/// Callbacks that read the general allocator's statistics.
#[derive(Debug, Clone, Copy)]
pub struct AllocatorStats {
    /// Returns the calling thread's totals.
    pub of_thread: fn() -> ThreadAllocations,
    /// Returns the bytes currently allocated by all threads.
    pub of_all: fn() -> usize,
}

/// A thread's allocation totals since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThreadAllocations {
    /// Allocated bytes.
    pub taken: u64,
    /// Freed bytes, including memory allocated by other threads.
    pub returned: u64,
}

impl ThreadAllocations {
    fn growth_since(self, before: Self) -> i64 {
        (self.taken - before.taken) as i64 - (self.returned - before.returned) as i64
    }

    /// Returns whether the traffic since `before` is large. Freeing one buffer and allocating another cancels out, but
    /// a reading may have happened in between.
    fn is_large_since(self, before: Self) -> bool {
        (self.taken - before.taken) + (self.returned - before.returned) >= MUCH
    }
}

/// The allocations that a thread has reported so far.
#[derive(Debug)]
pub(crate) struct ReportedAllocations {
    pub(crate) heap: AllocatorStats,
    last: ThreadAllocations,
    measured: u32,
}

impl ReportedAllocations {
    pub(crate) fn nothing() -> Self {
        let heap = AllocatorStats { of_thread: ThreadAllocations::default, of_all: || 0 };
        Self { heap, last: ThreadAllocations::default(), measured: 0 }
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            limit: AtomicUsize::new(usize::MAX),
            heap: AtomicI64::new(0),
            measured: AtomicU32::new(0),
            measuring: Mutex::new(()),
            clients_limited: AtomicBool::new(false),
            watched: AtomicBool::new(false),
            over_limit_since: AtomicU64::new(0),
            over_before: AtomicU64::new(0),
        }
    }
}

impl Budget {
    /// Sets the limit in bytes; 0 means unlimited.
    pub(crate) fn set_limit(&self, bytes: usize) {
        self.limit.store(if bytes == 0 { usize::MAX } else { bytes }, Ordering::Relaxed);
        self.update_watched();
    }

    /// Sets whether `maxmemory-clients` is in force.
    pub(crate) fn set_clients_limited(&self, limited: bool) {
        self.clients_limited.store(limited, Ordering::Relaxed);
        self.update_watched();
    }

    fn update_watched(&self) {
        let watched = self.is_limited() || self.clients_limited.load(Ordering::Relaxed);
        self.watched.store(watched, Ordering::Relaxed);
    }

    /// Returns whether memory is checked before each command.
    #[inline]
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Relaxed)
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
    pub fn measure(&self, of_all: fn() -> usize) -> usize {
        self.ask(of_all, &self.measuring.lock())
    }

    fn ask(&self, of_all: fn() -> usize, _measuring: &MutexGuard<'_, ()>) -> usize {
        // Reports made meanwhile are part of the reading, or small.
        let before = self.heap.load(Ordering::Relaxed);
        let heap = of_all();
        self.heap.fetch_add(heap as i64 - before, Ordering::Relaxed);
        self.measured.fetch_add(1, Ordering::Relaxed);
        heap
    }

    /// Reports what the calling thread has allocated and freed since its last report.
    #[inline]
    pub(crate) fn tell(&self, told: &mut ReportedAllocations) {
        let (now, measured) = ((told.heap.of_thread)(), self.measured.load(Ordering::Relaxed));
        if now.is_large_since(told.last) {
            return self.report_large(told);
        }
        if told.measured == measured && told.last != now {
            self.heap.fetch_add(now.growth_since(told.last), Ordering::Relaxed);
        }
        // Otherwise it is already part of the last reading.
        (told.measured, told.last) = (measured, now);
    }

    #[cold]
    fn report_large(&self, told: &mut ReportedAllocations) {
        let measuring = self.measuring.lock();
        let now = (told.heap.of_thread)();
        if told.measured == self.measured.load(Ordering::Relaxed) {
            self.heap.fetch_add(now.growth_since(told.last), Ordering::Relaxed);
        } else {
            self.ask(told.heap.of_all, &measuring);
        }
        (told.measured, told.last) = (self.measured.load(Ordering::Relaxed), now);
    }

    /// Returns the bytes by which usage exceeds the limit; `not_counted` bytes are exempt.
    #[inline]
    pub(crate) fn excess(&self, not_counted: impl FnOnce() -> usize) -> usize {
        let limit = self.limit.load(Ordering::Relaxed);
        let used = self.heap.load(Ordering::Relaxed).max(0) as usize + keyspace::pool_used_bytes();
        if used <= limit {
            return 0;
        }
        used.saturating_sub(not_counted()).saturating_sub(limit)
    }

    /// Records whether usage exceeds the limit; `nanos` is the workers' clock.
    pub(crate) fn record_over_limit(&self, over: bool, nanos: fn() -> u64) {
        let since = self.over_limit_since.load(Ordering::Relaxed);
        if over == (since != 0) {
            return;
        }
        let now = nanos();
        // If several threads see the change, one of them counts it.
        let next = if over { now.max(1) } else { 0 };
        let mine =
            self.over_limit_since.compare_exchange(since, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if mine && !over {
            self.over_before.fetch_add(now.saturating_sub(since), Ordering::Relaxed);
        }
    }

    /// Resets the time spent over the limit (CONFIG RESETSTAT).
    pub fn reset_over_limit(&self, now: u64) {
        self.over_before.store(0, Ordering::Relaxed);
        let since = self.over_limit_since.load(Ordering::Relaxed);
        if since != 0 {
            // If usage fell below the limit meanwhile, that period is already counted.
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
        let total = self.over_before.load(Ordering::Relaxed) + current;
        (total / 1_000_000, current / 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static THREAD: Cell<ThreadAllocations> = const { Cell::new(ThreadAllocations { taken: 0, returned: 0 }) };
        /// Bytes allocated by other threads.
        static OTHERS: Cell<usize> = const { Cell::new(0) };
    }

    fn all() -> usize {
        let ThreadAllocations { taken, returned } = THREAD.get();
        OTHERS.get() + (taken - returned) as usize
    }

    fn thread() -> ReportedAllocations {
        ReportedAllocations {
            heap: AllocatorStats { of_thread: || THREAD.get(), of_all: all },
            ..ReportedAllocations::nothing()
        }
    }

    fn take(bytes: u64) {
        THREAD.set(ThreadAllocations { taken: THREAD.get().taken + bytes, ..THREAD.get() });
    }

    fn give_back(bytes: u64) {
        THREAD.set(ThreadAllocations { returned: THREAD.get().returned + bytes, ..THREAD.get() });
    }

    fn heap(budget: &Budget) -> i64 {
        budget.heap.load(Ordering::Relaxed)
    }

    #[test]
    fn reported_allocations_count_immediately() {
        let (budget, mut told) = (Budget::default(), thread());
        for (taken, returned, known) in
            [(10, 0, 10), (20 << 20, 0, (20 << 20) + 10), (0, 20 << 20, 10), (0, 10, 0)]
        {
            take(taken);
            give_back(returned);
            budget.tell(&mut told);
            assert_eq!(heap(&budget), known);
        }
    }

    #[test]
    fn measuring_includes_allocations_of_other_threads() {
        let (budget, mut told) = (Budget::default(), thread());
        take(10);
        OTHERS.set(500);
        assert_eq!(budget.measure(all), 510);
        budget.tell(&mut told);
        assert_eq!(heap(&budget), 510, "what the thread took is part of it");
    }

    /// The thread allocates or frees after the total was read, but before the reading is stored.
    #[test]
    fn large_allocations_during_measuring_are_counted() {
        const VALUE: u64 = 20 << 20;
        let changes: [fn() -> usize; 3] = [
            || (all(), take(VALUE)).0,
            || (all(), give_back(VALUE)).0,
            // The previous request's buffer was freed and the next one's not allocated yet.
            || {
                give_back(VALUE);
                (all(), take(VALUE)).0
            },
        ];
        for change in changes {
            let (budget, mut told) = (Budget::default(), thread());
            take(2 * VALUE);
            budget.tell(&mut told);
            budget.measure(change);
            assert_ne!(heap(&budget), all() as i64);
            budget.tell(&mut told);
            assert_eq!(heap(&budget), all() as i64);
        }
    }
}
