//! Decides whether this node serves clients (`cluster_state`).
//!
//! A node serves while every slot is owned by a master that is not FAIL (unless full coverage is not required) and a
//! majority of the masters with slots is reachable. A master also waits before it serves: two seconds after its start,
//! and the rejoin delay after being in a minority or being paused, so that it first learns whether it was replaced.
//! Limits and delays are those of Redis.
//!
//! A master that was paused can serve earlier: it queries the other masters over new links, which carry no old packets,
//! and serves as soon as a majority, itself included, confirms it. A master confirms by answering with no epoch above
//! those known at the end of the pause (a successor would have been elected in a higher epoch, by a majority) and
//! without reporting the asking node as failing (it might be about to vote). Redoubt nodes report this by naming the
//! receiver in the gossip section; the answer of a Redis node counts as a confirmation.
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

use crate::effect::Effect;
use crate::event::ClusterEvent;
use crate::node::Node;
use crate::state::ClusterState;
use crate::wire::{GossipSection, Header, NodeFlags};

/// How long a master waits after its start (Redis: `CLUSTER_WRITABLE_DELAY`).
const START_DELAY: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ServiceState {
    /// The earliest time at which a master may start to serve.
    serve_not_before: Instant,
    /// Whether `serve_not_before` is the only obstacle.
    is_waiting: bool,
    coverage: SlotCoverage,
    replacement_check: Option<ReplacementCheck>,
}

/// Whether the slots of FAIL masters count as covered.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct SlotCoverage {
    /// Whether a master with slots is FAIL and no replica can take over.
    has_uncovered_slots: bool,
    /// When the coverage of each FAIL master with an eligible replica expires, in ascending order.
    coverage_deadlines: Vec<Instant>,
}

/// The check whether another node replaced this master without its knowledge. It queries the other masters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ReplacementCheck {
    /// The highest epoch known when the check started.
    known_epoch: Epoch,
    /// When this node votes even if the check is not complete.
    vote_without_confirmation_at: Instant,
    /// Whether this node was paused, in which case it serves as soon as a majority confirms it.
    serve_when_confirmed: bool,
}

impl ServiceState {
    /// Starts the delay before this node serves, and the measurement of the other nodes' silence.
    pub(crate) fn on_start(&mut self, state: &mut ClusterState) {
        let now = state.now();
        self.serve_not_before = now + START_DELAY;
        // Measure silence from the start, even for nodes without an address, which cannot be pinged.
        for node in state.others_mut() {
            node.contact_times.ping_sent_at = Some(now);
        }
        if state.is_voter(state.id()) {
            self.start_replacement_check(state, START_DELAY, false);
        }
    }

    /// Serves without delay, because a majority has just elected this node.
    pub(crate) fn on_elected(&mut self, now: Instant) {
        self.serve_not_before = now;
    }

    /// Stops serving after a pause of the process, during which another node may have replaced this one. All nodes
    /// count as unreachable until a message from them arrives, and a master queries all other voters over new links.
    pub(crate) fn on_process_paused(&mut self, state: &mut ClusterState) -> Vec<Effect> {
        for node in state.nodes.values_mut() {
            node.contact_times.last_message_at = None;
            (node.contact_times.confirms_serving, node.contact_times.confirms_voting) = (false, false);
        }
        self.serve_not_before = state.now() + state.config().rejoin_delay();
        if !state.myself().is_master() {
            return Vec::new();
        }
        state.set_serving(false);
        self.start_replacement_check(state, Duration::ZERO, true);
        let voters = state.slots.owners().map(|(id, _)| id).filter(|id| *id != state.id());
        [Effect::Publish].into_iter().chain(voters.map(Effect::Reconnect)).collect()
    }

    fn start_replacement_check(
        &mut self,
        state: &ClusterState,
        min_duration: Duration,
        serve_when_confirmed: bool,
    ) {
        let until = state.now() + state.config().fail_clear_delay().max(min_duration);
        self.replacement_check = Some(ReplacementCheck {
            known_epoch: state.current_epoch(),
            vote_without_confirmation_at: until,
            serve_when_confirmed,
        });
    }

    /// Whether another node may have replaced this master. Its vote may then belong to its successor.
    pub(crate) fn may_have_been_replaced(&self, state: &ClusterState) -> bool {
        self.replacement_check.is_some_and(|check| state.now() < check.vote_without_confirmation_at)
            && state.voter_count() > 1
    }

    #[cfg(test)]
    pub(crate) fn end_replacement_check(&mut self) {
        self.replacement_check = None;
    }

