//! Queues packets and replies until `nodes.conf` is durable.
//!
//! Writes of the file are numbered. A packet that carries an epoch or a vote waits for the last write that was
//! requested before the packet was created. All other packets are sent at once, unless a packet for the same link is
//! waiting, because packets on one link are never reordered. A reply to an operator waits as well, because the operator
//! may power off the machine after reading it.

use std::collections::VecDeque;

/// Packets and replies that wait for a write, in creation order.
#[derive(Debug)]
pub(super) struct WriteBarrierQueue<L, P, R> {
    /// Number of writes that have been requested.
    requested_writes: u64,
    /// Number of the last requested write that must be durable.
    last_sync_write: u64,
    /// The number of the last completed write; all earlier writes are complete as well.
    completed_writes: u64,
    queue: VecDeque<(u64, QueueEntry<L, P, R>)>,
}

/// A packet or reply that waits for a write.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum QueueEntry<L, P, R> {
    Packet(L, P),
    Reply(R),
}

impl<L: PartialEq + Copy, P, R> WriteBarrierQueue<L, P, R> {
    pub(super) fn new() -> Self {
        Self { requested_writes: 0, last_sync_write: 0, completed_writes: 0, queue: VecDeque::new() }
    }

    /// Counts a new write and returns its number.
    pub(super) fn count_write(&mut self, must_sync: bool) -> u64 {
        self.requested_writes += 1;
        if must_sync {
            self.last_sync_write = self.requested_writes;
        }
        self.requested_writes
    }

    /// Returns the packet if it can be sent at once, otherwise queues it.
    pub(super) fn admit_packet(&mut self, link: L, packet: P, after_persist: bool) -> Option<P> {
        let behind = |(_, other): &(u64, QueueEntry<L, P, R>)| matches!(other, QueueEntry::Packet(to, _) if *to == link);
        let due = if after_persist {
            self.last_sync_write
        } else {
            self.queue.iter().rfind(|other| behind(other)).map_or(0, |(due, _)| *due)
        };
        if due <= self.completed_writes {
            return Some(packet);
        }
        // Keep the queue sorted by write number.
        let due = self.queue.back().map_or(due, |(last, _)| due.max(*last));
        self.queue.push_back((due, QueueEntry::Packet(link, packet)));
        None
    }

    /// Returns the reply if it can be sent at once, otherwise queues it.
    pub(super) fn admit_reply(&mut self, reply: R) -> Option<R> {
        if self.requested_writes == self.completed_writes {
            return Some(reply);
        }
        self.queue.push_back((self.requested_writes, QueueEntry::Reply(reply)));
        None
    }

    /// Records that all writes up to `number` are complete. Returns whether all writes that must be durable are now
    /// complete.
    pub(super) fn on_written(&mut self, number: u64) -> bool {
        let before = std::mem::replace(&mut self.completed_writes, number);
        before < self.last_sync_write && self.last_sync_write <= number
    }

    /// Drops the packets queued for a closed link, as if they had been lost in flight.
    pub(super) fn drop_link(&mut self, link: L) {
        self.queue.retain(|(_, entry)| !matches!(entry, QueueEntry::Packet(to, _) if *to == link));
    }

    /// Removes and returns the next packet or reply whose write is complete.
    pub(super) fn pop_ready(&mut self) -> Option<QueueEntry<L, P, R>> {
        let (due, _) = self.queue.front()?;
        if *due <= self.completed_writes { self.queue.pop_front().map(|(_, entry)| entry) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pop_all_ready(
        queue: &mut WriteBarrierQueue<u8, &'static str, &'static str>,
    ) -> Vec<QueueEntry<u8, &'static str, &'static str>> {
        std::iter::from_fn(|| queue.pop_ready()).collect()
    }

    #[test]
    fn votes_wait_for_the_disk_and_pings_on_other_links_do_not() {
        let mut held = WriteBarrierQueue::new();
        assert_eq!(held.admit_packet(1, "ping", false), Some("ping"));
        // No write was requested, so there is nothing to wait for.
        assert_eq!(held.admit_packet(1, "epoch", true), Some("epoch"));
        let first = held.count_write(true);
        assert_eq!(held.admit_packet(1, "vote", true), None);
        // A fact that other nodes know as well is written to the file without delaying packets.
        let second = held.count_write(false);
        assert_eq!(held.admit_packet(2, "ping", false), Some("ping"));
        // Packets on the same link keep their order.
        assert_eq!(held.admit_packet(1, "pong", false), None);
        assert_eq!(pop_all_ready(&mut held), []);
        assert!(held.on_written(first), "all durable writes are complete");
        assert_eq!(pop_all_ready(&mut held), [QueueEntry::Packet(1, "vote"), QueueEntry::Packet(1, "pong")]);
        assert!(!held.on_written(second), "as it was before");
        assert_eq!(held.admit_packet(1, "ping", false), Some("ping"));
    }

    #[test]
    fn closing_a_link_drops_its_queued_packets() {
        let mut held = WriteBarrierQueue::new();
        let first = held.count_write(true);
        assert_eq!(held.admit_packet(1, "vote", true), None);
        assert_eq!(held.admit_packet(2, "vote", true), None);
        held.drop_link(1);
        assert!(held.on_written(first));
        assert_eq!(pop_all_ready(&mut held), [QueueEntry::Packet(2, "vote")]);
    }

    #[test]
    fn packets_wait_for_the_last_requested_write() {
        let mut held = WriteBarrierQueue::new();
        let first = held.count_write(true);
        assert_eq!(held.admit_packet(1, "vote in 7", true), None);
        assert_eq!(held.admit_reply("ok"), None);
        let second = held.count_write(true);
        assert_eq!(held.admit_packet(2, "vote in 8", true), None);
        assert_eq!(held.admit_packet(1, "ping", false), None);
        assert!(!held.on_written(first));
        assert_eq!(pop_all_ready(&mut held), [QueueEntry::Packet(1, "vote in 7"), QueueEntry::Reply("ok")]);
        assert_eq!(held.admit_reply("later"), None);
        assert!(held.on_written(second));
        assert_eq!(
            pop_all_ready(&mut held),
            [QueueEntry::Packet(2, "vote in 8"), QueueEntry::Packet(1, "ping"), QueueEntry::Reply("later")]
        );
        assert_eq!(held.admit_reply("at once"), Some("at once"));
    }
}
