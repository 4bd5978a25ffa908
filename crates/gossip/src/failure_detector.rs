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
//! A node is also suspected at once when a different node answers at its address and the expected node has no link to
//! this node: its process was restarted with a new id, or reset. (Valkey declares FAIL without agreement. That would
//! replace a node that merely moved, so here a majority has to agree.) Such a node has no known address, but gossip
//! still reports it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use clock::Instant;
use slot_routing::NodeId;

use crate::deadlines;
use crate::effect::Effect;
use crate::event::{FailClearReason, FailureEvent, SuspicionCause};
use crate::node::{Node, NodeHealth};
use crate::random::Randomness;
use crate::ranking::rank_candidates;
use crate::state::ClusterState;
use crate::timeline::TimelineEntry;
use crate::wire::MessageBody;

/// Expected number of FAIL messages that each node receives if all masters detect the majority. If only the smallest
/// possible majority detects it, the number is half as large and one node in three thousand receives no message; that
/// node suspects the failed node itself and learns about the majority from gossip.
const FAIL_MESSAGES_PER_NODE: usize = 16;

/// Decides which nodes are PFAIL and FAIL, and sets these states in the table of nodes.
#[derive(Debug, Clone, Default)]
pub(crate) struct FailureDetector {
    /// For each node, the masters that reported it as failing, with the time of each master's last report.
    /// Shared with published views, and copied by the first change after a publication.
    reports: Arc<BTreeMap<NodeId, BTreeMap<NodeId, Instant>>>,
}

impl FailureDetector {
    /// Suspects nodes that have been silent or have refused connections for too long.
    pub(crate) fn step(&mut self, state: &mut ClusterState, random: &mut Randomness) -> Vec<Effect> {
        let overdue = state.due_nodes(deadlines::suspicion_deadline);
        let mut effects = Vec::new();
        for &id in &overdue {
            let Some(node) = state.node(id) else { continue };
            let refused =
                deadlines::refused_deadline(node, state.config()).is_some_and(|at| at <= state.now());
            let cause = if refused { SuspicionCause::Refused } else { SuspicionCause::Silence };
            effects.extend(suspect(state, id, cause));
        }
        effects.extend(self.process_new_suspects(state, &overdue, random));
        effects
    }

    /// Checks whether the newly suspected nodes are FAIL, and gossips the suspicions of those that are not.
    fn process_new_suspects(
        &mut self,
        state: &mut ClusterState,
        suspects: &[NodeId],
        random: &mut Randomness,
    ) -> Vec<Effect> {
        if suspects.is_empty() {
            return Vec::new();
        }
        let mut effects = Vec::new();
        for id in suspects {
            effects.extend(self.fail_if_agreed(state, *id, random));
        }
        // Update after the checks above, because FAIL nodes need no gossip: FAIL messages have already been sent.
        state.update_indexes();
        // Only masters with slots may report failures.
        if state.is_voter(state.id()) && state.has_suspects() {
            effects.push(Effect::BroadcastPong);
        }
        effects
    }

    /// Suspects `id` because a different node answers at its address and `id` has no link to this node. Only applies if
    /// a link to `id` has worked since this process started, so that a cluster that restarts with permuted addresses
    /// suspects nobody.
    pub(crate) fn on_address_taken(
        &mut self,
        state: &mut ClusterState,
        id: NodeId,
        random: &mut Randomness,
    ) -> Vec<Effect> {
        if !state.node(id).is_some_and(|node| node.is_healthy() && node.contact_times.was_ever_connected) {
            return Vec::new();
        }
        let mut effects = suspect(state, id, SuspicionCause::Replaced);
        effects.extend(self.process_new_suspects(state, &[id], random));
        effects
    }

    /// Handles the report of the master `reporter` that `id` is failing.
    pub(crate) fn on_report(
        &mut self,
        state: &mut ClusterState,
        id: NodeId,
        reporter: NodeId,
        random: &mut Randomness,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        let reports = Arc::make_mut(&mut self.reports).entry(id).or_default();
        if reports.insert(reporter, state.now()).is_none() {
            let entry = TimelineEntry::Suspicion { reporter, cause: None };
            effects.push(Effect::RecordTimeline { node: id, entry });
            effects.push(Effect::log(FailureEvent::ReportedBy { id, reporter }));
        }
        effects.extend(self.fail_if_agreed(state, id, random));
        effects
    }

