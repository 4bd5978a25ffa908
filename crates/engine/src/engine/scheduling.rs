//! What makes commands wait: pauses, the serving lease, blocking commands, and long commands on background workers.

use super::lease::Lease;
use crate::long_commands::LongCommands;
use crate::pause::Pauses;
use crate::session::Session;
use crate::waiting::{ServedReply, WaitQueues, Waiter};

/// What makes commands wait, or move to another thread.
#[derive(Debug, Default)]
pub struct CommandScheduling {
    /// Pauses that make commands wait, such as CLIENT PAUSE.
    pub pauses: Pauses,
    /// Scheduling of long commands on background workers.
    pub long_commands: LongCommands,
    pub(super) lease: Lease,
    pub(crate) wait_queues: WaitQueues,
}

impl CommandScheduling {
    /// Removes the wait of a disconnected client.
    pub(super) fn cancel_wait(&self, session: &mut Session) {
        if let Some(waiter) = session.take_waiter() {
            self.remove_waiter(&waiter);
        }
    }

    /// Removes a waiter from its queues, so that it is not served any more.
    pub(crate) fn remove_waiter(&self, waiter: &Waiter) -> Option<ServedReply> {
        let mut served = waiter.served_reply.lock();
        match served.take() {
            Some(served) => Some(served),
            None => {
                // A thread that still holds a reference then treats the waiter as served.
                *served = Some(ServedReply::default());
                self.wait_queues.remove(waiter);
                None
            }
        }
    }

    /// Returns the number of keys that clients wait for.
    #[must_use]
    pub fn awaited_key_count(&self) -> usize {
        self.wait_queues.key_count()
    }

    /// Returns the number of awaited keys whose removal also ends a wait.
    #[must_use]
    pub fn removal_awaited_key_count(&self) -> usize {
        self.wait_queues.removal_awaited_key_count()
    }

    /// Returns whether the waiter counts are consistent: each waiter that was counted on entry was also counted on
    /// exit. For tests.
    #[must_use]
    pub fn waiter_counts_match(&self) -> bool {
        self.wait_queues.has_consistent_counts()
    }
}
