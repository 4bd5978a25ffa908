//! When a node is down: suspicion by one, agreement by most.
//!
//! A node is *suspected* (PFAIL) here when it has been silent for the node timeout, or when its link
//! broke and its host refuses new ones for the refused timeout. Suspicion is this node's own view; it is
//! gossiped at once. It is *failed* (FAIL) when we suspect it and masters with slots, this one included,
//! make a majority that reported it within twice the node timeout. The node that notices tells all others. In a large
//! cluster all notice at about the same moment, and a thousand nodes that tell a thousand others of a rack that died
//! would have nothing else to say for a while; so each tells some others, by chance, and every node is told several times.
//!
//! Silence is counted from the last message heard, and a PING must have been out for nine tenths of the
//! timeout: with ten PINGs per timeout both come due at the same moment, timeout after the last word.
//!
//! A node is suspected at once when another node answers at its address and it holds no link to us: its process was
//! started anew under another id, or reset. (Valkey takes this for FAIL without asking anybody. A node that merely
//! moved would be replaced then, so here a majority has to see the same.) Such a suspect has no address, and gossip
//! names it all the same.

use std::time::Duration;

use clock::Instant;
use slot_routing::NodeId;

use crate::event::{Event, FailEnd, FailureEvent};
use crate::machine::Gossip;
use crate::node::{Cause, Condition, Node};
use crate::timeline::Suspicion;
use crate::wire::{Body, Packet};

/// By how many masters with slots each node is told of a failure, about, if all of them notice it. If it is only the
/// majority that it takes, it is half as many, and one node in three thousand is told by none: it suspects the failed
/// node as well, and hears of the majority with the next messages.
const TELLERS: usize = 16;

impl Gossip {
    /// Suspects the nodes that were silent, or refused, for too long.
    pub(crate) fn judge_silence(&mut self) {
        let now = self.now;
        let overdue = self.due_nodes(Self::doubt_deadline);
        for &id in &overdue {
            let refused = self.refused_deadline(&self.nodes[&id]).is_some_and(|at| at <= now);
            self.suspect(id, if refused { Cause::Refused } else { Cause::Silence });
        }
        self.spread_suspicions(&overdue);
    }

    /// Looks whether the new suspects are failed, and tells the others of those that are not.
    fn spread_suspicions(&mut self, suspects: &[NodeId]) {
        if suspects.is_empty() {
            return;
        }
        for id in suspects {
            self.fail_if_agreed(*id);
        }
        // After the verdicts: nodes that are failed by now were told so with a FAIL.
        self.note_changes();
        // The opinion of others than masters with slots does not count.
        if self.is_voter(self.me) && self.nodes.suspects().next().is_some() {
            self.broadcast_pong();
        }
    }

    /// Another node answers at the address of `id`. Not before a link to it has worked since we run: where a whole
    /// cluster starts with exchanged addresses, nobody has died.
    pub(crate) fn suspect_if_replaced(&mut self, id: NodeId) {
        let node = &self.nodes[&id];
        let holds_link = self.links.theirs.values().any(|inbound| inbound.node == Some(id));
        if node.is_well() && node.contact.met && !holds_link {
            self.suspect(id, Cause::Replaced);
            self.spread_suspicions(&[id]);
        }
    }

    /// When `node` becomes suspect if nothing is heard of it.
    pub(crate) fn doubt_deadline(&self, node: &Node) -> Option<Instant> {
        if node.id == self.me || !node.is_well() || node.handshake.is_some() {
            return None;
        }
        let silence = self.silence_deadline(node);
        let refused = self.refused_deadline(node);
        silence.into_iter().chain(refused).min()
    }

    fn silence_deadline(&self, node: &Node) -> Option<Instant> {
        let asked = node.contact.ping_sent?;
        let heard = node.contact.heard.unwrap_or(asked);
        Some((heard + self.config.node_timeout).max(asked + self.config.answer_time()))
    }

    /// Only for a node whose link has worked since we run: a cluster that starts node by node must not
    /// take the nodes that are still to come for dead.
    fn refused_deadline(&self, node: &Node) -> Option<Instant> {
        let since = node.contact.refused_since?;
        let on = node.contact.met && !self.config.connect_refused_timeout.is_zero();
        on.then(|| since + self.config.connect_refused_timeout)
    }

    fn suspect(&mut self, id: NodeId, cause: Cause) {
        let (now, wall, me) = (self.now, self.wall, self.me);
        let node = self.nodes.get_mut(&id).expect("asked for by the caller");
        node.condition = Condition::Suspected { since: now, cause };
        self.timeline.suspected(id, Suspicion { by: me, at: wall, cause: Some(cause) });
        self.log(FailureEvent::Suspected { id, cause });
        self.todo.publish = true;
    }

    pub(crate) fn clear_suspicion(&mut self, id: NodeId) {
        let node = self.nodes.get_mut(&id).expect("asked for by the caller");
        node.condition = Condition::Well;
        self.timeline.returned(id, self.wall);
        self.log(FailureEvent::SuspicionEnded(id));
        self.todo.publish = true;
    }

    /// How many masters reported `id` lately; older reports are dropped.
    pub(crate) fn count_reports(&mut self, id: NodeId) -> usize {
        let valid_since = self.now - self.config.report_validity();
        let Some(node) = self.nodes.get_mut(&id) else { return 0 };
        node.reports.retain(|_, at| *at >= valid_since);
        node.reports.len()
    }

