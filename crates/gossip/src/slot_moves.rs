//! Slot migration: SETSLOT, the migrating and importing marks, and how the marks follow failovers.
//!
//! A replica must know its master's marks. A promoted replica without them would treat migrated keys as missing, accept
//! writes for them, and refuse the keys that its master imported. As in Valkey since version 8, a SETSLOT is therefore
//! written into the replication stream first ([`ClusterAction::TellReplicas`]), and executed and answered once the
//! replicas have acknowledged it ([`ClusterInput::ReplicasAcknowledged`](crate::ClusterInput)); all keys migrated
//! afterwards follow it in the stream. A master without known replicas does not wait but writes the change all the
//! same. Snapshots contain the marks ([`ClusterInput::MovesLoaded`](crate::ClusterInput)), and so does `nodes.conf` on
//! masters and replicas. During a manual failover the stream must not grow, so a SETSLOT waits until the failover is
//! over.
//!
//! Migrations are between shards: if one end is replaced by its replica, the mark is redirected to the replica. If a
//! node of a third shard claims a slot that is being imported here, the slot has been moved elsewhere and the import
//! ends. (Redis leaves the mark until the next SETSLOT. If the source becomes a replica, the importing node never finds
//! an owner of the slot.)
//!
//! A source that stops claiming a slot has given it away along with its last key: an operator sent it SETSLOT NODE, and
//! may not have sent it to the importing node. As in Valkey, the importing node then claims the slot. It first waits
//! until all nodes that are not FAIL have been heard, and the source twice, because the slot may have been given to
//! another node whose claim is still in flight. (Valkey claims at once and takes the slot from such a node.)
//!
//! An interrupted migration leaves keys in slots that other nodes own; for example, a promoted Redis replica has the
//! imported keys but not the mark. The driver looks for such keys
//! ([`ClusterInput::ForeignKeysFound`](crate::ClusterInput)) and this node marks their slots as importing. It then
//! serves these keys to redirected clients, and `redis-cli --cluster fix` can finish the migration.

use std::collections::VecDeque;

use clock::Instant;
use slot_routing::{NodeId, Slot, SlotSet};

use crate::commands::{OperatorError, OperatorReply, SlotChange, parse_name};
use crate::contract::{ClusterAction, ReplicaConfirmation};
use crate::event::ClusterEvent;
use crate::machine::Gossip;
use crate::operator::Answer;

/// SETSLOT requests that have not been answered, in order of arrival and execution.
///
/// The replication stream contains the requests in this order, but the result of a failed one only when it is known. A
/// request that was sent before its slot was [resent](Gossip::resend_slot_state) is then no longer the last change in
/// the stream, so the slot is resent once more after the request is executed.
#[derive(Debug, Default)]
pub(crate) struct SetSlotQueue(VecDeque<(SetSlotRequest, SetSlotProgress)>);

/// A SETSLOT request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SetSlotRequest {
    pub(crate) confirm: ReplicaConfirmation,
    pub(crate) slot: Slot,
    pub(crate) change: SlotChange,
}

/// Progress of a SETSLOT request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SetSlotProgress {
    /// Not yet written to the replication stream.
    New { keys_in_slot: u64 },
    /// Written to the stream; `resent` if the slot was resent afterwards.
    Announcements { resent: bool },
    /// The acknowledgement succeeded (`held`) or failed.
    Confirmed { held: bool, keys_in_slot: u64, resent: bool },
}

impl Gossip {
    /// Starts a SETSLOT. Returns the reply if it is available at once.
    pub(crate) fn start_set_slot(&mut self, request: SetSlotRequest, keys_in_slot: u64) -> Option<Answer> {
        if let Err(refusal) = self.check_set_slot(request.slot, &request.change, keys_in_slot) {
            return Some(Err(refusal));
        }
        let alone = !self.state.nodes.values().any(|node| node.master() == Some(self.state.me));
        if alone && self.set_slots.0.is_empty() && !self.manual_failover.is_yielding() {
            let result = self.set_slot(request.slot, &request.change, keys_in_slot);
            if result.is_ok() {
                // Replicas unknown to the bus, such as forgotten or new ones, may receive the stream too.
                self.todo.tell_replicas.push((request.slot, request.change));
            }
            return Some(result);
        }
        self.set_slots.0.push_back((request, SetSlotProgress::New { keys_in_slot }));
        None
    }

