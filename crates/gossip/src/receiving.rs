//! Handles received packets.

use slot_routing::{ClientEndpoint, Epoch, NodeId};

use crate::contract::{ClusterAction, LinkId};
use crate::effect::GossipKind;
use crate::event::ClusterEvent;
use crate::handshake::{MAX_NODES, announced_role};
use crate::machine::Gossip;
use crate::node::{Address, Extensions, Node, NodeHealth, has_data};
use crate::votes::VoterStatus;
use crate::wire::{
    Extension, GossipEntry, GossipSection, Header, MessageBody, MessageFlags, NodeFlags, Packet,
};

/// Maximum credible lead of another node's epoch: one failover per millisecond for seven weeks.
const MAX_EPOCH_LEAD: u64 = 1 << 32;

impl Gossip {
    pub(crate) fn on_packet(&mut self, link: LinkId, packet: Packet) {
        let Packet { header, body } = packet;
        if !self.links.inbound.contains_key(&link) && !self.links.outbound.contains_key(&link) {
            // The link was closed while the packet was queued.
            return;
        }
        self.stats.count_received(&body);
        if let Some(inbound) = self.links.inbound.get_mut(&link) {
            inbound.last_message = self.state.now;
        }
        if let Some(epoch) = self.find_impossible_epoch(&header, &body) {
            let inbound = self.links.inbound.get_mut(&link);
            if inbound.is_none_or(|inbound| !std::mem::replace(&mut inbound.bad_epoch_logged, true)) {
                self.log(ClusterEvent::ImpossibleEpoch { sender: header.sender, epoch });
            }
            return;
        }
        let known = self.update_sender(link, &header);
        match body {
            MessageBody::Ping(section) => self.on_ping(link, &header, &section, false),
            MessageBody::Meet(section) => self.on_ping(link, &header, &section, true),
            MessageBody::Pong(section) => self.on_pong(link, &header, &section),
            MessageBody::Publish(publication) if known => self.out.push(ClusterAction::Deliver(publication)),
            MessageBody::Fail(about) if known => {
                let effects = self.failure_detector.on_fail(&mut self.state, header.sender, about);
                self.apply(effects);
            }
            MessageBody::AuthRequest if known => self.on_auth_request(&header),
            MessageBody::AuthAck if known => {
                let effect = self.election.on_vote(&self.state, &header);
                self.apply(effect);
            }
            MessageBody::ManualFailoverStart if known => {
                let effects = self.manual_failover.on_start_request(&self.state, &header);
                self.apply(effects);
            }
            MessageBody::Update(update) if known => self.on_update(&update),
            _ => {}
        }
    }

    fn on_auth_request(&mut self, header: &Header) {
        if !self.is_voter(self.state.me) {
            self.election.on_rival_request(&self.state, header);
            return;
        }
        let status = VoterStatus {
            yields_to_candidate: self.self_fail.should_yield_to(header, self.state.me),
            may_be_replaced: self.may_have_been_replaced(),
        };
        let effects = self.votes.answer(&self.state, header, status);
        self.apply(effects);
    }

    /// Returns the epoch in the packet that no honest node can have reached, if there is one.
    ///
    /// Each failover or slot move increments the epoch by one, so the lead of another node equals the number of these
    /// that this node missed, which is always far below [`MAX_EPOCH_LEAD`]. A forged epoch would stay the highest
    /// forever: the next election would need an epoch beyond what the bus can carry, and no vote would be possible. A
    /// claim epoch above the sender's own `currentEpoch` is impossible as well.
    fn find_impossible_epoch(&self, header: &Header, body: &MessageBody) -> Option<Epoch> {
        let update = if let MessageBody::Update(update) = body { update.config_epoch } else { Epoch(0) };
        let highest = header.current_epoch.max(header.own_epoch()).max(update);
        let too_far = highest.0 > self.state.current_epoch.0.saturating_add(MAX_EPOCH_LEAD);
        let unseen = header.own_epoch() > header.current_epoch;
        (too_far || unseen).then_some(highest)
    }

