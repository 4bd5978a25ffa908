//! Simulates the connections of replicas to masters: ordered bytes or the end of the connection.

use std::fmt::Debug;
use std::time::Duration;

use super::DataEvent;
use super::following::LinkEvent;
use super::serving::ReplicaConnection;
use crate::delivery_queue::{DeliveryPoll, DeliveryQueue};
use crate::simulation::Simulation;
use replication::master::PeerId;

/// Retry interval for bytes held back by the network.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// A connection. Side 0, a replica, opened it; side 1 accepted it.
#[derive(Debug, Clone)]
pub(super) struct Link {
    hosts: [usize; 2],
    /// Whether each side still has it open.
    open: [bool; 2],
    delivery_queues: [DeliveryQueue<Item>; 2],
}

#[derive(Debug, Clone)]
pub(super) enum Item {
    Connected,
    Accepted,
    Bytes(Vec<u8>),
    Closed,
}

impl<E: Debug> Simulation<E> {
    /// Connects a replica to a master and returns the connection's id.
    pub(super) fn dial(&mut self, host: usize, master: usize) -> u64 {
        self.data.linked += 1;
        let link = self.data.linked;
        let delivery_queues = [DeliveryQueue::default(), DeliveryQueue::default()];
        self.data.links.insert(link, Link { hosts: [host, master], open: [true, false], delivery_queues });
        let at = self.now + self.latency(host, master);
        self.data_at(at, DataEvent::Dialled { link });
        link
    }

    /// A connection attempt reaches its host. A frozen process still accepts connections.
    pub(super) fn on_dialled(&mut self, link: u64) {
        let Some(&Link { hosts: [from, to], open: [true, _], .. }) = self.data.links.get(&link) else {
            self.data.links.remove(&link);
            return;
        };
        if self.cannot_communicate(from, to) || !self.processes[to].powered {
            // The waiting side will time out.
        } else if self.processes[to].up {
            self.put(link, 1, Item::Accepted);
            self.put(link, 0, Item::Connected);
        } else {
            self.data.links.remove(&link);
            self.give_follower(from, link, LinkEvent::Refused);
        }
    }

    /// Sends an item towards a side.
    pub(super) fn put(&mut self, link: u64, side: usize, item: Item) {
        let Some(hosts) = self.data.links.get(&link).map(|link| link.hosts) else { return };
        let at = self.now + self.latency(hosts[1 - side], hosts[side]);
        let planned =
            self.data.links.get_mut(&link).and_then(|link| link.delivery_queues[side].push(at, item));
        if let Some(at) = planned {
            self.data_at(at, DataEvent::Arrives { link, side });
        }
    }

    /// Closes one side.
    pub(super) fn hang_up(&mut self, link: u64, side: usize) {
        let Some(open) = self.data.links.get_mut(&link).map(|link| &mut link.open) else { return };
        open[side] = false;
        self.put(link, 1 - side, Item::Closed);
    }

    /// Handles the end of a process. Its peers notice unless the machine died with it.
    pub(super) fn break_links(&mut self, host: usize, told: bool) {
        let of_host = |link: &Link| link.hosts.iter().position(|one| *one == host);
        let broken: Vec<(u64, usize)> =
            self.data.links.iter().filter_map(|(number, link)| Some((*number, of_host(link)?))).collect();
        for (link, side) in broken {
            if told {
                self.hang_up(link, side);
            } else if let Some(link) = self.data.links.get_mut(&link) {
                link.open[side] = false;
            }
        }
    }

    /// Delivers what has arrived at a side.
    pub(super) fn pump(&mut self, link: u64, side: usize) {
        loop {
            let Some(hosts) = self.data.links.get(&link).map(|link| link.hosts) else { return };
            let (from, to, now) = (hosts[1 - side], hosts[side], self.now);
            let frozen = self.processes[to].up && !self.is_running(to);
            let blocked_for = if self.is_cut(from, to) || frozen {
                Some(RETRY_INTERVAL)
            } else {
                // A follower reads nothing while it applies or loads.
                (side == 0 && self.is_follower_busy(to, link)).then_some(Duration::from_millis(1))
            };
            let Some(lane) = self.data.links.get_mut(&link).map(|link| &mut link.delivery_queues[side])
            else {
                return;
            };
            match lane.next(now, blocked_for) {
                DeliveryPoll::Nothing => return,
                DeliveryPoll::At(at) => return self.data_at(at, DataEvent::Arrives { link, side }),
                DeliveryPoll::Item(item) => self.deliver_item(link, side, item),
            }
        }
    }

    fn deliver_item(&mut self, link: u64, side: usize, item: Item) {
        let Some(Link { hosts, open, .. }) = self.data.links.get_mut(&link) else { return };
        let (here, there) = (hosts[side], hosts[1 - side]);
        if matches!(item, Item::Accepted) && self.processes[here].up {
            open[1] = true;
            let incarnation = self.processes[there].incarnation;
            self.data.stores[here]
                .peers
                .insert(PeerId(link), ReplicaConnection::new(link, there, incarnation));
            return;
        }
        if !open[side] {
            match item {
                Item::Closed => drop(self.data.links.remove(&link)),
                // The connection no longer exists, and the kernel resets it.
                _ if self.processes[here].powered => self.put(link, 1 - side, Item::Closed),
                _ => {}
            }
            return;
        }
        match (side, item) {
            (0, Item::Connected) => self.give_follower(here, link, LinkEvent::Connected),
            (0, Item::Bytes(bytes)) => self.give_follower(here, link, LinkEvent::Bytes(bytes)),
            (1, Item::Bytes(bytes)) => self.receive(here, PeerId(link), &bytes),
            (_, Item::Closed) => {
                self.data.links.remove(&link);
                if side == 0 {
                    self.give_follower(here, link, LinkEvent::Closed);
                } else {
                    self.lose_peer(here, PeerId(link));
                }
            }
            _ => {}
        }
        self.plan_data_tick(here);
    }
}