    /// Writes new requests to the replication stream, unless the stream must not grow.
    pub(crate) fn tell_replicas(&mut self) {
        if self.manual_failover.is_yielding() {
            return;
        }
        let mut requests = std::mem::take(&mut self.set_slots.0);
        requests.retain_mut(|(request, step)| {
            let SetSlotProgress::New { keys_in_slot } = *step else { return true };
            let SetSlotRequest { confirm, slot, change } = &*request;
            // This node's role may have changed since the request arrived.
            if let Err(refusal) = self.check_set_slot(*slot, change, keys_in_slot) {
                self.answer(confirm.token, Err(refusal));
                return false;
            }
            *step = SetSlotProgress::Announcements { resent: false };
            let (slot, change, confirm) = (*slot, change.clone(), Some(*confirm));
            self.out.push(ClusterAction::TellReplicas { slot, change, confirm });
            true
        });
        self.set_slots.0 = requests;
    }

    /// Handles the result of an acknowledgement. Requests are executed in stream order.
    pub(crate) fn on_replicas_acknowledged(&mut self, token: u64, held: bool, keys_in_slot: u64) {
        let step = self.set_slots.0.iter_mut().find(|(request, _)| request.confirm.token == token);
        let Some((_, step)) = step else { return };
        let resent = matches!(step, SetSlotProgress::Announcements { resent: true });
        *step = SetSlotProgress::Confirmed { held, keys_in_slot, resent };
        while let Some((request, SetSlotProgress::Confirmed { held, keys_in_slot, resent })) =
            self.set_slots.0.pop_front_if(|(_, step)| matches!(step, SetSlotProgress::Confirmed { .. }))
        {
            let result = self.carry_out(&request, held, keys_in_slot);
            if self.myself().is_master() && (resent || result.is_err()) {
                self.resend_slot_state(request.slot);
            }
            self.answer(request.confirm.token, result);
        }
    }

    fn carry_out(&mut self, request: &SetSlotRequest, held: bool, keys_in_slot: u64) -> Answer {
        let SetSlotRequest { slot, change, .. } = request;
        if !self.myself().is_master() {
            // The stream of the new master contains a change that the replicas have acknowledged.
            if held {
                self.on_slot_changed(*slot, change);
            }
            return Err(OperatorError::SetSlotOnReplica);
        }
        match held {
            true => self
                .check_set_slot(*slot, change, keys_in_slot)
                .and_then(|()| self.set_slot(*slot, change, keys_in_slot)),
            false => Err(OperatorError::NoReplicas),
        }
    }

    /// Writes the actual state of the slot to the stream, because the replicas may have applied a change that failed.
    fn resend_slot_state(&mut self, slot: Slot) {
        if self.manual_failover.is_yielding() {
            return;
        }
        let name = |id: &NodeId| id.to_string();
        let owner = self.state.slots.owner(slot).as_ref().map(name).map(SlotChange::Node);
        let to = self.state.migrating.get(&slot).map(name).map(|to| SlotChange::Migrating { to });
        let from = self.state.importing.get(&slot).map(name).map(|from| SlotChange::Importing { from });
        for change in owner.into_iter().chain([SlotChange::Stable]).chain(to).chain(from) {
            self.out.push(ClusterAction::TellReplicas { slot, change, confirm: None });
        }
        for (_, step) in self.set_slots.0.iter_mut().filter(|(request, _)| request.slot == slot) {
            match step {
                SetSlotProgress::New { .. } => {}
                SetSlotProgress::Announcements { resent } | SetSlotProgress::Confirmed { resent, .. } => {
                    *resent = true;
                }
            }
        }
    }

