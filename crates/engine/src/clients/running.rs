//! Whether a client's requests run, for those that wait until none does ([`crate::Engine::await_revoked`]).

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Counts up when a client's requests begin to run, and when they end: odd while they run.
#[derive(Debug, Default)]
pub(crate) struct RunningRequests(AtomicU64);

impl RunningRequests {
    /// Its requests begin to run. What others want of it is to be looked at after this.
    #[inline]
    pub(crate) fn begin(&self) {
        self.0.store(self.0.load(Ordering::Relaxed) | 1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// It is about to look again.
    pub(crate) fn renew(&self) {
        self.0.store(self.0.load(Ordering::Relaxed) + 2, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    #[inline]
    pub(crate) fn end(&self) {
        let count = self.0.load(Ordering::Relaxed);
        self.0.store(count + (count & 1), Ordering::Release);
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    pub(crate) fn are_on(&self) -> bool {
        self.count() % 2 == 1
    }
}