    /// Handles the report of the master `reporter` that `id` is healthy.
    pub(crate) fn withdraw_report(
        &mut self,
        state: &ClusterState,
        id: NodeId,
        reporter: NodeId,
    ) -> Vec<Effect> {
        if !self.reports.get(&id).is_some_and(|reports| reports.contains_key(&reporter)) {
            return Vec::new();
        }
        let reports = Arc::make_mut(&mut self.reports).entry(id).or_default();
        reports.remove(&reporter);
        let mut effects = Vec::new();
        if reports.is_empty() && state.node(id).is_some_and(Node::is_healthy) {
            effects.push(Effect::RecordTimeline { node: id, entry: TimelineEntry::Recovery });
        }
        effects.push(Effect::log(FailureEvent::ReportWithdrawn { id, reporter }));
        effects
    }

    /// Returns the number of masters that reported `id` recently.
    pub(crate) fn count_reports(&self, state: &ClusterState, id: NodeId) -> usize {
        let valid_since = state.now() - state.config().failure_report_validity();
        let reports = self.reports.get(&id).into_iter().flat_map(BTreeMap::values);
        reports.filter(|at| **at >= valid_since).count()
    }

    fn discard_old_reports(&mut self, state: &ClusterState, id: NodeId) {
        let valid_since = state.now() - state.config().failure_report_validity();
        if let Some(reports) = Arc::make_mut(&mut self.reports).get_mut(&id) {
            reports.retain(|_, at| *at >= valid_since);
        }
    }

    /// Turns PFAIL into FAIL if a majority of the masters agrees.
    fn fail_if_agreed(
        &mut self,
        state: &mut ClusterState,
        id: NodeId,
        random: &mut Randomness,
    ) -> Vec<Effect> {
        // Do the cheap check first, because this function runs for every failure report.
        let known = self.reports.get(&id).map_or(0, BTreeMap::len);
        if !state.node(id).is_some_and(Node::is_suspected) || known + 1 < state.quorum() {
            return Vec::new();
        }
        self.discard_old_reports(state, id);
        let reporters = self.reports.get(&id).into_iter().flat_map(BTreeMap::keys);
        let reporters = reporters.filter(|reporter| state.is_voter(**reporter)).count();
        let mine = usize::from(state.is_voter(state.id()));
        if reporters + mine < state.quorum() {
            return Vec::new();
        }
        let mut effects = vec![Effect::log(FailureEvent::FailAgreed(id))];
        effects.extend(set_failed(state, id));
        effects.extend(announce_fail(state, id, random));
        effects
    }

    /// Handles the message from the node `sender` that the node `failed_id` is FAIL.
    pub(crate) fn on_fail(
        &mut self,
        state: &mut ClusterState,
        sender: NodeId,
        failed_id: NodeId,
    ) -> Vec<Effect> {
        let Some(failed) = state.node(failed_id).filter(|_| failed_id != state.id()).map(Node::has_failed)
        else {
            return Vec::new();
        };
        let mut effects = Vec::new();
        if !failed {
            effects.push(Effect::log(FailureEvent::FailReceived { id: failed_id, sender }));
            effects.extend(set_failed(state, failed_id));
        }
        if sender == failed_id {
            let since = state.now();
            let node = state.known_node_mut(failed_id);
            (node.health, node.has_declared_fail) = (NodeHealth::Failed { since }, true);
        }
        effects
    }

    /// Ends the suspicion of the node `id`, which has answered a PING.
    pub(crate) fn on_answer(&mut self, state: &mut ClusterState, id: NodeId) -> Vec<Effect> {
        let Some(node) = state.node(id) else { return Vec::new() };
        match node.health {
            NodeHealth::Healthy => Vec::new(),
            NodeHealth::Suspected { .. } => {
                state.known_node_mut(id).health = NodeHealth::Healthy;
                vec![recovery_effect(id), Effect::log(FailureEvent::SuspicionEnded(id)), Effect::Publish]
            }
            NodeHealth::Failed { since } => clear_fail_if_due(state, id, since),
        }
    }

    /// Repeats recent FAIL messages over a new link. A majority may have agreed while the link was down, and gossip
    /// does not mention a failed node that owns no slots in this node's view. If this node missed a promotion, the
    /// replicas of the failed node would otherwise never learn about the FAIL.
    pub(crate) fn on_link_up(&self, state: &ClusterState, receiver: NodeId) -> Vec<Effect> {
        if !state.is_known_node(receiver) || !state.is_voter(state.id()) {
            return Vec::new();
        }
        let valid_since = state.now() - state.config().failure_report_validity();
        let is_recent = |node: &Node| node.failed_since().is_some_and(|at| at >= valid_since);
        let is_unnamed = |node: &&Node| is_recent(node) && state.slots.slot_count(node.id) == 0;
        let has_replicas = |id: NodeId| state.nodes().any(|node| node.master() == Some(id));
        let failed = state.nodes().filter(is_unnamed).map(|node| node.id);
        failed
            .filter(|id| *id != receiver && has_replicas(*id))
            .map(|id| Effect::Send { to: receiver, body: MessageBody::Fail(id) })
            .collect()
    }