    /// Updates the sender's entry with the data that every message carries. Returns whether the sender is known.
    fn update_sender(&mut self, link: LinkId, header: &Header) -> bool {
        let (now, sender) = (self.state.now, header.sender);
        let me = self.state.me;
        let Some(node) = self.state.nodes.get_mut(&sender) else { return false };
        if node.handshake.is_some() || sender == me {
            return false;
        }
        node.contact.last_message = Some(now);
        if header.own_epoch() > node.config_epoch {
            self.todo.save = true;
            self.todo.publish = true;
        }
        self.todo.save |= node.no_failover != header.flags.has(NodeFlags::NO_FAILOVER);
        self.todo.publish |= has_data(node.offset) != has_data(header.offset);
        node.update_from(header);
        if header.current_epoch > self.state.current_epoch {
            self.state.current_epoch = header.current_epoch;
            self.todo.save = true;
        }
        if let Some(inbound) = self.links.inbound.get_mut(&link) {
            inbound.node = Some(sender);
        }
        if header.message_flags.has(MessageFlags::PAUSED) {
            let effects = self.manual_failover.on_master_paused(&self.state, header);
            self.apply(effects);
        }
        true
    }

    /// Replies to PING and MEET with PONG. A MEET from an unknown sender starts a handshake.
    fn on_ping(&mut self, link: LinkId, header: &Header, section: &GossipSection, introduced: bool) {
        self.update_my_address(link, introduced);
        let known = self.knows(header.sender);
        if introduced && !known && header.sender != self.state.me {
            let address = Address::announced(header, self.peer_ip(link));
            if address.ip.is_some() {
                // Anyone can send a MEET, so its gossip entries are ignored until the handshake is complete.
                self.start_handshake(address, false);
            }
        }
        // A master that does not serve may be asking whether it was replaced.
        let asks = !header.serving && self.is_voter(header.sender);
        self.send_gossip_over(link, (known.then_some(header.sender), asks), GossipKind::Pong);
        if known {
            if !introduced {
                self.update_address(header.sender, Address::announced(header, self.peer_ip(link)));
            }
            self.process_gossip(header, section);
        }
    }

    fn on_pong(&mut self, link: LinkId, header: &Header, section: &GossipSection) {
        let sender = header.sender;
        if let Some(id) = self.links.outbound.get(&link).copied() {
            if self.state.nodes[&id].handshake.is_some() {
                if !self.finish_handshake(link, id, header) {
                    return;
                }
                self.update_sender(link, header);
            } else if id != sender {
                self.on_mismatched_sender(id, sender);
                return;
            }
            self.on_answer(header, section);
        }
        if self.knows(sender) {
            self.process_gossip(header, section);
        }
    }

    /// The node `found` answers at the address of `expected`, which has moved or is gone.
    fn on_mismatched_sender(&mut self, expected: NodeId, found: NodeId) {
        self.log(ClusterEvent::MismatchedSender { expected, found });
        self.close_link(expected);
        let node = self.state.nodes.get_mut(&expected).expect("the link belongs to it");
        node.address = Address::default();
        self.todo.save = true;
        self.todo.publish = true;
        // A node that holds a link to this node has merely moved.
        if !self.links.inbound.values().any(|inbound| inbound.node == Some(expected)) {
            let effects = self.failure_detector.on_replaced(&mut self.state, expected, &mut self.random);
            self.apply(effects);
        }
    }

    /// Handles the PONG to our PING.
    fn on_answer(&mut self, header: &Header, section: &GossipSection) {
        let (now, id) = (self.state.now, header.sender);
        self.record_confirmation(header, section);
        let node = self.state.nodes.get_mut(&id).expect("a link of ours has a node");
        let contact = &mut node.contact;
        contact.ping_sent = None;
        contact.pong_received = Some(now);
        contact.refused_since = None;
        contact.ever_connected = true;
        let effects = self.failure_detector.on_answer(&mut self.state, id);
        self.apply(effects);
    }

    /// Updates role, slots and gossip from a PING or PONG of a known node.
    fn process_gossip(&mut self, header: &Header, section: &GossipSection) {
        if self.state.nodes[&header.sender].is_newer_than(header) {
            return;
        }
        self.update_role(header);
        self.process_claim(header);
        if self.knows(header.sender) {
            self.process_entries(header.sender, section);
            self.process_extensions(header.sender, &section.extensions);
        }
    }

