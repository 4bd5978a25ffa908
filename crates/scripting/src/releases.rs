//! How threads learn that scripts or libraries were flushed, evicted or replaced, so that they drop the compiled forms.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Released texts are announced once they amount to this: threads then go through all that they have compiled.
const ANNOUNCED_AT: usize = 1 << 20;
/// The weight of a release beside its text: an empty library takes some ten kilobytes in a state of Lua.
const OVERHEAD: usize = 16 << 10;

/// Counts the texts that clients can no longer call.
#[derive(Default)]
pub(crate) struct Releases {
    /// The weight of the releases since the last announcement.
    pending: AtomicUsize,
    announced: AtomicU64,
    hook: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl std::fmt::Debug for Releases {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Releases").field("announced", &self.announced).finish_non_exhaustive()
    }
}

impl Releases {
    /// A text of this many bytes was released.
    pub(crate) fn note(&self, bytes: usize) {
        let weight = bytes + OVERHEAD;
        if self.pending.fetch_add(weight, Ordering::Relaxed) + weight >= ANNOUNCED_AT {
            self.announce();
        }
    }

    /// Everything that was released is to be dropped now.
    pub(crate) fn announce(&self) {
        self.pending.store(0, Ordering::Relaxed);
        self.announced.fetch_add(1, Ordering::Release);
        if let Some(hook) = self.hook.get() {
            hook();
        }
    }

    /// How many announcements there were.
    pub(crate) fn announced(&self) -> u64 {
        self.announced.load(Ordering::Acquire)
    }

    /// Calls `hook` at each announcement. Only the first hook counts.
    pub(crate) fn call_when_announced(&self, hook: Box<dyn Fn() + Send + Sync>) {
        let _ = self.hook.set(hook);
    }
}
