//! Simulates the links of the cluster bus, including network faults. A link carries ordered packets or its end.

use std::net::IpAddr;
use std::time::Duration;

use gossip::wire::{Header, MessageBody, Packet};
use gossip::{ClusterInput, LinkId};
use slot_routing::{ReplOffset, Slot};

use super::{ClusterEvent, ClusterWorld, ReceivedHeader};
use crate::InjectedBug;
use crate::delivery_queue::{DeliveryPoll, DeliveryQueue};

/// Interval at which the delivery of an item is retried during a partition.
const RETRY_INTERVAL: Duration = Duration::from_millis(40);

/// A link between two nodes. Side 0 opened it, side 1 accepted it.
#[derive(Debug, Clone)]
pub(super) struct BusLink {
    hosts: [usize; 2],
    /// The id by which each side knows the link; `None` before the link is accepted and after it is closed.
    link_ids: [Option<LinkId>; 2],
    /// Packets and the end of the link, in flight to each side.
    delivery_queues: [DeliveryQueue<LinkItem>; 2],
}

#[derive(Debug, Clone)]
enum LinkItem {
    Accepted,
    Connected,
    Packet(Box<Packet>),
    Closed,
}

impl ClusterWorld {
    pub(super) fn dial(&mut self, host: usize, link: LinkId, ip: IpAddr) {
        let Some(to) = self.hosts.iter().position(|other| other.ip == ip) else { return };
        self.last_wire_id += 1;
        let wire = self.last_wire_id;
        self.hosts[host].links.insert(link, (wire, 0));
        let delivery_queues = [DeliveryQueue::default(), DeliveryQueue::default()];
        self.bus_links
            .insert(wire, BusLink { hosts: [host, to], link_ids: [Some(link), None], delivery_queues });
        let time = self.simulation.draw_latency(host, to);
        self.simulation.schedule_after(time, ClusterEvent::DialArrives { wire_id: wire });
    }

    /// Handles a connection attempt that reaches its host. A frozen process still accepts connections.
    pub(super) fn on_dialled(&mut self, wire_id: u64) {
        let Some(&BusLink { hosts: [from, to], link_ids: [Some(link), _], .. }) =
            self.bus_links.get(&wire_id)
        else {
            self.bus_links.remove(&wire_id);
            return;
        };
        let silent = self.simulation.cannot_communicate(from, to);
        if silent || !self.simulation.processes[to].has_power {
            // No process accepts the connection, so the dialling node will time out.
        } else if self.simulation.processes[to].is_up {
            self.enqueue(wire_id, 1, LinkItem::Accepted);
            self.enqueue(wire_id, 0, LinkItem::Connected);
        } else {
            self.bus_links.remove(&wire_id);
            self.hosts[from].links.remove(&link);
            if self.simulation.is_running(from) {
                self.handle_input(from, ClusterInput::ConnectFailed { link, is_refused: true });
            }
        }
    }

    /// Puts an item in flight to this side.
    fn enqueue(&mut self, wire_id: u64, side: usize, item: LinkItem) {
        let Some(hosts) = self.bus_links.get(&wire_id).map(|wire| wire.hosts) else { return };
        let at = self.simulation.now + self.simulation.draw_latency(hosts[1 - side], hosts[side]);
        let planned =
            self.bus_links.get_mut(&wire_id).and_then(|wire| wire.delivery_queues[side].push(at, item));
        if let Some(at) = planned {
            self.simulation.schedule_at(at, ClusterEvent::ItemArrives { wire_id, side });
        }
    }

    /// Sends a packet; the network may lose, duplicate or delay it.
    pub(super) fn send(&mut self, host: usize, link: LinkId, packet: Box<Packet>) {
        let Some(&(wire, mine)) = self.hosts[host].links.get(&link) else { return };
        let side = 1 - mine;
        let Some(to) = self.bus_links.get(&wire).map(|wire| wire.hosts[side]) else { return };
        self.check_packet(&packet, host, to);
        if self.simulation.plan.injected_bug == Some(InjectedBug::IgnoredQuorum)
            && matches!(packet.body, MessageBody::AuthRequest)
        {
            self.inject_votes(host, &packet);
            return;
        }
        if self.simulation.plan.injected_bug == Some(InjectedBug::UnsavedVotes) && !self.simulation.is_healed
        {
            match packet.body {
                MessageBody::AuthRequest => self.inject_rival_requests(host, to, &packet),
                // Votes are dropped, so that nobody wins this epoch before the voter is asked to vote again.
                MessageBody::AuthAck => return,
                _ => {}
            }
        }
        if !self.simulation.is_healed {
            // Vote requests are duplicated more often than other packets.
            let network = &self.simulation.network_behavior;
            let (loss, max_delay) = (network.loss_percent, network.max_duplicate_delay_millis);
            let is_vote_request = matches!(packet.body, MessageBody::AuthRequest);
            let duplicated = if is_vote_request { 20 } else { network.duplicate_percent };
            if self.simulation.random.random_bool(duplicated) && !self.simulation.is_blocked(host, to) {
                let late = self.simulation.draw_latency(host, to) * 3
                    + self.simulation.random.random_millis(0, max_delay);
                self.simulation.schedule_after(
                    late,
                    ClusterEvent::StrayPacket { from: host, to, packet: packet.clone() },
                );
            }
            if self.simulation.random.random_bool(loss) {
                return;
            }
        }
        self.enqueue(wire, side, LinkItem::Packet(packet));
    }

