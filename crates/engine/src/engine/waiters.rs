//! Ends the waits of blocked clients for reasons other than a change of a key.

use slot_routing::{Ownership, Slot};

use super::Engine;
use crate::clients::UnblockReason;
use crate::settings::NodeFlags;

impl Engine {
    /// Sets whether and in which role this node serves a slot. If the slot is no longer served here, its waiters are
    /// redirected.
    pub fn set_ownership(&self, slot: Slot, ownership: Ownership) {
        let mut data = self.keyspace.lock(slot);
        data.set_ownership(ownership);
        let served = matches!(ownership, Ownership::Local | Ownership::Migrating | Ownership::Importing);
        if !served {
            self.retry_slot_waiters(slot);
        }
    }

    /// Makes all blocked clients run their commands again, because the commands may be refused now.
    pub fn retry_waiters(&self) {
        self.keyspace.slots().for_each(|slot| self.retry_slot_waiters(slot));
    }

    fn retry_slot_waiters(&self, slot: Slot) {
        if self.scheduling.wait_queues.may_have_waiters(slot) {
            for client in self.scheduling.wait_queues.clients_waiting_in_slot(slot) {
                client.unblock(UnblockReason::Retry);
            }
        }
    }

    /// Unblocks all waiters after this node became a replica. The caller must ensure that no command admitted earlier
    /// can still block. As in Valkey, clients in READONLY mode continue to wait for the replication stream, and clients
    /// with the REDIRECT capability are redirected to the master.
    pub fn unblock_all_waiters(&self) {
        let redirects = self.settings.node_flags().contains(NodeFlags::REDIRECTS);
        let waiting = self.scheduling.wait_queues.replica_reads_by_blocked_client();
        for client in self.clients.list() {
            let how = match waiting.get(&client.id) {
                Some(true) => continue,
                // The client's command runs again and replies with a redirection.
                Some(_) if redirects && client.supports_redirect() => UnblockReason::Retry,
                Some(_) | None => UnblockReason::RoleChanged,
            };
            client.unblock(how);
        }
    }
}
