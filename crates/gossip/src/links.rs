//! Bus links: one outbound link to every known node, and the inbound links of the peers.
//!
//! A node sends its own messages on its outbound links and receives the replies there; on inbound links it only
//! replies. Each pair of nodes therefore has two links, and the peer of an outbound link is always known.

use std::collections::BTreeMap;
use std::net::IpAddr;

use clock::{Instant, Millis};
use slot_routing::NodeId;

use crate::contract::{ClusterAction, LinkId};
use crate::deadlines::{self, RETRY_DELAY};
use crate::effect::GossipKind;
use crate::machine::Gossip;
use crate::node::LinkState;

/// Maximum number of inbound links: two per node of the largest supported cluster, plus spare.
const MAX_INBOUND_LINKS: usize = 4096;
/// Number of connection attempts that confirm a refusal within
/// [`ClusterConfig::connect_refused_timeout`](crate::ClusterConfig).
const CONFIRMING_ATTEMPTS: u32 = 6;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Links {
    next: u64,
    /// The peer of each outbound link.
    pub(crate) outbound: BTreeMap<LinkId, NodeId>,
    pub(crate) inbound: BTreeMap<LinkId, InboundLink>,
    /// When to check for silent links of unknown peers; `None` while there are no such links.
    next_check: Option<Instant>,
}

/// A link that a peer opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InboundLink {
    pub(crate) peer: IpAddr,
    pub(crate) local: IpAddr,
    pub(crate) since: Millis,
    /// The known node that sends on this link.
    pub(crate) node: Option<NodeId>,
    /// When the last packet arrived.
    pub(crate) last_message: Instant,
    /// Whether an impossible epoch on this link has been logged.
    pub(crate) bad_epoch_logged: bool,
}

impl Gossip {
    pub(crate) fn on_accepted(&mut self, link: LinkId, peer: IpAddr, local: IpAddr) {
        if self.links.inbound.len() >= MAX_INBOUND_LINKS {
            // Known nodes identify themselves with their first packet, so the longest-silent unknown peer is evicted.
            let strangers = self.links.inbound.iter().filter(|(_, inbound)| inbound.node.is_none());
            let quietest = strangers.min_by_key(|(_, inbound)| inbound.last_message).map(|(&link, _)| link);
            let Some(quietest) = quietest else {
                self.out.push(ClusterAction::Close { link });
                return;
            };
            self.close_inbound(quietest);
        }
        let (since, heard) = (self.state.wall, self.state.now);
        self.links.inbound.insert(
            link,
            InboundLink { peer, local, since, node: None, last_message: heard, bad_epoch_logged: false },
        );
        let next_check = self.state.now + self.state.config.unknown_peer_timeout();
        self.links.next_check.get_or_insert(next_check);
    }

    fn close_inbound(&mut self, link: LinkId) {
        self.links.inbound.remove(&link);
        self.out.push(ClusterAction::Close { link });
    }

    /// Closes inbound links that have been silent and without a known sender for too long.
    pub(crate) fn close_silent_unknown_peers(&mut self) {
        if self.links.next_check.is_none_or(|at| self.state.now < at) {
            return;
        }
        let timeout = self.state.config.unknown_peer_timeout();
        let now = self.state.now;
        let strangers = self.links.inbound.iter().filter(|(_, inbound)| inbound.node.is_none());
        let (silent, others): (Vec<_>, Vec<_>) = strangers
            .map(|(&link, inbound)| (link, inbound.last_message))
            .partition(|(_, at)| *at + timeout <= now);
        self.links.next_check = (!others.is_empty()).then(|| now + timeout);
        for (link, _) in silent {
            self.close_inbound(link);
        }
    }

    pub(crate) fn unknown_peers_deadline(&self) -> Option<Instant> {
        self.links.next_check
    }

    pub(crate) fn on_connected(&mut self, link: LinkId) {
        let now = self.state.now;
        let Some(id) = self.links.outbound.get(&link).copied() else { return };
        let node = self.state.nodes.get_mut(&id).expect("a link of ours has a node");
        node.link = LinkState::Up { id: link, since: now };
        node.contact.refused_since = None;
        self.send_first_message(id);
        self.apply(self.failure_detector.on_link_up(&self.state, id));
        self.apply(self.manual_failover.on_link_up(&self.state, id));
        let effects = self.election.on_link_up(&self.state, id);
        self.apply(effects);
    }

