//! Imported slots that the source of the import has given away.
//!
//! A source stops claiming a slot when it gives the slot away together with its last key: an operator sent SETSLOT NODE
//! to the source, but possibly not to the importing node. As in Valkey, the importing node then claims the slot. The
//! importing node first waits until it has heard from all nodes that are not FAIL, and from the source twice, because
//! the slot may have been given to another node whose claim is still in flight. (Valkey claims at once and takes the
//! slot from such a node.)

use std::collections::BTreeMap;

use clock::Instant;
use slot_routing::{NodeId, Slot, SlotSet};

use crate::commands::SlotChange;
use crate::effect::Effect;
use crate::event::ClusterEvent;
use crate::manual_failover::StreamState;
use crate::node::Node;
use crate::state::ClusterState;

/// Slots being imported that the source no longer claims, with the source and the time of its first header without the
/// slot.
#[derive(Debug, Default)]
pub(crate) struct GivenAwaySlots(BTreeMap<Slot, (NodeId, Instant)>);

impl GivenAwaySlots {
    /// Handles the claim of the master `source`: takes the slots that this node imports from `source` and that `source`
    /// no longer claims, once no other node can own them. Slots with a SETSLOT that `is_pending` are skipped.
    pub(crate) fn on_claim(
        &mut self,
        state: &mut ClusterState,
        source: NodeId,
        claimed_slots: &SlotSet,
        stream: StreamState,
        is_pending: impl Fn(Slot) -> bool,
    ) -> Vec<Effect> {
        let now = state.now();
        // The slot has no owner if the source was replaced by a replica that knew that the source had given the slot
        // away.
        let is_given_away = |slot: Slot| {
            state.slot_owner(slot).is_none_or(|owner| owner == source) && !claimed_slots.contains(slot)
        };
        self.0.retain(|slot, (from, _)| *from != source || is_given_away(*slot));
        let imported = state.marks.importing().iter().filter(|(_, from)| **from == source);
        let given_away: Vec<Slot> =
            imported.map(|(slot, _)| *slot).filter(|slot| is_given_away(*slot)).collect();
        if given_away.is_empty() || !state.myself().is_master() || stream == StreamState::Frozen {
            return Vec::new();
        }
        let grace = state.config().ping_interval(state.nodes.len() - 1);
        let mut certain = Vec::new();
        for slot in given_away {
            let entry = self.0.entry(slot).or_insert((source, now));
            if entry.0 != source {
                *entry = (source, now);
            }
            let since = entry.1;
            if now >= since + grace && !is_pending(slot) && has_heard_from_all_since(state, since) {
                certain.push(slot);
            }
        }
        self.claim_slots(state, &certain, source)
    }

    fn claim_slots(&mut self, state: &mut ClusterState, slots: &[Slot], source: NodeId) -> Vec<Effect> {
        let mut effects = Vec::new();
        for &slot in slots {
            self.0.remove(&slot);
            state.marks.unmark(slot);
            state.slots.assign(slot, state.id());
            effects.push(Effect::Log(ClusterEvent::GivenAwaySlotClaimed { slot, source }));
            effects.push(Effect::ReplicateSlotChange { slot, change: SlotChange::Stable });
        }
        if !effects.is_empty() {
            effects.extend([Effect::ClaimImportedSlots, Effect::Publish]);
        }
        effects
    }
}

/// Returns whether this node has received a message after `since` from every other node that is not FAIL.
fn has_heard_from_all_since(state: &ClusterState, since: Instant) -> bool {
    let has_been_heard = |node: &Node| node.contact_times.last_message_at.is_some_and(|heard| heard > since);
    state.others().filter(|node| node.handshake.is_none() && !node.has_failed()).all(has_been_heard)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::test_state::{TestCluster, id};

    const OPEN_STREAM: StreamState = StreamState::Open;

    fn imported_slot() -> Slot {
        Slot::new(16_383).unwrap()
    }

    /// A cluster in which this node imports the last slot from master 1, which has stopped claiming the slot.
    fn cluster() -> (TestCluster, SlotSet) {
        let mut cluster = TestCluster::new(2, &[(2, 1)]);
        cluster.state.marks.mark_importing(imported_slot(), id(1));
        let mut claimed = cluster.state.slots.slots_of(id(1));
        claimed.remove(imported_slot());
        (cluster, claimed)
    }

    fn receive_from_all(cluster: &mut TestCluster) {
        cluster.advance_time(Duration::from_secs(10));
        let now = Some(cluster.state.now());
        [1, 2].into_iter().for_each(|index| cluster.node(index).contact_times.last_message_at = now);
    }

    #[test]
    fn slot_is_claimed_once_all_nodes_have_been_heard() {
        let ((mut cluster, claimed), mut part) = (cluster(), GivenAwaySlots::default());
        assert_eq!(part.on_claim(&mut cluster.state, id(1), &claimed, OPEN_STREAM, |_| false), []);
        cluster.advance_time(Duration::from_secs(10));
        assert_eq!(part.on_claim(&mut cluster.state, id(1), &claimed, OPEN_STREAM, |_| false), []);
        receive_from_all(&mut cluster);
        assert_eq!(
            part.on_claim(&mut cluster.state, id(1), &claimed, OPEN_STREAM, |_| true),
            [],
            "a SETSLOT is pending"
        );
        let effects = part.on_claim(&mut cluster.state, id(1), &claimed, OPEN_STREAM, |_| false);
        assert!(effects.contains(&Effect::ClaimImportedSlots), "{effects:?}");
        assert_eq!(cluster.state.slot_owner(imported_slot()), Some(id(0)));
        assert!(cluster.state.marks.is_empty());
    }

    #[test]
    fn slot_that_the_source_claims_again_is_not_taken() {
        let ((mut cluster, claimed), mut part) = (cluster(), GivenAwaySlots::default());
        part.on_claim(&mut cluster.state, id(1), &claimed, OPEN_STREAM, |_| false);
        let all = cluster.state.slots.slots_of(id(1));
        part.on_claim(&mut cluster.state, id(1), &all, OPEN_STREAM, |_| false);
        receive_from_all(&mut cluster);
        assert_eq!(
            part.on_claim(&mut cluster.state, id(1), &claimed, OPEN_STREAM, |_| false),
            [],
            "the wait starts again"
        );
    }
}
