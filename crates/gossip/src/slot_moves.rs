//! Slots on their way from one master to another: SETSLOT, the marks that it sets, and how they keep up with what
//! happens to both ends meanwhile.
//!
//! A replica must know its master's marks. Promoted without them, it would serve the keys that have already left as
//! missing, and take writes for them; and it would refuse what its master had imported. So a SETSLOT goes to the
//! replicas first, in the stream that brings them the data ([`Action::TellReplicas`]), and is carried out, and
//! answered, once they have it ([`Input::ReplicasTold`](crate::Input)), as in Valkey since version 8: whatever is
//! moved afterwards stands behind it in the stream. A master that knows of no replica waits for none, but says it all
//! the same. A snapshot brings the marks along
//! ([`Input::MovesLoaded`](crate::Input)), `nodes.conf` has a replica's as a master's. While writes are held back for
//! a failover, nothing may be added to the stream: a SETSLOT waits until it is clear which node is the master.
//!
//! A move is between shards: where one end is replaced by its replica, the mark names that one from then on. A
//! slot that a node of another shard claims under a newer epoch while it is imported here was moved by
//! another node: the import ends. (Redis leaves such a slot to SETSLOT alone. Its owner is a replica then, and the
//! importing node never finds an owner for it.)
//!
//! A source that no longer claims a slot has given it away, with its last key: an operator told it so, and may have
//! told the importing node nothing. That node then claims the slot, as in Valkey. It waits until every node that is not
//! failed has been heard since, and the source a second time: the slot may have gone to another node, whose claim is on
//! its way. (Valkey claims at once, and takes the slot from such a node.)
//!
//! A move that stopped half-way leaves keys behind in slots that others serve: a replica of Redis's that is
//! promoted has the keys that its master imported and not the mark. So the shell looks for such keys
//! ([`Input::KeysFound`](crate::Input)), and this node says so by marking the slot as imported: it then serves
//! these keys to clients that were sent here, and `redis-cli --cluster fix` sees them and hands them over.

use std::collections::VecDeque;

use clock::Instant;
use slot_routing::{NodeId, Slot, SlotSet};

use crate::commands::{CommandError, Reply, SlotChange, parse_name};
use crate::contract::{Action, Confirm};
use crate::event::Event;
use crate::machine::Gossip;
use crate::manual_failover::Manual;
use crate::operator::Answer;

/// The SETSLOTs that are not answered yet, in the order in which they came and are carried out.
///
/// Replicas hear of the changes in the order in which they are told, and of what came to nothing only once that is
/// known. So an order that was told before the slot was [restated](Gossip::restate) is not what they heard last: once it
/// has been carried out, the slot is restated again.
#[derive(Debug, Default)]
pub(crate) struct Orders(VecDeque<(Order, Step)>);

/// A SETSLOT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) confirm: Confirm,
    pub(crate) slot: Slot,
    pub(crate) change: SlotChange,
}

/// How far a SETSLOT is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The replicas were not told yet.
    New { keys_in_slot: u64 },
    /// They were, and since then perhaps how the slot stands without it.
    Told { restated: bool },
    /// They have it, or not all of them have.
    Confirmed { held: bool, keys_in_slot: u64, restated: bool },
}

impl Gossip {
    /// A SETSLOT has come. The answer, if it is there at once.
    pub(crate) fn order(&mut self, order: Order, keys_in_slot: u64) -> Option<Answer> {
        if let Err(refusal) = self.check_change(order.slot, &order.change, keys_in_slot) {
            return Some(Err(refusal));
        }
        let alone = !self.nodes.values().any(|node| node.master() == Some(self.me));
        if alone && self.orders.0.is_empty() && !self.is_yielding() {
            let result = self.set_slot(order.slot, &order.change, keys_in_slot);
            if result.is_ok() {
                // A replica that the bus does not know may get the stream: one that was forgotten, or is new.
                self.todo.tell.push((order.slot, order.change));
            }
            return Some(result);
        }
        self.orders.0.push_back((order, Step::New { keys_in_slot }));
        None
    }

