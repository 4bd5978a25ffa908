//! The links: ours to every node we know, and theirs to us.
//!
//! We speak on our own links and are answered there; on a link that a peer made it speaks and we
//! answer. So each pair of nodes has two links, and which node a link of ours belongs to is known.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use clock::{Instant, Millis};
use slot_routing::NodeId;

use crate::contract::{Action, LinkId};
use crate::machine::Gossip;
use crate::node::{Link, Node};
use crate::sending::Talk;

/// How long after a failed attempt the next one follows (Redis: its 100 ms cron).
const RETRY: Duration = Duration::from_millis(100);
/// How many links peers may have made at once: two for each node of the largest cluster, and some.
const MOST_INBOUND: usize = 4096;
/// How many attempts confirm a refusal within [`Config::connect_refused_timeout`](crate::Config).
const REFUSALS: u32 = 6;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Links {
    next: u64,
    /// The node that each of our links leads to.
    pub(crate) ours: BTreeMap<LinkId, NodeId>,
    pub(crate) theirs: BTreeMap<LinkId, Inbound>,
    /// When to look for links of strangers on which nothing comes; never while there are no strangers.
    look_at: Option<Instant>,
}

/// A link that a peer made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Inbound {
    pub(crate) peer: IpAddr,
    pub(crate) local: IpAddr,
    pub(crate) since: Millis,
    /// The node that speaks on it, once a known one did.
    pub(crate) node: Option<NodeId>,
    /// When anything came over it.
    pub(crate) heard: Instant,
    /// It brought an epoch that nobody believes, and that was said.
    pub(crate) doubted: bool,
}

impl Gossip {
    pub(crate) fn on_accepted(&mut self, link: LinkId, peer: IpAddr, local: IpAddr) {
        if self.links.theirs.len() >= MOST_INBOUND {
            // A node that is in earnest becomes known with its first words: a stranger that says nothing gives way.
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

    /// Closes links on which nobody has introduced himself for a while, nor says anything else.
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
        // Silence counts from here if it did not already.
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

    /// A node has closed its link to us. It may have been reset, and answer under another id: that is asked now and not
    /// with the next PING.
    fn ask_after_loss(&mut self, id: NodeId) {
        if self.nodes.get(&id).is_some_and(|node| node.link.is_up() && node.contact.ping_sent.is_none()) {
            self.talk(id, Talk::Ping);
        }
    }

    /// The link to `id` is gone: try again at once, and count its silence from here.
    fn lose_link(&mut self, id: NodeId) {
        let now = self.now;
        let node = self.nodes.get_mut(&id).expect("a link of ours has a node");
        // A link that ended within the retry time is not made again at once: a peer that accepts and
        // closes would have us spin.
        let retry_at = match node.link {
            Link::Up { since, .. } | Link::Connecting { since, .. } => now.max(since + RETRY),
            Link::Down { retry_at } => retry_at,
        };
        node.link = Link::Down { retry_at };
        node.contact.ping_sent.get_or_insert(now);
    }

    /// Closes our link to `id`, if there is one; it will be made anew.
    pub(crate) fn close_link(&mut self, id: NodeId) {
        if let Some(link) = self.nodes.get(&id).and_then(|node| node.link.id()) {
            self.links.ours.remove(&link);
            self.out.push(Action::Close { link });
            self.lose_link(id);
        }
    }

    /// The far end's address of `link`, if the peer made it, or the address we connected to.
    pub(crate) fn peer_ip(&self, link: LinkId) -> Option<IpAddr> {
        match self.links.theirs.get(&link) {
            Some(inbound) => Some(inbound.peer),
            None => self.nodes.get(self.links.ours.get(&link)?)?.address.ip,
        }
    }

    /// The nodes that a message can be sent to.
    pub(crate) fn linked(&self) -> Vec<NodeId> {
        let up = self.nodes.values().filter(|node| node.link.is_up() && node.handshake.is_none());
        up.map(|node| node.id).collect()
    }

    /// Makes missing links, and makes those anew that carry nothing any more.
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

    /// When the link to `node` needs attention: a missing one to be made, a dumb one to be dropped.
    ///
    /// A link is dumb when a PING on it has had no answer, and nothing else has come, for half the
    /// node timeout: another half is then left for a new link to prove that only the link was at fault.
    /// It is dumb, too, when a PING on it has had no answer for the whole node timeout, although the node
    /// is heard on its own link: something between us swallows what this one carries, and nobody would
    /// ever be asked again.
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