    /// Checks whether SETSLOT is allowed.
    fn check_set_slot(
        &self,
        slot: Slot,
        change: &SlotChange,
        keys_in_slot: u64,
    ) -> Result<(), OperatorError> {
        if !self.myself().is_master() {
            return Err(OperatorError::SetSlotOnReplica);
        }
        let mine = self.state.slots.owner(slot) == Some(self.state.me);
        match change {
            SlotChange::Migrating { .. } if !mine => Err(OperatorError::NotOwner(slot)),
            SlotChange::Importing { .. } if mine => Err(OperatorError::AlreadyOwner(slot)),
            SlotChange::Migrating { to: node } | SlotChange::Importing { from: node } => {
                match self.find_master(node, OperatorError::DontKnowNode)? {
                    id if id == self.state.me => Err(OperatorError::TargetIsMyself),
                    _ => Ok(()),
                }
            }
            SlotChange::Stable => Ok(()),
            SlotChange::Node(to) => {
                let to = self.find_master(to, OperatorError::UnknownNode)?;
                if mine && to != self.state.me && keys_in_slot > 0 {
                    Err(OperatorError::HoldsKeys(slot))
                } else {
                    Ok(())
                }
            }
        }
    }

    /// Executes a SETSLOT that [`Gossip::check_set_slot`] has allowed.
    fn set_slot(&mut self, slot: Slot, change: &SlotChange, keys_in_slot: u64) -> Answer {
        match change {
            SlotChange::Migrating { to } => {
                let to = self.find_master(to, OperatorError::DontKnowNode)?;
                self.state.migrating.insert(slot, to);
            }
            SlotChange::Importing { from } => {
                let from = self.find_master(from, OperatorError::DontKnowNode)?;
                self.state.importing.insert(slot, from);
            }
            SlotChange::Stable => self.unmark(slot),
            SlotChange::Node(to) => {
                let to = self.find_master(to, OperatorError::UnknownNode)?;
                return self.give_slot(slot, to, keys_in_slot);
            }
        }
        self.mark_changed()
    }

    fn give_slot(&mut self, slot: Slot, to: NodeId, keys_in_slot: u64) -> Answer {
        let owner = self.state.slots.owner(slot);
        let was_mine = owner == Some(self.state.me);
        if keys_in_slot == 0 || to != self.state.me {
            self.state.migrating.remove(&slot);
        }
        self.state.slots.assign(slot, to);
        self.mark_changed()?;
        let emptied = was_mine && to != self.state.me && self.state.slots.count(self.state.me) == 0;
        if emptied && self.state.config.allow_replica_migration {
            // A master without slots becomes a replica of the node that took the last one.
            self.log(ClusterEvent::SlotsLost { to });
            self.become_replica_of(to);
        }
        let imported = to == self.state.me && self.state.importing.remove(&slot).is_some();
        if imported || (to == self.state.me && owner.is_some_and(|owner| owner != self.state.me)) {
            // The other nodes accept the claim only with a new epoch. Redis takes one only for imports; if the import
            // was forgotten in a power failure, the slot would fall back to the old owner and have no owner once that
            // gives it away.
            if let Some(epoch) = self.bump_epoch() {
                self.log(ClusterEvent::ImportedEpoch(epoch));
            }
            // The old owner gives the slot away when it sees the claim, so a claim lost in a power failure would leave
            // the slot unassigned.
            self.save_before_claiming();
            self.broadcast_pong();
        }
        Ok(OperatorReply::Ok)
    }