    /// Handles the removal of the node `id`.
    pub(crate) fn on_node_removed(&mut self, id: NodeId) {
        let all = Arc::make_mut(&mut self.reports);
        all.remove(&id);
        for reports in all.values_mut() {
            reports.remove(&id);
        }
    }
}

fn recovery_effect(id: NodeId) -> Effect {
    Effect::RecordTimeline { node: id, entry: TimelineEntry::Recovery }
}

fn suspect(state: &mut ClusterState, id: NodeId, cause: SuspicionCause) -> Vec<Effect> {
    let (since, me) = (state.now(), state.id());
    state.known_node_mut(id).health = NodeHealth::Suspected { since, cause };
    let entry = TimelineEntry::Suspicion { reporter: me, cause: Some(cause) };
    vec![
        Effect::RecordTimeline { node: id, entry },
        Effect::log(FailureEvent::Suspected { id, cause }),
        Effect::Publish,
    ]
}

fn set_failed(state: &mut ClusterState, id: NodeId) -> Vec<Effect> {
    let since = state.now();
    let node = state.known_node_mut(id);
    (node.health, node.has_declared_fail) = (NodeHealth::Failed { since }, false);
    let agreed = Effect::RecordTimeline { node: id, entry: TimelineEntry::Agreement };
    [Some(agreed), rank_candidates(state, id), Some(Effect::ConfigChanged)].into_iter().flatten().collect()
}

/// Sends FAIL to a random sample of the nodes, and to all replicas of the failed node because a replica has to take
/// over.
fn announce_fail(state: &ClusterState, id: NodeId, random: &mut Randomness) -> Vec<Effect> {
    let voters = state.voter_count();
    let mut receivers = state.linked_nodes();
    receivers.retain(|receiver| {
        let is_replica = state.node(*receiver).is_some_and(|node| node.master() == Some(id));
        is_replica
            || voters <= FAIL_MESSAGES_PER_NODE
            || random.random_below(voters as u64) < FAIL_MESSAGES_PER_NODE as u64
    });
    receivers.into_iter().map(|to| Effect::Send { to, body: MessageBody::Fail(id) }).collect()
}

/// Clears the FAIL flag of a node that answered. A node without slots recovers at once. A master with slots recovers
/// after some time without a successor, so that its replicas can take over first.
fn clear_fail_if_due(state: &mut ClusterState, id: NodeId, failed_since: Instant) -> Vec<Effect> {
    let serves = state.slots.slot_count(id) > 0;
    let (now, undo_time) = (state.now(), state.config().fail_clear_delay());
    let node = state.known_node_mut(id);
    let why = if !node.is_master() || !serves {
        FailClearReason::NoSlots { is_replica: !node.is_master() }
    } else if now.since(failed_since) > undo_time {
        FailClearReason::NotReplaced
    } else {
        return Vec::new();
    };
    node.health = NodeHealth::Healthy;
    vec![recovery_effect(id), Effect::log(FailureEvent::FailEnded { id, reason: why }), Effect::ConfigChanged]
}

