//! Composing and sending: the header that every message has, and what a PING gossips.

use std::time::Duration;

use clock::Instant;
use slot_routing::{NodeId, SlotSet};

use crate::contract::{Action, LinkId};
use crate::machine::Gossip;
use crate::manual_failover::Manual;
use crate::node::{Extensions, Link, Node};
use crate::wire::{Body, Extension, Gossip as Section, GossipEntry, Header, MessageFlags, NodeFlags, Packet};

/// How many nodes a PING tells of at least (Redis: 3, or a tenth of the nodes if that is more).
const LEAST_ENTRIES: usize = 3;
/// The header counts entries in 16 bits; a bus of so many suspects has other worries.
const MOST_ENTRIES: usize = 1000;
/// How many forgotten nodes one message names.
const MOST_FORGOTTEN: usize = 100;

/// Which of the messages with a gossip section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Talk {
    Ping,
    Pong,
    Meet,
}

impl Gossip {
    pub(crate) fn header(&mut self) -> Header {
        // A replica speaks for its master's claim.
        let claimant = self.myself().master().unwrap_or(self.me);
        let slots = self.claim_of(claimant);
        let me = self.myself();
        let paused = matches!(self.manual, Manual::Yielding { paused_at: Some(_), .. });
        let role = if me.is_master() { NodeFlags::MASTER } else { NodeFlags::REPLICA };
        Header {
            sender: self.me,
            flags: role
                | NodeFlags::MYSELF
                | NodeFlags::EXTENSIONS
                | NodeFlags::when(me.no_failover, NodeFlags::NO_FAILOVER),
            message_flags: if paused { MessageFlags::PAUSED } else { MessageFlags::default() },
            serving: self.service.serving,
            ip: self.config.announce.ip,
            port: me.address.port,
            other_port: me.address.other_port,
            bus_port: me.address.bus_port,
            current_epoch: self.current_epoch,
            config_epoch: self.nodes.get(&claimant).map_or(me.config_epoch, |node| node.config_epoch),
            offset: self.replication.offset,
            slots,
            replica_of: me.master(),
        }
    }

    fn claim_of(&mut self, claimant: NodeId) -> SlotSet {
        let version = self.slots.version();
        match &self.claim {
            Some((whose, when, slots)) if (*whose, *when) == (claimant, version) => slots.clone(),
            _ => {
                let slots = self.slots.set_of(claimant);
                self.claim = Some((claimant, version, slots.clone()));
                slots
            }
        }
    }

    /// Sends to a node over our link; nothing happens if there is none that is up.
    pub(crate) fn send(&mut self, to: NodeId, body: Body) {
        let header = self.header();
        self.send_packet(to, Packet { header, body });
    }

    pub(crate) fn send_packet(&mut self, to: NodeId, packet: Packet) {
        if let Some(Link::Up { id, .. }) = self.nodes.get(&to).map(|node| node.link) {
            self.send_over(id, packet);
        }
    }

    pub(crate) fn send_over(&mut self, link: LinkId, packet: Packet) {
        self.stats.count_sent(&packet.body);
        self.out.push(Action::Send { link, packet: Box::new(packet), after_persist: false });
    }

    /// A FAIL, a vote request: to all nodes that can be reached.
    pub(crate) fn broadcast(&mut self, packet: &Packet) {
        for id in self.linked() {
            self.send_packet(id, packet.clone());
        }
    }

    /// Tells the news to everybody at once: a PONG, since that asks for no answer.
    pub(crate) fn broadcast_pong(&mut self) {
        for id in self.linked() {
            self.talk(id, Talk::Pong);
        }
    }

    /// The same to the other replicas of our master, which need our offset for their rank.
    pub(crate) fn pong_siblings(&mut self) {
        let master = self.myself().master();
        for id in self.linked() {
            if self.nodes[&id].master() == master {
                self.talk(id, Talk::Pong);
            }
        }
    }

    /// The first word on a new link: MEET if the operator introduced us, else PING.
    pub(crate) fn greet(&mut self, id: NodeId) {
        let introduced = self.nodes[&id].handshake.is_some_and(|handshake| handshake.meet);
        self.talk(id, if introduced { Talk::Meet } else { Talk::Ping });
    }