    fn process_extensions(&mut self, sender: NodeId, extensions: &[Extension]) {
        let mut told = Announcements::default();
        let mut all = false;
        for extension in extensions {
            match extension {
                Extension::Forgotten { id, ttl } => self.forget_by_gossip(*id, *ttl),
                Extension::Shard(shard) => {
                    all = true;
                    self.update_shard(sender, *shard);
                }
                Extension::Hostname(name) => told.hostname = name,
                Extension::HumanName(name) => told.human_name = name,
                Extension::ClientIpv4(ip) => told.client_endpoint.ipv4 = Some(*ip),
                Extension::ClientIpv6(ip) => told.client_endpoint.ipv6 = Some(*ip),
                Extension::ClientPort(port) => told.client_endpoint.port = *port,
                Extension::ClientTlsPort(port) => told.client_endpoint.tls_port = *port,
                Extension::Zone(zone) => told.zone = zone,
            }
        }
        let Some(node) = self.state.nodes.get_mut(&sender) else { return };
        if all {
            node.extensions = Extensions::All;
        }
        // Redis 7.0 sends only its hostname; a node that sends a shard id sends everything that it announces.
        let news = !extensions.is_empty() && told.apply_to(node, all);
        self.todo.save |= news;
        self.todo.publish |= news;
    }

    fn process_entries(&mut self, sender: NodeId, section: &GossipSection) {
        let counts = self.is_voter(sender);
        for entry in &section.entries {
            if self.state.nodes.contains_key(&entry.id) {
                self.process_report(sender, counts, entry);
            } else {
                self.add_gossiped_node(entry);
            }
        }
    }

    /// Counts the sender's view of a node as a failure report if the sender is a master with slots.
    fn process_report(&mut self, sender: NodeId, counts: bool, entry: &GossipEntry) {
        let id = entry.id;
        if id == self.state.me {
            return;
        }
        let down = entry.flags.has(NodeFlags::PFAIL) || entry.flags.has(NodeFlags::FAIL);
        if counts {
            if down {
                let effects = self.failure_detector.on_report(&mut self.state, id, sender, &mut self.random);
                self.apply(effects);
            } else {
                let effects = self.failure_detector.withdraw_report(&self.state, id, sender);
                self.apply(effects);
            }
        }
        // The sender reaches a node that this node cannot reach: the node may have moved.
        let unreachable = !self.state.nodes[&id].is_healthy() || self.state.nodes[&id].address.ip.is_none();
        if unreachable && !down && !entry.flags.has(NodeFlags::NO_ADDRESS) {
            self.update_address(id, address_of(entry));
        }
    }

    /// Adds a node from a gossip entry. The sender is trusted, so the node belongs to the cluster unless it was
    /// forgotten recently.
    fn add_gossiped_node(&mut self, entry: &GossipEntry) {
        let unusable = entry.flags.has(NodeFlags::NO_ADDRESS) || entry.flags.has(NodeFlags::HANDSHAKE);
        let address = address_of(entry);
        let full = self.state.nodes.len() >= MAX_NODES;
        if unusable || full || address.ip.is_none() || self.is_blacklisted(entry.id) {
            return;
        }
        let mut node = Node::new(entry.id, address, self.state.now);
        node.role = announced_role(entry.flags);
        if entry.flags.has(NodeFlags::FAIL) {
            node.health = NodeHealth::Failed { since: self.state.now };
        }
        self.state.nodes.insert(entry.id, node);
        self.todo.save = true;
        self.todo.publish = true;
    }
}

/// What one message announces about its sender. Values that are missing have been withdrawn.
#[derive(Default)]
struct Announcements<'a> {
    hostname: &'a str,
    human_name: &'a str,
    zone: &'a str,
    client_endpoint: ClientEndpoint,
}

impl Announcements<'_> {
    /// Updates the node, either `all` values or only the hostname. Returns whether anything changed.
    fn apply_to(self, node: &mut Node, all: bool) -> bool {
        let set = |field: &mut String, text: &str| {
            let news = field != text;
            if news {
                text.clone_into(field);
            }
            news
        };
        let mut news = set(&mut node.hostname, self.hostname);
        if all {
            news |= set(&mut node.human_name, self.human_name) | set(&mut node.zone, self.zone);
            news |=
                std::mem::replace(&mut node.client_endpoint, self.client_endpoint) != self.client_endpoint;
        }
        news
    }
}

fn address_of(entry: &GossipEntry) -> Address {
    Address { ip: entry.ip, port: entry.port, other_port: entry.other_port, bus_port: entry.bus_port }
}
