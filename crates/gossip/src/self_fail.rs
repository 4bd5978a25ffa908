//! A master that restarts without its data, or with less data than its replicas have, lets a replica take over.
//!
//! A supervisor may restart a dead process before the other nodes notice. The data on disk may be old or missing, but
//! for the other nodes the process is still the master, and its replicas would resync to the old data. A starting
//! master therefore compares offsets with its replicas before it serves or accepts replicas. If a replica is ahead, the
//! master declares itself FAIL: it sends the bus's FAIL message about itself to all nodes. Redis nodes handle this
//! message like any other FAIL: the replicas start an election and the masters vote. This node votes as well. It
//! follows the elected replica once that replica claims the slots.
//!
//! | data found on disk | the comparison ends when |
//! | --- | --- |
//! | none | this node has heard from all known replicas and none is ahead, or `empty-master-timeout` has passed |
//! | up to some offset | the same, but replicas that are silent for the start delay of a master are ignored |
//!
//! A replica with `cluster-replica-no-failover` cannot take over. Its larger offset is no reason to step down, and the
//! master waits for this replica only for the start delay.
//!
//! A node that restarts with neither data nor `nodes.conf` is an unknown node at the address of the former master. It
//! refuses to synchronize replicas that have data until it knows them as its replicas.
//!
//! Invariant: a master that has declared itself FAIL does not serve before the timeout. The timeout restarts while no
//! majority is reachable, because no replica can be elected then.

use std::collections::BTreeMap;
use std::time::Duration;

use clock::Instant;
use slot_routing::{NodeId, ReplOffset};

use crate::contract::{ClusterAction, ReplicaAdmission};
use crate::effect::Effect;
use crate::event::FailureEvent;
use crate::node::{Node, has_data};
use crate::state::ClusterState;
use crate::wire::{Header, MessageBody};

/// How long a master that has data waits for replicas that may be gone. It equals the start delay, during which a
/// master does not serve anyway.
const REPLICA_WAIT_TIMEOUT: Duration = Duration::from_secs(2);

/// The check whether this master has started with less data than its replicas.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct SelfFailCheck {
    phase: SelfFailPhase,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
enum SelfFailPhase {
    /// No comparison is needed, or the comparison is complete.
    #[default]
    Inactive,
    /// The offsets of the replicas are being compared.
    Comparing(OffsetComparison),
    /// A replica is ahead, and this node has declared itself FAIL.
    Declared {
        comparison: OffsetComparison,
        /// The nodes to which FAIL was sent, each with the time at which to send it again.
        fail_receivers: BTreeMap<NodeId, Instant>,
    },
    /// The node started without data and without replicas.
    NoReplicas,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OffsetComparison {
    /// Replication offset of the data that was loaded from disk.
    loaded_offset: ReplOffset,
    deadline: Instant,
    /// When to stop waiting for replicas that cannot be elected.
    ignore_ineligible_from: Instant,
}

impl SelfFailCheck {
    /// Returns whether this master is still comparing offsets or has declared itself FAIL. Meanwhile it serves neither
    /// clients nor replicas.
    pub(crate) fn blocks_serving(&self) -> bool {
        self.comparison().is_some()
    }

    /// Starts the comparison. `loaded_offset` is the offset of the data loaded from disk.
    pub(crate) fn start(&mut self, state: &ClusterState, loaded_offset: ReplOffset) -> Vec<Effect> {
        if state.config().empty_master_timeout.is_zero() {
            return Vec::new();
        }
        if !state.is_voter(state.id()) || replicas(state).next().is_none() {
            return self.restrict_replicas_if_empty(state, loaded_offset);
        }
        self.phase = SelfFailPhase::Comparing(OffsetComparison {
            loaded_offset,
            deadline: state.now() + comparison_timeout(state, loaded_offset),
            ignore_ineligible_from: state.now() + REPLICA_WAIT_TIMEOUT,
        });
        vec![
            Effect::DriverAction(ClusterAction::RestrictReplicas(ReplicaAdmission::None)),
            Effect::log(FailureEvent::ComparingOffsets { loaded_offset: loaded_offset.0 }),
        ]
    }

    /// Restricts who may replicate from this node if it has neither data nor replicas. Nodes with data cannot be
    /// replicas of this node then; they may be replicas of a former node at this address.
    fn restrict_replicas_if_empty(&mut self, state: &ClusterState, loaded_offset: ReplOffset) -> Vec<Effect> {
        if has_data(loaded_offset) || replicas(state).next().is_some() {
            return Vec::new();
        }
        self.phase = SelfFailPhase::NoReplicas;
        vec![Effect::DriverAction(ClusterAction::RestrictReplicas(ReplicaAdmission::OnlyEmpty))]
    }

