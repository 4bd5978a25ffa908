//! Replicates the state of migrating slots, and CLUSTER FAILOVER, from a master's cluster state machine (`gossip`) to
//! the state machines of its replicas.
//!
//! Migrating slots are sent as SETSLOT in the stream and as a part of each snapshot, as in Valkey 8 and later. A
//! Redoubt replica that reconnects also gets them with `+CONTINUE`, because after a power failure this node may have
//! forgotten a change that the replica knows. FAILOVER with a REPLICAID, as in Valkey 9, names the replica that takes
//! over from a master that shuts down.
//!
//! Invariant: a change in the stream reaches the replica's state machine before the machine learns that the stream was
//! processed up to that change. The change is therefore recorded here before the stream's bytes are logged, and the
//! machine's driver reads the records after the offset. A snapshot contains every change that was in the stream before
//! the snapshot's position, even if the state machine has not carried out the change yet.

use engine::Engine;
use gossip::{ClusterInput, SlotChange};
use migration::ControlCommand;
use parking_lot::Mutex;
use slot_routing::{NodeId, ReplOffset, Slot};
use tokio::sync::Notify;

use super::Replication;

/// Messages between the cluster state machine and the replication stream.
#[derive(Debug, Default)]
pub(crate) struct ClusterStream {
    /// Events that the master sent for the state machine of this node, until the driver takes them.
    received_events: Mutex<Vec<ClusterInput>>,
    /// Signalled when an event was received.
    pub(crate) event_received: Notify,
    /// Replicated changes, each with its token. The state machine carries a change out after the replicas have
    /// acknowledged it.
    pending_changes: Mutex<Vec<(u64, Slot, SlotChange)>>,
}

impl ClusterStream {
    /// Takes the events received since the last call.
    pub(crate) fn take_received_events(&self) -> Vec<ClusterInput> {
        std::mem::take(&mut *self.received_events.lock())
    }

    fn queue_event(&self, event: ClusterInput) {
        self.received_events.lock().push(event);
        self.event_received.notify_one();
    }

    /// Handles the message in which a master that is shutting down names the replica that takes over.
    pub(super) fn on_take_over(&self, engine: &Engine, replica: NodeId) {
        if engine.topology.as_ref().is_some_and(|topology| topology.load().myself == replica) {
            self.queue_event(ClusterInput::MasterShutdown);
        }
    }

    /// Handles a slot change in the master's stream.
    pub(super) fn on_set_slot(&self, slot: Slot, change: SlotChange) {
        self.queue_event(ClusterInput::SlotChanged { slot, change });
    }

    /// Replaces all known migrating slots by those in a snapshot or in `+CONTINUE`.
    pub(super) fn replace_slot_states(&self, states: &[u8]) {
        self.queue_event(ClusterInput::SlotMarksLoaded(gossip::parse_slot_states(states)));
    }

    /// Removes a change that the state machine has carried out or discarded.
    pub(crate) fn on_change_completed(&self, token: u64) {
        self.pending_changes.lock().retain(|(other, ..)| *other != token);
    }

    /// Formats the migrating slots for a snapshot, including pending changes.
    pub(crate) fn format_slot_states(&self, engine: &Engine) -> String {
        let Some(topology) = &engine.topology else { return String::new() };
        // The pending changes are read first, because a change is removed only after it was published in the topology.
        let said = self.pending_changes.lock().clone();
        gossip::format_slot_states(&topology.load(), said.iter().map(|(_, slot, change)| (*slot, change)))
    }
}

impl Replication {
    /// Replicates the name of the replica that is to take over.
    pub(crate) fn replicate_failover(&self, successor: NodeId) {
        self.log.append_control(&ControlCommand::TakeOver(successor).to_resp());
    }

    /// Returns the replicas that may be named as successor: those that have everything before `offset`. `None` if a
    /// connected replica does not understand the message.
    pub(crate) fn list_successors(&self, offset: ReplOffset) -> Option<Vec<NodeId>> {
        self.master_driver.lock().master().in_sync_node_ids(offset)
    }

    /// Replicates a change of a slot. Returns the offset to acknowledge and the number of replicas that must do so.
    /// `None` if the change is not replicated, because there are no replicas or one of them does not accept SETSLOT.
    pub(crate) fn replicate_slot_change(
        &self,
        slot: Slot,
        change: &SlotChange,
        token: Option<u64>,
    ) -> Option<(ReplOffset, usize)> {
        let readers = self.master_driver.lock().master().slot_state_replica_count()?;
        let command = ControlCommand::SetSlot(slot, change.clone()).to_resp();
        // The change is recorded before it is logged, so that a later snapshot includes it.
        self.cluster_stream.pending_changes.lock().extend(token.map(|token| (token, slot, change.clone())));
        Some((self.log.append_control(&command), readers))
    }
}
