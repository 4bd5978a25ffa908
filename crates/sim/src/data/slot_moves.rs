//! Carries the states of slot migrations from a master to its replicas: as commands in the stream, ordered with the
//! writes, and in each snapshot.
//!
//! As in the real node, a change from the stream is recorded before its bytes enter the log, so that the `gossip` state
//! machine learns of the change before it learns of the offset. A snapshot includes all changes that were announced
//! before it was taken, even those that the announcing node has not carried out yet.

use std::fmt::Debug;

use gossip::{ClusterInput, SlotChange};
use migration::ControlCommand;
use slot_routing::{ReplOffset, Slot, Topology};

use super::ProcessState;
use crate::simulation::Simulation;

/// Slot state changes that have been announced but not processed yet.
#[derive(Debug, Default)]
pub(crate) struct AnnouncedSlotChanges {
    /// Changes that the master announced, to be passed to this process's `gossip` state machine.
    received_changes: Vec<ClusterInput>,
    /// Changes that this process announced. It carries them out once the replicas have acknowledged them.
    announced_changes: Vec<(u64, Slot, SlotChange)>,
}

impl AnnouncedSlotChanges {
    /// Returns the master's announcements that arrived since the last call.
    pub(crate) fn take_received(&mut self) -> Vec<ClusterInput> {
        std::mem::take(&mut self.received_changes)
    }

    pub(crate) fn has_received(&self) -> bool {
        !self.received_changes.is_empty()
    }

    pub(super) fn add_received(&mut self, input: ClusterInput) {
        self.received_changes.push(input);
    }

    /// Removes an announced change that has been carried out or abandoned.
    pub(crate) fn remove_announced(&mut self, token: u64) {
        self.announced_changes.retain(|(other, ..)| *other != token);
    }

    /// Encodes the slot states for replicas of a process whose routing follows `topology`.
    fn encode_states(&self, topology: &Topology) -> String {
        gossip::format_slot_states(
            topology,
            self.announced_changes.iter().map(|(_, slot, change)| (*slot, change)),
        )
    }
}

impl ProcessState {
    /// Returns the slot states to include in a snapshot.
    pub(super) fn slot_states(&self) -> String {
        let topology = self.engine().topology.as_ref().map(|topology| topology.load_full());
        topology.map(|topology| self.slot_changes.encode_states(&topology)).unwrap_or_default()
    }
}

impl<E: Debug> Simulation<E> {
    /// Announces a slot change to the replicas of `host`. Returns the offset that they must acknowledge and their
    /// number; `None` if a connected replica would not understand the announcement.
    pub(crate) fn announce_slot_change(
        &mut self,
        host: usize,
        slot: Slot,
        change: &SlotChange,
        token: Option<u64>,
    ) -> Option<(ReplOffset, usize)> {
        let store = &mut self.data.process_states[host];
        let readers = store.master_driver.master().slot_state_replica_count()?;
        let offset = store.log.append_control(&ControlCommand::SetSlot(slot, change.clone()).to_resp());
        store.slot_changes.announced_changes.extend(token.map(|token| (token, slot, change.clone())));
        self.request_acknowledgements(host);
        Some((offset, readers))
    }
}
