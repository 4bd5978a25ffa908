//! The ranking of the replicas that could take over from a master, for the failover timeline.

use std::cmp::Reverse;

use slot_routing::{NodeId, ReplOffset};

use crate::effect::Effect;
use crate::node::{Node, has_data};
use crate::state::ClusterState;
use crate::timeline::{IneligibilityReason, RankedReplica, TimelineEntry};

/// Ranks the known replicas of `master`. Returns the effect that records the ranking in the timeline.
pub(crate) fn rank_candidates(state: &ClusterState, master: NodeId) -> Option<Effect> {
    let declared_fail = state.node(master)?.has_declared_fail;
    let replicas = state.nodes().filter(|node| node.master() == Some(master));
    let mut candidates: Vec<RankedReplica> = replicas
        .map(|node| {
            let offset = if node.id == state.id() { state.offset() } else { node.offset };
            let ineligibility = find_ineligibility(node, offset, declared_fail);
            RankedReplica { node: node.id, offset: offset.0, rank: None, ineligibility }
        })
        .collect();
    candidates.sort_by_key(|one| (one.ineligibility.is_some(), Reverse(one.offset), one.node));
    for (rank, candidate) in (0..).zip(candidates.iter_mut()) {
        candidate.rank = candidate.ineligibility.is_none().then_some(rank);
    }
    Some(Effect::RecordTimeline { node: master, entry: TimelineEntry::Ranking(candidates) })
}

fn find_ineligibility(
    node: &Node,
    offset: ReplOffset,
    has_declared_fail: bool,
) -> Option<IneligibilityReason> {
    if !node.is_healthy() {
        Some(IneligibilityReason::Down)
    } else if node.disables_failover {
        Some(IneligibilityReason::NoFailover)
    } else if has_declared_fail && !has_data(offset) {
        Some(IneligibilityReason::Empty)
    } else {
        None
    }
}