    /// Makes a suspicion FAIL if a majority shares it.
    pub(crate) fn fail_if_agreed(&mut self, id: NodeId) {
        if !self.nodes[&id].is_suspected() {
            return;
        }
        // Asked with every report: those that count are looked at when there are enough of them at all.
        if self.nodes[&id].reports.len() + 1 < self.quorum() {
            return;
        }
        self.count_reports(id);
        let reporters = self.nodes[&id].reports.keys().filter(|reporter| self.is_voter(**reporter)).count();
        let mine = usize::from(self.is_voter(self.me));
        if reporters + mine < self.quorum() {
            return;
        }
        self.log(FailureEvent::FailAgreed(id));
        self.set_failed(id);
        self.tell_of_failure(id);
    }

    /// To the replicas of the failed node always: one of them is to take its place.
    fn tell_of_failure(&mut self, id: NodeId) {
        let packet = Packet { header: self.header(), body: Body::Fail(id) };
        let voters = self.voters();
        for receiver in self.linked() {
            let heir = self.nodes[&receiver].master() == Some(id);
            if heir || voters <= TELLERS || self.random_below(voters as u64) < TELLERS as u64 {
                self.send_packet(receiver, packet.clone());
            }
        }
    }

    /// A link to `receiver` works from now on. A majority may have agreed while it did not, and gossip does not name a failed
    /// node that serves nothing here. Where this node has missed that the failed one was promoted, that node's replica
    /// would never hear of the agreement.
    pub(crate) fn repeat_verdicts(&mut self, receiver: NodeId) {
        if self.nodes[&receiver].handshake.is_some() || !self.is_voter(self.me) {
            return;
        }
        let valid_since = self.now - self.config.report_validity();
        let is_recent = |node: &Node| node.failed_since().is_some_and(|at| at >= valid_since);
        let is_unnamed = |node: &&Node| is_recent(node) && self.slots.count(node.id) == 0;
        let failed = self.nodes.values().filter(is_unnamed).map(|node| node.id).filter(|id| *id != receiver);
        for id in failed.collect::<Vec<_>>() {
            if self.nodes.values().any(|node| node.master() == Some(id)) {
                let packet = Packet { header: self.header(), body: Body::Fail(id) };
                self.send_packet(receiver, packet);
            }
        }
    }

    /// Somebody tells that a majority agreed.
    pub(crate) fn on_fail(&mut self, from: NodeId, about: NodeId) {
        let Some(failed) = self.nodes.get(&about).filter(|_| about != self.me).map(Node::has_failed) else {
            return;
        };
        if !failed {
            self.log(FailureEvent::FailHeard { id: about, from });
            self.set_failed(about);
        }
        if from == about {
            let node = self.nodes.get_mut(&about).expect("looked up above");
            (node.condition, node.resigned) = (Condition::Failed { since: self.now }, true);
        }
    }

    fn set_failed(&mut self, id: NodeId) {
        let now = self.now;
        let node = self.nodes.get_mut(&id).expect("asked for by the caller");
        node.condition = Condition::Failed { since: now };
        node.resigned = false;
        self.timeline.agreed(id, self.wall);
        self.compare_candidates(id);
        self.todo.save = true;
        self.todo.publish = true;
    }

    /// A failed node answers. One that serves nothing is simply back. One whose slots no other node serves
    /// after some time is taken back too; until then its replicas have the first right.
    pub(crate) fn clear_fail_if_due(&mut self, id: NodeId, since: Instant) {
        let serves = self.slots.count(id) > 0;
        let node = self.nodes.get_mut(&id).expect("asked for by the caller");
        let why = if !node.is_master() || !serves {
            FailEnd::NoSlots { replica: !node.is_master() }
        } else if self.now.since(since) > self.config.fail_undo_time() {
            FailEnd::NotReplaced
        } else {
            return;
        };
        node.condition = Condition::Well;
        self.timeline.returned(id, self.wall);
        self.log(FailureEvent::FailEnded { id, why });
        self.todo.save = true;
        self.todo.publish = true;
    }

    /// If this process was not run for a while, the silence of the others was its own. They get their
    /// full time again, and a master that may have been replaced meanwhile waits until it was told so.
    pub(crate) fn notice_standstill(&mut self, before: Instant) {
        let gap = self.now.since(before);
        if gap < self.config.node_timeout / 2 || self.nodes.len() == 1 {
            return;
        }
        for node in self.nodes.values_mut() {
            node.contact.shift(gap);
        }
        if gap >= self.longest_gap() {
            self.hold_back();
            self.log(Event::StoodStill(gap));
        }
    }

    fn longest_gap(&self) -> Duration {
        self.config.node_timeout * 3 / 4
    }

    /// From the last call on, for how long this node may serve without another: after that it does not serve before the
    /// others were heard. None if there are no others.
    #[must_use]
    pub fn lease(&self) -> Option<Duration> {
        (self.nodes.len() > 1).then(|| self.longest_gap())
    }

    /// A node with peers is called at least so often, so that a longer gap means that it stood still.
    pub(crate) fn heartbeat(&self) -> Option<Instant> {
        let quarter = self.config.node_timeout / 4;
        (self.nodes.len() > 1).then(|| self.now + quarter.max(Duration::from_millis(1)))
    }
}
