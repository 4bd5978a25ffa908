//! Tracks whether a client's requests are running, for [`crate::Engine::await_revoked_clients`].

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Incremented when a client's requests start and stop running: odd while they run.
#[derive(Debug, Default)]
pub(crate) struct RunningRequests(AtomicU64);

impl RunningRequests {
    /// Marks requests as running. The caller must check for revoked permissions only after this call.
    #[inline]
    pub(crate) fn begin(&self) {
        self.0.store(self.0.load(Ordering::Relaxed) | 1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Records that the client is about to check whether its permissions were revoked.
    pub(crate) fn mark_revocation_check(&self) {
        self.0.store(self.0.load(Ordering::Relaxed) + 2, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    #[inline]
    pub(crate) fn end(&self) {
        let count = self.0.load(Ordering::Relaxed);
        self.0.store(count + (count & 1), Ordering::Release);
    }

    pub(crate) fn generation(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    pub(crate) fn is_running(&self) -> bool {
        self.generation() % 2 == 1
    }
}
