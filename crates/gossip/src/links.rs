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
use crate::effect::{Effect, GossipKind};
use crate::node::LinkState;
use crate::state::ClusterState;

/// Maximum number of inbound links: enough for two links per node of the largest supported cluster.
const MAX_INBOUND_LINKS: usize = 4096;
/// Number of refused connection attempts within [`ClusterConfig::connect_refused_timeout`](crate::ClusterConfig) before
/// a node is suspected.
const CONFIRMING_ATTEMPTS: u32 = 6;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Links {
    next_link_number: u64,
    /// The peer of each outbound link.
    outbound: BTreeMap<LinkId, NodeId>,
    inbound: BTreeMap<LinkId, InboundLink>,
    /// When to check for silent links of unknown peers; `None` while there are no such links.
    next_check_at: Option<Instant>,
}

/// A link that a peer opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct InboundLink {
    peer_ip: IpAddr,
    local_ip: IpAddr,
    accepted_at: Millis,
    /// The node that sends on this link; `None` until a known node has sent a packet.
    sender: Option<NodeId>,
    /// When the last packet arrived on this link, or when the link was accepted.
    last_message_at: Instant,
    /// Whether an impossible epoch on this link has been logged.
    is_bad_epoch_logged: bool,
}

/// One link as listed by CLUSTER LINKS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkReport {
    /// The link number. [`LinkId::Outbound`] was opened by this node, [`LinkId::Inbound`] by the peer.
    pub link: LinkId,
    /// The known node at the other end.
    pub node: NodeId,
    /// Wall-clock time at which the link was established.
    pub created_at: Millis,
}

impl Links {
    pub(crate) fn on_accepted(
        &mut self,
        state: &ClusterState,
        link: LinkId,
        peer_ip: IpAddr,
        local_ip: IpAddr,
    ) -> Option<Effect> {
        let mut evicted = None;
        if self.inbound.len() >= MAX_INBOUND_LINKS {
            // Known nodes identify themselves with their first packet, so only unknown peers are evicted: the
            // longest-silent one.
            let Some(quietest) = self.unknown_peers().min_by_key(|(_, last_message)| *last_message) else {
                return Some(close_action(link));
            };
            evicted = Some(self.close_inbound(quietest.0));
        }
        let (since, last_message) = (state.wall_time(), state.now());
        let inbound = InboundLink {
            peer_ip,
            local_ip,
            accepted_at: since,
            sender: None,
            last_message_at: last_message,
            is_bad_epoch_logged: false,
        };
        self.inbound.insert(link, inbound);
        self.next_check_at.get_or_insert(state.now() + state.config().unknown_peer_timeout());
        evicted
    }

