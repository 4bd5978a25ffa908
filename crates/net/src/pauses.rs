//! Lets paused commands wait until the pause ends (CLIENT PAUSE, failover, shutdown, slot migration).

use std::sync::Arc;
use std::time::Duration;

use clock::Millis;
use engine::{Engine, PauseMode, PausePurpose};
use slot_routing::Slot;
use tokio::sync::Notify;

/// Blocks commands during a pause and wakes them when it ends.
#[derive(Debug)]
pub struct PauseGate {
    engine: Arc<Engine>,
    /// Notified whenever a pause of commands or of writes to a slot ends.
    pause_ended: Arc<Notify>,
}

impl PauseGate {
    /// Creates the gate for all pauses of this engine.
    pub fn new(engine: Arc<Engine>) -> Self {
        let ended = Arc::new(Notify::new());
        let notify = ended.clone();
        engine.scheduling.pauses.set_end_callback(move || notify.notify_waiters());
        Self { engine, pause_ended: ended }
    }

    /// Waits until a pause, of commands or of writes to a slot, ends after the caller has read [`Pauses::ended_count`]
    /// as `ended_count`. When this returns, the command may still be paused for another reason.
    ///
    /// [`Pauses::ended_count`]: engine::Pauses::ended_count
    pub async fn wait_for_pause_end_after(&self, ended_count: u64) {
        let pauses = &self.engine.scheduling.pauses;
        self.wait_until(|next| {
            pauses.ended_count() != ended_count || next.is_none() && !pauses.has_paused_slots()
        })
        .await;
    }

    /// Waits until no pause is active. Writes to individual slots may still be paused.
    pub async fn wait_until_unpaused(&self) {
        self.wait_until(|next| next.is_none()).await;
    }

    /// Waits until `is_done` returns true. The predicate is checked after every end of a pause; its argument is the
    /// time when the next active pause expires, if any.
    async fn wait_until(&self, is_done: impl Fn(Option<Millis>) -> bool) {
        loop {
            // Registered before the check, so that no notification is lost.
            let ended = self.pause_ended.notified();
            let now = process::time::now();
            let next = self.engine.scheduling.pauses.end_expired(&self.engine.settings, now);
            if is_done(next) {
                return;
            }
            match next.map(|next| Duration::from_millis(u64::try_from(next.0 - now.0).unwrap_or(0))) {
                Some(left) => drop(tokio::time::timeout(left, ended).await),
                None => ended.await,
            }
        }
    }

    /// Pauses writes for a manual failover, for at most `max_duration`.
    pub fn pause_for_failover(&self, max_duration: Duration) {
        let longest = i64::try_from(max_duration.as_millis()).unwrap_or(i64::MAX);
        let end = process::time::now().0.saturating_add(longest);
        self.pause_writes(PausePurpose::Failover, Millis(end));
    }

    /// Ends the pause for a manual failover and wakes the paused commands.
    pub fn resume_after_failover(&self) {
        self.resume(PausePurpose::Failover);
    }

    /// Pauses writes for a shutdown, until the shutdown finishes or is cancelled.
    pub fn pause_for_shutdown(&self) {
        self.pause_writes(PausePurpose::Shutdown, Millis(i64::MAX));
    }

    /// Ends the pause after the shutdown was cancelled, and wakes the paused commands.
    pub fn resume_after_shutdown(&self) {
        self.resume(PausePurpose::Shutdown);
    }

    /// Pauses writes to a slot until [`PauseGate::resume_slot_writes`]. Returns `false` if this is impossible.
    pub fn pause_slot_writes(&self, slot: Slot) -> bool {
        self.engine.pause_slot_writes(slot)
    }

    /// Ends the pause that [`PauseGate::pause_slot_writes`] began, and wakes the paused commands.
    pub fn resume_slot_writes(&self, slot: Slot) {
        self.engine.resume_slot_writes(slot);
    }

    fn pause_writes(&self, purpose: PausePurpose, expires_at: Millis) {
        self.engine.scheduling.pauses.pause(&self.engine.settings, purpose, PauseMode::Writes, expires_at);
    }

    fn resume(&self, purpose: PausePurpose) {
        self.engine.scheduling.pauses.unpause(&self.engine.settings, purpose);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake, Waker};

    use super::*;

    #[derive(Default)]
    struct WakeCounter(AtomicUsize);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Regression test: paused commands used to poll every 20 ms, because CLIENT UNPAUSE did not wake them.
    #[tokio::test]
    async fn waiters_wake_only_when_a_pause_ends() {
        let engine = Arc::new(Engine::for_sentinel(commands::sentinel_registry().catalogue(), 1));
        let gate = PauseGate::new(engine.clone());
        for purpose in [PausePurpose::Client, PausePurpose::Failover] {
            engine.scheduling.pauses.pause(&engine.settings, purpose, PauseMode::Writes, Millis(i64::MAX));
        }
        let ends = engine.scheduling.pauses.ended_count();
        let woken = Arc::<WakeCounter>::default();
        let waker = Waker::from(woken.clone());
        let mut context = Context::from_waker(&waker);
        let wakes = || woken.0.swap(0, Ordering::Relaxed);

        let (mut held_back, mut over) =
            (pin!(gate.wait_for_pause_end_after(ends)), pin!(gate.wait_until_unpaused()));
        assert!(held_back.as_mut().poll(&mut context).is_pending());
        assert!(over.as_mut().poll(&mut context).is_pending());
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(wakes(), 0, "waiters do not poll");
        engine.scheduling.pauses.unpause(&engine.settings, PausePurpose::Client);
        assert_eq!(wakes(), 2);
        assert!(held_back.as_mut().poll(&mut context).is_ready(), "the other pause may not concern it");
        assert!(over.as_mut().poll(&mut context).is_pending());
        gate.resume_after_failover();
        assert_eq!(wakes(), 1);
        assert!(over.as_mut().poll(&mut context).is_ready());

        // Both calls return at once, because one pause has ended since the count was read and none is active.
        gate.wait_for_pause_end_after(ends).await;
        gate.wait_for_pause_end_after(engine.scheduling.pauses.ended_count()).await;
    }
}
