//! Slot ownership: the claim with the highest configuration epoch wins.
//!
//! Every master claims its slots in the header of every message, under its configuration epoch. A claim takes a slot
//! from an owner with a lower epoch. A claim with a lower epoch than the owner's is answered with UPDATE, so that a
//! node that was away learns about the owner.
//!
//! This requires distinct epochs, so of two masters with the same epoch, the one with the smaller id takes a new one.
//! Two masters of the same shard claim the same slots, and the loser replaces its dataset with the winner's; there the
//! master with the larger offset takes the new epoch, and the id breaks ties. (Redis and Valkey compare only ids.)
//! Offsets of diverged histories do not tell which node has more writes of the shard, so this reduces data loss but
//! does not prevent it.
//!
//! A header whose `currentEpoch` is below the claim epoch known for its sender is outdated and is ignored. A replica's
//! header carries the epoch and slots of its master; it is not a claim of the replica.
//!
//! An owner that stops claiming a slot has given it away, possibly to a node with a lower epoch. The next node that
//! claims the slot gets it whatever its epoch, and no UPDATE is sent in favour of the old owner.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use slot_routing::{Epoch, NodeId, Slot, SlotSet};

use crate::contract::ClusterAction;
use crate::event::ClusterEvent;
use crate::machine::Gossip;
use crate::node::Role;
use crate::outdated_claim::correct_outdated_claim;
use crate::timeline::TimelineEntry;
use crate::wire::{ConfigUpdate, Header};

impl Gossip {
    /// Processes the claim in a header, which is the sender's or, if the sender is a replica, its master's.
    pub(crate) fn process_claim(&mut self, header: &Header) {
        let sender = header.sender;
        self.learn_promotion(header);
        let claimant = self.state.nodes[&sender].master().unwrap_or(sender);
        let is_news = !self.state.slots.owns_exactly(claimant, &header.slots);
        if is_news && self.state.nodes[&sender].is_master() {
            self.apply_claim(sender, header.config_epoch, &header.slots);
        }
        if self.state.nodes[&sender].is_master() && !self.state.importing.is_empty() {
            self.detect_given_away_slots(sender, &header.slots);
        }
        if is_news {
            self.apply(correct_outdated_claim(&self.state, sender, header));
        }
        if self.state.nodes[&sender].is_master() && self.myself().is_master() {
            self.resolve_epoch_collision(header);
        }
    }

    /// Learns about a promotion from the demoted master. This replica's master has become a replica of a node that this
    /// node still takes for a replica and may not be able to reach. The claim in the header is that node's, so it is
    /// handled like an UPDATE. (The slots of a demoted master are released, so this node sends no outdated claim that
    /// another node would answer with an UPDATE.) In a header from before a later promotion, the epoch is not the
    /// highest.
    fn learn_promotion(&mut self, header: &Header) {
        let (sender, epoch) = (header.sender, header.config_epoch);
        if self.myself().master() != Some(sender) {
            return;
        }
        let node = |id: Option<NodeId>| id.and_then(|id| self.state.nodes.get(&id));
        let Some(promoted) = node(self.state.nodes[&sender].master()) else { return };
        let Some(replaced) = node(promoted.master()) else { return };
        let highest =
            promoted.config_epoch.max(replaced.config_epoch).max(self.state.nodes[&sender].config_epoch);
        if promoted.id != self.state.me && epoch > highest && self.are_in_same_shard(sender, promoted.id) {
            let update = ConfigUpdate { config_epoch: epoch, id: promoted.id, slots: header.slots.clone() };
            self.on_update(&update);
        }
    }

    /// Assigns the claimed slots that are unassigned or owned under a lower epoch to the claimant.
    pub(crate) fn apply_claim(&mut self, claimant: NodeId, epoch: Epoch, claimed: &SlotSet) {
        if claimant == self.state.me {
            return;
        }
        self.state.slots.note_claim(claimant, claimed);
        let shard_head = self.myself().master().unwrap_or(self.state.me);
        let mut from_head = 0;
        let mut lost = SlotSet::new();
        let mut losers = BTreeSet::new();
        for slot in claimed.iter() {
            let owner = self.state.slots.owner(slot);
            if owner == Some(claimant) || !self.can_be_claimed(slot, epoch) {
                continue;
            }
            self.end_import(slot, claimant);
            if let Some(owner) = owner {
                losers.insert(owner);
                self.record(owner, TimelineEntry::Replacement { by: claimant, epoch });
            }
            if owner == Some(self.state.me) {
                lost.insert(slot);
            }
            // If the new owner replaces the master of our shard, it continues the shard's migrations.
            if owner.is_some_and(|owner| !self.are_in_same_shard(owner, claimant))
                && self.state.migrating.remove(&slot).is_some()
            {
                self.announce_end_of_move(slot);
            }
            from_head += usize::from(owner == Some(shard_head));
            self.state.slots.assign(slot, claimant);
            self.todo.save = true;
            self.todo.publish = true;
        }
        for loser in losers {
            if self.state.slots.count(loser) == 0 && self.are_in_same_shard(loser, claimant) {
                self.redirect_moves(loser, claimant);
            }
        }
        // A master that lost its last slot to `claimant` was replaced by it, so this node follows the new owner. If
        // replica migration is disabled, this applies only if `claimant` took exactly the slots of this shard.
        let replaced = from_head > 0 && self.state.slots.count(shard_head) == 0;
        let whole = self.state.slots.count(claimant) == from_head;
        if replaced && (self.state.config.allow_replica_migration || whole) {
            self.log(ClusterEvent::FollowingMaster { master: claimant });
            self.become_replica_of(claimant);
        } else if !lost.is_empty() {
            self.log_if_last_slot_lost(claimant);
            self.out.push(ClusterAction::DropSlots(lost));
        }
    }

