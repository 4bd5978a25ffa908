//! Handles received packets.

use slot_routing::NodeId;

use super::Gossip;
use crate::announcements::apply_extensions;
use crate::contract::{ClusterAction, LinkId};
use crate::effect::GossipKind;
use crate::event::ClusterEvent;
use crate::membership;
use crate::messages::GossipReceiver;
use crate::node::Address;
use crate::votes::VoterStatus;
use crate::wire::{
    Extension, GossipEntry, GossipSection, Header, MessageBody, MessageFlags, NodeFlags, Packet,
};

impl Gossip {
    /// Sends the first message on a new link (MEET after CLUSTER MEET, otherwise PING) and repeats messages that the
    /// node may have missed.
    pub(super) fn on_connected(&mut self, link: LinkId) {
        let Some(id) = self.links.on_connected(&mut self.state, link) else { return };
        let introduced = self.state.nodes[&id].handshake.is_some_and(|handshake| handshake.sends_meet);
        self.send_gossip(id, if introduced { GossipKind::Meet } else { GossipKind::Ping });
        let effects = self.failure_detector.on_link_up(&self.state, id);
        self.apply(effects);
        let effect = self.manual_failover.on_link_up(&self.state, id);
        self.apply(effect);
        let effects = self.election.on_link_up(&self.state, id);
        self.apply(effects);
    }

    pub(super) fn on_packet(&mut self, link: LinkId, packet: Packet) {
        let Packet { header, body } = packet;
        if !self.links.on_packet(link, self.state.now()) {
            // The driver received the packet before the link was closed.
            return;
        }
        self.outbox.stats_mut().count_received(&body);
        if let Some(epoch) = membership::find_impossible_epoch(&self.state, &header, &body) {
            if self.links.should_log_bad_epoch(link) {
                self.outbox.log(ClusterEvent::ImpossibleEpoch { sender: header.sender, epoch });
            }
            return;
        }
        let known = self.update_sender(link, &header);
        let effects = match body {
            MessageBody::Ping(section) => return self.on_ping(link, &header, &section, false),
            MessageBody::Meet(section) => return self.on_ping(link, &header, &section, true),
            MessageBody::Pong(section) => return self.on_pong(link, &header, &section),
            _ if !known => return,
            MessageBody::Publish(publication) => {
                return self.outbox.push(ClusterAction::DeliverPublication(publication));
            }
            MessageBody::Fail(about) => self.failure_detector.on_fail(&mut self.state, header.sender, about),
            MessageBody::AuthRequest => return self.on_vote_request(&header),
            MessageBody::AuthAck => self.election.on_vote(&self.state, &header).into_iter().collect(),
            MessageBody::ManualFailoverStart => self.manual_failover.on_start_request(&self.state, &header),
            MessageBody::Update(update) => return self.on_update(&update),
            _ => return,
        };
        self.apply(effects);
    }

    /// Updates the sender's entry with the data that every message carries. Returns whether the sender is known.
    fn update_sender(&mut self, link: LinkId, header: &Header) -> bool {
        let Some(effects) = membership::update_sender(&mut self.state, header) else { return false };
        self.apply(effects);
        self.links.record_sender(link, header.sender);
        if header.message_flags.contains(MessageFlags::WRITES_PAUSED) {
            let effects = self.manual_failover.on_master_paused(&self.state, header);
            self.apply(effects);
        }
        true
    }

    fn on_vote_request(&mut self, header: &Header) {
        if !self.state.is_voter(self.state.id()) {
            return self.election.on_rival_request(&self.state, header);
        }
        let status = VoterStatus {
            yields_to_candidate: self.self_fail.should_yield_to(header, self.state.id()),
            may_be_replaced: self.service_state.may_have_been_replaced(&self.state),
        };
        let effects = self.votes.on_vote_request(&self.state, header, status);
        self.apply(effects);
    }

    /// Replies to PING and MEET with PONG. A MEET from an unknown sender starts a handshake.
    fn on_ping(&mut self, link: LinkId, header: &Header, section: &GossipSection, is_meet: bool) {
        if let Some(local) = self.links.local_ip(link) {
            let effects = membership::update_my_address(&mut self.state, local, is_meet);
            self.apply(effects);
        }
        let sender = header.sender;
        let known = self.state.is_known_node(sender);
        if is_meet && !known && sender != self.state.id() {
            let address = Address::from_header(header, self.links.peer_ip(&self.state, link));
            if address.ip.is_some() {
                // Anyone can send a MEET, so its gossip entries are ignored until the handshake is complete.
                membership::start_handshake(&mut self.state, address, false, &mut self.random);
            }
        }
        // A master that does not serve may want to know whether it was replaced.
        let asks = !header.is_serving && self.state.is_voter(sender);
        self.send_gossip_over(
            link,
            GossipReceiver { id: known.then_some(sender), wants_own_health: asks },
            GossipKind::Pong,
        );
        if known {
            if !is_meet {
                self.update_address(link, header);
            }
            self.process_gossip(header, section);
        }
    }

