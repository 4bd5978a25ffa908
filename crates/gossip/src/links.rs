//! Bus links: one outbound link to every known node, and the inbound links of the peers.
//!
//! A node sends its own messages on its outbound links and receives the replies there; on inbound links it only
//! replies. Each pair of nodes therefore has two links, and the peer of an outbound link is always known.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use clock::{Instant, Millis};
use slot_routing::NodeId;

use crate::contract::{Action, LinkId};
use crate::machine::Gossip;
use crate::node::{Link, Node};
use crate::sending::Talk;

/// Delay after a failed connection attempt (as in Redis, the interval of its cron).
const RETRY: Duration = Duration::from_millis(100);
/// Maximum number of inbound links: two per node of the largest supported cluster, plus spare.
const MOST_INBOUND: usize = 4096;
/// Number of connection attempts that confirm a refusal within [`Config::connect_refused_timeout`](crate::Config).
const REFUSALS: u32 = 6;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Links {
    next: u64,
    /// The peer of each outbound link.
    pub(crate) ours: BTreeMap<LinkId, NodeId>,
    pub(crate) theirs: BTreeMap<LinkId, Inbound>,
    /// When to check for silent links of unknown peers; `None` while there are no such links.
    look_at: Option<Instant>,
}

/// A link that a peer opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Inbound {
    pub(crate) peer: IpAddr,
    pub(crate) local: IpAddr,
    pub(crate) since: Millis,
    /// The known node that sends on this link.
    pub(crate) node: Option<NodeId>,
    /// When the last packet arrived.
    pub(crate) heard: Instant,
    /// Whether an impossible epoch on this link has been logged.
    pub(crate) doubted: bool,
}

impl Gossip {
    pub(crate) fn on_accepted(&mut self, link: LinkId, peer: IpAddr, local: IpAddr) {
        if self.links.theirs.len() >= MOST_INBOUND {
            // Known nodes identify themselves with their first packet, so the longest-silent unknown peer is evicted.
            let strangers = self.links.theirs.iter().filter(|(_, inbound)| inbound.node.is_none());
            let quietest = strangers.min_by_key(|(_, inbound)| inbound.heard).map(|(&link, _)| link);
            let Some(quietest) = quietest else {
                self.out.push(Action::Close { link });
                return;
            };
            self.close_theirs(quietest);
        }
        let (since, heard) = (self.wall, self.now);
        self.links.theirs.insert(link, Inbound { peer, local, since, node: None, heard, doubted: false });
        let look_at = self.now + self.config.stranger_timeout();
        self.links.look_at.get_or_insert(look_at);
    }

    fn close_theirs(&mut self, link: LinkId) {
        self.links.theirs.remove(&link);
        self.out.push(Action::Close { link });
    }

    /// Closes inbound links that have been silent and without a known sender for too long.
    pub(crate) fn drop_silent_strangers(&mut self) {
        if self.links.look_at.is_none_or(|at| self.now < at) {
            return;
        }
        let timeout = self.config.stranger_timeout();
        let now = self.now;
        let strangers = self.links.theirs.iter().filter(|(_, inbound)| inbound.node.is_none());
        let (silent, others): (Vec<_>, Vec<_>) =
            strangers.map(|(&link, inbound)| (link, inbound.heard)).partition(|(_, at)| *at + timeout <= now);
        self.links.look_at = (!others.is_empty()).then(|| now + timeout);
        for (link, _) in silent {
            self.close_theirs(link);
        }
    }

    pub(crate) fn strangers_deadline(&self) -> Option<Instant> {
        self.links.look_at
    }

    pub(crate) fn on_connected(&mut self, link: LinkId) {
        let now = self.now;
        let Some(id) = self.links.ours.get(&link).copied() else { return };
        let node = self.nodes.get_mut(&id).expect("a link of ours has a node");
        node.link = Link::Up { id: link, since: now };
        node.contact.refused_since = None;
        self.greet(id);
        self.repeat_verdicts(id);
        self.ask_to_yield_again(id);
        self.ask_for_vote_again(id);
    }

    pub(crate) fn on_connect_failed(&mut self, link: LinkId, refused: bool) {
        let now = self.now;
        let connect_refused_timeout = self.config.connect_refused_timeout;
        let Some(id) = self.links.ours.remove(&link) else { return };
        let node = self.nodes.get_mut(&id).expect("a link of ours has a node");
        // Starts the silence measurement if it is not running.
        node.contact.ping_sent.get_or_insert(now);
        let confirming = refused && node.contact.met && node.is_well() && !connect_refused_timeout.is_zero();
        node.contact.refused_since = if refused { node.contact.refused_since.or(Some(now)) } else { None };
        let pause = if confirming { (connect_refused_timeout / REFUSALS).min(RETRY) } else { RETRY };
        node.link = Link::Down { retry_at: now + pause };
    }

