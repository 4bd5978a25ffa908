//! Changes of roles, slot owners and members that concern several components of the state machine.

use std::time::Duration;

use slot_routing::{Epoch, NodeId};

use super::Gossip;
use crate::contract::ReplicationStatus;
use crate::effect::Effect;
use crate::event::ClusterEvent;
use crate::node::{LinkState, Node, Role};
use crate::outbox::SaveUrgency;
use crate::outdated_claim::correct_outdated_claim;
use crate::state::ClusterState;
use crate::timeline::TimelineEntry;
use crate::wire::{ConfigUpdate, Header};
use crate::{claims, membership};

impl Gossip {
    /// Sets the role of `id` and updates everything that depends on the role.
    pub(super) fn set_role(&mut self, id: NodeId, role: Role) {
        let Some(before) = self.state.set_role(id, role) else { return };
        self.replica_migration.on_role_change(&self.state, id, before);
        if before == Role::Master {
            // Replicas own no slots. A vote for a successor of this master is no longer needed.
            self.state.slots.release_all(id);
            self.votes.on_master_replaced(id);
            if let Role::Replica(Some(master)) = role
                && master != self.state.id()
                && self.state.are_in_same_shard(id, master)
            {
                self.state.marks.replace_node(id, master);
            }
        }
        self.apply([Effect::ConfigChanged]);
    }

    /// Makes this node a replica of `master` and informs all nodes.
    pub(super) fn become_replica_of(&mut self, master: NodeId) {
        // Within a shard the marks of migrating slots stay, because this node may become the master again.
        if !self.state.are_in_same_shard(self.state.id(), master) {
            self.state.marks.clear();
            // Neither offsets nor the time of the last contact are comparable between histories. As in Valkey both are
            // reset; otherwise a larger offset from the old shard would win an election against replicas that have the
            // data of the new one.
            self.state.set_replication(ReplicationStatus::default());
            self.replication_target.on_shard_change();
        }
        self.set_role(self.state.id(), Role::Replica(Some(master)));
        self.end_failover();
        // Masters refuse to vote for a replica that they still consider a master, so announce the role change at once.
        self.broadcast_pong();
    }

    /// Ends this node's manual failover and candidacy, whatever their results.
    pub(super) fn end_failover(&mut self) {
        let effect = self.manual_failover.end();
        self.apply(effect);
        self.election.abandon();
    }

    /// If this node's master has become a replica, makes this node a replica of that replica's master.
    pub(super) fn follow_masters_master(&mut self) {
        let state = &self.state;
        let Some(master) = state.myself().master() else { return };
        let root = state.node(master).and_then(Node::master).and_then(|root| state.node(root));
        let root = root.filter(|root| root.id != state.id() && root.is_master()).map(|root| root.id);
        if let Some(root) = root {
            self.outbox.log(ClusterEvent::MasterBecameReplica { master: root, old_master: master });
            self.become_replica_of(root);
        }
    }

    /// Takes over the master's slots under `epoch`.
    pub(super) fn take_over(&mut self, epoch: Epoch) {
        let Some(old) = self.state.myself().master() else { return };
        self.set_role(self.state.id(), Role::Master);
        let me = self.state.id();
        let ClusterState { marks, slots, .. } = &mut self.state;
        for slot in slots.release_all(old).iter() {
            slots.assign(slot, me);
        }
        marks.remove_invalid(slots, me);
        let entry = TimelineEntry::Replacement { new_owner: me, epoch };
        let me = self.state.myself_mut();
        me.config_epoch = me.config_epoch.max(epoch);
        self.end_failover();
        self.service_state.on_elected(self.state.now());
        self.apply([
            Effect::RecordTimeline { node: old, entry },
            Effect::SaveBeforeClaiming,
            Effect::Publish,
        ]);
        self.broadcast_pong();
    }

    /// Processes the claim in a header: that of the sender or, if the sender is a replica, that of its master.
    pub(super) fn process_claim(&mut self, header: &Header) {
        let sender = header.sender;
        if let Some(update) = claims::find_promotion(&self.state, header) {
            self.on_update(&update);
        }
        let claimant = self.state.nodes[&sender].master().unwrap_or(sender);
        let is_news = !self.state.slots.owns_exactly(claimant, &header.slots);
        let stream = self.manual_failover.stream_state();
        if is_news && self.state.nodes[&sender].is_master() {
            let effects =
                claims::apply_claim(&mut self.state, sender, header.config_epoch, &header.slots, stream);
            self.apply(effects);
        }
        // A master that a replica may replace must take no slots, because that replica would not know about them.
        let may_take = !self.state.marks.importing().is_empty() && !self.self_fail.blocks_serving();
        if may_take && self.state.nodes[&sender].is_master() {
            let is_pending = |slot| self.set_slot_queue.is_pending(slot);
            let effects =
                self.given_away_slots.on_claim(&mut self.state, sender, &header.slots, stream, is_pending);
            self.apply(effects);
        }
        if is_news {
            self.apply(correct_outdated_claim(&self.state, sender, header));
        }
        let effects = claims::resolve_epoch_collision(&mut self.state, header);
        self.apply(effects);
    }

    /// Handles an UPDATE message about a claim that this node has missed.
    pub(super) fn on_update(&mut self, update: &ConfigUpdate) {
        if !claims::is_newer_claim(&self.state, update) {
            return;
        }
        self.set_role(update.id, Role::Master);
        self.state.known_node_mut(update.id).config_epoch = update.config_epoch;
        let stream = self.manual_failover.stream_state();
        let effects =
            claims::apply_claim(&mut self.state, update.id, update.config_epoch, &update.slots, stream);
        self.apply([Effect::ConfigChanged]);
        self.apply(effects);
    }

    /// Takes an epoch above all known ones. Returns `None` if this node already has the highest epoch.
    pub(super) fn bump_epoch(&mut self) -> Option<Epoch> {
        let epoch = claims::bump_epoch(&mut self.state)?;
        self.outbox.save(SaveUrgency::BeforeClaiming);
        self.outbox.publish();
        Some(epoch)
    }

    /// Replaces the outbound link to `id` at once.
    pub(super) fn reconnect(&mut self, id: NodeId) {
        let effect = self.links.close_outbound(&mut self.state, id);
        self.apply(effect);
        let retry_at = self.state.now();
        if let Some(node) = self.state.nodes.get_mut(&id) {
            node.link = LinkState::Down { retry_at };
        }
    }

    /// Forgets `id` because an operator ran CLUSTER FORGET on another node. Does nothing for an unknown node, so that
    /// the gossiped FORGET stops spreading.
    pub(super) fn forget_by_gossip(&mut self, id: NodeId, ttl: Duration) {
        let is_mine = id == self.state.id() || self.state.myself().master() == Some(id);
        if !is_mine && self.state.is_known_node(id) {
            self.forget(id, ttl);
        }
    }

    pub(super) fn forget(&mut self, id: NodeId, ttl: Duration) {
        self.forget_list.add(id, ttl, self.state.now());
        self.remove_node(id);
    }

    /// Removes a node and all references to it.
    pub(super) fn remove_node(&mut self, id: NodeId) {
        assert_ne!(id, self.state.id(), "a node stays in its own view");
        let effect = self.links.close_outbound(&mut self.state, id);
        self.apply(effect);
        let role = membership::remove_node(&mut self.state, id);
        self.links.on_node_removed(id);
        self.failure_detector.on_node_removed(id);
        self.votes.on_master_replaced(id);
        if let Some(role) = role {
            self.replica_migration.on_node_removed(&self.state, id, role);
        }
        self.apply([Effect::ConfigChanged]);
    }
}