    /// Tells the replicas what they were not told yet, unless the stream must not grow.
    pub(crate) fn tell_replicas(&mut self) {
        if self.is_yielding() {
            return;
        }
        let mut orders = std::mem::take(&mut self.orders.0);
        orders.retain_mut(|(order, step)| {
            let Step::New { keys_in_slot } = *step else { return true };
            let Order { confirm, slot, change } = &*order;
            // The master may be another by now.
            if let Err(refusal) = self.check_change(*slot, change, keys_in_slot) {
                self.answer(confirm.token, Err(refusal));
                return false;
            }
            *step = Step::Told { restated: false };
            let (slot, change, confirm) = (*slot, change.clone(), Some(*confirm));
            self.out.push(Action::TellReplicas { slot, change, confirm });
            true
        });
        self.orders.0 = orders;
    }

    fn is_yielding(&self) -> bool {
        matches!(self.manual, Manual::Yielding { .. })
    }

    /// The replicas have it, or not all of them in time: carried out in the order in which they were told.
    pub(crate) fn on_replicas_told(&mut self, token: u64, held: bool, keys_in_slot: u64) {
        let step = self.orders.0.iter_mut().find(|(order, _)| order.confirm.token == token);
        let Some((_, step)) = step else { return };
        let restated = matches!(step, Step::Told { restated: true });
        *step = Step::Confirmed { held, keys_in_slot, restated };
        while let Some((order, Step::Confirmed { held, keys_in_slot, restated })) =
            self.orders.0.pop_front_if(|(_, step)| matches!(step, Step::Confirmed { .. }))
        {
            let result = self.carry_out(&order, held, keys_in_slot);
            if self.myself().is_master() && (restated || result.is_err()) {
                self.restate(order.slot);
            }
            self.answer(order.confirm.token, result);
        }
    }

    fn carry_out(&mut self, order: &Order, held: bool, keys_in_slot: u64) -> Answer {
        let Order { slot, change, .. } = order;
        if !self.myself().is_master() {
            // A change that the stream told stands in the history that this node follows now.
            if held {
                self.on_slot_changed(*slot, change);
            }
            return Err(CommandError::SetSlotOnReplica);
        }
        match held {
            true => self
                .check_change(*slot, change, keys_in_slot)
                .and_then(|()| self.set_slot(*slot, change, keys_in_slot)),
            false => Err(CommandError::NoReplicas),
        }
    }

    /// Replicas may have a change that came to nothing: tells them how the slot stands.
    fn restate(&mut self, slot: Slot) {
        if self.is_yielding() {
            return;
        }
        let name = |id: &NodeId| id.to_string();
        let owner = self.slots.owner(slot).as_ref().map(name).map(SlotChange::Node);
        let to = self.migrating.get(&slot).map(name).map(|to| SlotChange::Migrating { to });
        let from = self.importing.get(&slot).map(name).map(|from| SlotChange::Importing { from });
        for change in owner.into_iter().chain([SlotChange::Stable]).chain(to).chain(from) {
            self.out.push(Action::TellReplicas { slot, change, confirm: None });
        }
        for (_, step) in self.orders.0.iter_mut().filter(|(order, _)| order.slot == slot) {
            match step {
                Step::New { .. } => {}
                Step::Told { restated } | Step::Confirmed { restated, .. } => *restated = true,
            }
        }
    }

    /// Whether SETSLOT may be carried out.
    fn check_change(&self, slot: Slot, change: &SlotChange, keys_in_slot: u64) -> Result<(), CommandError> {
        if !self.myself().is_master() {
            return Err(CommandError::SetSlotOnReplica);
        }
        let mine = self.slots.owner(slot) == Some(self.me);
        match change {
            SlotChange::Migrating { .. } if !mine => Err(CommandError::NotOwner(slot)),
            SlotChange::Importing { .. } if mine => Err(CommandError::AlreadyOwner(slot)),
            SlotChange::Migrating { to: node } | SlotChange::Importing { from: node } => {
                match self.master_named(node, CommandError::DontKnowNode)? {
                    id if id == self.me => Err(CommandError::TargetIsMyself),
                    _ => Ok(()),
                }
            }
            SlotChange::Stable => Ok(()),
            SlotChange::Node(to) => {
                let to = self.master_named(to, CommandError::UnknownNode)?;
                if mine && to != self.me && keys_in_slot > 0 {
                    Err(CommandError::HoldsKeys(slot))
                } else {
                    Ok(())
                }
            }
        }
    }

