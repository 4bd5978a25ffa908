//! Waits for copies of the replication log, for WAIT, WAITAOF, SHUTDOWN and slot migration.

use std::collections::HashMap;
use std::time::Duration;

use replication::wait::{AppendOnlyOffError, CopyCount, LogProgress, RequiredCopies, Waiters};
use slot_routing::ReplOffset;
use tokio::sync::oneshot;

use super::{Replication, ReplicationEvent};

/// The number of copies when a wait ended. Fails if the append-only file is required and was switched off.
pub(crate) type CopiesResult = Result<CopyCount, AppendOnlyOffError>;

/// Identifies a waiter, so that it can be removed when it gives up.
pub(crate) type WaiterToken = u64;

/// All waiters, each with a channel for its result.
#[derive(Debug, Default)]
pub(super) struct CopyWaiters {
    waiters: Waiters<WaiterToken>,
    result_senders: HashMap<WaiterToken, oneshot::Sender<CopiesResult>>,
    next_token: WaiterToken,
}

/// The result of starting a wait for copies.
#[derive(Debug)]
pub(crate) enum WaitStart {
    Finished(CopiesResult),
    /// There are too few copies yet. Contains the waiter's token and the channel for the result.
    Waiting(WaiterToken, oneshot::Receiver<CopiesResult>),
}

impl Replication {
    /// Counts the replicas or disks, depending on `required`, that have the log before `offset`.
    pub(crate) fn count_copies(&self, offset: ReplOffset, required: RequiredCopies) -> CopiesResult {
        self.log_progress().count_copies(offset, required)
    }

    /// Returns how many replicas have acknowledged the log before `offset`.
    pub(crate) fn count_replicas_acknowledging(&self, offset: ReplOffset) -> usize {
        self.count_copies(offset, RequiredCopies::Acknowledged { replica_count: 0 })
            .map_or(0, |copies| copies.replica_count)
    }

    fn log_progress(&self) -> LogProgress {
        let here = *self.synced_log.borrow();
        let serving = self.master_driver.lock();
        let master = serving.master();
        LogProgress {
            local_file: here,
            acknowledged_offsets: master.acknowledged_offsets(),
            synced_offsets: master.synced_offsets(),
        }
    }

    /// Waits for copies of the log before `offset` unless there are enough already.
    pub(crate) fn start_waiting(&self, offset: ReplOffset, required: RequiredCopies) -> WaitStart {
        let mut waiting = self.copy_waiters.lock();
        let copies = self.count_copies(offset, required);
        if copies.map_or(true, |copies| copies.satisfies(required)) {
            return WaitStart::Finished(copies);
        }
        waiting.next_token += 1;
        let token = waiting.next_token;
        let (wake, woken) = oneshot::channel();
        waiting.result_senders.insert(token, wake);
        waiting.waiters.add(token, offset, required);
        drop(waiting);
        self.log.request_acknowledgements();
        if required.requires_local_disk() {
            self.send_event(ReplicationEvent::DiskWaitStarted);
        }
        WaitStart::Waiting(token, woken)
    }

    /// Waits until `count` replicas have acknowledged the log before `offset`. Returns false on a timeout.
    pub(crate) async fn wait_for_replicas(
        &self,
        offset: ReplOffset,
        count: usize,
        timeout: Duration,
    ) -> bool {
        match self.start_waiting(offset, RequiredCopies::Acknowledged { replica_count: count }) {
            WaitStart::Finished(copies) => copies.is_ok(),
            WaitStart::Waiting(token, woken) => {
                let reached = tokio::time::timeout(timeout, woken).await.is_ok();
                self.remove_waiter(token, offset);
                reached
            }
        }
    }

    pub(crate) fn remove_waiter(&self, token: WaiterToken, offset: ReplOffset) {
        let mut waiting = self.copy_waiters.lock();
        waiting.waiters.remove(token, offset);
        waiting.result_senders.remove(&token);
    }

    /// Returns whether a waiter requires the log to be on the disk of this node.
    pub(super) fn has_disk_waiter(&self) -> bool {
        self.copy_waiters.lock().waiters.needs_disk()
    }

    /// Wakes the waiters that have enough copies.
    pub(super) fn wake_waiters(&self) {
        let mut waiting = self.copy_waiters.lock();
        if waiting.waiters.is_empty() {
            return;
        }
        for (token, copies) in waiting.waiters.release(&self.log_progress()) {
            if let Some(wake) = waiting.result_senders.remove(&token) {
                // A send error means that the waiter's client has disconnected.
                let _ = wake.send(copies);
            }
        }
    }
}
