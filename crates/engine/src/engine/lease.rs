//! How long a node may serve without having been told that it still may.
//!
//! A process that stood still (SIGSTOP, a host that slept) may have been replaced meanwhile. The thread that speaks with
//! the other nodes sees that by its clock, and has the node serve nobody until they were heard; but threads wake in any
//! order, and workers find requests that have waited all the while. So that thread extends a lease whenever it has looked,
//! and a worker that finds the lease ended holds everything back until it has looked again. Only what runs at the very
//! moment at which the process stops still ends when it goes on.

use std::sync::atomic::{AtomicU64, Ordering};

use clock::Millis;

use super::Engine;
use crate::pause::{PauseMode, PausePurpose};

/// The time, by the workers' clock, up to which they serve unasked; without cluster mode, and where there is no other
/// node, for ever.
#[derive(Debug)]
pub(super) struct Lease(AtomicU64);

impl Default for Lease {
    fn default() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }
}

impl Engine {
    /// Serves until then, in nanoseconds of the workers' clock, whatever holds it back by its other rules.
    pub fn extend_lease(&self, until: u64) {
        self.lease.0.store(until, Ordering::Release);
        self.pauses.unpause(&self.settings, PausePurpose::Standstill);
    }

    /// A worker is about to run commands. If the lease has ended, all commands wait until it is extended.
    #[inline(always)]
    pub fn mind_lease(&self, now: u64) {
        if now > self.lease.0.load(Ordering::Acquire) {
            self.stand_by();
        }
    }

    #[cold]
    fn stand_by(&self) {
        self.pauses.pause(&self.settings, PausePurpose::Standstill, PauseMode::All, Millis(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Gate;

    #[test]
    fn commands_wait_from_the_end_of_a_lease_until_it_is_extended() {
        let engine = Engine::of_sentinel(acl::CommandCatalogue::default(), 1);
        let is_open_at = |now| {
            engine.mind_lease(now);
            !engine.settings.gate().contains(Gate::ALL_PAUSED)
        };
        assert!(is_open_at(u64::MAX), "without others there is no lease");
        engine.extend_lease(100);
        assert!(is_open_at(100));
        let ends = engine.pauses.ends();
        assert!(!is_open_at(101));
        engine.extend_lease(200);
        assert!(is_open_at(101));
        assert_eq!(engine.pauses.ends(), ends + 1, "they are woken");
    }
}
