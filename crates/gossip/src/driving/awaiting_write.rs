//! Packets and answers that must not leave before `nodes.conf` has reached the disk.
//!
//! Writes of the file are numbered. A packet that carries an epoch or a vote waits until the disk has the write that
//! was ordered last when the packet was made. Every other packet leaves at once, but not before packets that wait for
//! the same link: a link stays a stream. An operator's answer waits, too: an operator with the answer may pull the
//! plug.

use std::collections::VecDeque;

/// Packets and answers that wait for a write, in the order in which they were made.
#[derive(Debug)]
pub(super) struct AwaitingWrite<L, P, R> {
    /// How many writes were ordered.
    ordered: u64,
    /// The last of them that is to reach the disk.
    synced: u64,
    /// The last of them that has been carried out.
    written: u64,
    waiting: VecDeque<(u64, Waiting<L, P, R>)>,
}

/// Something that waits.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Waiting<L, P, R> {
    Packet(L, P),
    Answer(R),
}

impl<L: PartialEq + Copy, P, R> AwaitingWrite<L, P, R> {
    pub(super) fn new() -> Self {
        Self { ordered: 0, synced: 0, written: 0, waiting: VecDeque::new() }
    }

    /// The number of the write that is ordered now.
    pub(super) fn order(&mut self, sync: bool) -> u64 {
        self.ordered += 1;
        if sync {
            self.synced = self.ordered;
        }
        self.ordered
    }

    /// Gives the packet back if it may leave at once.
    pub(super) fn packet(&mut self, link: L, packet: P, after_persist: bool) -> Option<P> {
        let behind =
            |(_, other): &(u64, Waiting<L, P, R>)| matches!(other, Waiting::Packet(to, _) if *to == link);
        let due = if after_persist {
            self.synced
        } else {
            self.waiting.iter().rfind(|other| behind(other)).map_or(0, |(due, _)| *due)
        };
        if due <= self.written {
            return Some(packet);
        }
        // Behind whatever waits already, so that the queue is in the order of the writes.
        let due = self.waiting.back().map_or(due, |(last, _)| due.max(*last));
        self.waiting.push_back((due, Waiting::Packet(link, packet)));
        None
    }

    /// Gives the answer back if it may leave at once.
    pub(super) fn answer(&mut self, answer: R) -> Option<R> {
        if self.ordered == self.written {
            return Some(answer);
        }
        self.waiting.push_back((self.ordered, Waiting::Answer(answer)));
        None
    }

    /// The writes up to this one have been carried out. Says whether, with this, all that was to reach the disk is
    /// there.
    pub(super) fn written(&mut self, number: u64) -> bool {
        let before = std::mem::replace(&mut self.written, number);
        before < self.synced && self.synced <= number
    }

    /// This link is closed: what waits for it is lost, as what was under way is.
    pub(super) fn forget(&mut self, link: L) {
        self.waiting.retain(|(_, what)| !matches!(what, Waiting::Packet(to, _) if *to == link));
    }

    /// The next that need not wait any more.
    pub(super) fn next(&mut self) -> Option<Waiting<L, P, R>> {
        let (due, _) = self.waiting.front()?;
        if *due <= self.written { self.waiting.pop_front().map(|(_, what)| what) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn released(
        held: &mut AwaitingWrite<u8, &'static str, &'static str>,
    ) -> Vec<Waiting<u8, &'static str, &'static str>> {
        std::iter::from_fn(|| held.next()).collect()
    }

    #[test]
    fn a_vote_waits_for_the_disk_and_pings_to_others_do_not() {
        let mut held = AwaitingWrite::new();
        assert_eq!(held.packet(1, "ping", false), Some("ping"));
        // Nothing was ever ordered: there is nothing to wait for.
        assert_eq!(held.packet(1, "epoch", true), Some("epoch"));
        let first = held.order(true);
        assert_eq!(held.packet(1, "vote", true), None);
        // A fact that other nodes know, too, is written in its own time.
        let second = held.order(false);
        assert_eq!(held.packet(2, "ping", false), Some("ping"));
        // On its own link nothing overtakes it.
        assert_eq!(held.packet(1, "pong", false), None);
        assert_eq!(released(&mut held), []);
        assert!(held.written(first), "all that must be is on disk");
        assert_eq!(released(&mut held), [Waiting::Packet(1, "vote"), Waiting::Packet(1, "pong")]);
        assert!(!held.written(second), "as it was before");
        assert_eq!(held.packet(1, "ping", false), Some("ping"));
    }

    #[test]
    fn what_waits_for_a_link_goes_with_it() {
        let mut held = AwaitingWrite::new();
        let first = held.order(true);
        assert_eq!(held.packet(1, "vote", true), None);
        assert_eq!(held.packet(2, "vote", true), None);
        held.forget(1);
        assert!(held.written(first));
        assert_eq!(released(&mut held), [Waiting::Packet(2, "vote")]);
    }

    #[test]
    fn each_waits_for_the_write_that_was_ordered_last() {
        let mut held = AwaitingWrite::new();
        let first = held.order(true);
        assert_eq!(held.packet(1, "vote in 7", true), None);
        assert_eq!(held.answer("ok"), None);
        let second = held.order(true);
        assert_eq!(held.packet(2, "vote in 8", true), None);
        assert_eq!(held.packet(1, "ping", false), None);
        assert!(!held.written(first));
        assert_eq!(released(&mut held), [Waiting::Packet(1, "vote in 7"), Waiting::Answer("ok")]);
        assert_eq!(held.answer("later"), None);
        assert!(held.written(second));
        assert_eq!(
            released(&mut held),
            [Waiting::Packet(2, "vote in 8"), Waiting::Packet(1, "ping"), Waiting::Answer("later")]
        );
        assert_eq!(held.answer("at once"), Some("at once"));
    }
}
