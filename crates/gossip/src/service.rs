//! Decides whether this node serves (`cluster_state`).
//!
//! A node serves while every slot is owned by a master that is not FAIL (unless full coverage is not required) and a
//! majority of the masters with slots is reachable. A master also waits before it serves: two seconds after its start,
//! and the rejoin delay after being in a minority or being paused, so that it learns first if it was replaced. Limits
//! and delays are those of Redis.
//!
//! A master that was paused can serve earlier: it asks the other masters over new links, which carry no old packets,
//! and serves as soon as a majority, itself included, confirms it. A master confirms by answering with no epoch above
//! those known at the wakeup (a successor would have been elected in a higher epoch, by a majority) and without
//! reporting the asking node as failing (it might be about to vote). Redoubt nodes report this by naming the receiver
//! in the gossip section; the answer of a Redis node counts as a confirmation.
//!
//! A master that may have been replaced during a pause or downtime does not vote either: with its vote and its
//! successor's, three masters would have four votes and could elect two candidates in one epoch. It votes as soon as a
//! majority, itself included, has answered without considering it failing and without having voted for a replacement.
//! Redoubt nodes report this by naming the receiver in their answer if the receiver does not serve; for Redis nodes
//! only the epoch is checked. After twice the node timeout, when a FAIL master without a successor counts as recovered,
//! the master votes regardless. Masters that all restart therefore vote as soon as they have answered each other.
//!
//! A failed master whose replica is about to take over does not stop the other shards: its slots count as covered for
//! the node timeout. (Redis replies CLUSTERDOWN on all shards until the replica is promoted.) Full coverage is a policy
//! about unavailable slots; it is not needed to prevent two masters.

use std::time::Duration;

use clock::Instant;
use slot_routing::{Epoch, NodeId, SLOT_COUNT};

use crate::event::Event;
use crate::machine::Gossip;
use crate::node::{Link, Node};
use crate::sending::Talk;
use crate::wire::{Gossip as Section, Header, NodeFlags};

/// How long a master waits after its start (Redis: `CLUSTER_WRITABLE_DELAY`).
const START_DELAY: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Service {
    pub(crate) serving: bool,
    /// A master does not start to serve before this time.
    not_before: Instant,
    /// Whether `not_before` is the only obstacle.
    waiting: bool,
    /// Whether a master with slots is FAIL and no replica can take over.
    uncovered: bool,
    /// When the coverage of each FAIL master with an eligible replica expires, in ascending order.
    awaited: Vec<Instant>,
    started_at: Instant,
    inquiry: Option<Inquiry>,
}

/// This node may have been replaced without noticing, and asks the other masters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Inquiry {
    /// The highest epoch known when this node began to ask.
    known: Epoch,
    /// When the node votes regardless of the answers.
    until: Instant,
    /// The node was paused, and serves as soon as a majority confirms it.
    serves_then: bool,
}

impl Service {
    /// Serves at once: a majority has just elected this node.
    pub(crate) fn begin_as_new_master(&mut self, now: Instant) {
        self.not_before = now;
    }
}

impl Gossip {
    /// Initializes the timers at startup.
    pub(crate) fn wake_up(&mut self) {
        self.service.started_at = self.now;
        self.service.not_before = self.now + START_DELAY;
        // Silence is measured from the start, even for nodes without an address, which cannot be pinged.
        for node in self.nodes.values_mut().filter(|node| node.id != self.me) {
            node.contact.ping_sent = Some(self.now);
        }
        if self.is_voter(self.me) {
            self.inquire(START_DELAY, false);
        }
    }

    /// Stops serving because this node may have been replaced without noticing. All nodes count as unreachable until
    /// they are heard again.
    pub(crate) fn hold_back(&mut self) {
        for node in self.nodes.values_mut() {
            node.contact.heard = None;
            (node.contact.vouches, node.contact.trusts) = (false, false);
        }
        self.service.not_before = self.now + self.config.rejoin_delay();
        if self.myself().is_master() {
            self.service.serving = false;
            self.todo.publish = true;
            self.ask_for_vouching();
        }
    }

    /// Reconnects to all other voters and asks them.
    fn ask_for_vouching(&mut self) {
        self.inquire(Duration::ZERO, true);
        let voters: Vec<NodeId> = self.slots.owners().map(|(id, _)| id).filter(|id| *id != self.me).collect();
        for id in voters {
            self.close_link(id);
            if let Some(node) = self.nodes.get_mut(&id) {
                node.link = Link::Down { retry_at: self.now };
            }
        }
    }

    fn inquire(&mut self, least: Duration, serves_then: bool) {
        let until = self.now + self.config.fail_undo_time().max(least);
        self.service.inquiry = Some(Inquiry { known: self.current_epoch, until, serves_then });
    }

