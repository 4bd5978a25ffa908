//! Roles: changes between master and replica, and their announcement to the driver.

use std::net::IpAddr;

use slot_routing::{Epoch, NodeId};

use crate::claims;
use crate::contract::{ClusterAction, ReplicationStatus};
use crate::event::ClusterEvent;
use crate::machine::Gossip;
use crate::node::{Node, Role};
use crate::outdated_claim::correct_outdated_claim;
use crate::state::ClusterState;
use crate::timeline::TimelineEntry;
use crate::wire::{ConfigUpdate, Header};

/// The master that the driver was last told to replicate from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct FollowedMaster {
    target: Option<(NodeId, IpAddr, u16)>,
    /// The local data belongs to another shard and the driver has not been told yet.
    foreign: bool,
}

impl Gossip {
    /// Updates the sender's role from a PING or PONG.
    pub(crate) fn update_role(&mut self, header: &Header) {
        let sender = header.sender;
        let role = match header.replica_of {
            None => Role::Master,
            Some(master) => Role::Replica(Some(master).filter(|id| self.state.nodes.contains_key(id))),
        };
        // An unknown master will be learned from gossip; until then the replica has no known master.
        self.set_role(sender, role);
    }

    /// Sets the role of `id` and updates everything that depends on it.
    pub(crate) fn set_role(&mut self, id: NodeId, role: Role) {
        let before = self.state.nodes[&id].role;
        let shard = match role {
            Role::Replica(Some(master)) => self.state.nodes.get(&master).map(|master| master.shard),
            _ => None,
        };
        let node = self.state.nodes.get_mut(&id).expect("indexed above");
        node.shard = shard.unwrap_or(node.shard);
        if before == role {
            return;
        }
        node.role = role;
        self.migration.on_role_change(&self.state, id, before);
        if before == Role::Master {
            // Replicas own no slots. The vote for a successor is settled too, so if the new master fails at once, its
            // replicas need not wait before another vote.
            self.state.slots.release_all(id);
            self.votes.on_replaced(id);
            if let Role::Replica(Some(master)) = role
                && master != self.state.me
                && self.are_in_same_shard(id, master)
            {
                self.state.marks.redirect(id, master);
            }
        }
        self.todo.save = true;
        self.todo.publish = true;
    }

    /// Makes this node a replica of `master`.
    pub(crate) fn become_replica_of(&mut self, master: NodeId) {
        // Within a shard the migrations continue, because this node may become the master again.
        if !self.are_in_same_shard(self.state.me, master) {
            self.state.marks.clear();
            // Offsets are comparable only within one history, as is the time of the last contact. As in Valkey they are
            // reset; otherwise a larger offset from the old shard would win an election against replicas that have the
            // data of the new one.
            (self.followed_master.foreign, self.state.replication) = (true, ReplicationStatus::default());
        }
        self.set_role(self.state.me, Role::Replica(Some(master)));
        self.end_manual_failover();
        self.election.abandon();
        // Masters refuse to vote for a replica that they still take for a master, so the role change spreads at once.
        self.broadcast_pong();
    }

    /// Follows the master's own master if the master has become a replica.
    pub(crate) fn follow_chains(&mut self) {
        let Some(master) = self.myself().master() else { return };
        let root = self.state.nodes.get(&master).and_then(Node::master);
        if let Some(root) = root
            .filter(|root| *root != self.state.me && self.state.nodes.get(root).is_some_and(Node::is_master))
        {
            self.log(ClusterEvent::SubReplica { master: root, from: master });
            self.become_replica_of(root);
        }
    }

    /// Tells the driver which master to replicate from, if that has changed.
    pub(crate) fn reconcile_role(&mut self) {
        let me = self.myself();
        if me.is_master() {
            if std::mem::take(&mut self.followed_master).target.is_some() {
                self.out.push(ClusterAction::BecomeMaster);
            }
            return;
        }
        let Some(master) = me.master().and_then(|id| self.state.nodes.get(&id)) else { return };
        let Some(ip) = master.address.ip else { return };
        let (port, tls_port) = self.client_ports(&master.address);
        let port = if self.state.config.announce.tls_replication && tls_port != 0 { tls_port } else { port };
        let target = (master.id, ip, port);
        if self.followed_master.target != Some(target) {
            let foreign = self.followed_master.foreign;
            self.followed_master = FollowedMaster { target: Some(target), foreign: false };
            self.out.push(ClusterAction::BecomeReplica { master: target.0, ip, port: target.2, foreign });
        }
    }

    pub(crate) fn update_shard(&mut self, id: NodeId, shard: NodeId) {
        let Some(node) = self.state.nodes.get_mut(&id) else { return };
        // The master determines the shard id; its replicas share it whatever they announce.
        if node.shard == shard || node.master().is_some() {
            return;
        }
        node.shard = shard;
        for replica in self.state.nodes.values_mut().filter(|node| node.master() == Some(id)) {
            replica.shard = shard;
        }
        self.todo.save = true;
        self.todo.publish = true;
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
        let ClusterState { marks, slots, me, .. } = &mut self.state;
        marks.drop_invalid(slots, *me);
        self.record(old, TimelineEntry::Replacement { by: self.state.me, epoch });
        self.election.abandon();
        self.end_manual_failover();
        self.service.allow_serving(self.state.now);
        self.save_before_claiming();
        self.todo.publish = true;
        self.broadcast_pong();
    }

    /// Processes the claim in a header, which is the sender's or, if the sender is a replica, its master's.
    pub(crate) fn process_claim(&mut self, header: &Header) {
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
        if self.state.nodes[&sender].is_master() && !self.state.marks.importing().is_empty() {
            let is_pending = |slot| self.set_slots.is_pending(slot);
            let effects =
                self.given_away.on_claim(&mut self.state, sender, &header.slots, stream, is_pending);
            self.apply(effects);
        }
        if is_news {
            self.apply(correct_outdated_claim(&self.state, sender, header));
        }
        let effects = claims::resolve_epoch_collision(&mut self.state, header);
        self.apply(effects);
    }

    /// Another node reports a claim that this node has missed.
    pub(crate) fn on_update(&mut self, update: &ConfigUpdate) {
        if !claims::is_newer_claim(&self.state, update) {
            return;
        }
        self.set_role(update.id, Role::Master);
        self.state.known_node_mut(update.id).config_epoch = update.config_epoch;
        (self.todo.save, self.todo.publish) = (true, true);
        let stream = self.manual_failover.stream_state();
        let effects =
            claims::apply_claim(&mut self.state, update.id, update.config_epoch, &update.slots, stream);
        self.apply(effects);
    }

    pub(crate) fn bump_epoch(&mut self) -> Option<Epoch> {
        let epoch = claims::bump_epoch(&mut self.state)?;
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
}
