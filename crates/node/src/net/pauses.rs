//! Where paused commands wait, and what lets them go on.

use std::sync::Arc;
use std::time::Duration;

use clock::Millis;
use engine::{Engine, PauseMode, PausePurpose};
use slot_routing::Slot;
use tokio::sync::Notify;

/// How often a paused connection looks whether it may go on.
const LOOK: Duration = Duration::from_millis(20);

/// The gate that paused commands wait at.
#[derive(Debug)]
pub(crate) struct PauseGate {
    engine: Arc<Engine>,
    /// Wakes connections whose commands were paused.
    ended: Notify,
}

impl PauseGate {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        Self { engine, ended: Notify::new() }
    }

    /// Returns when nothing holds commands back any more.
    pub(crate) async fn nothing_held(&self) {
        loop {
            self.over().await;
            let ended = self.ended.notified();
            if !self.engine.pauses.holds_slots() {
                return;
            }
            let _ = tokio::time::timeout(LOOK, ended).await;
        }
    }

    /// Returns when no pause holds; slots may be held.
    pub(crate) async fn over(&self) {
        loop {
            let ended = self.ended.notified();
            let now = crate::process::time::now();
            let Some(next) = self.engine.pauses.end_overdue(&self.engine.settings, now) else { return };
            let left = Duration::from_millis(u64::try_from(next.0 - now.0).unwrap_or(0));
            // CLIENT UNPAUSE wakes no waiter: look again.
            let _ = tokio::time::timeout(left.min(LOOK), ended).await;
        }
    }

    /// Holds writes back for a manual failover, for at most so long.
    pub(crate) fn pause_for_failover(&self, longest: Duration) {
        let longest = i64::try_from(longest.as_millis()).unwrap_or(i64::MAX);
        let end = crate::process::time::now().0.saturating_add(longest);
        self.pause_writes(PausePurpose::Failover, Millis(end));
    }

    /// Ends the pause for a manual failover, and lets the commands go on that it held back.
    pub(crate) fn resume_after_failover(&self) {
        self.resume(PausePurpose::Failover);
    }

    /// Holds writes back for a shutdown, until it is given up.
    pub(crate) fn pause_for_shutdown(&self) {
        self.pause_writes(PausePurpose::Shutdown, Millis(i64::MAX));
    }

    /// A shutdown was given up.
    pub(crate) fn resume_after_shutdown(&self) {
        self.resume(PausePurpose::Shutdown);
    }

    /// Holds writes to a slot back until [`PauseGate::free_slot`]; `false` if that cannot be.
    pub(crate) fn hold_slot(&self, slot: Slot) -> bool {
        self.engine.hold_slot(slot)
    }

    /// Lets writes to a slot go on that was held.
    pub(crate) fn free_slot(&self, slot: Slot) {
        self.engine.free_slot(slot);
        self.ended.notify_waiters();
    }

    fn pause_writes(&self, purpose: PausePurpose, end: Millis) {
        self.engine.pauses.pause(&self.engine.settings, purpose, PauseMode::Writes, end);
    }

    fn resume(&self, purpose: PausePurpose) {
        self.engine.pauses.unpause(&self.engine.settings, purpose);
        self.ended.notify_waiters();
    }
}