    /// The inbound links without a known sender, with the time of their last packet.
    fn unknown_peers(&self) -> impl Iterator<Item = (LinkId, Instant)> + '_ {
        let unknown = self.inbound.iter().filter(|(_, inbound)| inbound.sender.is_none());
        unknown.map(|(&link, inbound)| (link, inbound.last_message_at))
    }

    fn close_inbound(&mut self, link: LinkId) -> Effect {
        self.inbound.remove(&link);
        close_action(link)
    }

    /// Closes inbound links of unknown peers that have been silent for too long.
    pub(crate) fn close_silent_unknown_peers(&mut self, state: &ClusterState) -> Vec<Effect> {
        let now = state.now();
        if self.next_check_at.is_none_or(|at| now < at) {
            return Vec::new();
        }
        let timeout = state.config().unknown_peer_timeout();
        let (silent, others): (Vec<_>, Vec<_>) =
            self.unknown_peers().partition(|(_, last_message)| *last_message + timeout <= now);
        self.next_check_at = (!others.is_empty()).then(|| now + timeout);
        silent.into_iter().map(|(link, _)| self.close_inbound(link)).collect()
    }

    /// When to check for silent links of unknown peers; `None` while there are no such links.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.next_check_at
    }

    /// Handles the establishment of an outbound link. Returns its peer.
    pub(crate) fn on_connected(&self, state: &mut ClusterState, link: LinkId) -> Option<NodeId> {
        let (id, since) = (self.outbound_peer(link)?, state.now());
        let node = state.known_node_mut(id);
        node.link = LinkState::Up { id: link, since };
        node.contact_times.refused_since = None;
        Some(id)
    }

    pub(crate) fn on_connect_failed(&mut self, state: &mut ClusterState, link: LinkId, is_refused: bool) {
        let Some(id) = self.outbound.remove(&link) else { return };
        let (now, connect_refused_timeout) = (state.now(), state.config().connect_refused_timeout);
        let node = state.known_node_mut(id);
        // Start the silence measurement unless it is already running.
        node.contact_times.ping_sent_at.get_or_insert(now);
        let confirming = is_refused
            && node.contact_times.was_ever_connected
            && node.is_healthy()
            && !connect_refused_timeout.is_zero();
        node.contact_times.refused_since =
            if is_refused { node.contact_times.refused_since.or(Some(now)) } else { None };
        let pause = if confirming {
            (connect_refused_timeout / CONFIRMING_ATTEMPTS).min(RETRY_DELAY)
        } else {
            RETRY_DELAY
        };
        node.link = LinkState::Down { retry_at: now + pause };
    }

    /// Handles a closed link. If a node closed its inbound link, pings the node, which may have been reset and answer
    /// with another id.
    pub(crate) fn on_closed(&mut self, state: &mut ClusterState, link: LinkId) -> Option<Effect> {
        if let Some(id) = self.outbound.remove(&link) {
            schedule_reconnect(state, id);
            return None;
        }
        let to = self.inbound.remove(&link).and_then(|inbound| inbound.sender)?;
        let node = state.node(to)?;
        let idle = node.link.is_up() && node.contact_times.ping_sent_at.is_none();
        idle.then_some(Effect::SendGossip { to, kind: GossipKind::Ping })
    }

    /// Closes the outbound link to `id`, to be reopened later.
    pub(crate) fn close_outbound(&mut self, state: &mut ClusterState, id: NodeId) -> Option<Effect> {
        let link = state.node(id)?.link.id()?;
        self.outbound.remove(&link);
        schedule_reconnect(state, id);
        Some(close_action(link))
    }

    /// Opens missing outbound links and closes dead ones.
    pub(crate) fn step(&mut self, state: &mut ClusterState) -> Vec<Effect> {
        let due = state.due_nodes(deadlines::link_deadline);
        due.into_iter()
            .filter_map(|id| match state.node(id)?.link {
                LinkState::Down { .. } => self.connect(state, id),
                LinkState::Up { .. } | LinkState::Connecting { .. } => self.close_outbound(state, id),
            })
            .collect()
    }

    fn connect(&mut self, state: &mut ClusterState, id: NodeId) -> Option<Effect> {
        let (link, since) = (LinkId::Outbound(self.next_link_number), state.now());
        let node = state.known_node_mut(id);
        let (ip, port) = (node.address.ip?, node.address.bus_port);
        node.link = LinkState::Connecting { id: link, since };
        self.next_link_number += 1;
        self.outbound.insert(link, id);
        Some(Effect::DriverAction(ClusterAction::Connect { link, ip, port }))
    }

    /// Records the arrival of a packet. Returns whether the link is still open.
    pub(crate) fn on_packet(&mut self, link: LinkId, now: Instant) -> bool {
        if let Some(inbound) = self.inbound.get_mut(&link) {
            inbound.last_message_at = now;
            return true;
        }
        self.outbound.contains_key(&link)
    }

    /// Returns whether to log an impossible epoch received on `link`: true once per inbound link.
    pub(crate) fn should_log_bad_epoch(&mut self, link: LinkId) -> bool {
        let inbound = self.inbound.get_mut(&link);
        inbound.is_none_or(|inbound| !std::mem::replace(&mut inbound.is_bad_epoch_logged, true))
    }

    /// Records that the known node `sender` uses the inbound `link`.
    pub(crate) fn record_sender(&mut self, link: LinkId, sender: NodeId) {
        if let Some(inbound) = self.inbound.get_mut(&link) {
            inbound.sender = Some(sender);
        }
    }

    /// Replaces the temporary id of the peer by `id`, which the handshake on the outbound `link` has provided.
    pub(crate) fn rename_peer(&mut self, link: LinkId, id: NodeId) {
        self.outbound.insert(link, id);
    }

    pub(crate) fn on_node_removed(&mut self, id: NodeId) {
        for inbound in self.inbound.values_mut().filter(|inbound| inbound.sender == Some(id)) {
            inbound.sender = None;
        }
    }

    /// Returns the peer of the outbound `link`, which is a temporary id during a handshake.
    pub(crate) fn outbound_peer(&self, link: LinkId) -> Option<NodeId> {
        self.outbound.get(&link).copied()
    }

    /// The peer of `link`, if it is known.
    pub(crate) fn peer(&self, link: LinkId) -> Option<NodeId> {
        self.outbound_peer(link).or_else(|| self.inbound.get(&link)?.sender)
    }

    /// Whether the node `id` has an open link to this node.
    pub(crate) fn has_inbound_link_from(&self, id: NodeId) -> bool {
        self.inbound.values().any(|inbound| inbound.sender == Some(id))
    }

    /// Remote address of an inbound link, or the address that an outbound link connects to.
    pub(crate) fn peer_ip(&self, state: &ClusterState, link: LinkId) -> Option<IpAddr> {
        match self.inbound.get(&link) {
            Some(inbound) => Some(inbound.peer_ip),
            None => state.node(self.outbound_peer(link)?)?.address.ip,
        }
    }

    /// Local address of an inbound link; `None` for an outbound link.
    pub(crate) fn local_ip(&self, link: LinkId) -> Option<IpAddr> {
        self.inbound.get(&link).map(|inbound| inbound.local_ip)
    }

    /// All links whose peer is known.
    pub(crate) fn link_reports(&self, state: &ClusterState) -> Vec<LinkReport> {
        let mut reports = Vec::new();
        for node in state.nodes() {
            if let LinkState::Up { id, since } = node.link {
                reports.push(LinkReport { link: id, node: node.id, created_at: state.wall_time_at(since) });
            }
            let theirs = self.inbound.iter().filter(|(_, inbound)| inbound.sender == Some(node.id));
            reports.extend(theirs.map(|(&link, inbound)| LinkReport {
                link,
                node: node.id,
                created_at: inbound.accepted_at,
            }));
        }
        reports
    }
}