    /// Supports the injected bug `UnsavedVotes`. Two candidates rarely request votes in one epoch, and even more rarely
    /// the second request arrives just after the voter restarted. Therefore other replicas of the failed master request
    /// votes as well, late and often.
    fn inject_rival_requests(&mut self, candidate: usize, voter: usize, request: &Packet) {
        let siblings = self.hosts[candidate]
            .received_headers
            .values()
            .map(|received_headers| received_headers.header.clone());
        let siblings: Vec<Header> =
            siblings.filter(|header| header.replica_of == request.header.replica_of).collect();
        for header in siblings {
            let is_sender = |host: &super::ClusterHost| {
                host.gossip.as_ref().is_some_and(|gossip| gossip.id() == header.sender)
            };
            let Some(from) = self.hosts.iter().position(is_sender) else { continue };
            let header = Header { current_epoch: request.header.current_epoch, ..header };
            for late in (25..=400).step_by(25) {
                let packet = Box::new(Packet { header: header.clone(), body: MessageBody::AuthRequest });
                self.simulation.schedule_after(
                    Duration::from_millis(late),
                    ClusterEvent::StrayPacket { from, to: voter, packet },
                );
            }
        }
    }

    /// Implements the injected bug `IgnoredQuorum`: a candidate requests no votes but counts one vote from every known
    /// node.
    fn inject_votes(&mut self, candidate: usize, request: &Packet) {
        let voters: Vec<Header> = self.hosts[candidate]
            .received_headers
            .values()
            .map(|received_headers| received_headers.header.clone())
            .collect();
        for voter in voters {
            let from = self
                .hosts
                .iter()
                .position(|host| host.gossip.as_ref().is_some_and(|one| one.id() == voter.sender));
            let header = Header { current_epoch: request.header.current_epoch, ..voter };
            let packet = Box::new(Packet { header, body: MessageBody::AuthAck });
            if let Some(from) = from {
                self.simulation.schedule_after(
                    Duration::ZERO,
                    ClusterEvent::StrayPacket { from, to: candidate, packet },
                );
            }
        }
    }

    /// Records the header of a packet that the driver passes to the state machine. Packets that wait in the driver's
    /// queue are not recorded yet: the node's decisions cannot depend on them.
    pub(super) fn process_received_packet(&mut self, host: usize, packet: &mut Packet) {
        let received = ReceivedHeader { arrived_at: self.simulation.now, header: packet.header.clone() };
        self.hosts[host].received_headers.insert(received.header.sender, received);
        self.distort_packet(host, packet);
    }

    /// Implements injected bugs that alter packets: a master ignores claims on its slots, the offsets of replicas are
    /// lost, or gossip omits nodes without an address.
    fn distort_packet(&self, host: usize, packet: &mut Packet) {
        match self.simulation.plan.injected_bug {
            Some(InjectedBug::IgnoredClaims) => {
                let me = self.gossip(host);
                let mine: Vec<Slot> =
                    packet.header.slots.iter().filter(|slot| me.slot_owner(*slot) == Some(me.id())).collect();
                for slot in mine {
                    packet.header.slots.remove(slot);
                }
                if matches!(packet.body, MessageBody::Update(_)) {
                    packet.body = MessageBody::Unsupported(0);
                }
            }
            Some(InjectedBug::LostOffsets) => packet.header.offset = ReplOffset(0),
            Some(InjectedBug::OmittedSuspects) => {
                if let MessageBody::Ping(section) | MessageBody::Pong(section) | MessageBody::Meet(section) =
                    &mut packet.body
                {
                    section.entries.retain(|entry| entry.ip.is_some());
                }
            }
            _ => {}
        }
    }