    /// Compares offsets. Declares FAIL if a replica is ahead, ends the comparison, or continues waiting.
    pub(crate) fn step(&mut self, state: &ClusterState) -> Vec<Effect> {
        match &self.phase {
            SelfFailPhase::Inactive => Vec::new(),
            SelfFailPhase::NoReplicas => {
                let is_empty_master = state.myself().is_master() && !has_data(state.offset());
                let stays = is_empty_master && replicas(state).next().is_none();
                if stays { Vec::new() } else { vec![self.end()] }
            }
            SelfFailPhase::Comparing(comparison) => self.compare(state, *comparison, false),
            SelfFailPhase::Declared { comparison, .. } => self.compare(state, *comparison, true),
        }
    }

    fn compare(
        &mut self,
        state: &ClusterState,
        comparison: OffsetComparison,
        has_declared_fail: bool,
    ) -> Vec<Effect> {
        let OffsetComparison { loaded_offset: found, deadline: until, ignore_ineligible_from } = comparison;
        if !state.is_voter(state.id()) {
            return vec![self.end()];
        }
        let heard = |node: &Node| node.contact_times.last_message_at.is_some();
        let is_ahead = |node: &&Node| heard(node) && !node.disables_failover && node.offset > found;
        let best = replicas(state).filter(is_ahead).max_by_key(|node| node.offset);
        let ignore_ineligible = state.now() >= ignore_ineligible_from;
        let compared = best.is_none()
            && replicas(state).all(|node| heard(node) || node.disables_failover && ignore_ineligible);
        let is_late = state.now() >= until;
        let mut effects = Vec::new();
        if compared || is_late {
            if is_late && (has_declared_fail || !has_data(found)) {
                effects.push(Effect::log(FailureEvent::NoReplicaTookOver));
            }
            effects.push(self.end());
            effects.extend(self.restrict_replicas_if_empty(state, found));
            return effects;
        }
        if let (Some(best), false) = (best, has_declared_fail) {
            effects.push(Effect::log(FailureEvent::SteppedDown { replica: best.id, offset: best.offset.0 }));
            let until = state.now() + state.config().empty_master_timeout;
            let comparison = OffsetComparison { deadline: until, ..comparison };
            self.phase = SelfFailPhase::Declared { comparison, fail_receivers: BTreeMap::new() };
        }
        effects.extend(self.announce_fail(state));
        effects
    }

    /// Sends FAIL to all reachable nodes again. This node still answers PINGs, so Redis nodes clear the FAIL flag after
    /// a while, but must see the flag when a candidate requests their vote.
    fn announce_fail(&mut self, state: &ClusterState) -> Vec<Effect> {
        let SelfFailPhase::Declared { fail_receivers: told, .. } = &mut self.phase else { return Vec::new() };
        let (now, again) = (state.now(), state.now() + state.config().node_timeout / 10);
        let linked = state.linked_nodes();
        told.retain(|id, _| linked.contains(id));
        let due: Vec<NodeId> =
            linked.into_iter().filter(|id| told.get(id).is_none_or(|at| now >= *at)).collect();
        told.extend(due.iter().map(|id| (*id, again)));
        let body = MessageBody::Fail(state.id());
        due.into_iter().map(|to| Effect::Send { to, body: body.clone() }).collect()
    }

    fn end(&mut self) -> Effect {
        self.phase = SelfFailPhase::Inactive;
        Effect::DriverAction(ClusterAction::RestrictReplicas(ReplicaAdmission::All))
    }

    /// Restarts the timeout while no majority is reachable, because no replica can be elected.
    pub(crate) fn postpone_timeout(&mut self, state: &ClusterState) {
        match &mut self.phase {
            SelfFailPhase::Inactive | SelfFailPhase::NoReplicas => {}
            SelfFailPhase::Comparing(comparison) => {
                comparison.deadline = state.now() + comparison_timeout(state, comparison.loaded_offset);
            }
            SelfFailPhase::Declared { comparison, .. } => {
                comparison.deadline = state.now() + state.config().empty_master_timeout;
            }
        }
    }

    /// Whether the candidate is a replica of `me` that should replace this master.
    pub(crate) fn should_yield_to(&self, candidate: &Header, my_id: NodeId) -> bool {
        let SelfFailPhase::Declared { comparison, .. } = &self.phase else { return false };
        candidate.replica_of == Some(my_id) && candidate.offset > comparison.loaded_offset
    }

    pub(crate) fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let OffsetComparison { deadline: until, ignore_ineligible_from, .. } = self.comparison()?;
        let ignore = Some(*ignore_ineligible_from).filter(|at| *at > now);
        let again = match &self.phase {
            SelfFailPhase::Declared { fail_receivers: told, .. } => told.values().copied().min(),
            SelfFailPhase::Inactive | SelfFailPhase::NoReplicas | SelfFailPhase::Comparing(_) => None,
        };
        [Some(*until), ignore, again].into_iter().flatten().min()
    }

    fn comparison(&self) -> Option<&OffsetComparison> {
        match &self.phase {
            SelfFailPhase::Inactive | SelfFailPhase::NoReplicas => None,
            SelfFailPhase::Comparing(comparison) | SelfFailPhase::Declared { comparison, .. } => {
                Some(comparison)
            }
        }
    }
}