    /// Evaluates the PONG to a PING that was sent over a link established after the pause or start.
    pub(crate) fn on_answer(&self, state: &mut ClusterState, header: &Header, section: &GossipSection) {
        let Some(ReplacementCheck { known_epoch: known, .. }) = self.replacement_check else { return };
        let failing = |flags: NodeFlags| flags.contains(NodeFlags::PFAIL) || flags.contains(NodeFlags::FAIL);
        let told = section.entries.iter().find(|entry| entry.id == state.id());
        let doubted = told.map(|entry| failing(entry.flags));
        let is_old = header.current_epoch <= known;
        if let Some(node) = state.nodes.get_mut(&header.sender) {
            node.contact_times.confirms_serving = is_old && doubted != Some(true);
            node.contact_times.confirms_voting = doubted.map_or(is_old, |doubted| !doubted);
        }
    }

    /// Updates whether this node serves. It never serves if it has declared itself FAIL (`is_self_failed`).
    pub(crate) fn update(&mut self, state: &mut ClusterState, is_self_failed: bool) -> Vec<Effect> {
        let (now, majority) = (state.now(), has_majority(state));
        if is_in_minority(state) {
            self.serve_not_before = self.serve_not_before.max(now + state.config().rejoin_delay());
        }
        self.finish_replacement_check(state, majority);
        let may = majority && self.are_slots_covered(state);
        let early = state.myself().is_master() && now < self.serve_not_before;
        self.is_waiting = may && early && !state.is_serving();
        let serving = may && !self.is_waiting && !is_self_failed;
        if serving == state.is_serving() {
            return Vec::new();
        }
        state.set_serving(serving);
        vec![Effect::Publish, Effect::Log(ClusterEvent::StateChanged { is_serving: serving })]
    }

    fn finish_replacement_check(&mut self, state: &ClusterState, has_majority: bool) {
        let Some(mut check) = self.replacement_check else { return };
        let confirmed = state.nodes.confirming_voter_count() + own_vote_count(state) >= state.quorum();
        let trusts = |id: NodeId| {
            id == state.id() || state.node(id).is_some_and(|node| node.contact_times.confirms_voting)
        };
        let trusted = state.slots.owners().filter(|(id, _)| trusts(*id)).count() >= state.quorum();
        if has_majority && trusted {
            check.vote_without_confirmation_at = check.vote_without_confirmation_at.min(state.now());
        }
        if has_majority && confirmed && check.serve_when_confirmed {
            self.serve_not_before = state.now();
        }
        if has_majority && state.now() >= self.serve_not_before {
            check.serve_when_confirmed = false;
        }
        let over = state.now() >= check.vote_without_confirmation_at && !check.serve_when_confirmed;
        self.replacement_check = (!over).then_some(check);
    }

    fn are_slots_covered(&self, state: &ClusterState) -> bool {
        if !state.config().require_full_coverage {
            return true;
        }
        let late = self.coverage.coverage_deadlines.first().is_some_and(|at| *at <= state.now());
        state.slots.assigned_count() == SLOT_COUNT && !self.coverage.has_uncovered_slots && !late
    }

    /// Recomputes the coverage after the failed masters or the eligible replicas have changed.
    pub(crate) fn update_coverage(&mut self, state: &ClusterState) {
        let nodes = &state.nodes;
        let (with, without): (Vec<&Node>, Vec<&Node>) =
            nodes.failed_voters().partition(|failed| nodes.has_eligible_replica(failed.id));
        self.coverage.has_uncovered_slots = !without.is_empty();
        let since = with.into_iter().filter_map(Node::failed_since);
        self.coverage.coverage_deadlines = since.map(|since| since + state.config().node_timeout).collect();
        self.coverage.coverage_deadlines.sort_unstable();
    }

    pub(crate) fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let begin = self.is_waiting.then_some(self.serve_not_before);
        let coverage = self.coverage.coverage_deadlines.iter().copied().find(|at| *at > now);
        begin.into_iter().chain(coverage).min()
    }
}

/// Whether fewer than a majority of the masters with slots are reachable. Without slot owners there is no minority, so a
/// node that gets the first slots serves without a delay.
pub(crate) fn is_in_minority(state: &ClusterState) -> bool {
    !has_majority(state) && state.voter_count() > 0
}

fn has_majority(state: &ClusterState) -> bool {
    state.nodes.reachable_voter_count() + own_vote_count(state) >= state.quorum()
}

