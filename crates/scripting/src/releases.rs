//! Notifies threads of flushed, evicted or replaced scripts and libraries, so that they drop the compiled forms.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Size in bytes of released texts that triggers an announcement, after which each thread drops its released compiled
/// forms.
const ANNOUNCEMENT_THRESHOLD_BYTES: usize = 1 << 20;
/// Fixed overhead of a release in bytes: an empty library takes about ten kilobytes in a Lua state.
const RELEASE_OVERHEAD_BYTES: usize = 16 << 10;

/// Counts the bytes of scripts and libraries that clients can no longer call.
#[derive(Default)]
pub(crate) struct Releases {
    /// Size in bytes of the texts released after the last announcement.
    pending_bytes: AtomicUsize,
    announcement_count: AtomicU64,
    announce_callback: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl std::fmt::Debug for Releases {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Releases").field("announced", &self.announcement_count).finish_non_exhaustive()
    }
}

impl Releases {
    /// Records that a script or library with a text of `bytes` bytes can no longer be called.
    pub(crate) fn record_release(&self, bytes: usize) {
        let weight = bytes + RELEASE_OVERHEAD_BYTES;
        if self.pending_bytes.fetch_add(weight, Ordering::Relaxed) + weight >= ANNOUNCEMENT_THRESHOLD_BYTES {
            self.announce();
        }
    }

    /// Announces at once that threads must drop all released compiled forms.
    pub(crate) fn announce(&self) {
        self.pending_bytes.store(0, Ordering::Relaxed);
        self.announcement_count.fetch_add(1, Ordering::Release);
        if let Some(hook) = self.announce_callback.get() {
            hook();
        }
    }

    /// The number of announcements since the start, which threads compare with the number that they last saw.
    pub(crate) fn announcement_count(&self) -> u64 {
        self.announcement_count.load(Ordering::Acquire)
    }

    /// Calls `hook` at each announcement. Only the first hook is used.
    pub(crate) fn call_when_announced(&self, hook: Box<dyn Fn() + Send + Sync>) {
        let _ = self.announce_callback.set(hook);
    }
}
