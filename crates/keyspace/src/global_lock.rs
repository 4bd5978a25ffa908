//! The global lock: the right to wait for a slot while holding another one.
//!
//! A thread that never waits while it holds a slot cannot be part of a deadlock. Some operations must wait while
//! holding slots: a script with undeclared keys, or a command that locks every slot. They take the global lock first,
//! and then wait only for threads that do not wait while holding a slot. Functions that take a [`GlobalLock`] as a
//! parameter cannot be called without it.

use std::time::Duration;

use parking_lot::MutexGuard;

use crate::keyspace::{Keyspace, POLL_INTERVAL, WaitPolicy};

/// Proof that this thread holds the global lock, and may wait for a slot while holding others. A thread must hold no
/// slot when it acquires the lock.
#[derive(Debug)]
pub struct GlobalLock<'k> {
    pub(crate) keyspace: &'k Keyspace,
    _guard: MutexGuard<'k, ()>,
}

impl Keyspace {
    /// Waits for the global lock. The calling thread must hold no slot.
    #[must_use]
    pub fn acquire_global_lock(&self) -> GlobalLock<'_> {
        GlobalLock { keyspace: self, _guard: self.global_lock.lock() }
    }

    /// Waits for the global lock until `wait_policy` gives up.
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

    /// Waits at most `time` for the global lock. The calling thread may hold slots, because the wait is bounded.
    #[must_use]
    pub fn acquire_global_lock_within(&self, timeout: Duration) -> Option<GlobalLock<'_>> {
        self.global_lock.try_lock_for(timeout).map(|held| GlobalLock { keyspace: self, _guard: held })
    }
}
