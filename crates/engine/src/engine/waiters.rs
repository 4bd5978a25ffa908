//! Clients that wait for keys, when something other than a key's change ends their wait.

use slot_routing::{Ownership, Slot};

use super::Engine;
use crate::clients::Unblock;
use crate::session::Session;
use crate::settings::Gate;
use crate::waiting::{Served, Waiter};

impl Engine {
    /// A client that waits is gone.
    pub(super) fn forget_wait(&self, session: &mut Session) {
        if let Some(waiter) = session.waiting.take() {
            self.take_out(&waiter);
        }
    }

    /// Takes a waiter out of its queues. It is not served after this.
    pub(crate) fn take_out(&self, waiter: &Waiter) -> Option<Served> {
        let mut served = waiter.served.lock();
        match served.take() {
            Some(served) => Some(served),
            None => {
                // A thread that still finds it finds it served.
                *served = Some(Served::default());
                self.waits.remove(waiter);
                None
            }
        }
    }

    /// Says what this node is to a slot. Waiters for keys of a slot that is no longer served here are told where
    /// it is.
    pub fn set_ownership(&self, slot: Slot, ownership: Ownership) {
        let mut data = self.keyspace.lock(slot);
        data.set_ownership(ownership);
        let served = matches!(ownership, Ownership::Mine | Ownership::Migrating | Ownership::Importing);
        if !served {
            self.retry_waiters_of(slot);
        }
    }

    /// Has every client that waits for keys run its command again: it may be refused by now.
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

    /// Ends the waits that a replica cannot serve: this node follows another. To be called when no command that was
    /// admitted before can begin to wait any more. As in Valkey, a client that reads from replicas goes on waiting for
    /// what the master's stream brings, and one that knows redirections is sent to the master.
    pub fn unblock_all(&self) {
        let redirects = self.settings.gate().contains(Gate::REDIRECTS);
        let waiting = self.waits.served_by_replicas();
        for client in self.clients.all() {
            let how = match waiting.get(&client.id) {
                Some(true) => continue,
                // Its command is run again, to be told where.
                Some(_) if redirects && client.knows_redirect() => Unblock::RunAgain,
                Some(_) | None => Unblock::RoleChanged,
            };
            client.unblock(how);
        }
    }

    /// How many keys are waited for.
    #[must_use]
    pub fn awaited_keys(&self) -> usize {
        self.waits.keys()
    }

    /// How many of them by commands that also end when the key is gone.
    #[must_use]
    pub fn awaited_keys_that_may_go(&self) -> usize {
        self.waits.keys_that_may_go()
    }

    /// Whether each waiter was counted out as it was counted in; for tests.
    #[must_use]
    pub fn waits_are_counted(&self) -> bool {
        self.waits.are_counted()
    }
}