    /// Carries SETSLOT out, which may be.
    fn set_slot(&mut self, slot: Slot, change: &SlotChange, keys_in_slot: u64) -> Answer {
        match change {
            SlotChange::Migrating { to } => {
                let to = self.master_named(to, CommandError::DontKnowNode)?;
                self.migrating.insert(slot, to);
            }
            SlotChange::Importing { from } => {
                let from = self.master_named(from, CommandError::DontKnowNode)?;
                self.importing.insert(slot, from);
            }
            SlotChange::Stable => self.unmark(slot),
            SlotChange::Node(to) => {
                let to = self.master_named(to, CommandError::UnknownNode)?;
                return self.give_slot(slot, to, keys_in_slot);
            }
        }
        self.changed()
    }

    fn give_slot(&mut self, slot: Slot, to: NodeId, keys_in_slot: u64) -> Answer {
        let owner = self.slots.owner(slot);
        let was_mine = owner == Some(self.me);
        if keys_in_slot == 0 || to != self.me {
            self.migrating.remove(&slot);
        }
        self.slots.assign(slot, to);
        self.changed()?;
        let emptied = was_mine && to != self.me && self.slots.count(self.me) == 0;
        if emptied && self.config.allow_replica_migration {
            // A master without slots becomes a replica of the node that took the last one.
            self.log(Event::SlotsLost { to });
            self.become_replica_of(to);
        }
        let imported = to == self.me && self.importing.remove(&slot).is_some();
        if imported || (to == self.me && owner.is_some_and(|owner| owner != self.me)) {
            // A new epoch makes the others believe us over the old owner. Redis takes one only for an import;
            // where that was forgotten in a power failure, the slot would fall back, and have no owner when its old
            // owner is told to give it.
            if let Some(epoch) = self.bump_epoch() {
                self.log(Event::ImportedEpoch(epoch));
            }
            // The old owner gives the slot away when it hears that it is ours: on disk first, or a power
            // failure leaves it to nobody.
            self.save_before_claiming();
            self.broadcast_pong();
        }
        Ok(Reply::Ok)
    }

    /// Slots that were imported whole are this node's, at once and under a new epoch.
    pub(crate) fn claim_slots(&mut self, slots: &SlotSet, from: NodeId) -> Answer {
        if !self.myself().is_master() {
            return Err(CommandError::ClaimOnReplica);
        }
        let theirs = |slot: Slot| self.slots.owner(slot).is_some_and(|owner| owner == from);
        if from == self.me || !slots.iter().all(theirs) {
            return Err(CommandError::ClaimOfOthers);
        }
        for slot in slots.iter() {
            self.unmark(slot);
            self.slots.assign(slot, self.me);
        }
        self.changed()?;
        if let Some(epoch) = self.bump_epoch() {
            self.log(Event::ImportedEpoch(epoch));
        }
        // As with SETSLOT: on disk before another node hears of it.
        self.save_before_claiming();
        self.broadcast_pong();
        Ok(Reply::Ok)
    }

    /// The master's stream, or this node's own from when it was the master, says what became of a slot.
    pub(crate) fn on_slot_changed(&mut self, slot: Slot, change: &SlotChange) {
        let known = |name: &String| parse_name(name).filter(|id| self.knows(*id));
        match change {
            SlotChange::Migrating { to: node }
            | SlotChange::Importing { from: node }
            | SlotChange::Node(node)
                if known(node).is_none() =>
            {
                return self.log(Event::SlotOfUnknown { slot, node: node.clone() });
            }
            SlotChange::Migrating { to } => {
                self.migrating.extend(known(to).map(|to| (slot, to)));
            }
            SlotChange::Importing { from } => self.importing.extend(known(from).map(|from| (slot, from))),
            SlotChange::Stable => self.unmark(slot),
            SlotChange::Node(owner) => {
                let owner = known(owner);
                self.migrating.remove(&slot);
                if owner == self.myself().master() {
                    self.importing.remove(&slot);
                }
                // A late word about a node that was replaced since: a replica owns nothing, and the bus says what is so.
                if let Some(owner) = owner.filter(|owner| self.nodes[owner].is_master()) {
                    self.slots.assign(slot, owner);
                }
            }
        }
        self.todo.save = true;
        self.todo.publish = true;
    }

