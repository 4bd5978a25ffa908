//! How much memory may be in use (`maxmemory`), and how much is, known at each command.
//!
//! The pool of pages knows at any moment what is taken of it. What the general allocator gave, it knows by thread:
//! each thread that runs commands says before each command what it took and gave back since it last said so
//! ([`Budget::tell`]). What other threads did comes in when the allocator is asked as a whole ([`Budget::measure`]),
//! many times a second. So a command that made the server use more is noticed by the next one, on whatever thread.
//!
//! Memory that a thread took just when the allocator was asked as a whole may be part of the answer or not. If that is
//! little, it is forgotten until the next answer. Of a large value it is not: the thread asks again, so that five values
//! of 20 MB never fit where there is room for four.
//!
//! Without a limit none of this is done.
//!
//! Not counted, as in Redis: what waits to be sent to replicas and lies beyond the backlog; what is kept for a snapshot
//! alone, which with a fork would be the child's; the memory of Lua, up to what one thread's state may take; what lies in
//! the lazy-free queue, and what evicted clients take, both of which is being given back.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

/// More bytes than a thread may take and give back, together, without its being known. To ask the allocator as a whole
/// takes some ten microseconds; to fill so much takes ten times that.
const MUCH: u64 = 1 << 20;

/// The limit, and what counts against it.
#[derive(Debug)]
pub struct Budget {
    /// `usize::MAX` is none.
    limit: AtomicUsize,
    /// Bytes that the general allocator gave, as far as was said.
    heap: AtomicI64,
    /// How often the allocator was asked as a whole: what a thread did before is known then.
    measured: AtomicU32,
    /// Held while the allocator is asked as a whole, and while much is told.
    measuring: Mutex<()>,
    /// Clients have a limit of their own (`maxmemory-clients`).
    clients_limited: AtomicBool,
    /// Memory is to be looked at before each command: there is a limit of either kind.
    watched: AtomicBool,
    /// Since when more is in use than may be, by the workers' clock, and for how long that was so before, in
    /// nanoseconds.
    over_since: AtomicU64,
    over_before: AtomicU64,
}

/// How the general allocator is asked.
#[derive(Debug, Clone, Copy)]
pub struct Heap {
    /// The calling thread's dealings with it.
    pub of_thread: fn() -> Turnover,
    /// The bytes that it gave and did not get back.
    pub of_all: fn() -> usize,
}

/// A thread's dealings with the general allocator since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Turnover {
    /// Bytes that it took.
    pub taken: u64,
    /// Bytes that it gave back, of its own or of other threads.
    pub returned: u64,
}

impl Turnover {
    fn grew_since(self, before: Self) -> i64 {
        (self.taken - before.taken) as i64 - (self.returned - before.returned) as i64
    }

    /// Whether much was taken and given back since. A buffer that went and one that came are no difference, but there
    /// was a moment between them.
    fn is_much_since(self, before: Self) -> bool {
        (self.taken - before.taken) + (self.returned - before.returned) >= MUCH
    }
}

/// The memory of the general allocator that a thread has reported so far.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) heap: Heap,
    last: Turnover,
    measured: u32,
}

impl Told {
    pub(crate) fn nothing() -> Self {
        let heap = Heap { of_thread: Turnover::default, of_all: || 0 };
        Self { heap, last: Turnover::default(), measured: 0 }
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
            over_since: AtomicU64::new(0),
            over_before: AtomicU64::new(0),
        }
    }
}

impl Budget {
    /// Sets the limit; 0 is none.
    pub(crate) fn set_limit(&self, bytes: usize) {
        self.limit.store(if bytes == 0 { usize::MAX } else { bytes }, Ordering::Relaxed);
        self.update_watched();
    }

    /// Says whether clients have a limit of their own.
    pub(crate) fn watch_clients(&self, limited: bool) {
        self.clients_limited.store(limited, Ordering::Relaxed);
        self.update_watched();
    }

    fn update_watched(&self) {
        let watched = self.is_limited() || self.clients_limited.load(Ordering::Relaxed);
        self.watched.store(watched, Ordering::Relaxed);
    }

