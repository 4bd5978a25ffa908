//! Composes and sends messages: headers, gossip sections and extensions.

use std::time::Duration;

use clock::Instant;
use slot_routing::{ClientEndpoint, NodeId, SlotSet};

use crate::contract::{ClusterAction, LinkId};
use crate::deadlines;
use crate::effect::GossipKind;
use crate::machine::Gossip;
use crate::node::{Extensions, LinkState};
use crate::wire::{
    Extension, GossipEntry, GossipSection, Header, MessageBody, MessageFlags, NodeFlags, Packet,
};

/// Minimum number of random gossip entries per PING. As in Redis, the target is a tenth of the nodes but at least
/// three.
const MIN_RANDOM_ENTRIES: usize = 3;
/// Maximum number of random gossip entries. Redis has no maximum, so its traffic per node grows with the square of the
/// cluster size; it needs the entries to spread suspicions. Here every message contains all suspicions in addition, and
/// new ones are sent to all nodes at once.
const MAX_RANDOM_ENTRIES: usize = 10;
/// Maximum number of gossip entries; the header counts them in 16 bits.
const MAX_ENTRIES: usize = 1000;
/// Maximum number of forgotten nodes per message.
const MAX_FORGOTTEN_NODES: usize = 100;

impl Gossip {
    pub(crate) fn header(&mut self) -> Header {
        // A replica's header carries the claim of its master.
        let claimant = self.myself().master().unwrap_or(self.state.me);
        let slots = self.claim_of(claimant);
        let me = self.myself();
        let paused = self.manual_failover.is_paused();
        let role = if me.is_master() { NodeFlags::MASTER } else { NodeFlags::REPLICA };
        Header {
            sender: self.state.me,
            flags: role
                | NodeFlags::MYSELF
                | NodeFlags::EXTENSIONS
                | NodeFlags::when(me.no_failover, NodeFlags::NO_FAILOVER),
            message_flags: if paused { MessageFlags::PAUSED } else { MessageFlags::default() },
            serving: self.state.serving,
            ip: self.state.config.announce.ip,
            port: me.address.port,
            other_port: me.address.other_port,
            bus_port: me.address.bus_port,
            current_epoch: self.state.current_epoch,
            config_epoch: self.state.nodes.get(&claimant).map_or(me.config_epoch, |node| node.config_epoch),
            offset: self.state.replication.offset,
            slots,
            replica_of: me.master(),
        }
    }

    fn claim_of(&mut self, claimant: NodeId) -> SlotSet {
        let version = self.state.slots.version();
        match &self.claim {
            Some((whose, when, slots)) if (*whose, *when) == (claimant, version) => slots.clone(),
            _ => {
                let slots = self.state.slots.set_of(claimant);
                self.claim = Some((claimant, version, slots.clone()));
                slots
            }
        }
    }

    /// Sends a message on the outbound link to a node; does nothing if the link is down.
    pub(crate) fn send(&mut self, to: NodeId, body: MessageBody) {
        let header = self.header();
        self.send_packet(to, Packet { header, body });
    }

    pub(crate) fn send_packet(&mut self, to: NodeId, packet: Packet) {
        if let Some(LinkState::Up { id, .. }) = self.state.nodes.get(&to).map(|node| node.link) {
            self.send_over(id, packet);
        }
    }

    pub(crate) fn send_over(&mut self, link: LinkId, packet: Packet) {
        self.stats.count_sent(&packet.body);
        self.out.push(ClusterAction::Send { link, packet: Box::new(packet), after_persist: false });
    }

    /// Sends the news to all nodes at once. A PONG carries everything and needs no reply.
    pub(crate) fn broadcast_pong(&mut self) {
        for id in self.linked() {
            self.send_gossip(id, GossipKind::Pong);
        }
    }

    /// Sends a PONG to the other replicas of our master, which need our offset for their rank.
    pub(crate) fn send_offset_to_siblings(&mut self) {
        let master = self.myself().master();
        for id in self.linked() {
            if self.state.nodes[&id].master() == master {
                self.send_gossip(id, GossipKind::Pong);
            }
        }
    }

    /// Sends the first message on a new link: MEET after CLUSTER MEET, otherwise PING.
    pub(crate) fn send_first_message(&mut self, id: NodeId) {
        let introduced = self.state.nodes[&id].handshake.is_some_and(|handshake| handshake.meet);
        self.send_gossip(id, if introduced { GossipKind::Meet } else { GossipKind::Ping });
    }

    /// Sends a message with a gossip section on the outbound link to `id`.
    pub(crate) fn send_gossip(&mut self, id: NodeId, talk: GossipKind) {
        let Some(LinkState::Up { id: link, .. }) = self.state.nodes.get(&id).map(|node| node.link) else {
            return;
        };
        if talk != GossipKind::Pong {
            let interval = self.state.config.ping_interval(self.state.nodes.len() - 1);
            let now = self.state.now;
            let contact = &mut self.state.nodes.get_mut(&id).expect("looked up above").contact;
            contact.ping_sent.get_or_insert(now);
            contact.ping_due = Some(now + interval);
        }
        self.send_gossip_over(link, (Some(id), false), talk);
    }

