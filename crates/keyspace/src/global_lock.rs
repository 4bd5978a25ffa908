//! The global lock: the right to wait for a slot while holding another one.
//!
//! A thread that never waits while holding a slot cannot be part of a deadlock. Operations that must do so (a
//! script with undeclared keys, a command that locks every slot) take the global lock first: its holder waits
//! only for threads that do not wait for it while holding a slot. Functions that take a [`GlobalLock`] cannot
//! be called without it.

use std::time::Duration;

use parking_lot::MutexGuard;

use crate::keyspace::{Keyspace, POLL_INTERVAL, WaitPolicy};

/// The global lock, held by a thread that waits for a slot while holding another. It must be acquired while holding no
/// slot.
#[derive(Debug)]
pub struct GlobalLock<'k> {
    pub(crate) keyspace: &'k Keyspace,
    _held: MutexGuard<'k, ()>,
}

impl Keyspace {
    /// Waits for the global lock. The caller must hold no slot.
    #[must_use]
    pub fn acquire_global_lock(&self) -> GlobalLock<'_> {
        GlobalLock { keyspace: self, _held: self.global_lock.lock() }
    }

    /// Waits for the global lock as long as the policy allows.
    #[must_use]
    pub fn acquire_global_lock_while(&self, wait_policy: WaitPolicy<'_>) -> Option<GlobalLock<'_>> {
        let mut waited = POLL_INTERVAL;
        loop {
            match self.acquire_global_lock_within(POLL_INTERVAL) {
                None if wait_policy(waited) => waited += POLL_INTERVAL,
                turn => return turn,
            }
        }
    }

    /// Waits for the global lock for at most `time`. The caller may hold slots, because the wait is bounded.
    #[must_use]
    pub fn acquire_global_lock_within(&self, time: Duration) -> Option<GlobalLock<'_>> {
        self.global_lock.try_lock_for(time).map(|held| GlobalLock { keyspace: self, _held: held })
    }
}
