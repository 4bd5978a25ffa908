//! Handles received packets.

use slot_routing::{ClientEndpoint, Epoch, NodeId};

use crate::contract::{Action, LinkId};
use crate::event::{Event, FailureEvent};
use crate::handshake::{MOST_NODES, announced_role};
use crate::machine::Gossip;
use crate::node::{Address, Condition, Extensions, Node, has_data};
use crate::sending::Talk;
use crate::timeline::Suspicion;
use crate::wire::{Body, Extension, Gossip as Section, GossipEntry, Header, MessageFlags, NodeFlags, Packet};

/// Maximum credible lead of another node's epoch: one failover per millisecond for seven weeks.
const LARGEST_STEP: u64 = 1 << 32;

impl Gossip {
    pub(crate) fn on_packet(&mut self, link: LinkId, packet: Packet) {
        let Packet { header, body } = packet;
        if !self.links.theirs.contains_key(&link) && !self.links.ours.contains_key(&link) {
            // The link was closed while the packet was queued.
            return;
        }
        self.stats.count_received(&body);
        if let Some(inbound) = self.links.theirs.get_mut(&link) {
            inbound.heard = self.now;
        }
        if let Some(epoch) = self.unbelievable_epoch(&header, &body) {
            let inbound = self.links.theirs.get_mut(&link);
            if inbound.is_none_or(|inbound| !std::mem::replace(&mut inbound.doubted, true)) {
                self.log(Event::UnbelievableEpoch { sender: header.sender, epoch });
            }
            return;
        }
        let known = self.hear(link, &header);
        match body {
            Body::Ping(section) => self.on_ping(link, &header, &section, false),
            Body::Meet(section) => self.on_ping(link, &header, &section, true),
            Body::Pong(section) => self.on_pong(link, &header, &section),
            Body::Publish(publication) if known => self.out.push(Action::Deliver(publication)),
            Body::Fail(about) if known => self.on_fail(header.sender, about),
            Body::AuthRequest if known => self.on_auth_request(&header),
            Body::AuthAck if known => self.on_auth_ack(&header),
            Body::ManualFailoverStart if known => self.on_manual_failover_start(&header),
            Body::Update(update) if known => self.on_update(&update),
            _ => {}
        }
    }

    /// Returns the epoch in the packet that no honest node can have reached, if there is one.
    ///
    /// Each failover or slot move increments the epoch by one, so the lead of another node equals the number of these
    /// that this node missed, which is always far below [`LARGEST_STEP`]. A forged epoch would stay the highest
    /// forever: the next election would need an epoch beyond what the bus can carry, and no vote would be possible. A
    /// claim epoch above the sender's own `currentEpoch` is impossible as well.
    fn unbelievable_epoch(&self, header: &Header, body: &Body) -> Option<Epoch> {
        let update = if let Body::Update(update) = body { update.config_epoch } else { Epoch(0) };
        let highest = header.current_epoch.max(header.own_epoch()).max(update);
        let too_far = highest.0 > self.current_epoch.0.saturating_add(LARGEST_STEP);
        let unseen = header.own_epoch() > header.current_epoch;
        (too_far || unseen).then_some(highest)
    }

    /// Updates the sender's entry with the data that every message carries. Returns whether the sender is known.
    fn hear(&mut self, link: LinkId, header: &Header) -> bool {
        let (now, sender) = (self.now, header.sender);
        let me = self.me;
        let Some(node) = self.nodes.get_mut(&sender) else { return false };
        if node.handshake.is_some() || sender == me {
            return false;
        }
        node.contact.heard = Some(now);
        if header.own_epoch() > node.config_epoch {
            self.todo.save = true;
            self.todo.publish = true;
        }
        self.todo.save |= node.no_failover != header.flags.has(NodeFlags::NO_FAILOVER);
        self.todo.publish |= has_data(node.offset) != has_data(header.offset);
        node.learn(header);
        if header.current_epoch > self.current_epoch {
            self.current_epoch = header.current_epoch;
            self.todo.save = true;
        }
        if let Some(inbound) = self.links.theirs.get_mut(&link) {
            inbound.node = Some(sender);
        }
        if header.message_flags.has(MessageFlags::PAUSED) {
            self.on_master_paused(header);
        }
        true
    }

    /// Replies to PING and MEET with PONG. A MEET from an unknown sender starts a handshake.
    fn on_ping(&mut self, link: LinkId, header: &Header, section: &Section, introduced: bool) {
        self.learn_my_address(link, introduced);
        let known = self.knows(header.sender);
        if introduced && !known && header.sender != self.me {
            let address = Address::announced(header, self.peer_ip(link));
            if address.ip.is_some() {
                // Anyone can send a MEET, so its gossip entries are ignored until the handshake is complete.
                self.start_handshake(address, false);
            }
        }
        // A master that does not serve may be asking whether it was replaced.
        let asks = !header.serving && self.is_voter(header.sender);
        self.talk_over(link, (known.then_some(header.sender), asks), Talk::Pong);
        if known {
            if !introduced {
                self.update_address(header.sender, Address::announced(header, self.peer_ip(link)));
            }
            self.learn_from(header, section);
        }
    }

    fn on_pong(&mut self, link: LinkId, header: &Header, section: &Section) {
        let sender = header.sender;
        if let Some(id) = self.links.ours.get(&link).copied() {
            if self.nodes[&id].handshake.is_some() {
                if !self.finish_handshake(link, id, header) {
                    return;
                }
                self.hear(link, header);
            } else if id != sender {
                self.on_mismatched_sender(id, sender);
                return;
            }
            self.on_answer(header, section);
        }
        if self.knows(sender) {
            self.learn_from(header, section);
        }
    }

