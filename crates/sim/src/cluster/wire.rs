//! Simulates the links of the cluster bus: ordered packets or the end of the link, and network
//! faults.

use std::net::IpAddr;
use std::time::Duration;

use gossip::wire::{Header, MessageBody, Packet};
use gossip::{ClusterInput, LinkId};
use slot_routing::{ReplOffset, Slot};

use super::{Event, Heard, World};
use crate::Plant;
use crate::lane::{Lane, Next};

/// A blocked direction is retried after this time.
const RETRANSMIT: Duration = Duration::from_millis(40);

/// A link. Side 0 opened it, side 1 accepted it.
#[derive(Debug, Clone)]
pub(super) struct Wire {
    hosts: [usize; 2],
    /// Each side's id of the link; `None` before it is accepted or after it is closed.
    ends: [Option<LinkId>; 2],
    /// The items in flight to each side.
    lanes: [Lane<Item>; 2],
}

#[derive(Debug, Clone)]
enum Item {
    Accepted,
    Connected,
    Packet(Box<Packet>),
    Closed,
}

impl World {
    pub(super) fn dial(&mut self, host: usize, link: LinkId, ip: IpAddr) {
        let Some(to) = self.hosts.iter().position(|other| other.ip == ip) else { return };
        self.dialled += 1;
        let wire = self.dialled;
        self.hosts[host].links.insert(link, (wire, 0));
        let lanes = [Lane::default(), Lane::default()];
        self.wires.insert(wire, Wire { hosts: [host, to], ends: [Some(link), None], lanes });
        let time = self.stage.latency(host, to);
        self.stage.after(time, Event::Dialled { wire });
    }

    /// A connection attempt reaches its host. A frozen process still accepts connections.
    pub(super) fn on_dialled(&mut self, wire: u64) {
        let Some(&Wire { hosts: [from, to], ends: [Some(link), _], .. }) = self.wires.get(&wire) else {
            self.wires.remove(&wire);
            return;
        };
        let silent = self.stage.is_apart(from, to);
        if silent || !self.stage.processes[to].powered {
            // The waiting side will time out.
        } else if self.stage.processes[to].up {
            self.put(wire, 1, Item::Accepted);
            self.put(wire, 0, Item::Connected);
        } else {
            self.wires.remove(&wire);
            self.hosts[from].links.remove(&link);
            if self.stage.runs(from) {
                self.feed(from, ClusterInput::ConnectFailed { link, refused: true });
            }
        }
    }

    /// Sends an item towards a side.
    fn put(&mut self, wire: u64, side: usize, item: Item) {
        let Some(hosts) = self.wires.get(&wire).map(|wire| wire.hosts) else { return };
        let at = self.stage.now + self.stage.latency(hosts[1 - side], hosts[side]);
        let planned = self.wires.get_mut(&wire).and_then(|wire| wire.lanes[side].push(at, item));
        if let Some(at) = planned {
            self.stage.at(at, Event::Arrives { wire, side });
        }
    }

    /// Sends a packet; the network may lose, duplicate or delay it.
    pub(super) fn send(&mut self, host: usize, link: LinkId, packet: Box<Packet>) {
        let Some(&(wire, mine)) = self.hosts[host].links.get(&link) else { return };
        let side = 1 - mine;
        let Some(to) = self.wires.get(&wire).map(|wire| wire.hosts[side]) else { return };
        self.examine(&packet, host, to);
        if self.stage.plan.plant == Some(Plant::IgnoredQuorum)
            && matches!(packet.body, MessageBody::AuthRequest)
        {
            self.feign_votes(host, &packet);
            return;
        }
        if self.stage.plan.plant == Some(Plant::ForgottenVotes) && !self.stage.healed {
            match packet.body {
                MessageBody::AuthRequest => self.feign_rivals(host, to, &packet),
                // Drops votes so that nobody wins this epoch before the voter votes in it again.
                MessageBody::AuthAck => return,
                _ => {}
            }
        }
        if !self.stage.healed {
            // Vote requests are duplicated more often.
            let doubled = if matches!(packet.body, MessageBody::AuthRequest) { 20 } else { self.loss };
            if self.stage.chance.percent(doubled) && !self.stage.is_cut(host, to) {
                let late = self.stage.latency(host, to) * 3 + self.stage.chance.millis(0, 300);
                self.stage.after(late, Event::Stray { from: host, to, packet: packet.clone() });
            }
            if self.stage.chance.percent(self.loss) {
                return;
            }
        }
        self.put(wire, side, Item::Packet(packet));
    }

    /// Supports an injected bug: two candidates rarely request votes in one epoch, and rarer still
    /// does the second request arrive just after the voter restarts. The candidate's siblings
    /// therefore request votes, too, late and often.
    fn feign_rivals(&mut self, candidate: usize, voter: usize, request: &Packet) {
        let siblings = self.hosts[candidate].heard.values().map(|heard| heard.header.clone());
        let siblings: Vec<Header> =
            siblings.filter(|header| header.replica_of == request.header.replica_of).collect();
        for header in siblings {
            let is_sender =
                |host: &super::Host| host.gossip.as_ref().is_some_and(|gossip| gossip.id() == header.sender);
            let Some(from) = self.hosts.iter().position(is_sender) else { continue };
            let header = Header { current_epoch: request.header.current_epoch, ..header };
            for late in (25..=400).step_by(25) {
                let packet = Box::new(Packet { header: header.clone(), body: MessageBody::AuthRequest });
                self.stage.after(Duration::from_millis(late), Event::Stray { from, to: voter, packet });
            }
        }
    }

