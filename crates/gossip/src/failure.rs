//! Failure detection: one node suspects (PFAIL), a majority of the masters agrees (FAIL).
//!
//! A node becomes PFAIL when it has been silent for the node timeout, or when its link broke and its host has refused
//! connections for the refused timeout. PFAIL is a local view, and it is gossiped at once. A node becomes FAIL when
//! this node suspects it and a majority of the masters with slots, this node included, has reported it within twice the
//! node timeout. The node that detects the majority sends FAIL messages. In a large cluster all nodes detect it at
//! about the same time, and messages from every node to every node would flood the bus after a rack failure. Each node
//! therefore sends FAIL to a random sample, sized so that every node gets the message several times.
//!
//! Silence is measured from the last message, and a PING must be unanswered for nine tenths of the timeout. With ten
//! PINGs per timeout, both conditions are met one timeout after the last message.
//!
//! A node is also suspected at once when a different node answers at its address and it holds no link to this node: its
//! process was restarted with a new id, or reset. (Valkey declares FAIL without agreement. That would replace a node
//! that merely moved, so here a majority has to agree.) Such a node has no known address, but gossip still reports it.

use std::time::Duration;

use clock::Instant;
use slot_routing::NodeId;

use crate::deadlines;
use crate::event::{ClusterEvent, FailClearReason, FailureEvent};
use crate::machine::Gossip;
use crate::node::{Node, NodeHealth, SuspicionCause};
use crate::timeline::TimelineEntry;
use crate::wire::{MessageBody, Packet};

/// Expected number of FAIL messages that each node receives if all masters detect the majority. If only the minimal
/// majority detects it, the number is half as large and one node in three thousand receives none; that node suspects
/// the failed node itself and learns about the majority from gossip.
const FAIL_MESSAGES_PER_NODE: usize = 16;

impl Gossip {
    /// Suspects nodes that were silent, or refused connections, for too long.
    pub(crate) fn suspect_silent_nodes(&mut self) {
        let now = self.state.now;
        let overdue = self.state.due_nodes(deadlines::suspicion_deadline);
        for &id in &overdue {
            let refused = deadlines::refused_deadline(&self.state.nodes[&id], &self.state.config)
                .is_some_and(|at| at <= now);
            self.suspect(id, if refused { SuspicionCause::Refused } else { SuspicionCause::Silence });
        }
        self.process_new_suspects(&overdue);
    }

    /// Checks whether the new suspects are FAIL, and gossips those that are not.
    fn process_new_suspects(&mut self, suspects: &[NodeId]) {
        if suspects.is_empty() {
            return;
        }
        for id in suspects {
            self.fail_if_agreed(*id);
        }
        // After the FAIL checks: for failed nodes, FAIL messages have been sent already.
        self.note_changes();
        // Only the reports of masters with slots count.
        if self.is_voter(self.state.me) && self.state.nodes.suspects().next().is_some() {
            self.broadcast_pong();
        }
    }

    /// Suspects `id` because a different node answers at its address. Only applies if a link to `id` has worked since
    /// the start, so that a cluster that restarts with permuted addresses suspects nobody.
    pub(crate) fn suspect_if_replaced(&mut self, id: NodeId) {
        let node = &self.state.nodes[&id];
        let holds_link = self.links.inbound.values().any(|inbound| inbound.node == Some(id));
        if node.is_healthy() && node.contact.ever_connected && !holds_link {
            self.suspect(id, SuspicionCause::Replaced);
            self.process_new_suspects(&[id]);
        }
    }

    fn suspect(&mut self, id: NodeId, cause: SuspicionCause) {
        let (now, me) = (self.state.now, self.state.me);
        let node = self.state.nodes.get_mut(&id).expect("asked for by the caller");
        node.health = NodeHealth::Suspected { since: now, cause };
        self.record(id, TimelineEntry::Suspicion { by: me, cause: Some(cause) });
        self.log(FailureEvent::Suspected { id, cause });
        self.todo.publish = true;
    }

    pub(crate) fn clear_suspicion(&mut self, id: NodeId) {
        let node = self.state.nodes.get_mut(&id).expect("asked for by the caller");
        node.health = NodeHealth::Healthy;
        self.record(id, TimelineEntry::Recovery);
        self.log(FailureEvent::SuspicionEnded(id));
        self.todo.publish = true;
    }

    /// Number of masters that reported `id` recently; drops older reports.
    pub(crate) fn count_reports(&mut self, id: NodeId) -> usize {
        let valid_since = self.state.now - self.state.config.report_validity();
        let Some(node) = self.state.nodes.get_mut(&id) else { return 0 };
        node.reports.retain(|_, at| *at >= valid_since);
        node.reports.len()
    }

    /// Turns PFAIL into FAIL if a majority of the masters agrees.
    pub(crate) fn fail_if_agreed(&mut self, id: NodeId) {
        if !self.state.nodes[&id].is_suspected() {
            return;
        }
        // Cheap check first, because this runs for every failure report.
        if self.state.nodes[&id].reports.len() + 1 < self.quorum() {
            return;
        }
        self.count_reports(id);
        let reporters =
            self.state.nodes[&id].reports.keys().filter(|reporter| self.is_voter(**reporter)).count();
        let mine = usize::from(self.is_voter(self.state.me));
        if reporters + mine < self.quorum() {
            return;
        }
        self.log(FailureEvent::FailAgreed(id));
        self.set_failed(id);
        self.broadcast_fail(id);
    }