    /// The node `found` answers at the address of `expected`, which has moved or is gone.
    fn on_mismatched_sender(&mut self, expected: NodeId, found: NodeId) {
        self.log(Event::MismatchedSender { expected, found });
        self.close_link(expected);
        let node = self.nodes.get_mut(&expected).expect("the link belongs to it");
        node.address = Address::default();
        self.todo.save = true;
        self.todo.publish = true;
        self.suspect_if_replaced(expected);
    }

    /// Handles the PONG to our PING.
    fn on_answer(&mut self, header: &Header, section: &Section) {
        let (now, id) = (self.now, header.sender);
        self.note_vouching(header, section);
        let node = self.nodes.get_mut(&id).expect("a link of ours has a node");
        let contact = &mut node.contact;
        contact.ping_sent = None;
        contact.pong_received = Some(now);
        contact.refused_since = None;
        contact.met = true;
        match node.condition {
            Condition::Well => {}
            Condition::Suspected { .. } => self.clear_suspicion(id),
            Condition::Failed { since } => self.clear_fail_if_due(id, since),
        }
    }

    pub(crate) fn knows(&self, id: NodeId) -> bool {
        id != self.me && self.nodes.get(&id).is_some_and(|node| node.handshake.is_none())
    }

    /// Updates role, slots and gossip from a PING or PONG of a known node.
    fn learn_from(&mut self, header: &Header, section: &Section) {
        if self.nodes[&header.sender].outdates(header) {
            return;
        }
        self.learn_role(header);
        self.weigh_claim(header);
        if self.knows(header.sender) {
            self.learn_entries(header.sender, section);
            self.learn_extensions(header.sender, &section.extensions);
        }
    }

    fn learn_extensions(&mut self, sender: NodeId, extensions: &[Extension]) {
        let mut told = Told::default();
        let mut all = false;
        for extension in extensions {
            match extension {
                Extension::Forgotten { id, ttl } => self.forget_as_told(*id, *ttl),
                Extension::Shard(shard) => {
                    all = true;
                    self.learn_shard(sender, *shard);
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
        let Some(node) = self.nodes.get_mut(&sender) else { return };
        if all {
            node.extensions = Extensions::All;
        }
        // Redis 7.0 sends only its hostname; a node that sends a shard id sends everything that it announces.
        let news = !extensions.is_empty() && told.becomes_known(node, all);
        self.todo.save |= news;
        self.todo.publish |= news;
    }

    fn learn_entries(&mut self, sender: NodeId, section: &Section) {
        let counts = self.is_voter(sender);
        for entry in &section.entries {
            if self.nodes.contains_key(&entry.id) {
                self.learn_opinion(sender, counts, entry);
            } else {
                self.learn_stranger(entry);
            }
        }
    }

    /// Counts the sender's view of a node as a failure report if the sender is a master with slots.
    fn learn_opinion(&mut self, sender: NodeId, counts: bool, entry: &GossipEntry) {
        let id = entry.id;
        if id == self.me {
            return;
        }
        let down = entry.flags.has(NodeFlags::PFAIL) || entry.flags.has(NodeFlags::FAIL);
        if counts {
            if down {
                self.on_report(id, sender);
            } else {
                self.withdraw_report(id, sender);
            }
        }
        // The sender reaches a node that this node cannot reach: the node may have moved.
        let unreachable = !self.nodes[&id].is_well() || self.nodes[&id].address.ip.is_none();
        if unreachable && !down && !entry.flags.has(NodeFlags::NO_ADDRESS) {
            self.update_address(id, address_of(entry));
        }
    }

    fn on_report(&mut self, id: NodeId, reporter: NodeId) {
        let (now, wall) = (self.now, self.wall);
        let node = self.nodes.get_mut(&id).expect("looked up by the caller");
        if node.reports.insert(reporter, now).is_none() {
            self.timeline.suspected(id, Suspicion { by: reporter, at: wall, cause: None });
            self.log(FailureEvent::ReportedBy { id, reporter });
        }
        self.fail_if_agreed(id);
    }

    fn withdraw_report(&mut self, id: NodeId, reporter: NodeId) {
        if !self.nodes[&id].reports.contains_key(&reporter) {
            return;
        }
        let node = self.nodes.get_mut(&id).expect("looked up by the caller");
        if node.reports.remove(&reporter).is_some() {
            if node.is_well() && node.reports.is_empty() {
                self.timeline.returned(id, self.wall);
            }
            self.log(FailureEvent::ReportWithdrawn { id, reporter });
        }
    }

    /// Adds a node from a gossip entry. The sender is trusted, so the node belongs to the cluster unless it was
    /// forgotten recently.
    fn learn_stranger(&mut self, entry: &GossipEntry) {
        let unusable = entry.flags.has(NodeFlags::NO_ADDRESS) || entry.flags.has(NodeFlags::HANDSHAKE);
        let address = address_of(entry);
        let full = self.nodes.len() >= MOST_NODES;
        if unusable || full || address.ip.is_none() || self.is_blacklisted(entry.id) {
            return;
        }
        let mut node = Node::new(entry.id, address, self.now);
        node.role = announced_role(entry.flags);
        if entry.flags.has(NodeFlags::FAIL) {
            node.condition = Condition::Failed { since: self.now };
        }
        self.nodes.insert(entry.id, node);
        self.todo.save = true;
        self.todo.publish = true;
    }
}

/// What one message announces about its sender. Values that are missing have been withdrawn.
#[derive(Default)]
struct Told<'a> {
    hostname: &'a str,
    human_name: &'a str,
    zone: &'a str,
    client_endpoint: ClientEndpoint,
}

impl Told<'_> {
    /// Updates the node, either `all` values or only the hostname. Returns whether anything changed.
    fn becomes_known(self, node: &mut Node, all: bool) -> bool {
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
