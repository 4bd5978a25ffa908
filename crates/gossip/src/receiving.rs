//! The effect of each message.

use slot_routing::{ClientEndpoint, Epoch, NodeId};

use crate::contract::{Action, LinkId};
use crate::event::{Event, FailureEvent};
use crate::handshake::{MOST_NODES, announced_role};
use crate::machine::Gossip;
use crate::node::{Address, Condition, Extensions, Node, has_data};
use crate::sending::Talk;
use crate::timeline::Suspicion;
use crate::wire::{Body, Extension, Gossip as Section, GossipEntry, Header, MessageFlags, NodeFlags, Packet};

/// By so much no node is ahead of another: a failover a millisecond for seven weeks.
const LARGEST_STEP: u64 = 1 << 32;

impl Gossip {
    pub(crate) fn on_packet(&mut self, link: LinkId, packet: Packet) {
        let Packet { header, body } = packet;
        if !self.links.theirs.contains_key(&link) && !self.links.ours.contains_key(&link) {
            // The link was closed while the packet was on its way to us.
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

    /// An epoch in the packet that nobody can have reached by honest means.
    ///
    /// Epochs grow by one per failover or move, so another node may be ahead of us by as many as there were
    /// while we were away, and never by [`LARGEST_STEP`]. Believed, a forged one would be the highest for ever:
    /// the next election would be held in one beyond what the bus carries, and no vote given any more. Nor does
    /// anybody claim under an epoch that it has not seen.
    fn unbelievable_epoch(&self, header: &Header, body: &Body) -> Option<Epoch> {
        let update = if let Body::Update(update) = body { update.config_epoch } else { Epoch(0) };
        let highest = header.current_epoch.max(header.own_epoch()).max(update);
        let too_far = highest.0 > self.current_epoch.0.saturating_add(LARGEST_STEP);
        let unseen = header.own_epoch() > header.current_epoch;
        (too_far || unseen).then_some(highest)
    }

    /// Takes in all that messages of every type tell of a known sender; returns whether the sender is known.
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

    /// PING and MEET want a PONG; MEET also makes an unknown sender an acquaintance.
    fn on_ping(&mut self, link: LinkId, header: &Header, section: &Section, introduced: bool) {
        self.learn_my_address(link, introduced);
        let known = self.knows(header.sender);
        if introduced && !known && header.sender != self.me {
            let address = Address::announced(header, self.peer_ip(link));
            if address.ip.is_some() {
                // Its gossip about others counts once we have got acquainted: anybody can send this.
                self.start_handshake(address, false);
            }
        }
        // A master that does not serve may ask whether it was replaced.
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

    /// The node `found` answers at the address of `expected`: that one moved, or its process is gone.
    fn on_mismatched_sender(&mut self, expected: NodeId, found: NodeId) {
        self.log(Event::MismatchedSender { expected, found });
        self.close_link(expected);
        let node = self.nodes.get_mut(&expected).expect("the link belongs to it");
        node.address = Address::default();
        self.todo.save = true;
        self.todo.publish = true;
        self.suspect_if_replaced(expected);
    }

    /// Our PING was answered.
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

    /// Takes in a PING or PONG of a known node: its role, its claim, its gossip about others.
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
        // Redis 7.0 sends its hostname alone; a node that names its shard sends all that it announces.
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

    /// The sender's opinion of a node counts if it is a master with slots.
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
        // A node we cannot reach and the sender can: perhaps it moved.
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

    /// A node that we did not know. The sender is trusted, so it is one of us, unless it was forgotten
    /// lately.
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

/// The sender's announcements, as one message has them. What it does not name is announced no more.
#[derive(Default)]
struct Told<'a> {
    hostname: &'a str,
    human_name: &'a str,
    zone: &'a str,
    client_endpoint: ClientEndpoint,
}

impl Told<'_> {
    /// Writes them down, the hostname alone or `all` of them; returns whether any was new.
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