    pub(crate) fn on_closed(&mut self, link: LinkId) {
        if let Some(id) = self.links.theirs.remove(&link).and_then(|inbound| inbound.node) {
            self.ask_after_loss(id);
        }
        let Some(id) = self.links.ours.remove(&link) else { return };
        self.lose_link(id);
    }

    /// Pings a node that closed its inbound link: it may have been reset and answer with another id.
    fn ask_after_loss(&mut self, id: NodeId) {
        if self.nodes.get(&id).is_some_and(|node| node.link.is_up() && node.contact.ping_sent.is_none()) {
            self.talk(id, Talk::Ping);
        }
    }

    /// Schedules a reconnect and starts the silence measurement.
    fn lose_link(&mut self, id: NodeId) {
        let now = self.now;
        let node = self.nodes.get_mut(&id).expect("a link of ours has a node");
        // A link that broke within the retry interval is not reopened at once; a peer that accepts and closes would
        // cause a busy loop.
        let retry_at = match node.link {
            Link::Up { since, .. } | Link::Connecting { since, .. } => now.max(since + RETRY),
            Link::Down { retry_at } => retry_at,
        };
        node.link = Link::Down { retry_at };
        node.contact.ping_sent.get_or_insert(now);
    }

    /// Closes the outbound link to `id`; it will be reopened.
    pub(crate) fn close_link(&mut self, id: NodeId) {
        if let Some(link) = self.nodes.get(&id).and_then(|node| node.link.id()) {
            self.links.ours.remove(&link);
            self.out.push(Action::Close { link });
            self.lose_link(id);
        }
    }

    /// Remote address of an inbound link, or the address that an outbound link connects to.
    pub(crate) fn peer_ip(&self, link: LinkId) -> Option<IpAddr> {
        match self.links.theirs.get(&link) {
            Some(inbound) => Some(inbound.peer),
            None => self.nodes.get(self.links.ours.get(&link)?)?.address.ip,
        }
    }

    /// The nodes with an established outbound link, except those in handshake.
    pub(crate) fn linked(&self) -> Vec<NodeId> {
        let up = self.nodes.values().filter(|node| node.link.is_up() && node.handshake.is_none());
        up.map(|node| node.id).collect()
    }

    /// Opens missing links and closes dead ones.
    pub(crate) fn tend_links(&mut self) {
        for id in self.due_nodes(Self::link_deadline) {
            match self.nodes[&id].link {
                Link::Down { .. } => self.connect(id),
                Link::Up { .. } | Link::Connecting { .. } => self.close_link(id),
            }
        }
    }

    fn connect(&mut self, id: NodeId) {
        let link = LinkId::Out(self.links.next);
        self.links.next += 1;
        let since = self.now;
        let node = self.nodes.get_mut(&id).expect("asked for by the caller");
        let ip = node.address.ip.expect("only nodes with an address are due");
        node.link = Link::Connecting { id: link, since };
        let port = node.address.bus_port;
        self.links.ours.insert(link, id);
        self.out.push(Action::Connect { link, ip, port });
    }

    /// When the link to `node` must be opened or replaced.
    ///
    /// A link is dead if a PING on it is unanswered and the node has been silent for half the node timeout; the other
    /// half remains to check with a new link whether only the link was at fault. A link is also dead if a PING is
    /// unanswered for the whole node timeout although messages arrive on the inbound link. In that case a firewall may
    /// drop the packets of this direction.
    pub(crate) fn link_deadline(&self, node: &Node) -> Option<Instant> {
        if node.id == self.me || node.address.ip.is_none() {
            return None;
        }
        let half = self.config.node_timeout / 2;
        match node.link {
            Link::Down { retry_at } => Some(retry_at),
            Link::Connecting { since, .. } => Some(since + half.max(RETRY)),
            Link::Up { since, .. } => {
                let asked = node.contact.ping_sent?;
                let heard = node.contact.heard.unwrap_or(asked);
                let asked = since.max(asked);
                let silent = asked.max(heard) + half.max(RETRY);
                Some(silent.min(asked + self.config.node_timeout.max(RETRY)))
            }
        }
    }
}