    /// Whether this node may have been replaced. Its vote may then belong to its successor.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.service.inquiry.is_some_and(|inquiry| self.now < inquiry.until) && self.voters() > 1
    }

    #[cfg(test)]
    pub(crate) fn end_inquiry(&mut self) {
        self.service.inquiry = None;
    }

    /// Whether `node` is failing in this node's view, or may have been replaced by a candidate that this node voted
    /// for. A node that declared itself FAIL is not doubted for that.
    pub(crate) fn doubts(&self, node: &Node) -> bool {
        let pause = self.config.vote_pause();
        let voted = node.voted.is_some_and(|(_, at)| self.now < at + pause);
        // Votes from before the start are forgotten, except for their highest epoch; a claim at or above that epoch
        // shows that the election is over.
        let last = self.votes.last_before_start();
        let forgotten = self.now < self.service.started_at + pause
            && self.nodes.values().all(|node| node.config_epoch < last);
        voted || forgotten || !(node.is_well() || node.resigned)
    }

    /// A candidate is waiting: pings the voters that have not confirmed this node yet, unless their PONG is
    /// outstanding.
    pub(crate) fn inquire_again(&mut self) {
        let silent = |id: &NodeId| {
            self.nodes.get(id).is_some_and(|node| {
                node.link.is_up() && node.contact.ping_sent.is_none() && !node.contact.trusts
            })
        };
        let silent: Vec<NodeId> = self.slots.owners().map(|(id, _)| id).filter(silent).collect();
        for id in silent {
            self.talk(id, Talk::Ping);
        }
    }

    /// Evaluates the PONG to a PING on a link that was established after the wakeup.
    pub(crate) fn note_vouching(&mut self, header: &Header, section: &Section) {
        let Some(Inquiry { known, .. }) = self.service.inquiry else { return };
        let failing = |flags: NodeFlags| flags.has(NodeFlags::PFAIL) || flags.has(NodeFlags::FAIL);
        let told = section.entries.iter().find(|entry| entry.id == self.me);
        let doubted = told.map(|entry| failing(entry.flags));
        let is_old = header.current_epoch <= known;
        if let Some(node) = self.nodes.get_mut(&header.sender) {
            node.contact.vouches = is_old && doubted != Some(true);
            node.contact.trusts = doubted.map_or(is_old, |doubted| !doubted);
        }
    }

    pub(crate) fn update_service(&mut self) {
        let mine = usize::from(self.slots.count(self.me) > 0);
        let majority = self.nodes.reached() + mine >= self.quorum();
        // Without slot owners there is no minority, so a node that gets the first slots serves without a delay.
        if !majority && self.voters() > 0 {
            let until = self.now + self.config.rejoin_delay();
            self.service.not_before = self.service.not_before.max(until);
            self.put_off_resignation();
        }
        self.conclude_inquiry(majority, self.nodes.vouching() + mine >= self.quorum());
        let may = majority && self.is_covered();
        let early = self.myself().is_master() && self.now < self.service.not_before;
        self.service.waiting = may && early && !self.service.serving;
        let serving = may && !self.service.waiting && !self.resignation.is_open();
        if serving != self.service.serving {
            self.service.serving = serving;
            self.todo.publish = true;
            self.log(Event::StateChanged { serving });
        }
    }

    fn conclude_inquiry(&mut self, majority: bool, vouched: bool) {
        let Some(mut inquiry) = self.service.inquiry else { return };
        let trusts = |id| id == self.me || self.nodes.get(&id).is_some_and(|node| node.contact.trusts);
        let trusted = majority && self.slots.owners().filter(|(id, _)| trusts(*id)).count() >= self.quorum();
        if trusted {
            inquiry.until = inquiry.until.min(self.now);
        }
        if majority && vouched && inquiry.serves_then {
            self.service.not_before = self.now;
        }
        if majority && self.now >= self.service.not_before {
            inquiry.serves_then = false;
        }
        let over = self.now >= inquiry.until && !inquiry.serves_then;
        self.service.inquiry = (!over).then_some(inquiry);
    }

    fn is_covered(&self) -> bool {
        if !self.config.require_full_coverage {
            return true;
        }
        let late = self.service.awaited.first().is_some_and(|at| *at <= self.now);
        self.slots.assigned() == SLOT_COUNT && !self.service.uncovered && !late
    }

    /// Recomputes the coverage deadlines after a change of failed masters or eligible replicas.
    pub(crate) fn note_replacements(&mut self) {
        let (with, without): (Vec<&Node>, Vec<&Node>) =
            self.nodes.failed_voters().partition(|failed| self.nodes.has_heir(failed.id));
        self.service.uncovered = !without.is_empty();
        let since = with.into_iter().filter_map(Node::failed_since);
        self.service.awaited = since.map(|since| since + self.config.node_timeout).collect();
        self.service.awaited.sort_unstable();
    }

    pub(crate) fn service_deadline(&self) -> Option<Instant> {
        let begin = self.service.waiting.then_some(self.service.not_before);
        let awaited = self.service.awaited.iter().copied().find(|at| *at > self.now);
        begin.into_iter().chain(awaited).min()
    }
}