    fn update_address(&mut self, link: LinkId, header: &Header) {
        let address = Address::from_header(header, self.links.peer_ip(&self.state, link));
        let effects = membership::update_address(&mut self.state, header.sender, address);
        self.apply(effects);
    }

    fn on_pong(&mut self, link: LinkId, header: &Header, section: &GossipSection) {
        let sender = header.sender;
        if let Some(id) = self.links.outbound_peer(link) {
            if self.state.nodes[&id].handshake.is_some() {
                if !self.finish_handshake(link, id, header) {
                    return;
                }
            } else if id != sender {
                return self.on_mismatched_sender(id, sender);
            }
            self.on_answer(header, section);
        }
        if self.state.is_known_node(sender) {
            self.process_gossip(header, section);
        }
    }

    /// Handles the PONG that completes the handshake with the node that has the id `temporary_id`. Returns whether the
    /// sender is now a known node on this link.
    fn finish_handshake(&mut self, link: LinkId, temporary_id: NodeId, header: &Header) -> bool {
        let sender = header.sender;
        if self.state.node(sender).is_some() {
            // The node at the address is already known under another address, or is this node itself.
            self.remove_node(temporary_id);
            self.update_address(link, header);
            return false;
        }
        let effects = membership::finish_handshake(&mut self.state, temporary_id, header);
        self.links.rename_peer(link, sender);
        self.apply(effects);
        self.update_sender(link, header);
        true
    }

    /// Handles a PONG of the node `actual` from the address of `expected`, which has moved or no longer exists.
    fn on_mismatched_sender(&mut self, expected_id: NodeId, actual_id: NodeId) {
        let effects = membership::forget_address(&mut self.state, expected_id, actual_id);
        self.apply(effects);
        // A node with an open link to this node has merely changed its address.
        if !self.links.has_inbound_link_from(expected_id) {
            let effects =
                self.failure_detector.on_address_taken(&mut self.state, expected_id, &mut self.random);
            self.apply(effects);
        }
    }

    /// Handles the PONG to a PING of this node.
    fn on_answer(&mut self, header: &Header, section: &GossipSection) {
        self.service_state.on_answer(&mut self.state, header, section);
        let now = self.state.now();
        let contact = &mut self.state.known_node_mut(header.sender).contact_times;
        contact.ping_sent_at = None;
        contact.pong_received_at = Some(now);
        contact.refused_since = None;
        contact.was_ever_connected = true;
        let effects = self.failure_detector.on_answer(&mut self.state, header.sender);
        self.apply(effects);
    }

    /// Updates role, slots and gossip entries from a PING or PONG of a known node.
    fn process_gossip(&mut self, header: &Header, section: &GossipSection) {
        let sender = header.sender;
        if self.state.nodes[&sender].is_newer_than(header) {
            return;
        }
        self.set_role(sender, self.state.announced_role(header));
        self.process_claim(header);
        if !self.state.is_known_node(sender) {
            return;
        }
        let counts = self.state.is_voter(sender);
        for entry in &section.entries {
            self.process_gossip_entry(sender, counts, entry);
        }
        for extension in &section.extensions {
            if let Extension::Forgotten { id, ttl } = extension {
                self.forget_by_gossip(*id, *ttl);
            }
        }
        let effects = apply_extensions(&mut self.state, sender, &section.extensions);
        self.apply(effects);
    }

    /// Processes a gossip entry. Adds an unknown node. For a known node, the health in the entry is a failure report if
    /// `counts_as_report` is set, because the sender is a master with slots.
    fn process_gossip_entry(&mut self, sender: NodeId, counts_as_report: bool, entry: &GossipEntry) {
        let (id, state) = (entry.id, &mut self.state);
        if state.node(id).is_none() {
            let effect = membership::add_gossiped_node(state, entry, &self.forget_list);
            return self.apply(effect);
        }
        if id == state.id() {
            return;
        }
        if counts_as_report {
            let down = entry.flags.contains(NodeFlags::PFAIL) || entry.flags.contains(NodeFlags::FAIL);
            let effects = if down {
                self.failure_detector.on_report(state, id, sender, &mut self.random)
            } else {
                self.failure_detector.withdraw_report(state, id, sender)
            };
            self.apply(effects);
        }
        let effects = membership::update_gossiped_address(&mut self.state, entry);
        self.apply(effects);
    }
}
