//! Slots on the move, on their way from the machine of a master to those of its replicas: in the stream, in its turn
//! among the writes, and in each snapshot.
//!
//! The node's own rules: what the stream says is put down here before its bytes are logged, so that the machine has it
//! before it hears that the stream is processed so far; and a snapshot has what was said before its cut, also what the
//! machine that said it has not carried out yet.

use std::fmt::Debug;

use gossip::{Input, SlotChange};
use slot_routing::{ReplOffset, Slot, Topology};

use super::Store;
use crate::stage::Stage;

/// The moves that are on their way.
#[derive(Debug, Default)]
pub(crate) struct SlotMoves {
    /// The changes that a master said, for the machine of this process.
    heard: Vec<Input>,
    /// The changes that this process's machine has said, and carries out once the replicas have them.
    said: Vec<(u64, Slot, SlotChange)>,
}

impl SlotMoves {
    /// Takes the changes that have come since it was last asked.
    pub(crate) fn take(&mut self) -> Vec<Input> {
        std::mem::take(&mut self.heard)
    }

    pub(crate) fn has_heard(&self) -> bool {
        !self.heard.is_empty()
    }

    pub(super) fn hear(&mut self, input: Input) {
        self.heard.push(input);
    }

    /// The machine has carried out what it said, or will not.
    pub(crate) fn carried_out(&mut self, token: u64) {
        self.said.retain(|(other, ..)| *other != token);
    }

    /// As replicas are told beside the data, by a process that routes by this.
    fn states(&self, topology: &Topology) -> String {
        gossip::slot_states(topology, self.said.iter().map(|(_, slot, change)| (*slot, change)))
    }
}

impl Store {
    /// The slots that are on the move, as replicas are told beside the data.
    pub(super) fn slot_states(&self) -> String {
        let topology = self.engine().topology.as_ref().map(|topology| topology.load_full());
        topology.map(|topology| self.moves.states(&topology)).unwrap_or_default()
    }
}

impl<E: Debug> Stage<E> {
    /// Says to the replicas of `host` what becomes of a slot. `None` if they are not told; otherwise what they are to
    /// acknowledge, and how many are to.
    pub(crate) fn say_slot_change(
        &mut self,
        host: usize,
        slot: Slot,
        change: &SlotChange,
        token: Option<u64>,
    ) -> Option<(ReplOffset, usize)> {
        let store = &mut self.data.stores[host];
        let readers = store.serving.master().readers_of_slot_moves()?;
        let number = slot.number().to_string();
        let words = [&["CLUSTER", "SETSLOT", &number], change.words().as_slice()].concat();
        let mut command = Vec::new();
        resp::encode_request(&mut command, words.iter().map(|word| word.as_bytes()));
        let offset = store.log.append_control(&command);
        store.moves.said.extend(token.map(|token| (token, slot, change.clone())));
        self.ask_for_acknowledgements(host);
        Some((offset, readers))
    }
}