    /// Assigns slots to this node after an atomic import, under a new epoch.
    pub(crate) fn claim_slots(&mut self, slots: &SlotSet, from: NodeId) -> Answer {
        if !self.myself().is_master() {
            return Err(OperatorError::ClaimOnReplica);
        }
        let theirs = |slot: Slot| self.state.slots.owner(slot).is_some_and(|owner| owner == from);
        if from == self.state.me || !slots.iter().all(theirs) {
            return Err(OperatorError::ClaimOfOthers);
        }
        for slot in slots.iter() {
            self.unmark(slot);
            self.state.slots.assign(slot, self.state.me);
        }
        self.mark_changed()?;
        if let Some(epoch) = self.bump_epoch() {
            self.log(ClusterEvent::ImportedEpoch(epoch));
        }
        // The claim must be durable before another node sees it, as for SETSLOT.
        self.save_before_claiming();
        self.broadcast_pong();
        Ok(OperatorReply::Ok)
    }

    /// Applies a slot change from the replication stream of the master, or from this node's own stream when it was the
    /// master.
    pub(crate) fn on_slot_changed(&mut self, slot: Slot, change: &SlotChange) {
        let known = |name: &String| parse_name(name).filter(|id| self.knows(*id));
        match change {
            SlotChange::Migrating { to: node }
            | SlotChange::Importing { from: node }
            | SlotChange::Node(node)
                if known(node).is_none() =>
            {
                return self.log(ClusterEvent::SlotOfUnknownNode { slot, node: node.clone() });
            }
            SlotChange::Migrating { to } => {
                self.state.migrating.extend(known(to).map(|to| (slot, to)));
            }
            SlotChange::Importing { from } => {
                self.state.importing.extend(known(from).map(|from| (slot, from)));
            }
            SlotChange::Stable => self.unmark(slot),
            SlotChange::Node(owner) => {
                let owner = known(owner);
                self.state.migrating.remove(&slot);
                if owner == self.myself().master() {
                    self.state.importing.remove(&slot);
                }
                // The stream may name a node that has been demoted since. Replicas own no slots, and the bus has the
                // current owner.
                if let Some(owner) = owner.filter(|owner| self.state.nodes[owner].is_master()) {
                    self.state.slots.assign(slot, owner);
                }
            }
        }
        self.todo.save = true;
        self.todo.publish = true;
    }

    /// Replaces all marks with those of the loaded snapshot.
    pub(crate) fn on_moves_loaded(&mut self, moves: &[(Slot, SlotChange)]) {
        if !self.myself().is_master() {
            // Pending requests of this node's time as master are either part of the snapshot or lost.
            for (request, _) in std::mem::take(&mut self.set_slots.0) {
                self.answer(request.confirm.token, Err(OperatorError::SetSlotOnReplica));
            }
        }
        self.todo.publish |= !(self.state.migrating.is_empty() && self.state.importing.is_empty());
        self.todo.save |= self.todo.publish;
        self.state.migrating.clear();
        self.state.importing.clear();
        for (slot, change) in moves {
            self.on_slot_changed(*slot, change);
        }
    }

    fn unmark(&mut self, slot: Slot) {
        self.state.importing.remove(&slot);
        self.state.migrating.remove(&slot);
    }

    /// Drops marks that do not match the slot owners after a promotion: only own slots can migrate, only others' slots
    /// can be imported.
    pub(crate) fn drop_invalid_moves(&mut self) {
        let (slots, me) = (&self.state.slots, self.state.me);
        self.state.migrating.retain(|slot, _| slots.owner(*slot) == Some(me));
        self.state.importing.retain(|slot, _| slots.owner(*slot) != Some(me));
    }

    /// Updates the import of a slot that goes to `claimant`: redirects it within the shard of the source, otherwise
    /// ends it.
    pub(crate) fn end_import(&mut self, slot: Slot, claimant: NodeId) {
        let Some(from) = self.state.importing.get(&slot).copied() else { return };
        if self.are_in_same_shard(from, claimant) {
            self.state.importing.insert(slot, claimant);
        } else {
            self.state.importing.remove(&slot);
            self.announce_end_of_move(slot);
        }
    }

    /// Tells the replicas that a claim ended a migration. They see the claim as well, but might afterwards load a
    /// snapshot that still contains the mark.
    pub(crate) fn announce_end_of_move(&mut self, slot: Slot) {
        if self.myself().is_master() && !self.manual_failover.is_yielding() {
            self.todo.tell_replicas.push((slot, SlotChange::Stable));
        }
    }

