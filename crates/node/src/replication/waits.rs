//! Waiting for copies of the log, for WAIT, WAITAOF, SHUTDOWN and slot migration.

use std::collections::HashMap;
use std::time::Duration;

use replication::wait::{AppendOnlyOff, CopyCount, LogProgress, RequiredCopies, Waiters};
use slot_routing::ReplOffset;
use tokio::sync::oneshot;

use super::{Event, Replication};

/// The result of a wait that was not given up.
pub(crate) type Outcome = Result<CopyCount, AppendOnlyOff>;

/// Identifies a waiter, to remove it when it gives up.
pub(crate) type Token = u64;

/// The waiters, each with a channel for the result.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    waiters: Waiters<Token>,
    wake: HashMap<Token, oneshot::Sender<Outcome>>,
    next: Token,
}

/// The result of asking for copies of the log.
#[derive(Debug)]
pub(crate) enum Wait {
    Over(Outcome),
    /// There are too few copies yet: the token and the channel for the result.
    Begun(Token, oneshot::Receiver<Outcome>),
}

impl Replication {
    /// Counts the copies of the log before `offset`.
    pub(crate) fn copies(&self, offset: ReplOffset, wanted: RequiredCopies) -> Outcome {
        self.copied().count_copies(offset, wanted)
    }

    /// Returns how many replicas have acknowledged the log before `offset`.
    pub(crate) fn acknowledged(&self, offset: ReplOffset) -> usize {
        self.copies(offset, RequiredCopies::Acknowledged { replicas: 0 }).map_or(0, |copies| copies.replicas)
    }

    fn copied(&self) -> LogProgress {
        let here = *self.on_disk.borrow();
        let serving = self.serving.lock();
        let master = serving.master();
        LogProgress {
            local: here,
            acknowledged: master.acknowledged_offsets(),
            synced: master.synced_offsets(),
        }
    }

    /// Waits for copies of the log before `offset` unless there are enough already.
    pub(crate) fn wait_for(&self, offset: ReplOffset, wanted: RequiredCopies) -> Wait {
        let mut waiting = self.waiting.lock();
        let copies = self.copies(offset, wanted);
        if copies.map_or(true, |copies| copies.satisfies(wanted)) {
            return Wait::Over(copies);
        }
        waiting.next += 1;
        let token = waiting.next;
        let (wake, woken) = oneshot::channel();
        waiting.wake.insert(token, wake);
        waiting.waiters.add(token, offset, wanted);
        drop(waiting);
        self.log.request_acknowledgements();
        if wanted.is_for_disk() {
            self.tell(Event::Awaited);
        }
        Wait::Begun(token, woken)
    }

    /// Waits until `by` replicas have acknowledged the log before `offset`. Returns false on a timeout.
    pub(crate) async fn reaches(&self, offset: ReplOffset, by: usize, timeout: Duration) -> bool {
        match self.wait_for(offset, RequiredCopies::Acknowledged { replicas: by }) {
            Wait::Over(copies) => copies.is_ok(),
            Wait::Begun(token, woken) => {
                let reached = tokio::time::timeout(timeout, woken).await.is_ok();
                self.stop_waiting(token, offset);
                reached
            }
        }
    }

    /// Removes a waiter that gave up.
    pub(crate) fn stop_waiting(&self, token: Token, offset: ReplOffset) {
        let mut waiting = self.waiting.lock();
        waiting.waiters.remove(token, offset);
        waiting.wake.remove(&token);
    }

    /// Returns whether a waiter requires the disk of this node.
    pub(super) fn requires_disk(&self) -> bool {
        self.waiting.lock().waiters.needs_disk()
    }

    /// Wakes the waiters that have enough copies.
    pub(super) fn release_waiters(&self) {
        let mut waiting = self.waiting.lock();
        if waiting.waiters.is_empty() {
            return;
        }
        for (token, copies) in waiting.waiters.release(&self.copied()) {
            if let Some(wake) = waiting.wake.remove(&token) {
                // The client of a waiter may have disconnected.
                let _ = wake.send(copies);
            }
        }
    }
}
