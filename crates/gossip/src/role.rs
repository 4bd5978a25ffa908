//! Master or replica, of whom, and telling the rest of the node.

use std::net::IpAddr;

use slot_routing::NodeId;

use crate::contract::{Action, Replication};
use crate::event::Event;
use crate::machine::Gossip;
use crate::node::{Node, Role};
use crate::wire::Header;

/// The master that the rest of the node was told to copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Following {
    target: Option<(NodeId, IpAddr, u16)>,
    /// The data here is of another shard, and the rest of the node is to be told.
    foreign: bool,
}

impl Gossip {
    /// Takes in its sender's role from a PING or PONG.
    pub(crate) fn learn_role(&mut self, header: &Header) {
        let sender = header.sender;
        let role = match header.replica_of {
            None => Role::Master,
            Some(master) => Role::Replica(Some(master).filter(|id| self.nodes.contains_key(id))),
        };
        // A master that we do not know yet will be told of; what we knew before says no more.
        self.set_role(sender, role);
    }

    /// Gives `id` a role, with what follows from it.
    pub(crate) fn set_role(&mut self, id: NodeId, role: Role) {
        let before = self.nodes[&id].role;
        let shard = match role {
            Role::Replica(Some(master)) => self.nodes.get(&master).map(|master| master.shard),
            _ => None,
        };
        let node = self.nodes.get_mut(&id).expect("indexed above");
        node.shard = shard.unwrap_or(node.shard);
        if before == role {
            return;
        }
        node.role = role;
        self.note_role_change(id, before);
        if before == Role::Master {
            // A replica owns nothing, and what we voted about its place is settled: if it is elected and fails
            // again at once, its replicas need not wait.
            self.slots.release_all(id);
            self.nodes.get_mut(&id).expect("indexed above").voted = None;
            if let Role::Replica(Some(master)) = role
                && master != self.me
                && self.are_of_one_shard(id, master)
            {
                self.redirect_moves(id, master);
            }
        }
        self.todo.save = true;
        self.todo.publish = true;
    }

    /// This node becomes a copy of `master`.
    pub(crate) fn become_replica_of(&mut self, master: NodeId) {
        // Within a shard the moves go on: this node may take the place of its master some day.
        if !self.are_of_one_shard(self.me, master) {
            self.migrating.clear();
            self.importing.clear();
            // An offset counts within its history alone, and so does how long ago its master was heard. (As in Valkey: with
            // those of a longer one this node would win over those that have the master's data, and that would be lost.)
            (self.following.foreign, self.replication) = (true, Replication::default());
        }
        self.set_role(self.me, Role::Replica(Some(master)));
        self.end_manual_failover();
        self.election.abandon();
        // Nobody votes for a replica that it holds for a master.
        self.broadcast_pong();
    }

    /// A master whose copy we are has become a copy itself: go to the root.
    pub(crate) fn follow_chains(&mut self) {
        let Some(master) = self.myself().master() else { return };
        let root = self.nodes.get(&master).and_then(Node::master);
        if let Some(root) =
            root.filter(|root| *root != self.me && self.nodes.get(root).is_some_and(Node::is_master))
        {
            self.log(Event::SubReplica { master: root, from: master });
            self.become_replica_of(root);
        }
    }

    /// Tells the rest of the node whom to copy, when that has changed.
    pub(crate) fn reconcile_role(&mut self) {
        let me = self.myself();
        if me.is_master() {
            if std::mem::take(&mut self.following).target.is_some() {
                self.out.push(Action::BecomeMaster);
            }
            return;
        }
        let Some(master) = me.master().and_then(|id| self.nodes.get(&id)) else { return };
        let Some(ip) = master.address.ip else { return };
        let (port, tls_port) = self.client_ports(&master.address);
        let port = if self.config.announce.tls_replication && tls_port != 0 { tls_port } else { port };
        let target = (master.id, ip, port);
        if self.following.target != Some(target) {
            let foreign = self.following.foreign;
            self.following = Following { target: Some(target), foreign: false };
            self.out.push(Action::BecomeReplica { master: target.0, ip, port: target.2, foreign });
        }
    }

    /// The nodes of our own shard, ourselves aside.
    pub(crate) fn shard_members(&self) -> Vec<NodeId> {
        let root = self.myself().master().unwrap_or(self.me);
        let ours = |node: &&Node| node.id != self.me && (node.id == root || node.master() == Some(root));
        self.nodes.values().filter(ours).map(|node| node.id).collect()
    }

    pub(crate) fn learn_shard(&mut self, id: NodeId, shard: NodeId) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        // A master names its shard; its replicas, we among them, belong to it whatever they say.
        if node.shard == shard || node.master().is_some() {
            return;
        }
        node.shard = shard;
        for replica in self.nodes.values_mut().filter(|node| node.master() == Some(id)) {
            replica.shard = shard;
        }
        self.todo.save = true;
        self.todo.publish = true;
    }
}
