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

use super::ReplicaState;
use crate::simulation::Simulation;

/// Slot state changes that have been announced but not processed yet.
#[derive(Debug, Default)]
pub(crate) struct SlotMoves {
    /// Changes that the master announced, to be passed to this process's `gossip` state machine.
    heard: Vec<ClusterInput>,
    /// Changes that this process announced. It carries them out once the replicas have acknowledged them.
    said: Vec<(u64, Slot, SlotChange)>,
}

impl SlotMoves {
    /// Returns the master's announcements that arrived since the last call.
    pub(crate) fn take(&mut self) -> Vec<ClusterInput> {
        std::mem::take(&mut self.heard)
    }

    pub(crate) fn has_heard(&self) -> bool {
        !self.heard.is_empty()
    }

    pub(super) fn hear(&mut self, input: ClusterInput) {
        self.heard.push(input);
    }

    /// Removes an announced change that has been carried out or abandoned.
    pub(crate) fn carried_out(&mut self, token: u64) {
        self.said.retain(|(other, ..)| *other != token);
    }

    /// Encodes the slot states for replicas of a process whose routing follows `topology`.
    fn states(&self, topology: &Topology) -> String {
        gossip::slot_states(topology, self.said.iter().map(|(_, slot, change)| (*slot, change)))
    }
}

impl ReplicaState {
    /// Returns the slot states to include in a snapshot.
    pub(super) fn slot_states(&self) -> String {
        let topology = self.engine().topology.as_ref().map(|topology| topology.load_full());
        topology.map(|topology| self.moves.states(&topology)).unwrap_or_default()
    }
}

impl<E: Debug> Simulation<E> {
    /// Announces a slot change to the replicas of `host`. Returns the offset that they must acknowledge and their
    /// number; `None` if a connected replica would not understand the announcement.
    pub(crate) fn say_slot_change(
        &mut self,
        host: usize,
        slot: Slot,
        change: &SlotChange,
        token: Option<u64>,
    ) -> Option<(ReplOffset, usize)> {
        let store = &mut self.data.stores[host];
        let readers = store.master_driver.master().slot_move_reader_count()?;
        let offset = store.log.append_control(&ControlCommand::SetSlot(slot, change.clone()).encoded());
        store.moves.said.extend(token.map(|token| (token, slot, change.clone())));
        self.ask_for_acknowledgements(host);
        Some((offset, readers))
    }
}