    /// Closes a link at one host.
    pub(super) fn close_link(&mut self, host: usize, link: LinkId) {
        let Some((wire, side)) = self.hosts[host].links.remove(&link) else { return };
        self.close_side(wire, side);
        self.enqueue(wire, 1 - side, LinkItem::Closed);
    }

    /// Closes one side of a link.
    fn close_side(&mut self, wire_id: u64, side: usize) {
        let Some(ends) = self.bus_links.get_mut(&wire_id).map(|wire| &mut wire.link_ids) else { return };
        ends[side] = None;
    }

    /// Breaks the links of a process that has ended. With `notifies_peers`, its peers are notified; otherwise its host
    /// lost power.
    pub(super) fn break_links(&mut self, host: usize, notifies_peers: bool) {
        for (wire, side) in std::mem::take(&mut self.hosts[host].links).into_values() {
            self.close_side(wire, side);
            if notifies_peers {
                self.enqueue(wire, 1 - side, LinkItem::Closed);
            }
        }
    }

    /// Delivers the items that are due at this side.
    pub(super) fn deliver_due(&mut self, wire_id: u64, side: usize) {
        loop {
            let Some(hosts) = self.bus_links.get(&wire_id).map(|wire| wire.hosts) else { return };
            let (from, to, now) = (hosts[1 - side], hosts[side], self.simulation.now);
            let frozen = self.simulation.processes[to].is_up && !self.simulation.is_running(to);
            let blocked_for = (self.simulation.is_blocked(from, to) || frozen).then_some(RETRY_INTERVAL);
            let Some(lane) = self.bus_links.get_mut(&wire_id).map(|wire| &mut wire.delivery_queues[side])
            else {
                return;
            };
            match lane.next(now, blocked_for) {
                DeliveryPoll::Empty => return,
                DeliveryPoll::RetryAt(at) => {
                    return self.simulation.schedule_at(at, ClusterEvent::ItemArrives { wire_id, side });
                }
                DeliveryPoll::Item(LinkItem::Packet(packet)) => self.deliver_packet(wire_id, side, packet),
                DeliveryPoll::Item(item) => self.deliver(wire_id, side, &item),
            }
        }
    }

    fn deliver(&mut self, wire_id: u64, side: usize, item: &LinkItem) {
        let Some(BusLink { hosts, link_ids: ends, .. }) = self.bus_links.get(&wire_id) else { return };
        let (here, there, end) = (hosts[side], hosts[1 - side], ends[side]);
        match (item, end) {
            (LinkItem::Accepted, _) if self.simulation.processes[here].is_up => {
                self.hosts[here].accepted_count += 1;
                let link = LinkId::Inbound(self.hosts[here].accepted_count);
                self.hosts[here].links.insert(link, (wire_id, side));
                if let Some(wire) = self.bus_links.get_mut(&wire_id) {
                    wire.link_ids[side] = Some(link);
                }
                let (peer, local) = (self.hosts[there].ip, self.hosts[here].ip);
                self.handle_input(here, ClusterInput::LinkAccepted { link, peer_ip: peer, local_ip: local });
            }
            (LinkItem::Connected, Some(link)) => self.handle_input(here, ClusterInput::Connected { link }),
            (LinkItem::Closed, end) => {
                self.bus_links.remove(&wire_id);
                if let Some(link) = end {
                    self.hosts[here].links.remove(&link);
                    self.handle_input(here, ClusterInput::Closed { link });
                }
            }
            _ => {}
        }
    }

    /// Delivers a delayed packet over the current link between the two hosts, if there is one.
    pub(super) fn deliver_stray(&mut self, from: usize, to: usize, packet: Box<Packet>) {
        let theirs = |wire: &BusLink| wire.hosts == [from, to] && wire.link_ids[1].is_some();
        let wire = self.bus_links.iter().find(|(_, wire)| theirs(wire)).map(|(&number, _)| number);
        if let Some(wire) = wire {
            self.deliver_packet(wire, 1, packet);
        }
    }

    fn deliver_packet(&mut self, wire_id: u64, side: usize, packet: Box<Packet>) {
        let Some(BusLink { hosts, link_ids: ends, .. }) = self.bus_links.get(&wire_id) else { return };
        let here = hosts[side];
        if let Some(link) = ends[side] {
            if self.simulation.is_running(here) {
                self.handle_input(here, ClusterInput::Packet { link, packet });
            }
        } else if self.simulation.processes[here].is_up {
            // The link no longer exists at the receiver, so its kernel resets the connection.
            self.enqueue(wire_id, 1 - side, LinkItem::Closed);
        }
    }
}
