//! Which removed values are freed in the background.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use bitflags::bitflags;
use config::{Values, keys};

bitflags! {
    /// Reasons for which values are removed. For each reason a parameter such as `lazyfree-lazy-expire` decides whether
    /// large values are freed in the background or immediately by the removing thread.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct LazyFreeReason: u8 {
        /// The key expired.
        const EXPIRE = 1;
        /// The key was evicted.
        const EVICTION = 1 << 1;
        /// The value was overwritten or moved.
        const SERVER_DEL = 1 << 2;
        /// The client ran DEL.
        const USER_DEL = 1 << 3;
    }
}

/// The `lazyfree-lazy-` parameters.
#[derive(Debug)]
pub struct LazyFreeSettings {
    /// Reasons for freeing in the background, as bits of [`LazyFreeReason`].
    reasons: AtomicU8,
    /// Whether FLUSHALL and FLUSHDB default to ASYNC (`lazyfree-lazy-user-flush`).
    pub flush_async: AtomicBool,
}

impl Default for LazyFreeSettings {
    fn default() -> Self {
        Self { reasons: AtomicU8::new(LazyFreeReason::all().bits()), flush_async: AtomicBool::new(true) }
    }
}

impl LazyFreeSettings {
    pub(super) fn configure(&self, values: &Values) {
        self.flush_async.store(values[keys::LAZYFREE_LAZY_USER_FLUSH], Ordering::Relaxed);
        let reasons = [
            (keys::LAZYFREE_LAZY_EXPIRE, LazyFreeReason::EXPIRE),
            (keys::LAZYFREE_LAZY_EVICTION, LazyFreeReason::EVICTION),
            (keys::LAZYFREE_LAZY_SERVER_DEL, LazyFreeReason::SERVER_DEL),
            (keys::LAZYFREE_LAZY_USER_DEL, LazyFreeReason::USER_DEL),
        ];
        let lazy = reasons.into_iter().filter(|(key, _)| values[*key]).map(|(_, reason)| reason);
        self.set_reasons(lazy.collect());
    }

    /// Returns whether large values removed for this reason are freed in the background.
    #[must_use]
    pub fn is_enabled(&self, reason: LazyFreeReason) -> bool {
        LazyFreeReason::from_bits_truncate(self.reasons.load(Ordering::Relaxed)).contains(reason)
    }

    /// Returns the command that replicates a removal for this reason: UNLINK if values are freed in the background, so
    /// that replicas do the same, otherwise DEL.
    #[must_use]
    pub fn deletion_command(&self, reason: LazyFreeReason) -> &'static [u8] {
        if self.is_enabled(reason) { b"UNLINK" } else { b"DEL" }
    }

    /// Sets the reasons for which values are freed in the background.
    pub fn set_reasons(&self, reasons: LazyFreeReason) {
        self.reasons.store(reasons.bits(), Ordering::Relaxed);
    }
}
