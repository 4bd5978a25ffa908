//! Slots on their way from one master to another: the marks that SETSLOT sets, and how they keep up with what
//! happens to both ends meanwhile.
//!
//! A move is between shards: where one end is replaced by its replica, the mark names that one from then on. A
//! slot that a node of another shard claims under a newer epoch while it is imported here was moved by
//! somebody else: the import ends. (Redis leaves such a slot to SETSLOT alone. Its owner is a replica then,
//! and the slot nobody's for ever in the importing node's eyes.)
//!
//! What a move that stopped half-way leaves behind are keys in slots that others serve: a replica that is
//! promoted has the keys that its master imported and not the mark. So the shell looks for such keys
//! ([`Input::KeysFound`](crate::Input)), and this node says so by marking the slot as imported: it then serves
//! these keys to who was sent here, and `redis-cli --cluster fix` sees them and hands them over.

use slot_routing::{NodeId, Slot, SlotSet};

use crate::event::Event;
use crate::machine::Gossip;

impl Gossip {
    pub(crate) fn are_of_one_shard(&self, one: NodeId, other: NodeId) -> bool {
        let shard = |id| self.nodes.get(&id).map(|node| node.shard);
        shard(one).is_some() && shard(one) == shard(other)
    }

    /// `slot` goes to `claimant`: if it is being imported here, from there, or no longer.
    pub(crate) fn settle_import(&mut self, slot: Slot, claimant: NodeId) {
        let Some(from) = self.importing.get(&slot).copied() else { return };
        if self.are_of_one_shard(from, claimant) {
            self.importing.insert(slot, claimant);
        } else {
            self.importing.remove(&slot);
        }
    }

    /// The master `old` was replaced by `new`: what moves to or from it does so with that one.
    pub(crate) fn redirect_moves(&mut self, old: NodeId, new: NodeId) {
        let ends = self.migrating.values_mut().chain(self.importing.values_mut());
        for end in ends.filter(|end| **end == old) {
            *end = new;
            self.todo.save = true;
            self.todo.publish = true;
        }
    }

    /// This node holds keys in `slots`, which it does not serve. `at_start`: they were loaded.
    pub(crate) fn on_keys_found(&mut self, slots: &SlotSet, at_start: bool) {
        if !self.myself().is_master() {
            return;
        }
        for slot in slots.iter() {
            match self.slots.owner(slot) {
                Some(owner) if owner == self.me || self.importing.contains_key(&slot) => {}
                Some(owner) => {
                    self.importing.insert(slot, owner);
                    self.log(Event::KeysOfOther { slot, owner });
                }
                // Later than at the start this is the moment between two owners.
                None if at_start => {
                    self.slots.assign(slot, self.me);
                    self.log(Event::KeysOfNobody { slot });
                }
                None => continue,
            }
            self.todo.save = true;
            self.todo.publish = true;
        }
    }
}
