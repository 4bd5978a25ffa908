//! Ends the waits of blocked clients for reasons other than a change of a key.

use slot_routing::{Ownership, Slot};

use super::Engine;
use crate::clients::Unblock;
use crate::session::Session;
use crate::settings::Gate;
use crate::waiting::{Served, Waiter};

impl Engine {
    /// Removes the wait of a disconnected client.
    pub(super) fn forget_wait(&self, session: &mut Session) {
        if let Some(waiter) = session.waiting.take() {
            self.take_out(&waiter);
        }
    }

    /// Removes a waiter from its queues, so that it is not served any more.
    pub(crate) fn take_out(&self, waiter: &Waiter) -> Option<Served> {
        let mut served = waiter.served.lock();
        match served.take() {
            Some(served) => Some(served),
            None => {
                // A thread that still holds a reference to the waiter sees it as served.
                *served = Some(Served::default());
                self.waits.remove(waiter);
                None
            }
        }
    }

    /// Sets this node's role for a slot. If the slot is no longer served here, its waiters are redirected.
    pub fn set_ownership(&self, slot: Slot, ownership: Ownership) {
        let mut data = self.keyspace.lock(slot);
        data.set_ownership(ownership);
        let served = matches!(ownership, Ownership::Mine | Ownership::Migrating | Ownership::Importing);
        if !served {
            self.retry_waiters_of(slot);
        }
    }

    /// Makes all waiting clients run their commands again, since the commands may be refused now.
    pub fn retry_waiters(&self) {
        self.keyspace.slots().for_each(|slot| self.retry_waiters_of(slot));
    }

    fn retry_waiters_of(&self, slot: Slot) {
        if self.waits.any(slot) {
            for client in self.waits.of_slot(slot) {
                client.unblock(Unblock::RunAgain);
            }
        }
    }

    /// Unblocks all waiters after this node became a replica. The caller makes sure that no command admitted before can
    /// still start to wait. As in Valkey, clients in READONLY mode keep waiting for the replication stream, and clients
    /// with the REDIRECT capability are redirected to the master.
    pub fn unblock_all(&self) {
        let redirects = self.settings.gate().contains(Gate::REDIRECTS);
        let waiting = self.waits.served_by_replicas();
        for client in self.clients.all() {
            let how = match waiting.get(&client.id) {
                Some(true) => continue,
                // Its command runs again and replies with a redirection.
                Some(_) if redirects && client.knows_redirect() => Unblock::RunAgain,
                Some(_) | None => Unblock::RoleChanged,
            };
            client.unblock(how);
        }
    }

    /// Returns the number of keys that clients wait for.
    #[must_use]
    pub fn awaited_keys(&self) -> usize {
        self.waits.keys()
    }

    /// Returns the number of awaited keys whose waiters also end when the key is removed.
    #[must_use]
    pub fn awaited_keys_that_may_go(&self) -> usize {
        self.waits.keys_that_may_go()
    }

    /// Returns whether all waiters that were counted on entry were counted on exit; for tests.
    #[must_use]
    pub fn waits_are_counted(&self) -> bool {
        self.waits.are_counted()
    }
}
