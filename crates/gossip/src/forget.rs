//! CLUSTER FORGET: removes nodes and blacklists them for a while, so that gossip does not add them again.

use std::time::Duration;

use slot_routing::NodeId;

use crate::handshake::MAX_NODES;
use crate::machine::Gossip;
use crate::node::Role;

/// Limits how long a peer can make this node remember an id.
const MAX_BLACKLIST_TTL: Duration = Duration::from_secs(3600);

impl Gossip {
    pub(crate) fn is_blacklisted(&self, id: NodeId) -> bool {
        self.blacklist.get(&id).is_some_and(|until| *until > self.state.now)
    }

    pub(crate) fn blacklist(&mut self, id: NodeId, ttl: Duration) {
        let now = self.state.now;
        self.blacklist.retain(|_, until| *until > now);
        if self.blacklist.len() < MAX_NODES {
            self.blacklist.insert(id, now + ttl.min(MAX_BLACKLIST_TTL));
        }
    }

    /// Another node gossips that an operator forgot `id`. Only known nodes are forgotten, which ends the propagation.
    pub(crate) fn forget_by_gossip(&mut self, id: NodeId, ttl: Duration) {
        let mine = id == self.state.me || self.myself().master() == Some(id);
        if !mine && self.knows(id) {
            self.blacklist(id, ttl);
            self.remove_node(id);
        }
    }

    /// Removes a node and all references to it.
    pub(crate) fn remove_node(&mut self, id: NodeId) {
        assert_ne!(id, self.state.me, "a node stays in its own view");
        self.close_link(id);
        let role = self.state.nodes.remove(&id).map(|node| node.role);
        self.state.slots.release_all(id);
        self.state.marks.on_node_removed(id);
        for inbound in self.links.inbound.values_mut().filter(|inbound| inbound.node == Some(id)) {
            inbound.node = None;
        }
        for node in self.state.nodes.values_mut() {
            if node.role == Role::Replica(Some(id)) {
                node.role = Role::Replica(None);
            }
        }
        self.failure_detector.on_node_removed(id);
        self.votes.on_replaced(id);
        if let Some(role) = role {
            self.migration.on_node_removed(&self.state, id, role);
        }
        self.todo.save = true;
        self.todo.publish = true;
    }
}