    pub(crate) fn on_connect_failed(&mut self, link: LinkId, refused: bool) {
        let now = self.state.now;
        let connect_refused_timeout = self.state.config.connect_refused_timeout;
        let Some(id) = self.links.outbound.remove(&link) else { return };
        let node = self.state.nodes.get_mut(&id).expect("a link of ours has a node");
        // Starts the silence measurement if it is not running.
        node.contact.ping_sent.get_or_insert(now);
        let confirming =
            refused && node.contact.ever_connected && node.is_healthy() && !connect_refused_timeout.is_zero();
        node.contact.refused_since = if refused { node.contact.refused_since.or(Some(now)) } else { None };
        let pause = if confirming {
            (connect_refused_timeout / CONFIRMING_ATTEMPTS).min(RETRY_DELAY)
        } else {
            RETRY_DELAY
        };
        node.link = LinkState::Down { retry_at: now + pause };
    }

    pub(crate) fn on_closed(&mut self, link: LinkId) {
        if let Some(id) = self.links.inbound.remove(&link).and_then(|inbound| inbound.node) {
            self.ping_after_inbound_close(id);
        }
        let Some(id) = self.links.outbound.remove(&link) else { return };
        self.schedule_reconnect(id);
    }

    /// Pings a node that closed its inbound link: it may have been reset and answer with another id.
    fn ping_after_inbound_close(&mut self, id: NodeId) {
        if self.state.nodes.get(&id).is_some_and(|node| node.link.is_up() && node.contact.ping_sent.is_none())
        {
            self.send_gossip(id, GossipKind::Ping);
        }
    }

    /// Schedules a reconnect and starts the silence measurement.
    fn schedule_reconnect(&mut self, id: NodeId) {
        let now = self.state.now;
        let node = self.state.nodes.get_mut(&id).expect("a link of ours has a node");
        // A link that broke within the retry interval is not reopened at once; a peer that accepts and closes would
        // cause a busy loop.
        let retry_at = match node.link {
            LinkState::Up { since, .. } | LinkState::Connecting { since, .. } => now.max(since + RETRY_DELAY),
            LinkState::Down { retry_at } => retry_at,
        };
        node.link = LinkState::Down { retry_at };
        node.contact.ping_sent.get_or_insert(now);
    }

    /// Closes the outbound link to `id`; it will be reopened.
    pub(crate) fn close_link(&mut self, id: NodeId) {
        if let Some(link) = self.state.nodes.get(&id).and_then(|node| node.link.id()) {
            self.links.outbound.remove(&link);
            self.out.push(ClusterAction::Close { link });
            self.schedule_reconnect(id);
        }
    }

    /// Remote address of an inbound link, or the address that an outbound link connects to.
    pub(crate) fn peer_ip(&self, link: LinkId) -> Option<IpAddr> {
        match self.links.inbound.get(&link) {
            Some(inbound) => Some(inbound.peer),
            None => self.state.nodes.get(self.links.outbound.get(&link)?)?.address.ip,
        }
    }

    /// Opens missing links and closes dead ones.
    pub(crate) fn maintain_links(&mut self) {
        for id in self.state.due_nodes(deadlines::link_deadline) {
            match self.state.nodes[&id].link {
                LinkState::Down { .. } => self.connect(id),
                LinkState::Up { .. } | LinkState::Connecting { .. } => self.close_link(id),
            }
        }
    }

    fn connect(&mut self, id: NodeId) {
        let link = LinkId::Out(self.links.next);
        self.links.next += 1;
        let since = self.state.now;
        let node = self.state.nodes.get_mut(&id).expect("asked for by the caller");
        let ip = node.address.ip.expect("only nodes with an address are due");
        node.link = LinkState::Connecting { id: link, since };
        let port = node.address.bus_port;
        self.links.outbound.insert(link, id);
        self.out.push(ClusterAction::Connect { link, ip, port });
    }
}
