//! The serving lease: workers stop serving when the cluster thread has not renewed the lease in time.
//!
//! While a process was suspended (SIGSTOP, a sleeping host), a replica may have taken over. The cluster thread detects
//! the suspension by its clock and stops serving until it has received messages from other nodes. But threads resume in
//! any order, and workers may find queued requests first. So the cluster thread renews a lease after each check, and a
//! worker that finds the lease expired delays all commands until the next renewal. Only commands that were running when
//! the process was suspended complete after it resumes.

use std::sync::atomic::{AtomicU64, Ordering};

use clock::Millis;

use super::Engine;
use crate::pause::{PauseMode, PausePurpose};

/// The lease's end in nanoseconds of the workers' clock; `u64::MAX` without cluster mode or without other nodes.
#[derive(Debug)]
pub(super) struct Lease(AtomicU64);

impl Default for Lease {
    fn default() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }
}

impl Engine {
    /// Extends the lease to `expires_at`, in nanoseconds of the workers' clock. Other reasons not to serve stay in
    /// force.
    pub fn renew_lease(&self, expires_at: u64) {
        self.scheduling.lease.0.store(expires_at, Ordering::Release);
        self.scheduling.pauses.unpause(&self.settings, PausePurpose::ProcessSuspended);
    }

    /// Pauses all commands if the lease has expired, until it is renewed. A worker calls this before it runs commands.
    #[inline(always)]
    pub fn check_lease(&self, now: u64) {
        if now > self.scheduling.lease.0.load(Ordering::Acquire) {
            self.pause_until_renewed();
        }
    }

    #[cold]
    fn pause_until_renewed(&self) {
        self.scheduling.pauses.pause(
            &self.settings,
            PausePurpose::ProcessSuspended,
            PauseMode::All,
            Millis(i64::MAX),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::NodeFlags;

    #[test]
    fn commands_wait_while_lease_is_expired() {
        let engine = Engine::for_sentinel(acl::CommandCatalogue::default(), 1);
        let is_open_at = |now| {
            engine.check_lease(now);
            !engine.settings.node_flags().contains(NodeFlags::ALL_PAUSED)
        };
        assert!(is_open_at(u64::MAX), "without others there is no lease");
        engine.renew_lease(100);
        assert!(is_open_at(100));
        let ends = engine.scheduling.pauses.ended_count();
        assert!(!is_open_at(101));
        engine.renew_lease(200);
        assert!(is_open_at(101));
        assert_eq!(engine.scheduling.pauses.ended_count(), ends + 1, "they are woken");
    }
}