    /// The replicas of the failed node always get the message, because one of them has to take over.
    fn broadcast_fail(&mut self, id: NodeId) {
        let packet = Packet { header: self.header(), body: MessageBody::Fail(id) };
        let voters = self.voters();
        for receiver in self.linked() {
            let is_replica = self.state.nodes[&receiver].master() == Some(id);
            if is_replica
                || voters <= FAIL_MESSAGES_PER_NODE
                || self.random_below(voters as u64) < FAIL_MESSAGES_PER_NODE as u64
            {
                self.send_packet(receiver, packet.clone());
            }
        }
    }

    /// Resends recent FAIL messages over a new link. A majority may have agreed while the link was down, and gossip
    /// does not mention a failed node that owns no slots in this node's view. If this node missed a promotion, the
    /// replicas of the failed node would otherwise never learn about the agreement.
    pub(crate) fn resend_fails(&mut self, receiver: NodeId) {
        if self.state.nodes[&receiver].handshake.is_some() || !self.is_voter(self.state.me) {
            return;
        }
        let valid_since = self.state.now - self.state.config.report_validity();
        let is_recent = |node: &Node| node.failed_since().is_some_and(|at| at >= valid_since);
        let is_unnamed = |node: &&Node| is_recent(node) && self.state.slots.count(node.id) == 0;
        let failed =
            self.state.nodes.values().filter(is_unnamed).map(|node| node.id).filter(|id| *id != receiver);
        for id in failed.collect::<Vec<_>>() {
            if self.state.nodes.values().any(|node| node.master() == Some(id)) {
                let packet = Packet { header: self.header(), body: MessageBody::Fail(id) };
                self.send_packet(receiver, packet);
            }
        }
    }

    /// Handles a FAIL message.
    pub(crate) fn on_fail(&mut self, from: NodeId, about: NodeId) {
        let Some(failed) =
            self.state.nodes.get(&about).filter(|_| about != self.state.me).map(Node::has_failed)
        else {
            return;
        };
        if !failed {
            self.log(FailureEvent::FailHeard { id: about, from });
            self.set_failed(about);
        }
        if from == about {
            let node = self.state.nodes.get_mut(&about).expect("looked up above");
            (node.health, node.declared_fail) = (NodeHealth::Failed { since: self.state.now }, true);
        }
    }

    fn set_failed(&mut self, id: NodeId) {
        let now = self.state.now;
        let node = self.state.nodes.get_mut(&id).expect("asked for by the caller");
        node.health = NodeHealth::Failed { since: now };
        node.declared_fail = false;
        self.record(id, TimelineEntry::Agreement);
        self.rank_candidates(id);
        self.todo.save = true;
        self.todo.publish = true;
    }

    /// A failed node answered. A node without slots recovers at once. A master with slots recovers after some time
    /// without a successor; until then its replicas take precedence.
    pub(crate) fn clear_fail_if_due(&mut self, id: NodeId, since: Instant) {
        let serves = self.state.slots.count(id) > 0;
        let node = self.state.nodes.get_mut(&id).expect("asked for by the caller");
        let why = if !node.is_master() || !serves {
            FailClearReason::NoSlots { replica: !node.is_master() }
        } else if self.state.now.since(since) > self.state.config.fail_undo_time() {
            FailClearReason::NotReplaced
        } else {
            return;
        };
        node.health = NodeHealth::Healthy;
        self.record(id, TimelineEntry::Recovery);
        self.log(FailureEvent::FailEnded { id, why });
        self.todo.save = true;
        self.todo.publish = true;
    }

    /// Detects that this process was paused. The pause must not count as silence of other nodes, and a master that may
    /// have been replaced in the meantime must not serve before it knows.
    pub(crate) fn detect_process_pause(&mut self, before: Instant) {
        let gap = self.state.now.since(before);
        if gap < self.state.config.node_timeout / 2 || self.state.nodes.len() == 1 {
            return;
        }
        for node in self.state.nodes.values_mut() {
            node.contact.exclude_pause(gap);
        }
        if gap >= self.max_undetected_pause() {
            self.suspend_serving();
            self.log(ClusterEvent::ProcessPaused(gap));
        }
    }

    fn max_undetected_pause(&self) -> Duration {
        self.state.config.node_timeout * 3 / 4
    }

    /// How long after the last call this node may serve without another call. `None` if there are no other nodes.
    #[must_use]
    pub fn lease(&self) -> Option<Duration> {
        (self.state.nodes.len() > 1).then(|| self.max_undetected_pause())
    }

    /// Limits the time between calls, so that a longer gap proves that the process was paused.
    pub(crate) fn heartbeat(&self) -> Option<Instant> {
        let quarter = self.state.config.node_timeout / 4;
        (self.state.nodes.len() > 1).then(|| self.state.now + quarter.max(Duration::from_millis(1)))
    }
}