fn own_vote_count(state: &ClusterState) -> usize {
    usize::from(state.slots.slot_count(state.id()) > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_state::{TestCluster, id};

    const LOG_STARTED_SERVING: Effect = Effect::Log(ClusterEvent::StateChanged { is_serving: true });
    const LOG_STOPPED_SERVING: Effect = Effect::Log(ClusterEvent::StateChanged { is_serving: false });

    /// A cluster of three masters that have just started, and replica 3 of master 1.
    fn cluster() -> (TestCluster, ServiceState) {
        let (mut cluster, mut part) = (TestCluster::new(3, &[(3, 1)]), ServiceState::default());
        part.on_start(&mut cluster.state);
        cluster.state.update_indexes();
        (cluster, part)
    }

    fn update_service_state(service_state: &mut ServiceState, cluster: &mut TestCluster) -> Vec<Effect> {
        cluster.state.update_indexes();
        service_state.update_coverage(&cluster.state);
        service_state.update(&mut cluster.state, false)
    }

    #[test]
    fn master_serves_two_seconds_after_its_start() {
        let (mut cluster, mut part) = cluster();
        assert_eq!(update_service_state(&mut part, &mut cluster), []);
        assert_eq!(part.next_deadline(cluster.state.now()), Some(cluster.state.now() + START_DELAY));
        cluster.advance_time(START_DELAY);
        assert_eq!(update_service_state(&mut part, &mut cluster).last(), Some(&LOG_STARTED_SERVING));
    }

    #[test]
    fn failed_master_is_covered_for_the_node_timeout_if_a_replica_can_take_over() {
        let (mut cluster, mut part) = cluster();
        cluster.advance_time(START_DELAY);
        update_service_state(&mut part, &mut cluster);
        cluster.mark_failed(1);
        assert_eq!(update_service_state(&mut part, &mut cluster), []);
        cluster.advance_time(cluster.state.config().node_timeout);
        assert_eq!(update_service_state(&mut part, &mut cluster).last(), Some(&LOG_STOPPED_SERVING));
        cluster.state.config_mut().require_full_coverage = false;
        assert_eq!(update_service_state(&mut part, &mut cluster).last(), Some(&LOG_STARTED_SERVING));
        cluster.mark_failed(2);
        assert_eq!(
            update_service_state(&mut part, &mut cluster).last(),
            Some(&LOG_STOPPED_SERVING),
            "a minority"
        );
        assert!(is_in_minority(&cluster.state));
    }

    #[test]
    fn master_in_a_minority_waits_before_it_serves_again() {
        let (mut cluster, mut part) = cluster();
        cluster.state.config_mut().require_full_coverage = false;
        [1, 2].into_iter().for_each(|index| cluster.mark_failed(index));
        cluster.advance_time(START_DELAY);
        assert_eq!(update_service_state(&mut part, &mut cluster), []);
        cluster.node(1).health = crate::NodeHealth::Healthy;
        assert_eq!(update_service_state(&mut part, &mut cluster), []);
        cluster.advance_time(cluster.state.config().rejoin_delay());
        assert_eq!(update_service_state(&mut part, &mut cluster).last(), Some(&LOG_STARTED_SERVING));
    }

    #[test]
    fn paused_master_serves_and_votes_once_a_majority_confirms_it() {
        let (mut cluster, mut part) = cluster();
        cluster.advance_time(START_DELAY);
        update_service_state(&mut part, &mut cluster);
        let effects = part.on_process_paused(&mut cluster.state);
        assert_eq!(effects, [Effect::Publish, Effect::Reconnect(id(1)), Effect::Reconnect(id(2))]);
        assert!(!cluster.state.is_serving() && part.may_have_been_replaced(&cluster.state));
        let now = Some(cluster.state.now());
        cluster.node(1).contact_times.last_message_at = now;
        let section = GossipSection { entries: Vec::new(), extensions: Vec::new() };
        let newer = Header { current_epoch: Epoch(9), ..cluster.header_of(1) };
        part.on_answer(&mut cluster.state, &newer, &section);
        assert_eq!(update_service_state(&mut part, &mut cluster), [], "there may be a successor");
        let header = cluster.header_of(1);
        part.on_answer(&mut cluster.state, &header, &section);
        assert_eq!(update_service_state(&mut part, &mut cluster).last(), Some(&LOG_STARTED_SERVING));
        assert!(!part.may_have_been_replaced(&cluster.state));
    }

    #[test]
    fn master_that_declared_itself_fail_does_not_serve() {
        let (mut cluster, mut part) = cluster();
        cluster.advance_time(START_DELAY);
        cluster.state.update_indexes();
        assert_eq!(part.update(&mut cluster.state, true), []);
    }
}