    /// The data is a master's snapshot from now on, and so are the marks.
    pub(crate) fn on_moves_loaded(&mut self, moves: &[(Slot, SlotChange)]) {
        if !self.myself().is_master() {
            // The words of this node as a master either stand among them or in no history.
            for (order, _) in std::mem::take(&mut self.orders.0) {
                self.answer(order.confirm.token, Err(CommandError::SetSlotOnReplica));
            }
        }
        self.todo.publish |= !(self.migrating.is_empty() && self.importing.is_empty());
        self.todo.save |= self.todo.publish;
        self.migrating.clear();
        self.importing.clear();
        for (slot, change) in moves {
            self.on_slot_changed(*slot, change);
        }
    }

    fn unmark(&mut self, slot: Slot) {
        self.importing.remove(&slot);
        self.migrating.remove(&slot);
    }

    /// This node serves its shard's slots from now on: a slot leaves only where it is, and comes only where it is not.
    pub(crate) fn drop_void_moves(&mut self) {
        let (slots, me) = (&self.slots, self.me);
        self.migrating.retain(|slot, _| slots.owner(*slot) == Some(me));
        self.importing.retain(|slot, _| slots.owner(*slot) != Some(me));
    }

    pub(crate) fn are_of_one_shard(&self, one: NodeId, other: NodeId) -> bool {
        let shard = |id| self.nodes.get(&id).map(|node| node.shard);
        shard(one).is_some() && shard(one) == shard(other)
    }

    /// `slot` goes to `claimant`: if it is being imported here, from there, or no longer.
    pub(crate) fn end_import(&mut self, slot: Slot, claimant: NodeId) {
        let Some(from) = self.importing.get(&slot).copied() else { return };
        if self.are_of_one_shard(from, claimant) {
            self.importing.insert(slot, claimant);
        } else {
            self.importing.remove(&slot);
            self.tell_of_end(slot);
        }
    }

    /// A move has ended by another node's claim. The replicas hear of that, too, but a snapshot that was cut before may be
    /// loaded after it, and has the mark.
    pub(crate) fn tell_of_end(&mut self, slot: Slot) {
        if self.myself().is_master() && !self.is_yielding() {
            self.todo.tell.push((slot, SlotChange::Stable));
        }
    }

    /// The master `source` claims these slots. Those that are imported from it and not among them are this node's, once
    /// it is certain that they are nobody else's.
    pub(crate) fn take_given_away(&mut self, source: NodeId, claimed: &SlotSet) {
        let (now, slots) = (self.now, &self.slots);
        // Nobody owns it where the source was replaced by a replica that had heard of the gift.
        let is_given_away =
            |slot: Slot| slots.owner(slot).is_none_or(|owner| owner == source) && !claimed.contains(slot);
        self.given_away.retain(|slot, (from, _)| *from != source || is_given_away(*slot));
        let imported = self.importing.iter().filter(|(_, from)| **from == source).map(|(slot, _)| *slot);
        let given_away: Vec<Slot> = imported.filter(|slot| is_given_away(*slot)).collect();
        if given_away.is_empty() || !self.myself().is_master() || self.is_yielding() {
            return;
        }
        let grace = self.config.ping_interval(self.nodes.len() - 1);
        let mut certain = Vec::new();
        for slot in given_away {
            let entry = self.given_away.entry(slot).or_insert((source, now));
            if entry.0 != source {
                *entry = (source, now);
            }
            let since = entry.1;
            let is_ordered = self.orders.0.iter().any(|(order, _)| order.slot == slot);
            if now >= since + grace && !is_ordered && self.all_heard_since(since) {
                certain.push(slot);
            }
        }
        self.claim_given_away(&certain, source);
    }

    /// Whether every other node that is not failed has been heard after `since`.
    fn all_heard_since(&self, since: Instant) -> bool {
        let others = self.nodes.values().filter(|node| node.id != self.me && node.handshake.is_none());
        others
            .filter(|node| !node.has_failed())
            .all(|node| node.contact.heard.is_some_and(|heard| heard > since))
    }

    fn claim_given_away(&mut self, slots: &[Slot], from: NodeId) {
        if slots.is_empty() {
            return;
        }
        for &slot in slots {
            self.log(Event::GivenAway { slot, from });
            self.given_away.remove(&slot);
            self.unmark(slot);
            self.slots.assign(slot, self.me);
            self.tell_of_end(slot);
        }
        if let Some(epoch) = self.bump_epoch() {
            self.log(Event::ImportedEpoch(epoch));
        }
        self.todo.publish = true;
        // As with SETSLOT: on disk before another node hears of it.
        self.save_before_claiming();
        self.broadcast_pong();
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