    /// Whether memory is to be looked at before each command.
    #[inline]
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Relaxed)
    }

    /// Whether there is a limit.
    #[inline]
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.limit.load(Ordering::Relaxed) != usize::MAX
    }

    /// The limit, if there is one.
    #[must_use]
    pub fn limit(&self) -> Option<usize> {
        Some(self.limit.load(Ordering::Relaxed)).filter(|limit| *limit != usize::MAX)
    }

    /// Asks the general allocator as a whole; gives its answer.
    pub fn measure(&self, of_all: fn() -> usize) -> usize {
        self.ask(of_all, &self.measuring.lock())
    }

    fn ask(&self, of_all: fn() -> usize, _measuring: &MutexGuard<'_, ()>) -> usize {
        // Anything told meanwhile is part of the answer, or little.
        let before = self.heap.load(Ordering::Relaxed);
        let heap = of_all();
        self.heap.fetch_add(heap as i64 - before, Ordering::Relaxed);
        self.measured.fetch_add(1, Ordering::Relaxed);
        heap
    }

    /// Takes what the calling thread took of the general allocator and gave back since it last said so.
    #[inline]
    pub(crate) fn tell(&self, told: &mut Told) {
        let (now, measured) = ((told.heap.of_thread)(), self.measured.load(Ordering::Relaxed));
        if now.is_much_since(told.last) {
            return self.tell_much(told);
        }
        if told.measured == measured && told.last != now {
            self.heap.fetch_add(now.grew_since(told.last), Ordering::Relaxed);
        }
        // Else it is part of what the allocator said as a whole.
        (told.measured, told.last) = (measured, now);
    }

    #[cold]
    fn tell_much(&self, told: &mut Told) {
        let measuring = self.measuring.lock();
        let now = (told.heap.of_thread)();
        if told.measured == self.measured.load(Ordering::Relaxed) {
            self.heap.fetch_add(now.grew_since(told.last), Ordering::Relaxed);
        } else {
            self.ask(told.heap.of_all, &measuring);
        }
        (told.measured, told.last) = (self.measured.load(Ordering::Relaxed), now);
    }

    /// By how much more is in use than may be, in bytes; `not_counted` of them do not count.
    #[inline]
    pub(crate) fn excess(&self, not_counted: impl FnOnce() -> usize) -> usize {
        let limit = self.limit.load(Ordering::Relaxed);
        let used = self.heap.load(Ordering::Relaxed).max(0) as usize + keyspace::pool_used_bytes();
        if used <= limit {
            return 0;
        }
        used.saturating_sub(not_counted()).saturating_sub(limit)
    }

    /// Notes whether more is in use than may be; `nanos` is the workers' clock.
    pub(crate) fn note_over(&self, over: bool, nanos: fn() -> u64) {
        let since = self.over_since.load(Ordering::Relaxed);
        if over == (since != 0) {
            return;
        }
        let now = nanos();
        // Of several threads that see the change one counts it.
        let next = if over { now.max(1) } else { 0 };
        let mine =
            self.over_since.compare_exchange(since, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if mine && !over {
            self.over_before.fetch_add(now.saturating_sub(since), Ordering::Relaxed);
        }
    }

    /// Counts the time over the limit from nought (CONFIG RESETSTAT).
    pub fn reset_over(&self, now: u64) {
        self.over_before.store(0, Ordering::Relaxed);
        let since = self.over_since.load(Ordering::Relaxed);
        if since != 0 {
            // If it is no longer over meanwhile, that has been counted.
            let _ = self.over_since.compare_exchange(since, now.max(1), Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// For how many milliseconds more was in use than may be, in all and now, at `now` by the workers' clock.
    #[must_use]
    pub fn over_millis(&self, now: u64) -> (u64, u64) {
        let since = self.over_since.load(Ordering::Relaxed);
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
        static THREAD: Cell<Turnover> = const { Cell::new(Turnover { taken: 0, returned: 0 }) };
        /// The bytes that other threads have.
        static OTHERS: Cell<usize> = const { Cell::new(0) };
    }

    fn all() -> usize {
        let Turnover { taken, returned } = THREAD.get();
        OTHERS.get() + (taken - returned) as usize
    }

    fn thread() -> Told {
        Told { heap: Heap { of_thread: || THREAD.get(), of_all: all }, ..Told::nothing() }
    }

    fn take(bytes: u64) {
        THREAD.set(Turnover { taken: THREAD.get().taken + bytes, ..THREAD.get() });
    }

    fn give_back(bytes: u64) {
        THREAD.set(Turnover { returned: THREAD.get().returned + bytes, ..THREAD.get() });
    }

    fn heap(budget: &Budget) -> i64 {
        budget.heap.load(Ordering::Relaxed)
    }

    #[test]
    fn what_a_thread_tells_counts_at_once() {
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
    fn what_other_threads_took_is_known_when_all_are_asked() {
        let (budget, mut told) = (Budget::default(), thread());
        take(10);
        OTHERS.set(500);
        assert_eq!(budget.measure(all), 510);
        budget.tell(&mut told);
        assert_eq!(heap(&budget), 510, "what the thread took is part of it");
    }

    /// The allocator answers, then the thread takes or returns, then the answer counts.
    #[test]
    fn much_that_changes_while_all_are_asked_is_not_forgotten() {
        const VALUE: u64 = 20 << 20;
        let changes: [fn() -> usize; 3] = [
            || (all(), take(VALUE)).0,
            || (all(), give_back(VALUE)).0,
            // The buffer of a request is gone, and that of the next was not yet there.
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