    /// Handles the header of the master `source`: this node takes slots that it imports from `source` and that `source`
    /// no longer claims, once no other node can own them.
    pub(crate) fn detect_given_away_slots(&mut self, source: NodeId, claimed: &SlotSet) {
        let (now, slots) = (self.state.now, &self.state.slots);
        // The slot has no owner if the source was replaced by a replica that knew that the slot was given away.
        let is_given_away =
            |slot: Slot| slots.owner(slot).is_none_or(|owner| owner == source) && !claimed.contains(slot);
        self.given_away.retain(|slot, (from, _)| *from != source || is_given_away(*slot));
        let imported =
            self.state.importing.iter().filter(|(_, from)| **from == source).map(|(slot, _)| *slot);
        let given_away: Vec<Slot> = imported.filter(|slot| is_given_away(*slot)).collect();
        if given_away.is_empty() || !self.myself().is_master() || self.manual_failover.is_yielding() {
            return;
        }
        let grace = self.state.config.ping_interval(self.state.nodes.len() - 1);
        let mut certain = Vec::new();
        for slot in given_away {
            let entry = self.given_away.entry(slot).or_insert((source, now));
            if entry.0 != source {
                *entry = (source, now);
            }
            let since = entry.1;
            let is_pending = self.set_slots.0.iter().any(|(request, _)| request.slot == slot);
            if now >= since + grace && !is_pending && self.all_heard_since(since) {
                certain.push(slot);
            }
        }
        self.claim_given_away_slots(&certain, source);
    }

    /// Whether all other nodes that are not FAIL have been heard after `since`.
    fn all_heard_since(&self, since: Instant) -> bool {
        let others =
            self.state.nodes.values().filter(|node| node.id != self.state.me && node.handshake.is_none());
        others
            .filter(|node| !node.has_failed())
            .all(|node| node.contact.last_message.is_some_and(|heard| heard > since))
    }

    fn claim_given_away_slots(&mut self, slots: &[Slot], from: NodeId) {
        if slots.is_empty() {
            return;
        }
        for &slot in slots {
            self.log(ClusterEvent::GivenAwaySlotClaimed { slot, from });
            self.given_away.remove(&slot);
            self.unmark(slot);
            self.state.slots.assign(slot, self.state.me);
            self.announce_end_of_move(slot);
        }
        if let Some(epoch) = self.bump_epoch() {
            self.log(ClusterEvent::ImportedEpoch(epoch));
        }
        self.todo.publish = true;
        // The claim must be durable before another node sees it, as for SETSLOT.
        self.save_before_claiming();
        self.broadcast_pong();
    }

    /// Redirects migrations from or to `old`, which was replaced by `new`.
    pub(crate) fn redirect_moves(&mut self, old: NodeId, new: NodeId) {
        let ends = self.state.migrating.values_mut().chain(self.state.importing.values_mut());
        for end in ends.filter(|end| **end == old) {
            *end = new;
            self.todo.save = true;
            self.todo.publish = true;
        }
    }

    /// Handles keys in slots that this node does not own.
    pub(crate) fn on_keys_found(&mut self, slots: &SlotSet, at_start: bool) {
        if !self.myself().is_master() {
            return;
        }
        for slot in slots.iter() {
            match self.state.slots.owner(slot) {
                Some(owner) if owner == self.state.me || self.state.importing.contains_key(&slot) => {}
                Some(owner) => {
                    self.state.importing.insert(slot, owner);
                    self.log(ClusterEvent::KeysInForeignSlot { slot, owner });
                }
                // After startup, an unassigned slot is usually between two owners, so it is not claimed.
                None if at_start => {
                    self.state.slots.assign(slot, self.state.me);
                    self.log(ClusterEvent::KeysInUnassignedSlot { slot });
                }
                None => continue,
            }
            self.todo.save = true;
            self.todo.publish = true;
        }
    }
}
