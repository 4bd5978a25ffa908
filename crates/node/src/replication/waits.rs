//! Waiting for copies of the log: clients of WAIT and WAITAOF, a stop, moves of slots.

use std::collections::HashMap;
use std::time::Duration;

use replication::wait::{AppendOnlyOff, Copies, LogProgress, RequiredCopies, Waiters};
use slot_routing::ReplOffset;
use tokio::sync::oneshot;

use super::{Event, Replication};

/// The end of a wait, unless it is given up.
pub(crate) type Outcome = Result<Copies, AppendOnlyOff>;

/// Names one that waits, and is to be removed if it gives up.
pub(crate) type Token = u64;

/// Those who wait, with the way to tell them.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    waiters: Waiters<Token>,
    wake: HashMap<Token, oneshot::Sender<Outcome>>,
    next: Token,
}

/// How the copies of the log are, as they are wanted or not yet.
#[derive(Debug)]
pub(crate) enum Wait {
    Over(Outcome),
    /// There are not enough yet: the way to hear of it when there are.
    Begun(Token, oneshot::Receiver<Outcome>),
}

impl Replication {
    /// How many copies there are of the log before `offset`.
    pub(crate) fn copies(&self, offset: ReplOffset, wanted: RequiredCopies) -> Outcome {
        self.copied().copies(offset, wanted)
    }

    /// How many replicas have acknowledged the log before `offset`.
    pub(crate) fn acknowledged(&self, offset: ReplOffset) -> usize {
        self.copies(offset, RequiredCopies::Acknowledged { by: 0 }).map_or(0, |copies| copies.replicas)
    }

    fn copied(&self) -> LogProgress {
        let here = *self.on_disk.borrow();
        let serving = self.serving.lock();
        let master = serving.master();
        LogProgress { here, acknowledged: master.acknowledged(), synced: master.synced() }
    }

    /// Waits for copies of the log before `offset`, if there are not enough.
    pub(crate) fn wait_for(&self, offset: ReplOffset, wanted: RequiredCopies) -> Wait {
        let mut waiting = self.waiting.lock();
        let copies = self.copies(offset, wanted);
        if copies.map_or(true, |copies| copies.suffice(wanted)) {
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

    /// Waits until so many replicas have acknowledged the log before `offset`; says whether they did in time.
    pub(crate) async fn reaches(&self, offset: ReplOffset, by: usize, timeout: Duration) -> bool {
        match self.wait_for(offset, RequiredCopies::Acknowledged { by }) {
            Wait::Over(copies) => copies.is_ok(),
            Wait::Begun(token, woken) => {
                let reached = tokio::time::timeout(timeout, woken).await.is_ok();
                self.stop_waiting(token, offset);
                reached
            }
        }
    }

    /// Somebody waits no longer.
    pub(crate) fn stop_waiting(&self, token: Token, offset: ReplOffset) {
        let mut waiting = self.waiting.lock();
        waiting.waiters.remove(token, offset);
        waiting.wake.remove(&token);
    }

    /// Whether somebody waits for this node's disk.
    pub(super) fn minds_disk(&self) -> bool {
        self.waiting.lock().waiters.requires_disk()
    }

    /// Wakes those whose wait is over.
    pub(super) fn release_waiters(&self) {
        let mut waiting = self.waiting.lock();
        if waiting.waiters.is_empty() {
            return;
        }
        for (token, copies) in waiting.waiters.release(&self.copied()) {
            if let Some(wake) = waiting.wake.remove(&token) {
                // A client that has left needs no answer.
                let _ = wake.send(copies);
            }
        }
    }
}