fn close_action(link: LinkId) -> Effect {
    Effect::DriverAction(ClusterAction::Close { link })
}

/// Schedules a reconnect to `id` and starts the measurement of its silence.
fn schedule_reconnect(state: &mut ClusterState, id: NodeId) {
    let now = state.now();
    let node = state.known_node_mut(id);
    // Do not reopen at once a link that broke within the retry interval, because a peer that accepts and closes
    // connections would cause a busy loop.
    let retry_at = match node.link {
        LinkState::Up { since, .. } | LinkState::Connecting { since, .. } => now.max(since + RETRY_DELAY),
        LinkState::Down { retry_at } => retry_at,
    };
    node.link = LinkState::Down { retry_at };
    node.contact_times.ping_sent_at.get_or_insert(now);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_state::{TestCluster, id};

    const PEER_IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    /// A cluster in which this node's link to node 1 has the number 7.
    fn cluster() -> (TestCluster, Links) {
        let mut cluster = TestCluster::new(3, &[]);
        let now = cluster.state.now();
        cluster.node(1).link = LinkState::Down { retry_at: now };
        let mut links = Links { next_link_number: 7, ..Links::default() };
        let effects = links.step(&mut cluster.state);
        assert!(matches!(
            effects[..],
            [Effect::DriverAction(ClusterAction::Connect { link: LinkId::Outbound(7), .. })]
        ));
        (cluster, links)
    }

    #[test]
    fn broken_link_is_reopened_after_the_retry_delay() {
        let (mut cluster, mut links) = cluster();
        assert_eq!(links.on_connected(&mut cluster.state, LinkId::Outbound(7)), Some(id(1)));
        assert_eq!(links.on_closed(&mut cluster.state, LinkId::Outbound(7)), None);
        assert_eq!(links.peer(LinkId::Outbound(7)), None);
        assert_eq!(links.step(&mut cluster.state), []);
        cluster.advance_time(RETRY_DELAY);
        assert_eq!(links.step(&mut cluster.state).len(), 1);
    }

    #[test]
    fn refused_connection_of_a_node_that_was_up_is_confirmed_quickly() {
        let (mut cluster, mut links) = cluster();
        cluster.node(1).contact_times.was_ever_connected = true;
        links.on_connect_failed(&mut cluster.state, LinkId::Outbound(7), true);
        let (now, node) = (cluster.state.now(), cluster.state.node(id(1)).unwrap());
        let pause = cluster.state.config().connect_refused_timeout / CONFIRMING_ATTEMPTS;
        assert_eq!(node.contact_times.refused_since, Some(now));
        assert_eq!(node.link, LinkState::Down { retry_at: now + pause });
    }

    #[test]
    fn silent_unknown_peer_is_closed_and_a_known_one_stays() {
        let (mut cluster, mut links) = cluster();
        for number in [1, 2] {
            assert_eq!(links.on_accepted(&cluster.state, LinkId::Inbound(number), PEER_IP, PEER_IP), None);
        }
        links.record_sender(LinkId::Inbound(2), id(2));
        cluster.advance_time(cluster.state.config().unknown_peer_timeout());
        assert_eq!(links.next_deadline(), Some(cluster.state.now()));
        assert_eq!(links.close_silent_unknown_peers(&cluster.state), [close_action(LinkId::Inbound(1))]);
        assert!(links.has_inbound_link_from(id(2)) && links.next_deadline().is_none());
        links.on_node_removed(id(2));
        assert!(!links.has_inbound_link_from(id(2)));
    }

    #[test]
    fn longest_silent_unknown_peer_is_evicted_when_links_run_out() {
        let (mut cluster, mut links) = cluster();
        for number in 0..MAX_INBOUND_LINKS as u64 {
            links.on_accepted(&cluster.state, LinkId::Inbound(number), PEER_IP, PEER_IP);
        }
        cluster.advance_time(RETRY_DELAY);
        assert!(links.on_packet(LinkId::Inbound(0), cluster.state.now()));
        let evicted = links.on_accepted(&cluster.state, LinkId::Inbound(10_000), PEER_IP, PEER_IP);
        assert_eq!(evicted, Some(close_action(LinkId::Inbound(1))));
        assert!(!links.on_packet(LinkId::Inbound(1), cluster.state.now()));
    }

    #[test]
    fn node_that_closes_its_link_is_pinged() {
        let (mut cluster, mut links) = cluster();
        links.on_accepted(&cluster.state, LinkId::Inbound(1), PEER_IP, PEER_IP);
        links.record_sender(LinkId::Inbound(1), id(2));
        let ping = Effect::SendGossip { to: id(2), kind: GossipKind::Ping };
        assert_eq!(links.on_closed(&mut cluster.state, LinkId::Inbound(1)), Some(ping));
    }
}