    fn log_if_last_slot_lost(&mut self, to: NodeId) {
        let Some(node) = self.state.nodes.get(&to).filter(|_| self.state.slots.count(self.state.me) == 0)
        else {
            return;
        };
        let event = ClusterEvent::LastSlotLost { to, name: node.human_name.clone(), shard: node.shard };
        self.log(event);
    }

    fn can_be_claimed(&self, slot: Slot, epoch: Epoch) -> bool {
        let claimant = self.state.slots.claimant(slot).and_then(|claimant| self.state.nodes.get(&claimant));
        claimant.is_none_or(|claimant| claimant.config_epoch < epoch)
    }

    /// Another node reports a newer claim that this node has missed.
    pub(crate) fn on_update(&mut self, update: &ConfigUpdate) {
        let Some(node) = self.state.nodes.get(&update.id).filter(|node| node.handshake.is_none()) else {
            return;
        };
        if update.id == self.state.me || node.config_epoch >= update.config_epoch {
            return;
        }
        self.set_role(update.id, Role::Master);
        self.state.nodes.get_mut(&update.id).expect("looked up above").config_epoch = update.config_epoch;
        self.todo.save = true;
        self.todo.publish = true;
        self.apply_claim(update.id, update.config_epoch, &update.slots);
    }

    fn resolve_epoch_collision(&mut self, header: &Header) {
        let other = header.sender;
        let ahead = match self.are_in_same_shard(self.state.me, other) {
            true => self.state.replication.offset.cmp(&header.offset),
            false => Ordering::Equal,
        };
        let is_mine = ahead.then(other.cmp(&self.state.me)) == Ordering::Greater;
        if header.config_epoch != self.myself().config_epoch || !is_mine {
            return;
        }
        self.state.current_epoch = self.state.current_epoch.next();
        let epoch = self.state.current_epoch;
        self.state.myself_mut().config_epoch = epoch;
        self.save_before_claiming();
        self.todo.publish = true;
        self.log(ClusterEvent::EpochCollision { with: other, epoch });
    }

    /// Takes an epoch above all known ones without a vote: for TAKEOVER and for imported slots. Returns `None` if this
    /// node already has the highest epoch.
    pub(crate) fn bump_epoch(&mut self) -> Option<Epoch> {
        let highest = self.highest_epoch();
        let mine = self.myself().config_epoch;
        if mine != Epoch(0) && mine == highest {
            return None;
        }
        self.state.current_epoch = highest.next();
        let epoch = self.state.current_epoch;
        self.state.myself_mut().config_epoch = epoch;
        self.save_before_claiming();
        self.todo.publish = true;
        Some(epoch)
    }

    /// Adopts an epoch that another node took without a vote, to create an epoch collision.
    #[cfg(test)]
    pub(crate) fn adopt_epoch(&mut self, epoch: Epoch) {
        self.state.current_epoch = self.state.current_epoch.max(epoch);
        self.state.myself_mut().config_epoch = epoch;
    }

    /// Takes over the master's slots under `epoch`.
    pub(crate) fn take_over(&mut self, epoch: Epoch) {
        let Some(old) = self.myself().master() else { return };
        self.set_role(self.state.me, Role::Master);
        let me = self.state.myself_mut();
        me.config_epoch = me.config_epoch.max(epoch);
        for slot in self.state.slots.release_all(old).iter() {
            self.state.slots.assign(slot, self.state.me);
        }
        self.drop_invalid_moves();
        self.record(old, TimelineEntry::Replacement { by: self.state.me, epoch });
        self.election.abandon();
        self.end_manual_failover();
        self.service.allow_serving(self.state.now);
        self.save_before_claiming();
        self.todo.publish = true;
        self.broadcast_pong();
    }
}
