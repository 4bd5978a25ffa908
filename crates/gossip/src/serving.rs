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
//! reporting the asking node as failing (it might be about to vote). Redoubt nodes report this by encoding_hint the receiver
//! in the gossip section; the answer of a Redis node counts as a confirmation.
//!
//! A master that may have been replaced during a pause or downtime does not vote either: with its vote and its
//! successor's, three masters would have four votes and could elect two candidates in one epoch. It votes as soon as a
//! majority, itself included, has answered without considering it failing and without having voted for a replacement.
//! Redoubt nodes report this by encoding_hint the receiver in their answer if the receiver does not serve; for Redis nodes
//! only the epoch is checked. After twice the node timeout, when a FAIL master without a successor counts as recovered,
//! the master votes regardless. Masters that all restart therefore vote as soon as they have answered each other.
//!
//! A failed master whose replica is about to take over does not stop the other shards: its slots count as covered for
//! the node timeout. (Redis replies CLUSTERDOWN on all shards until the replica is promoted.) Full coverage is a policy
//! about unavailable slots; it is not needed to prevent two masters.

use std::time::Duration;

use clock::Instant;
use slot_routing::{Epoch, NodeId, SLOT_COUNT};

use crate::event::ClusterEvent;
use crate::machine::Gossip;
use crate::node::{LinkState, Node};
use crate::wire::{GossipSection, Header, NodeFlags};

/// How long a master waits after its start (Redis: `CLUSTER_WRITABLE_DELAY`).
const START_DELAY: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ServiceState {
    /// A master does not start to serve before this time.
    not_before: Instant,
    /// Whether `not_before` is the only obstacle.
    waiting: bool,
    /// Whether a master with slots is FAIL and no replica can take over.
    uncovered: bool,
    /// When the coverage of each FAIL master with an eligible replica expires, in ascending order.
    coverage_deadlines: Vec<Instant>,
    replacement_check: Option<ReplacementCheck>,
}

/// This node may have been replaced without noticing, and asks the other masters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ReplacementCheck {
    /// The highest epoch known when this node began to ask.
    known: Epoch,
    /// When the node votes regardless of the answers.
    until: Instant,
    /// The node was paused, and serves as soon as a majority confirms it.
    serve_when_confirmed: bool,
}

impl ServiceState {
    /// Serves at once: a majority has just elected this node.
    pub(crate) fn allow_serving(&mut self, now: Instant) {
        self.not_before = now;
    }
}

impl Gossip {
    /// Initializes the timers at startup.
    pub(crate) fn init_timers(&mut self) {
        self.votes.on_start(self.state.now);
        self.service.not_before = self.state.now + START_DELAY;
        // Silence is measured from the start, even for nodes without an address, which cannot be pinged.
        for node in self.state.nodes.values_mut().filter(|node| node.id != self.state.me) {
            node.contact.ping_sent = Some(self.state.now);
        }
        if self.is_voter(self.state.me) {
            self.start_replacement_check(START_DELAY, false);
        }
    }

    /// Stops serving because this node may have been replaced without noticing. All nodes count as unreachable until
    /// they are heard again.
    pub(crate) fn suspend_serving(&mut self) {
        for node in self.state.nodes.values_mut() {
            node.contact.last_message = None;
            (node.contact.confirms_serving, node.contact.confirms_voting) = (false, false);
        }
        self.service.not_before = self.state.now + self.state.config.rejoin_delay();
        if self.myself().is_master() {
            self.state.serving = false;
            self.todo.publish = true;
            self.reconnect_voters();
        }
    }

    /// Reconnects to all other voters and asks them.
    fn reconnect_voters(&mut self) {
        self.start_replacement_check(Duration::ZERO, true);
        let voters: Vec<NodeId> =
            self.state.slots.owners().map(|(id, _)| id).filter(|id| *id != self.state.me).collect();
        for id in voters {
            self.close_link(id);
            if let Some(node) = self.state.nodes.get_mut(&id) {
                node.link = LinkState::Down { retry_at: self.state.now };
            }
        }
    }

    fn start_replacement_check(&mut self, least: Duration, serve_when_confirmed: bool) {
        let until = self.state.now + self.state.config.fail_undo_time().max(least);
        self.service.replacement_check =
            Some(ReplacementCheck { known: self.state.current_epoch, until, serve_when_confirmed });
    }