    /// Sends a message with a gossip section on any link. `to` is the peer, if it is known, and whether the peer asks
    /// for this node's view of it.
    pub(crate) fn send_gossip_over(&mut self, link: LinkId, to: (Option<NodeId>, bool), talk: GossipKind) {
        let section = self.compose_gossip_section(to.0, to.1);
        let body = match talk {
            GossipKind::Ping => MessageBody::Ping(section),
            GossipKind::Pong => MessageBody::Pong(section),
            GossipKind::Meet => MessageBody::Meet(section),
        };
        let mut header = self.header();
        // Redis sends extensions only to nodes that set this flag.
        header.message_flags |= MessageFlags::EXTENSIONS;
        self.send_over(link, Packet { header, body });
    }

    /// Picks random nodes and adds all suspected ones, because suspicions must not wait to be picked. The receiver
    /// itself is included if this node considers it failing or has voted for a replacement, so that it learns about
    /// that, and if `asked`, to tell it that neither is the case.
    fn compose_gossip_section(&mut self, to: Option<NodeId>, asked: bool) -> GossipSection {
        self.note_changes();
        let receiver = to.and_then(|id| self.state.nodes.gossip_index(id));
        let is_suspect = |id: &NodeId| self.state.nodes.suspects().any(|suspect| suspect == *id);
        let named = to.filter(|id| receiver.is_some() || is_suspect(id));
        let named =
            named.filter(|id| asked || self.votes.considers_replaceable(&self.state, &self.state.nodes[id]));
        let by_chance = self.pick_gossip_candidates(receiver);
        let told = by_chance.iter().map(|place| self.state.nodes.gossip_candidates()[*place]);
        let suspects = self.state.nodes.suspects().filter(|id| Some(*id) != to);
        let ids = told.chain(named).chain(suspects).take(MAX_ENTRIES);
        let entries = ids
            .map(|id| {
                let entry = self.entry(id);
                let doubted =
                    Some(id) == to && self.votes.considers_replaceable(&self.state, &self.state.nodes[&id]);
                GossipEntry { flags: entry.flags | NodeFlags::when(doubted, NodeFlags::PFAIL), ..entry }
            })
            .collect();
        let reads =
            to.and_then(|id| self.state.nodes.get(&id)).map_or(Extensions::None, |node| node.extensions);
        let extensions = self.extensions(reads);
        GossipSection { entries, extensions }
    }

    /// Picks random positions in the list of gossip candidates, all combinations being equally likely. Floyd's
    /// algorithm: for each of the last n positions, draw one up to it, or take the position itself if the drawn one is
    /// taken.
    fn pick_gossip_candidates(&mut self, without: Option<usize>) -> Vec<usize> {
        let there = self.state.nodes.gossip_candidates().len() - usize::from(without.is_some());
        let wanted = (self.state.nodes.len() / 10).clamp(MIN_RANDOM_ENTRIES, MAX_RANDOM_ENTRIES).min(there);
        let mut places = Vec::with_capacity(wanted);
        for last in there - wanted..there {
            let drawn = self.random.below(last as u64 + 1) as usize;
            places.push(if places.contains(&drawn) { last } else { drawn });
        }
        // Skips the receiver's position, which was excluded from the draw.
        places.into_iter().map(|place| place + usize::from(without.is_some_and(|out| place >= out))).collect()
    }

    fn entry(&self, id: NodeId) -> GossipEntry {
        let node = &self.state.nodes[&id];
        let secs = |time: Option<Instant>| {
            time.map_or(0, |time| u32::try_from(self.wall_at(time).secs()).unwrap_or(0))
        };
        GossipEntry {
            id,
            ping_sent: secs(node.contact.ping_sent),
            pong_received: secs(node.contact.pong_received),
            ip: node.address.ip,
            port: node.address.port,
            bus_port: node.address.bus_port,
            flags: node.flags(),
            other_port: node.address.other_port,
        }
    }

    fn extensions(&self, reads: Extensions) -> Vec<Extension> {
        let me = self.myself();
        let mut extensions = Vec::new();
        if reads >= Extensions::Hostname && !me.hostname.is_empty() {
            extensions.push(Extension::Hostname(me.hostname.clone()));
        }
        if reads < Extensions::All {
            return extensions;
        }
        if !me.human_name.is_empty() {
            extensions.push(Extension::HumanName(me.human_name.clone()));
        }
        let ClientEndpoint { ipv4, ipv6, port, tls_port } = me.client_endpoint;
        extensions.extend(ipv4.map(Extension::ClientIpv4));
        extensions.extend(ipv6.map(Extension::ClientIpv6));
        extensions.extend((port != 0).then_some(Extension::ClientPort(port)));
        extensions.extend((tls_port != 0).then_some(Extension::ClientTlsPort(tls_port)));
        extensions.extend((!me.zone.is_empty()).then(|| Extension::Zone(me.zone.clone())));
        extensions.push(Extension::Shard(me.shard));
        let left = |until: &Instant| Duration::from_secs(until.since(self.state.now).as_secs());
        let forgotten = self.blacklist.iter().map(|(&id, until)| (id, left(until)));
        // Rounds down. A receiver forwards the remaining time, so rounding up would keep the node forgotten forever.
        for (id, ttl) in forgotten.filter(|(_, ttl)| !ttl.is_zero()).take(MAX_FORGOTTEN_NODES) {
            extensions.push(Extension::Forgotten { id, ttl });
        }
        extensions
    }

    pub(crate) fn send_due_pings(&mut self) {
        for id in self.state.due_nodes(|node, _| deadlines::ping_deadline(node)) {
            self.send_gossip(id, GossipKind::Ping);
        }
    }
}