/// The longest gap between two steps that is not treated as a pause of this process.
pub(crate) fn max_undetected_pause(node_timeout: Duration) -> Duration {
    node_timeout * 3 / 4
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::test_state::{TestCluster, id};

    fn seeded_randomness() -> Randomness {
        Randomness::new(ChaCha8Rng::seed_from_u64(1))
    }

    /// A cluster of five masters and replica 5 of master 1. This node is master 0. Master 1 is silent.
    fn cluster() -> TestCluster {
        let mut cluster = TestCluster::new(5, &[(5, 1)]);
        let now = cluster.state.now();
        cluster.node(1).contact_times.ping_sent_at = Some(now);
        cluster
    }

    fn health_of(cluster: &TestCluster, index: u8) -> NodeHealth {
        cluster.state.node(id(index)).unwrap().health
    }

    #[test]
    fn node_is_suspected_after_the_node_timeout() {
        let (mut cluster, mut part) = (cluster(), FailureDetector::default());
        let timeout = cluster.state.config().node_timeout;
        cluster.advance_time(timeout - Duration::from_millis(1));
        assert_eq!(part.step(&mut cluster.state, &mut seeded_randomness()), []);
        cluster.advance_time(Duration::from_millis(1));
        let effects = part.step(&mut cluster.state, &mut seeded_randomness());
        let cause = SuspicionCause::Silence;
        assert!(effects.contains(&Effect::log(FailureEvent::Suspected { id: id(1), cause })), "{effects:?}");
        assert_eq!(effects.last(), Some(&Effect::BroadcastPong), "suspicions are gossiped at once");
        let effects = part.on_answer(&mut cluster.state, id(1));
        assert!(effects.contains(&Effect::log(FailureEvent::SuspicionEnded(id(1)))));
        assert_eq!(health_of(&cluster, 1), NodeHealth::Healthy);
    }

    #[test]
    fn majority_of_the_masters_turns_a_suspicion_into_fail() {
        let (mut cluster, mut part) = (cluster(), FailureDetector::default());
        part.on_report(&mut cluster.state, id(1), id(2), &mut seeded_randomness());
        cluster.advance_time(cluster.state.config().node_timeout);
        part.step(&mut cluster.state, &mut seeded_randomness());
        assert!(matches!(health_of(&cluster, 1), NodeHealth::Suspected { .. }), "two of five");
        let effects = part.on_report(&mut cluster.state, id(1), id(3), &mut seeded_randomness());
        assert!(effects.contains(&Effect::log(FailureEvent::FailAgreed(id(1)))));
        assert!(matches!(health_of(&cluster, 1), NodeHealth::Failed { .. }));
        let fail = Effect::Send { to: id(5), body: MessageBody::Fail(id(1)) };
        assert!(effects.contains(&fail), "its replica is told");
    }

    #[test]
    fn expired_and_withdrawn_reports_and_reports_of_removed_nodes_do_not_count() {
        let (mut cluster, mut part) = (cluster(), FailureDetector::default());
        part.on_report(&mut cluster.state, id(1), id(2), &mut seeded_randomness());
        cluster.advance_time(cluster.state.config().failure_report_validity() + Duration::from_millis(1));
        part.on_report(&mut cluster.state, id(1), id(3), &mut seeded_randomness());
        part.on_report(&mut cluster.state, id(1), id(4), &mut seeded_randomness());
        assert_eq!(part.count_reports(&cluster.state, id(1)), 2);
        assert_eq!(part.withdraw_report(&cluster.state, id(1), id(3)).len(), 1);
        assert_eq!(part.withdraw_report(&cluster.state, id(1), id(3)), []);
        part.on_node_removed(id(4));
        assert_eq!(part.count_reports(&cluster.state, id(1)), 0);
    }

    #[test]
    fn failed_master_recovers_only_without_slots_or_without_a_successor() {
        let (mut cluster, mut part) = (cluster(), FailureDetector::default());
        part.on_fail(&mut cluster.state, id(2), id(1));
        assert_eq!(part.on_answer(&mut cluster.state, id(1)), []);
        cluster.advance_time(cluster.state.config().fail_clear_delay() + Duration::from_millis(1));
        let ended = |why| Effect::log(FailureEvent::FailEnded { id: id(1), reason: why });
        let effects = part.on_answer(&mut cluster.state, id(1));
        assert!(effects.contains(&ended(FailClearReason::NotReplaced)));
        part.on_fail(&mut cluster.state, id(2), id(1));
        cluster.state.slots.release_all(id(1));
        let effects = part.on_answer(&mut cluster.state, id(1));
        assert!(effects.contains(&ended(FailClearReason::NoSlots { is_replica: false })));
    }

    #[test]
    fn self_declared_fail_is_recorded() {
        let (mut cluster, mut part) = (cluster(), FailureDetector::default());
        part.on_fail(&mut cluster.state, id(1), id(1));
        assert!(cluster.node(1).has_declared_fail);
        assert_eq!(
            part.on_fail(&mut cluster.state, id(2), id(0)),
            [],
            "a node does not believe its own FAIL"
        );
    }

    #[test]
    fn fail_is_repeated_over_a_new_link_if_gossip_does_not_mention_it() {
        let (mut cluster, mut part) = (cluster(), FailureDetector::default());
        part.on_fail(&mut cluster.state, id(2), id(1));
        assert_eq!(part.on_link_up(&cluster.state, id(5)), []);
        cluster.state.slots.release_all(id(1));
        let fail = Effect::Send { to: id(5), body: MessageBody::Fail(id(1)) };
        assert_eq!(part.on_link_up(&cluster.state, id(5)), [fail]);
    }
}