    /// Whether this node may have been replaced. Its vote may then belong to its successor.
    pub(crate) fn may_have_been_replaced(&self) -> bool {
        self.service
            .replacement_check
            .is_some_and(|replacement_check| self.state.now < replacement_check.until)
            && self.voters() > 1
    }

    #[cfg(test)]
    pub(crate) fn end_replacement_check(&mut self) {
        self.service.replacement_check = None;
    }

    /// Evaluates the PONG to a PING on a link that was established after the wakeup.
    pub(crate) fn record_confirmation(&mut self, header: &Header, section: &GossipSection) {
        let Some(ReplacementCheck { known, .. }) = self.service.replacement_check else { return };
        let failing = |flags: NodeFlags| flags.has(NodeFlags::PFAIL) || flags.has(NodeFlags::FAIL);
        let told = section.entries.iter().find(|entry| entry.id == self.state.me);
        let doubted = told.map(|entry| failing(entry.flags));
        let is_old = header.current_epoch <= known;
        if let Some(node) = self.state.nodes.get_mut(&header.sender) {
            node.contact.confirms_serving = is_old && doubted != Some(true);
            node.contact.confirms_voting = doubted.map_or(is_old, |doubted| !doubted);
        }
    }

    pub(crate) fn update_serving_state(&mut self) {
        let mine = usize::from(self.state.slots.count(self.state.me) > 0);
        let majority = self.state.nodes.reachable() + mine >= self.quorum();
        // Without slot owners there is no minority, so a node that gets the first slots serves without a delay.
        if !majority && self.voters() > 0 {
            let until = self.state.now + self.state.config.rejoin_delay();
            self.service.not_before = self.service.not_before.max(until);
            self.self_fail.postpone_timeout(&self.state);
        }
        self.finish_replacement_check(majority, self.state.nodes.confirming() + mine >= self.quorum());
        let may = majority && self.is_covered();
        let early = self.myself().is_master() && self.state.now < self.service.not_before;
        self.service.waiting = may && early && !self.state.serving;
        let serving = may && !self.service.waiting && !self.self_fail.is_open();
        if serving != self.state.serving {
            self.state.serving = serving;
            self.todo.publish = true;
            self.log(ClusterEvent::StateChanged { serving });
        }
    }

    fn finish_replacement_check(&mut self, majority: bool, confirmed: bool) {
        let Some(mut replacement_check) = self.service.replacement_check else { return };
        let trusts = |id| {
            id == self.state.me || self.state.nodes.get(&id).is_some_and(|node| node.contact.confirms_voting)
        };
        let trusted =
            majority && self.state.slots.owners().filter(|(id, _)| trusts(*id)).count() >= self.quorum();
        if trusted {
            replacement_check.until = replacement_check.until.min(self.state.now);
        }
        if majority && confirmed && replacement_check.serve_when_confirmed {
            self.service.not_before = self.state.now;
        }
        if majority && self.state.now >= self.service.not_before {
            replacement_check.serve_when_confirmed = false;
        }
        let over = self.state.now >= replacement_check.until && !replacement_check.serve_when_confirmed;
        self.service.replacement_check = (!over).then_some(replacement_check);
    }

    fn is_covered(&self) -> bool {
        if !self.state.config.require_full_coverage {
            return true;
        }
        let late = self.service.coverage_deadlines.first().is_some_and(|at| *at <= self.state.now);
        self.state.slots.assigned() == SLOT_COUNT && !self.service.uncovered && !late
    }

    /// Recomputes the coverage deadlines after a change of failed masters or eligible replicas.
    pub(crate) fn update_coverage_deadlines(&mut self) {
        let (with, without): (Vec<&Node>, Vec<&Node>) = self
            .state
            .nodes
            .failed_voters()
            .partition(|failed| self.state.nodes.has_eligible_replica(failed.id));
        self.service.uncovered = !without.is_empty();
        let since = with.into_iter().filter_map(Node::failed_since);
        self.service.coverage_deadlines = since.map(|since| since + self.state.config.node_timeout).collect();
        self.service.coverage_deadlines.sort_unstable();
    }

    pub(crate) fn service_deadline(&self) -> Option<Instant> {
        let begin = self.service.waiting.then_some(self.service.not_before);
        let coverage_deadlines =
            self.service.coverage_deadlines.iter().copied().find(|at| *at > self.state.now);
        begin.into_iter().chain(coverage_deadlines).min()
    }
}