fn comparison_timeout(state: &ClusterState, loaded_offset: ReplOffset) -> Duration {
    let longest = state.config().empty_master_timeout;
    if has_data(loaded_offset) { longest.min(REPLICA_WAIT_TIMEOUT) } else { longest }
}

/// Returns the replicas of this node and the replicas of those replicas. The latter replicate from a replica that was
/// the master for a while, and do not know yet that it has been demoted.
fn replicas(state: &ClusterState) -> impl Iterator<Item = &Node> {
    let follows_me = |node: &Node| node.master() == Some(state.id());
    let follows_one = move |node: &Node| {
        let master = node.master().and_then(|master| state.node(master));
        master.is_some_and(follows_me)
    };
    state.others().filter(move |node| follows_me(node) || follows_one(node))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_state::{TestCluster, id};

    const ALLOW_ALL_REPLICAS: Effect =
        Effect::DriverAction(ClusterAction::RestrictReplicas(ReplicaAdmission::All));

    /// A cluster of three masters. This node is master 0 and has replica 3.
    fn cluster() -> TestCluster {
        TestCluster::new(3, &[(3, 0)])
    }

    fn count_sent_messages(effects: &[Effect]) -> usize {
        effects.iter().filter(|effect| matches!(effect, Effect::Send { .. })).count()
    }

    #[test]
    fn replica_that_is_ahead_makes_the_master_declare_itself_fail() {
        let mut cluster = cluster();
        cluster.node(3).offset = ReplOffset(8);
        let mut part = SelfFailCheck::default();
        assert_eq!(part.start(&cluster.state, ReplOffset(7)).len(), 2);
        assert!(part.blocks_serving());
        let effects = part.step(&cluster.state);
        assert_eq!(effects[0], Effect::log(FailureEvent::SteppedDown { replica: id(3), offset: 8 }));
        assert_eq!(count_sent_messages(&effects), 3, "all other nodes are told");
        assert_eq!(part.step(&cluster.state), [], "not again before a tenth of the node timeout");
        cluster.advance_time(cluster.state.config().node_timeout / 10);
        assert_eq!(count_sent_messages(&part.step(&cluster.state)), 3);
        let ahead = Header { offset: ReplOffset(8), ..cluster.header_of(3) };
        assert!(part.should_yield_to(&ahead, id(0)));
        let behind = Header { offset: ReplOffset(7), ..ahead };
        assert!(!part.should_yield_to(&behind, id(0)));
    }

    #[test]
    fn comparison_ends_when_no_replica_is_ahead() {
        let mut cluster = cluster();
        cluster.node(3).offset = ReplOffset(7);
        let mut part = SelfFailCheck::default();
        part.start(&cluster.state, ReplOffset(7));
        assert_eq!(part.step(&cluster.state), [ALLOW_ALL_REPLICAS]);
        assert!(!part.blocks_serving());
        assert_eq!(part.next_deadline(cluster.state.now()), None);
    }

    #[test]
    fn silent_replica_delays_a_master_with_data_only_for_the_start_delay() {
        let mut cluster = cluster();
        cluster.node(3).contact_times.last_message_at = None;
        let mut part = SelfFailCheck::default();
        part.start(&cluster.state, ReplOffset(7));
        assert_eq!(part.step(&cluster.state), []);
        assert_eq!(part.next_deadline(cluster.state.now()), Some(cluster.state.now() + REPLICA_WAIT_TIMEOUT));
        cluster.advance_time(REPLICA_WAIT_TIMEOUT);
        assert_eq!(part.step(&cluster.state), [ALLOW_ALL_REPLICAS]);
    }

    #[test]
    fn timeout_restarts_while_no_majority_is_reachable() {
        let mut cluster = cluster();
        cluster.node(3).contact_times.last_message_at = None;
        let mut part = SelfFailCheck::default();
        part.start(&cluster.state, ReplOffset(0));
        let longest = cluster.state.config().empty_master_timeout;
        cluster.advance_time(longest - REPLICA_WAIT_TIMEOUT);
        part.postpone_timeout(&cluster.state);
        cluster.advance_time(REPLICA_WAIT_TIMEOUT);
        assert_eq!(part.step(&cluster.state), []);
        cluster.advance_time(longest);
        assert_eq!(part.step(&cluster.state)[0], Effect::log(FailureEvent::NoReplicaTookOver));
    }

    #[test]
    fn empty_master_without_replicas_accepts_only_empty_nodes() {
        let mut cluster = TestCluster::new(3, &[]);
        let mut part = SelfFailCheck::default();
        let only_empty = Effect::DriverAction(ClusterAction::RestrictReplicas(ReplicaAdmission::OnlyEmpty));
        assert_eq!(part.start(&cluster.state, ReplOffset(0)), [only_empty]);
        assert_eq!(part.step(&cluster.state), []);
        cluster.state.set_offset(ReplOffset(1));
        assert_eq!(part.step(&cluster.state), [ALLOW_ALL_REPLICAS]);
    }
}
