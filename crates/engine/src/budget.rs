//! How much memory may be in use (`maxmemory`), and how much is, known at each command.
//!
//! The pool of pages knows at any moment what is taken of it. What the general allocator gave, it knows by thread:
//! each thread that runs commands says before each command what it took and gave back since it last said so
//! ([`Budget::tell`]). What other threads did comes in when the shell asks the allocator as a whole
//! ([`Budget::measured`]), many times a second. So a command that made the server use more is noticed by the next one,
//! on whatever thread.
//!
//! Without a limit none of this is done.
//!
//! Not counted, as in Redis: what waits to be sent to replicas; what is kept for a snapshot alone, which with a fork
//! would be the child's; and what lies in the lazy-free queue, which is being given back.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::lazy_free::LazyFreeQueue;

/// The limit, and what counts against it.
#[derive(Debug)]
pub struct Budget {
    /// `usize::MAX` is none.
    limit: AtomicUsize,
    /// Bytes that the general allocator gave, as far as was said.
    heap: AtomicI64,
    /// How often the allocator was asked as a whole: what a thread did before is known then.
    measured: AtomicU32,
    /// Bytes that wait to be sent to replicas.
    not_counted: AtomicUsize,
    /// Since when more is in use than may be, by the workers' clock, and for how long that was so before, in
    /// nanoseconds.
    over_since: AtomicU64,
    over_before: AtomicU64,
}

/// The memory of the general allocator that a thread has reported so far.
#[derive(Debug)]
pub(crate) struct Told {
    /// Returns the bytes that this thread took and did not give back.
    pub(crate) heap: fn() -> i64,
    last: i64,
    measured: u32,
}

impl Told {
    pub(crate) fn nothing() -> Self {
        Self { heap: || 0, last: 0, measured: 0 }
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            limit: AtomicUsize::new(usize::MAX),
            heap: AtomicI64::new(0),
            measured: AtomicU32::new(0),
            not_counted: AtomicUsize::new(0),
            over_since: AtomicU64::new(0),
            over_before: AtomicU64::new(0),
        }
    }
}

impl Budget {
    /// Sets the limit; 0 is none.
    pub(crate) fn set_limit(&self, bytes: usize) {
        self.limit.store(if bytes == 0 { usize::MAX } else { bytes }, Ordering::Relaxed);
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

    /// Takes what the general allocator says it has given. `before` is what [`Budget::heap`] was when it was asked.
    pub fn measured(&self, before: i64, heap: usize) {
        self.heap.fetch_add(heap as i64 - before, Ordering::Relaxed);
        self.measured.fetch_add(1, Ordering::Relaxed);
    }

    /// Says how much waits to be sent to replicas.
    pub fn set_not_counted(&self, bytes: usize) {
        self.not_counted.store(bytes, Ordering::Relaxed);
    }

    /// Bytes that the general allocator gave, as far as was said.
    #[must_use]
    pub fn heap(&self) -> i64 {
        self.heap.load(Ordering::Relaxed)
    }

    /// Bytes that wait to be sent to replicas.
    #[must_use]
    pub fn not_counted(&self) -> usize {
        self.not_counted.load(Ordering::Relaxed)
    }

    /// Takes what the calling thread took of the general allocator and gave back since it last said so.
    #[inline]
    pub(crate) fn tell(&self, told: &mut Told) {
        let (now, measured) = ((told.heap)(), self.measured.load(Ordering::Relaxed));
        if told.measured != measured {
            // It is part of what the allocator said as a whole.
            (told.measured, told.last) = (measured, now);
        } else if told.last != now {
            self.heap.fetch_add(now - told.last, Ordering::Relaxed);
            told.last = now;
        }
    }

    /// By how much more is in use than may be, in bytes.
    #[inline]
    pub(crate) fn excess(&self, queue: &LazyFreeQueue) -> usize {
        let limit = self.limit.load(Ordering::Relaxed);
        let used = self.heap.load(Ordering::Relaxed).max(0) as usize + keyspace::pool_taken();
        if used <= limit {
            return 0;
        }
        let going = keyspace::kept_bytes() + queue.pending_bytes() + self.not_counted();
        used.saturating_sub(going).saturating_sub(limit)
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

    /// For how many milliseconds more was in use than may be, in all and now, at `now` by the workers' clock.
    #[must_use]
    pub fn over_millis(&self, now: u64) -> (u64, u64) {
        let since = self.over_since.load(Ordering::Relaxed);
        let current = if since == 0 { 0 } else { now.saturating_sub(since) };
        let total = self.over_before.load(Ordering::Relaxed) + current;
        (total / 1_000_000, current / 1_000_000)
    }
}