    /// Sends a message with a gossip section over our link to `id`.
    pub(crate) fn talk(&mut self, id: NodeId, talk: Talk) {
        let Some(Link::Up { id: link, .. }) = self.nodes.get(&id).map(|node| node.link) else { return };
        if talk != Talk::Pong {
            let interval = self.config.ping_interval(self.nodes.len() - 1);
            let now = self.now;
            let contact = &mut self.nodes.get_mut(&id).expect("looked up above").contact;
            contact.ping_sent.get_or_insert(now);
            contact.ping_due = Some(now + interval);
        }
        self.talk_over(link, (Some(id), false), talk);
    }

    /// The same over any link; `to` is the node at its end, if we know it, and whether it asks what we hold of it.
    pub(crate) fn talk_over(&mut self, link: LinkId, to: (Option<NodeId>, bool), talk: Talk) {
        let section = self.compose(to.0, to.1);
        let body = match talk {
            Talk::Ping => Body::Ping(section),
            Talk::Pong => Body::Pong(section),
            Talk::Meet => Body::Meet(section),
        };
        let mut header = self.header();
        // Without it a Redis sends us none.
        header.message_flags |= MessageFlags::EXTENSIONS;
        self.send_over(link, Packet { header, body });
    }

    /// Some nodes by chance, and every node that we suspect: a suspicion must not wait for its luck. The receiver is
    /// among them if we hold it for failing, or voted for another in its place: it is to know that. If `asked`, it is to
    /// know as well that we did not.
    fn compose(&mut self, to: Option<NodeId>, asked: bool) -> Section {
        let worth_telling = |node: &&Node| {
            let known = node.link.is_up() || node.is_suspected() || self.slots.count(node.id) > 0;
            node.id != self.me
                && (Some(node.id) != to || asked || self.doubts(node))
                && node.handshake.is_none()
                && node.address.ip.is_some()
                && known
        };
        let (suspects, mut others): (Vec<NodeId>, Vec<NodeId>) = {
            let told: Vec<&Node> = self.nodes.values().filter(worth_telling).collect();
            let urgent = |node: &&Node| node.is_suspected() || Some(node.id) == to;
            let (suspects, others): (Vec<_>, Vec<_>) = told.into_iter().partition(urgent);
            (ids(&suspects), ids(&others))
        };
        let wanted = LEAST_ENTRIES.max(self.nodes.len() / 10).min(others.len());
        for place in 0..wanted {
            let left = (others.len() - place) as u64;
            let pick = place + self.random_below(left) as usize;
            others.swap(place, pick);
        }
        others.truncate(wanted);
        let told = others.iter().chain(&suspects).take(MOST_ENTRIES);
        let entries = told
            .map(|id| {
                let entry = self.entry(*id);
                let doubted = Some(*id) == to && self.doubts(&self.nodes[id]);
                GossipEntry { flags: entry.flags | NodeFlags::when(doubted, NodeFlags::PFAIL), ..entry }
            })
            .collect();
        let reads = to.and_then(|id| self.nodes.get(&id)).map_or(Extensions::None, |node| node.extensions);
        let extensions = self.extensions(reads);
        Section { entries, extensions }
    }

    fn entry(&self, id: NodeId) -> GossipEntry {
        let node = &self.nodes[&id];
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
        extensions.push(Extension::Shard(me.shard));
        let left = |until: &Instant| Duration::from_secs(until.since(self.now).as_secs());
        let forgotten = self.blacklist.iter().map(|(&id, until)| (id, left(until)));
        // Rounded down: a receiver passes the word on with the time that it was told, so a time that grew
        // on its way would keep the node forgotten for ever.
        for (id, ttl) in forgotten.filter(|(_, ttl)| !ttl.is_zero()).take(MOST_FORGOTTEN) {
            extensions.push(Extension::Forgotten { id, ttl });
        }
        extensions
    }

    pub(crate) fn send_due_pings(&mut self) {
        let now = self.now;
        let is_due = |node: &&Node| self.ping_deadline(node).is_some_and(|at| at <= now);
        let due: Vec<NodeId> = self.nodes.values().filter(is_due).map(|node| node.id).collect();
        for id in due {
            self.talk(id, Talk::Ping);
        }
    }

    /// When `node` is to be asked again; not while an answer is still out.
    pub(crate) fn ping_deadline(&self, node: &Node) -> Option<Instant> {
        let idle = node.link.is_up() && node.contact.ping_sent.is_none() && node.id != self.me;
        if idle { node.contact.ping_due } else { None }
    }
}

fn ids(nodes: &[&Node]) -> Vec<NodeId> {
    nodes.iter().map(|node| node.id).collect()
}
