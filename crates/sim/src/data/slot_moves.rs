//! Carries slot migration states from a master's machine to those of its replicas: in the stream, ordered with the
//! writes, and in each snapshot.
//!
//! As in the node, a change from the stream is recorded before its bytes enter the log, so that the machine learns of
//! the change before the offset. A snapshot includes all changes that were announced before it was taken, even if the
//! announcing machine has not carried them out yet.

use std::fmt::Debug;

use gossip::{ClusterInput, SlotChange};
use migration::ControlCommand;
use slot_routing::{ReplOffset, Slot, Topology};

use super::ReplicaState;
use crate::simulation::Simulation;

/// Slot state changes that a machine must still learn of or carry out.
#[derive(Debug, Default)]
pub(crate) struct SlotMoves {
    /// Changes announced by the master, for this process's machine.
    heard: Vec<ClusterInput>,
    /// Changes announced by this process's machine, to be carried out once the replicas have them.
    said: Vec<(u64, Slot, SlotChange)>,
}

impl SlotMoves {
    /// Takes the master's announcements received since the last call.
    pub(crate) fn take(&mut self) -> Vec<ClusterInput> {
        std::mem::take(&mut self.heard)
    }

    pub(crate) fn has_heard(&self) -> bool {
        !self.heard.is_empty()
    }

    pub(super) fn hear(&mut self, input: ClusterInput) {
        self.heard.push(input);
    }

    /// Removes an announced change that the machine has carried out or abandoned.
    pub(crate) fn carried_out(&mut self, token: u64) {
        self.said.retain(|(other, ..)| *other != token);
    }

    /// Formats the slot states for replicas of a process that routes by this topology.
    fn states(&self, topology: &Topology) -> String {
        gossip::slot_states(topology, self.said.iter().map(|(_, slot, change)| (*slot, change)))
    }
}

impl ReplicaState {
    /// Returns the slot states that accompany a snapshot.
    pub(super) fn slot_states(&self) -> String {
        let topology = self.engine().topology.as_ref().map(|topology| topology.load_full());
        topology.map(|topology| self.moves.states(&topology)).unwrap_or_default()
    }
}

impl<E: Debug> Simulation<E> {
    /// Announces a slot change to the replicas of `host`. Returns the offset to acknowledge and the
    /// number of replicas, or `None` if nothing is announced.
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
