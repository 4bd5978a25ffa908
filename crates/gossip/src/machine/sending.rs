//! Sends messages over the links of the cluster bus.

use slot_routing::NodeId;

use super::Gossip;
use crate::contract::LinkId;
use crate::deadlines;
use crate::effect::GossipKind;
use crate::messages::{GossipReceiver, compose_gossip_section, compose_header};
use crate::node::LinkState;
use crate::wire::{Header, MessageBody, MessageFlags, Packet, Publication};

impl Gossip {
    pub(super) fn compose_header(&mut self) -> Header {
        let claimant = self.state.myself().master().unwrap_or(self.state.id());
        let slots = self.outbox.claimed_slots(&self.state, claimant);
        compose_header(&self.state, slots, self.manual_failover.is_paused())
    }

    /// Sends a message on the outbound link to a node; does nothing if the link is down.
    pub(super) fn send(&mut self, to: NodeId, body: MessageBody) {
        let header = self.compose_header();
        self.send_with_header(to, header, body);
    }

    pub(super) fn send_with_header(&mut self, to: NodeId, header: Header, body: MessageBody) {
        if let Some(LinkState::Up { id, .. }) = self.state.node(to).map(|node| node.link) {
            self.outbox.send(id, Packet { header, body });
        }
    }

    /// Sends a PONG, which needs no reply, to all nodes to announce changes of this node at once.
    pub(super) fn broadcast_pong(&mut self) {
        for id in self.state.linked_nodes() {
            self.send_gossip(id, GossipKind::Pong);
        }
    }

    /// Sends a PONG to the other replicas of this node's master, which need this node's offset to rank themselves.
    pub(super) fn send_offset_to_siblings(&mut self) {
        let master = self.state.myself().master();
        for id in self.state.linked_nodes() {
            if self.state.nodes[&id].master() == master {
                self.send_gossip(id, GossipKind::Pong);
            }
        }
    }

    pub(super) fn send_due_pings(&mut self) {
        for id in self.state.due_nodes(|node, _| deadlines::ping_deadline(node)) {
            self.send_gossip(id, GossipKind::Ping);
        }
    }

    /// Sends a message with a gossip section on the outbound link to `to`.
    pub(super) fn send_gossip(&mut self, to: NodeId, kind: GossipKind) {
        let Some(LinkState::Up { id: link, .. }) = self.state.node(to).map(|node| node.link) else {
            return;
        };
        if kind != GossipKind::Pong {
            let interval = self.state.config().ping_interval(self.state.nodes.len() - 1);
            let now = self.state.now();
            let contact = &mut self.state.known_node_mut(to).contact_times;
            contact.ping_sent_at.get_or_insert(now);
            contact.ping_due_at = Some(now + interval);
        }
        self.send_gossip_over(link, GossipReceiver { id: Some(to), wants_own_health: false }, kind);
    }

    /// Sends a message with a gossip section on any link.
    pub(super) fn send_gossip_over(&mut self, link: LinkId, receiver: GossipReceiver, kind: GossipKind) {
        self.state.update_indexes();
        let section =
            compose_gossip_section(&self.state, &self.votes, &self.forget_list, receiver, &mut self.random);
        let body = match kind {
            GossipKind::Ping => MessageBody::Ping(section),
            GossipKind::Pong => MessageBody::Pong(section),
            GossipKind::Meet => MessageBody::Meet(section),
        };
        let mut header = self.compose_header();
        // Redis sends extensions only to nodes that set this flag.
        header.message_flags |= MessageFlags::EXTENSIONS;
        self.outbox.send(link, Packet { header, body });
    }

    pub(super) fn send_publication(&mut self, publication: &Publication) {
        let shard = publication.is_sharded.then(|| self.state.shard_members());
        for id in self.state.linked_nodes() {
            if shard.as_ref().is_none_or(|members| members.contains(&id)) {
                self.send(id, MessageBody::Publish(publication.clone()));
            }
        }
    }
}
