//! May this node serve?
//!
//! It may while every slot is served by a master that is not failed (unless full coverage is not
//! asked for) and a majority of the masters with slots is within reach. A master waits before it
//! serves (again): two seconds after its start, and the rejoin delay after it was in a minority or
//! stood still, so that it hears first that it was replaced. Limits and delays are Redis's.
//!
//! One that stood still need not wait so long: it asks the other masters over new links, on which nothing
//! lies that was said before, and serves as soon as a majority, itself included, vouches for it: has answered,
//! knows of no epoch that it did not know when it woke (a node elected meanwhile was elected in one, by a
//! majority) and does not hold it for failing (or it may be about to vote). A node tells that by naming the
//! receiver among the nodes that it gossips about; one of Redis does not, and counts as content.
//!
//! One that may have been replaced while it stood still or was down gives no vote either: beside its successor's it would
//! make four voters of three, and elect two in one epoch. It votes as soon as a majority, itself included, has answered
//! and doubts nothing: does not hold it for failing and has not voted for another in its place. A node of ours says that
//! by naming the receiver of its answer, if that does not serve; of one of Redis only its epoch tells. After twice the
//! node timeout, when a failed master that nobody replaced counts as back, it votes all the same. So masters that all
//! start again vote as soon as they have answered each other.
//!
//! A failed master whose replica is about to take its place does not stop the other shards: for the
//! node timeout its slots count as covered. (Redis answers CLUSTERDOWN everywhere until the replica is
//! promoted.) Full coverage is a policy against a cluster with holes, not what keeps two masters apart.

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
    /// A master does not begin to serve before this.
    not_before: Instant,
    /// Whether only that is in the way.
    waiting: bool,
    /// Whether a master with slots has failed that no replica can replace.
    uncovered: bool,
    /// Until when a replica is waited for in the place of each other master that has failed, in rising order.
    awaited: Vec<Instant>,
    started_at: Instant,
    inquiry: Option<Inquiry>,
}

/// This node may have been replaced without noticing, and asks the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Inquiry {
    /// The highest epoch that it knew when it began to ask.
    known: Epoch,
    /// From when on it votes.
    until: Instant,
    /// It stood still, and serves as soon as it is vouched for.
    serves_then: bool,
}

impl Service {
    /// Elected just now, by a majority: there is nobody to wait for.
    pub(crate) fn begin_as_new_master(&mut self, now: Instant) {
        self.not_before = now;
    }
}

impl Gossip {
    /// The first moment after a start.
    pub(crate) fn wake_up(&mut self) {
        self.service.started_at = self.now;
        self.service.not_before = self.now + START_DELAY;
        // Silence counts from the start, also of nodes that cannot even be asked, for want of an address.
        for node in self.nodes.values_mut().filter(|node| node.id != self.me) {
            node.contact.ping_sent = Some(self.now);
        }
        if self.is_voter(self.me) {
            self.inquire(START_DELAY, false);
        }
    }

    /// This node may have been replaced without noticing: nobody counts as reached before they were heard
    /// again.
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

    /// Greets every other voter over a new link.
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

    /// Whether this node may have been replaced without noticing, so that its vote may be its successor's to give.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.service.inquiry.is_some_and(|inquiry| self.now < inquiry.until) && self.voters() > 1
    }

    #[cfg(test)]
    pub(crate) fn end_inquiry(&mut self) {
        self.service.inquiry = None;
    }

    /// Whether `node` fails, or may have been replaced by one that we voted for. That it resigned is its own word.
    pub(crate) fn doubts(&self, node: &Node) -> bool {
        let pause = self.config.vote_pause();
        let voted = node.voted.is_some_and(|(_, at)| self.now < at + pause);
        // In which place we voted before our start is forgotten; a claim tells that it is over.
        let last = self.votes.last_before_start();
        let forgotten = self.now < self.service.started_at + pause
            && self.nodes.values().all(|node| node.config_epoch < last);
        voted || forgotten || !(node.is_well() || node.resigned)
    }

    /// A candidate waits: asks the voters that do not trust us yet, but for those whose answer is still out.
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

    /// A PING of ours was answered, over a link that was made since we woke.
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
        // Where nobody serves anything there is no minority to be in: a node that takes its first slots need not wait.
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

    /// A master has failed, or returned, or the replicas changed that could take its place.
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
