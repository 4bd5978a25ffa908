//! Simulates the connections of replicas to masters. A connection carries ordered bytes or its end.

use std::fmt::Debug;
use std::time::Duration;

use super::DataEvent;
use super::following::LinkEvent;
use super::serving::ReplicaConnection;
use crate::delivery_queue::{DeliveryPoll, DeliveryQueue};
use crate::simulation::Simulation;
use replication::master::PeerId;

/// Interval at which the delivery of bytes is retried during a partition.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// A connection of a replica. Side 0, the replica, opened it; side 1, the master, accepted it.
#[derive(Debug, Clone)]
pub(super) struct ReplicaLink {
    hosts: [usize; 2],
    /// Whether the connection is still open at each side.
    is_open: [bool; 2],
    delivery_queues: [DeliveryQueue<StreamItem>; 2],
}

#[derive(Debug, Clone)]
pub(super) enum StreamItem {
    Connected,
    Accepted,
    Bytes(Vec<u8>),
    Closed,
}

impl<E: Debug> Simulation<E> {
    /// Connects a replica to a master and returns the connection's id.
    pub(super) fn dial(&mut self, host: usize, master: usize) -> u64 {
        self.data.last_link_id += 1;
        let link = self.data.last_link_id;
        let delivery_queues = [DeliveryQueue::default(), DeliveryQueue::default()];
        self.data
            .links
            .insert(link, ReplicaLink { hosts: [host, master], is_open: [true, false], delivery_queues });
        let at = self.now + self.draw_latency(host, master);
        self.schedule_data(at, DataEvent::DialArrives { link });
        link
    }

    /// Handles a connection attempt that reaches its host. A frozen process still accepts connections.
    pub(super) fn on_dialled(&mut self, link_id: u64) {
        let Some(&ReplicaLink { hosts: [from, to], is_open: [true, _], .. }) = self.data.links.get(&link_id)
        else {
            self.data.links.remove(&link_id);
            return;
        };
        if self.cannot_communicate(from, to) || !self.processes[to].has_power {
            // No process accepts the connection, so the replica will time out.
        } else if self.processes[to].is_up {
            self.enqueue(link_id, 1, StreamItem::Accepted);
            self.enqueue(link_id, 0, StreamItem::Connected);
        } else {
            self.data.links.remove(&link_id);
            self.handle_link_event(from, link_id, LinkEvent::Refused);
        }
    }

    /// Puts an item in flight to this side.
    pub(super) fn enqueue(&mut self, link_id: u64, side: usize, item: StreamItem) {
        let Some(hosts) = self.data.links.get(&link_id).map(|link| link.hosts) else { return };
        let at = self.now + self.draw_latency(hosts[1 - side], hosts[side]);
        let planned =
            self.data.links.get_mut(&link_id).and_then(|link| link.delivery_queues[side].push(at, item));
        if let Some(at) = planned {
            self.schedule_data(at, DataEvent::ItemArrives { link: link_id, side });
        }
    }

    /// Closes the connection at one side.
    pub(super) fn close_side(&mut self, link_id: u64, side: usize) {
        let Some(open) = self.data.links.get_mut(&link_id).map(|link| &mut link.is_open) else { return };
        open[side] = false;
        self.enqueue(link_id, 1 - side, StreamItem::Closed);
    }

    /// Breaks the connections of a process that has ended. With `notifies_peers`, its peers are notified; otherwise its
    /// host lost power.
    pub(super) fn break_links(&mut self, host: usize, notifies_peers: bool) {
        let of_host = |link: &ReplicaLink| link.hosts.iter().position(|one| *one == host);
        let broken: Vec<(u64, usize)> =
            self.data.links.iter().filter_map(|(number, link)| Some((*number, of_host(link)?))).collect();
        for (link, side) in broken {
            if notifies_peers {
                self.close_side(link, side);
            } else if let Some(link) = self.data.links.get_mut(&link) {
                link.is_open[side] = false;
            }
        }
    }

    /// Delivers the items that are due at this side.
    pub(super) fn deliver_due(&mut self, link_id: u64, side: usize) {
        loop {
            let Some(hosts) = self.data.links.get(&link_id).map(|link| link.hosts) else { return };
            let (from, to, now) = (hosts[1 - side], hosts[side], self.now);
            let frozen = self.processes[to].is_up && !self.is_running(to);
            let blocked_for = if self.is_blocked(from, to) || frozen {
                Some(RETRY_INTERVAL)
            } else {
                // A replica does not read while it applies the stream or loads a snapshot.
                (side == 0 && self.is_follower_busy(to, link_id)).then_some(Duration::from_millis(1))
            };
            let Some(lane) = self.data.links.get_mut(&link_id).map(|link| &mut link.delivery_queues[side])
            else {
                return;
            };
            match lane.next(now, blocked_for) {
                DeliveryPoll::Empty => return,
                DeliveryPoll::RetryAt(at) => {
                    return self.schedule_data(at, DataEvent::ItemArrives { link: link_id, side });
                }
                DeliveryPoll::Item(item) => self.deliver_item(link_id, side, item),
            }
        }
    }

    fn deliver_item(&mut self, link_id: u64, side: usize, item: StreamItem) {
        let Some(ReplicaLink { hosts, is_open: open, .. }) = self.data.links.get_mut(&link_id) else {
            return;
        };
        let (here, there) = (hosts[side], hosts[1 - side]);
        if matches!(item, StreamItem::Accepted) && self.processes[here].is_up {
            open[1] = true;
            let incarnation = self.processes[there].incarnation;
            self.data.process_states[here]
                .peers
                .insert(PeerId(link_id), ReplicaConnection::new(link_id, there, incarnation));
            return;
        }
        if !open[side] {
            match item {
                StreamItem::Closed => drop(self.data.links.remove(&link_id)),
                // The connection no longer exists at the receiver, so its kernel resets the connection.
                _ if self.processes[here].has_power => self.enqueue(link_id, 1 - side, StreamItem::Closed),
                _ => {}
            }
            return;
        }
        match (side, item) {
            (0, StreamItem::Connected) => self.handle_link_event(here, link_id, LinkEvent::Connected),
            (0, StreamItem::Bytes(bytes)) => self.handle_link_event(here, link_id, LinkEvent::Bytes(bytes)),
            (1, StreamItem::Bytes(bytes)) => self.handle_replica_bytes(here, PeerId(link_id), &bytes),
            (_, StreamItem::Closed) => {
                self.data.links.remove(&link_id);
                if side == 0 {
                    self.handle_link_event(here, link_id, LinkEvent::Closed);
                } else {
                    self.drop_peer(here, PeerId(link_id));
                }
            }
            _ => {}
        }
        self.schedule_data_tick(here);
    }
}