    /// The injected bug: a candidate requests no votes and counts one from every known node.
    fn feign_votes(&mut self, candidate: usize, request: &Packet) {
        let voters: Vec<Header> =
            self.hosts[candidate].heard.values().map(|heard| heard.header.clone()).collect();
        for voter in voters {
            let from = self
                .hosts
                .iter()
                .position(|host| host.gossip.as_ref().is_some_and(|one| one.id() == voter.sender));
            let header = Header { current_epoch: request.header.current_epoch, ..voter };
            let packet = Box::new(Packet { header, body: MessageBody::AuthAck });
            if let Some(from) = from {
                self.stage.after(Duration::ZERO, Event::Stray { from, to: candidate, packet });
            }
        }
    }

    /// The injected bugs: a master ignores claims on its slots, replica offsets get lost, or gossip
    /// omits nodes without an address.
    fn distort(&self, host: usize, packet: &mut Packet) {
        match self.stage.plan.plant {
            Some(Plant::UnheardClaims) => {
                let me = self.gossip(host);
                let mine: Vec<Slot> =
                    packet.header.slots.iter().filter(|slot| me.slot_owner(*slot) == Some(me.id())).collect();
                for slot in mine {
                    packet.header.slots.remove(slot);
                }
                if matches!(packet.body, MessageBody::Update(_)) {
                    packet.body = MessageBody::Other(0);
                }
            }
            Some(Plant::UnheardOffsets) => packet.header.offset = ReplOffset(0),
            Some(Plant::UnnamedSuspects) => {
                if let MessageBody::Ping(section) | MessageBody::Pong(section) | MessageBody::Meet(section) =
                    &mut packet.body
                {
                    section.entries.retain(|entry| entry.ip.is_some());
                }
            }
            _ => {}
        }
    }

    /// Closes a link at a host.
    pub(super) fn hang_up(&mut self, host: usize, link: LinkId) {
        let Some((wire, side)) = self.hosts[host].links.remove(&link) else { return };
        self.let_go(wire, side);
        self.put(wire, 1 - side, Item::Closed);
    }

    /// Removes one side; the link disappears with its second side.
    fn let_go(&mut self, wire: u64, side: usize) {
        let Some(ends) = self.wires.get_mut(&wire).map(|wire| &mut wire.ends) else { return };
        ends[side] = None;
    }

    /// Handles the end of a process. Its peers notice unless the machine died with it.
    pub(super) fn break_wires(&mut self, host: usize, told: bool) {
        for (wire, side) in std::mem::take(&mut self.hosts[host].links).into_values() {
            self.let_go(wire, side);
            if told {
                self.put(wire, 1 - side, Item::Closed);
            }
        }
    }

    /// Delivers the items that have arrived at a side.
    pub(super) fn pump(&mut self, wire: u64, side: usize) {
        loop {
            let Some(hosts) = self.wires.get(&wire).map(|wire| wire.hosts) else { return };
            let (from, to, now) = (hosts[1 - side], hosts[side], self.stage.now);
            let frozen = self.stage.processes[to].up && !self.stage.runs(to);
            let held = (self.stage.is_cut(from, to) || frozen).then_some(RETRANSMIT);
            let Some(lane) = self.wires.get_mut(&wire).map(|wire| &mut wire.lanes[side]) else { return };
            match lane.next(now, held) {
                Next::Nothing => return,
                Next::At(at) => return self.stage.at(at, Event::Arrives { wire, side }),
                Next::Item(Item::Packet(packet)) => self.deliver_packet(wire, side, packet),
                Next::Item(item) => self.deliver(wire, side, &item),
            }
        }
    }

    fn deliver(&mut self, wire: u64, side: usize, item: &Item) {
        let Some(Wire { hosts, ends, .. }) = self.wires.get(&wire) else { return };
        let (here, there, end) = (hosts[side], hosts[1 - side], ends[side]);
        match (item, end) {
            (Item::Accepted, _) if self.stage.processes[here].up => {
                self.hosts[here].accepted += 1;
                let link = LinkId::In(self.hosts[here].accepted);
                self.hosts[here].links.insert(link, (wire, side));
                if let Some(wire) = self.wires.get_mut(&wire) {
                    wire.ends[side] = Some(link);
                }
                let (peer, local) = (self.hosts[there].ip, self.hosts[here].ip);
                self.feed(here, ClusterInput::Accepted { link, peer, local });
            }
            (Item::Connected, Some(link)) => self.feed(here, ClusterInput::Connected { link }),
            (Item::Closed, end) => {
                self.wires.remove(&wire);
                if let Some(link) = end {
                    self.hosts[here].links.remove(&link);
                    self.feed(here, ClusterInput::Closed { link });
                }
            }
            _ => {}
        }
    }

    /// Delivers a delayed packet over the current link between the hosts, if any.
    pub(super) fn deliver_stray(&mut self, from: usize, to: usize, packet: Box<Packet>) {
        let theirs = |wire: &Wire| wire.hosts == [from, to] && wire.ends[1].is_some();
        let wire = self.wires.iter().find(|(_, wire)| theirs(wire)).map(|(&number, _)| number);
        if let Some(wire) = wire {
            self.deliver_packet(wire, 1, packet);
        }
    }

    fn deliver_packet(&mut self, wire: u64, side: usize, mut packet: Box<Packet>) {
        let Some(Wire { hosts, ends, .. }) = self.wires.get(&wire) else { return };
        let here = hosts[side];
        if let Some(link) = ends[side] {
            if self.stage.runs(here) {
                let heard = Heard { at: self.stage.now, header: packet.header.clone() };
                self.hosts[here].heard.insert(heard.header.sender, heard);
                self.distort(here, &mut packet);
                self.feed(here, ClusterInput::Packet { link, packet });
            }
        } else if self.stage.processes[here].up {
            // The link no longer exists, and the kernel resets it.
            self.put(wire, 1 - side, Item::Closed);
        }
    }
}
