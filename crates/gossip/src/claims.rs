//! Slot ownership: the claim with the highest configuration epoch wins.
//!
//! Every master claims its slots in the header of every message, under its configuration epoch. A claim takes a slot
//! from an owner with a lower epoch. A claim with a lower epoch than the owner's is answered with UPDATE, so that a
//! node that was away learns about the owner.
//!
//! This requires distinct epochs, so of two masters with the same epoch, the one with the smaller id takes a new one.
//! Two masters of the same shard claim the same slots, and the loser replaces its dataset with the winner's; there the
//! master with the larger offset takes the new epoch, and the id breaks ties. (Redis and Valkey compare only ids.)
//! Offsets of diverged histories do not tell which node has more writes of the shard, so this reduces data loss but
//! does not prevent it.
//!
//! A header whose `currentEpoch` is below the claim epoch known for its sender is outdated and is ignored. A replica's
//! header carries the epoch and slots of its master; it is not a claim of the replica.
//!
//! An owner that stops claiming a slot has given it away, possibly to a node with a lower epoch. The next node that
//! claims the slot gets it whatever its epoch, and no UPDATE is sent in favour of the old owner.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use slot_routing::{Epoch, NodeId, Slot, SlotSet};

use crate::commands::SlotChange;
use crate::contract::ClusterAction;
use crate::effect::Effect;
use crate::event::ClusterEvent;
use crate::manual_failover::StreamState;
use crate::node::Node;
use crate::state::ClusterState;
use crate::timeline::TimelineEntry;
use crate::wire::{ConfigUpdate, Header};

/// Returns a promotion that a replica's header reveals: its master is a node that this node still considers a replica.
/// The header carries the promoted node's claim, so it is handled like an UPDATE.
///
/// The promoted node may be unable to tell this node itself, because the network separates the two or because the
/// promoted node has died. No other node would send an UPDATE either, because this node has released the slots of the
/// demoted master and sends no outdated claim. A voter that misses a promotion considers the promoted node a replica
/// without slots and does not report its failure; if a majority of the voters does that, nobody can replace the
/// promoted node. (Redis takes claims only from the master itself and from UPDATE.)
///
/// A header from before a later promotion is ignored, because its epoch is not the highest.
pub(crate) fn find_promotion(state: &ClusterState, header: &Header) -> Option<ConfigUpdate> {
    let epoch = header.config_epoch;
    let replica = state.node(header.sender)?;
    let promoted = state.node(replica.master()?)?;
    let replaced = state.node(promoted.master()?)?;
    let highest = promoted.config_epoch.max(replaced.config_epoch).max(replica.config_epoch);
    let is_new = promoted.id != state.id() && epoch > highest;
    (is_new && state.are_in_same_shard(replica.id, promoted.id)).then(|| ConfigUpdate {
        config_epoch: epoch,
        id: promoted.id,
        slots: header.slots.clone(),
    })
}

/// Assigns the claimed slots to the claimant, except those owned under the same or a higher epoch.
pub(crate) fn apply_claim(
    state: &mut ClusterState,
    claimant: NodeId,
    epoch: Epoch,
    claimed_slots: &SlotSet,
    stream: StreamState,
) -> Vec<Effect> {
    let me = state.id();
    if claimant == me {
        return Vec::new();
    }
    state.slots.record_claim(claimant, claimed_slots);
    let shard_head = state.myself().master().unwrap_or(me);
    let mut from_head = 0;
    let mut lost = SlotSet::new();
    let mut losers = BTreeSet::new();
    let mut effects = Vec::new();
    for slot in claimed_slots.iter() {
        let owner = state.slot_owner(slot);
        if owner == Some(claimant) || !can_be_claimed(state, slot, epoch) {
            continue;
        }
        effects.extend(end_slot_move(state, slot, claimant, stream));
        if let Some(owner) = owner
            && losers.insert(owner)
        {
            effects.push(Effect::RecordTimeline {
                node: owner,
                entry: TimelineEntry::Replacement { new_owner: claimant, epoch },
            });
        }
        if owner == Some(me) {
            lost.insert(slot);
        }
        from_head += usize::from(owner == Some(shard_head));
        state.slots.assign(slot, claimant);
        effects.push(Effect::ConfigChanged);
    }
    for loser in losers {
        if state.slots.slot_count(loser) == 0
            && state.are_in_same_shard(loser, claimant)
            && state.marks.replace_node(loser, claimant)
        {
            effects.push(Effect::ConfigChanged);
        }
    }
    // If this master lost its last slot to `claimant`, it was replaced and follows the new owner. If replica migration
    // is disabled, this applies only if `claimant` took exactly the slots of this shard.
    let replaced = from_head > 0 && state.slots.slot_count(shard_head) == 0;
    let whole = state.slots.slot_count(claimant) == from_head;
    if replaced && (state.config().allow_replica_migration || whole) {
        effects.push(Effect::Log(ClusterEvent::FollowingMaster { master: claimant }));
        effects.push(Effect::BecomeReplicaOf(claimant));
    } else if !lost.is_empty() {
        effects.extend(last_slot_lost_event(state, claimant).map(Effect::Log));
        effects.push(Effect::DriverAction(ClusterAction::DeleteSlotKeys(lost)));
    }
    effects
}

/// Ends the migration or import of a slot that `claimant` takes. The effect informs the replicas: they see the claim as
/// well, but may afterwards load a snapshot that still contains the mark.
fn end_slot_move(
    state: &mut ClusterState,
    slot: Slot,
    claimant: NodeId,
    stream: StreamState,
) -> Option<Effect> {
    let mut ended = false;
    // If the claimant is in the shard of the import's source, the import continues from the claimant.
    if let Some(from) = state.marks.importing().get(&slot).copied() {
        if state.are_in_same_shard(from, claimant) {
            state.marks.mark_importing(slot, claimant);
        } else {
            ended |= state.marks.end_importing(slot);
        }
    }
    // If the claimant replaces the master of this shard, the shard's migrations continue.
    if state.slot_owner(slot).is_some_and(|owner| !state.are_in_same_shard(owner, claimant)) {
        ended |= state.marks.end_migrating(slot);
    }
    let tell = ended && state.myself().is_master() && stream == StreamState::Open;
    tell.then_some(Effect::ReplicateSlotChange { slot, change: SlotChange::Stable })
}

fn last_slot_lost_event(state: &ClusterState, new_owner: NodeId) -> Option<ClusterEvent> {
    let node = state.node(new_owner).filter(|_| state.slots.slot_count(state.id()) == 0)?;
    Some(ClusterEvent::LastSlotLost { new_owner, new_owner_name: node.human_name.clone(), shard: node.shard })
}

fn can_be_claimed(state: &ClusterState, slot: Slot, epoch: Epoch) -> bool {
    let claimant = state.slots.claimant(slot).and_then(|claimant| state.node(claimant));
    claimant.is_none_or(|claimant| claimant.config_epoch < epoch)
}

/// Returns whether the claim in the UPDATE is newer than the claim that this node knows from the same node.
pub(crate) fn is_newer_claim(state: &ClusterState, update: &ConfigUpdate) -> bool {
    let node = state.node(update.id).filter(|node| node.handshake.is_none() && node.id != state.id());
    node.is_some_and(|node| node.config_epoch < update.config_epoch)
}

/// Resolves an epoch collision with the master that sent the header: takes a new epoch if the other master keeps its
/// own.
pub(crate) fn resolve_epoch_collision(state: &mut ClusterState, header: &Header) -> Vec<Effect> {
    let (me, with) = (state.id(), header.sender);
    let ahead = match state.are_in_same_shard(me, with) {
        true => state.offset().cmp(&header.offset),
        false => Ordering::Equal,
    };
    let is_mine = ahead.then(with.cmp(&me)) == Ordering::Greater;
    let both_masters = state.myself().is_master() && state.node(with).is_some_and(Node::is_master);
    if !both_masters || header.config_epoch != state.myself().config_epoch || !is_mine {
        return Vec::new();
    }
    let epoch = state.current_epoch().next();
    enter_epoch(state, epoch);
    vec![
        Effect::SaveBeforeClaiming,
        Effect::Publish,
        Effect::Log(ClusterEvent::EpochCollision { other_master: with, epoch }),
    ]
}

/// Takes an epoch above all known ones without a vote, for TAKEOVER and for imported slots. Returns `None` if this node
/// already has the highest epoch. The new epoch must be durable before it is announced.
pub(crate) fn bump_epoch(state: &mut ClusterState) -> Option<Epoch> {
    let highest = state.highest_epoch();
    let mine = state.myself().config_epoch;
    if mine != Epoch(0) && mine == highest {
        return None;
    }
    enter_epoch(state, highest.next());
    Some(highest.next())
}

fn enter_epoch(state: &mut ClusterState, epoch: Epoch) {
    state.raise_epoch(epoch);
    state.myself_mut().config_epoch = epoch;
}

#[cfg(test)]
mod tests {
    use slot_routing::ReplOffset;

    use super::*;
    use crate::test_state::{TestCluster, id};

    const OPEN_STREAM: StreamState = StreamState::Open;

    fn slot_set(numbers: impl IntoIterator<Item = u16>) -> SlotSet {
        numbers.into_iter().map(|number| Slot::new(number).unwrap()).collect()
    }

    #[test]
    fn only_a_higher_epoch_takes_slots_from_their_owner() {
        let mut cluster = TestCluster::new(3, &[]);
        let first = slot_set([0]);
        assert_eq!(apply_claim(&mut cluster.state, id(2), Epoch(1), &first, OPEN_STREAM), []);
        let effects = apply_claim(&mut cluster.state, id(2), Epoch(3), &first, OPEN_STREAM);
        assert_eq!(effects.last(), Some(&Effect::DriverAction(ClusterAction::DeleteSlotKeys(first.clone()))));
        assert_eq!(cluster.state.slot_owner(Slot::new(0).unwrap()), Some(id(2)));
    }

    #[test]
    fn slot_that_its_owner_disclaims_goes_to_any_claimant() {
        let mut cluster = TestCluster::new(3, &[]);
        let last = slot_set([16_383]);
        let mut rest = cluster.state.slots.slots_of(id(2));
        rest.remove(Slot::new(16_383).unwrap());
        apply_claim(&mut cluster.state, id(2), Epoch(3), &rest, OPEN_STREAM);
        assert_eq!(apply_claim(&mut cluster.state, id(1), Epoch(2), &last, OPEN_STREAM).len(), 2);
        assert_eq!(cluster.state.slot_owner(Slot::new(16_383).unwrap()), Some(id(1)));
    }

    #[test]
    fn master_that_loses_all_slots_follows_the_winner() {
        let mut cluster = TestCluster::new(3, &[]);
        let all = cluster.state.slots.slots_of(id(0));
        let effects = apply_claim(&mut cluster.state, id(2), Epoch(9), &all, OPEN_STREAM);
        assert_eq!(effects.last(), Some(&Effect::BecomeReplicaOf(id(2))));
    }

    #[test]
    fn claim_of_a_third_shard_ends_an_import_and_informs_the_replicas() {
        for (stream, told) in [(StreamState::Open, true), (StreamState::Frozen, false)] {
            let mut cluster = TestCluster::new(3, &[]);
            let slot = Slot::new(16_383).unwrap();
            cluster.state.marks.mark_importing(slot, id(2));
            let effects = apply_claim(&mut cluster.state, id(1), Epoch(9), &slot_set([16_383]), stream);
            assert!(cluster.state.marks.is_empty());
            let tell = Effect::ReplicateSlotChange { slot, change: SlotChange::Stable };
            assert_eq!(effects.contains(&tell), told);
        }
    }

    #[test]
    fn import_and_migration_continue_with_the_successor_of_the_other_end() {
        let mut cluster = TestCluster::new(3, &[(3, 2)]);
        let slot = Slot::new(16_383).unwrap();
        cluster.state.marks.mark_importing(slot, id(2));
        cluster.state.marks.mark_migrating(Slot::new(0).unwrap(), id(2));
        let all = cluster.state.slots.slots_of(id(2));
        apply_claim(&mut cluster.state, id(3), Epoch(9), &all, OPEN_STREAM);
        assert_eq!(cluster.state.marks.importing()[&slot], id(3));
        assert_eq!(cluster.state.marks.migrating()[&Slot::new(0).unwrap()], id(3));
    }

    #[test]
    fn master_with_the_smaller_id_takes_a_new_epoch_after_a_collision() {
        let mut cluster = TestCluster::new(3, &[]);
        let header = Header { config_epoch: Epoch(1), ..cluster.header_of(1) };
        let effects = resolve_epoch_collision(&mut cluster.state, &header);
        assert_eq!(effects[0], Effect::SaveBeforeClaiming);
        assert_eq!(cluster.state.myself().config_epoch, Epoch(4));
        assert_eq!(resolve_epoch_collision(&mut cluster.state, &header), []);
        // Within a shard, the master with the larger offset takes the new epoch.
        let mut cluster = TestCluster::new(3, &[]);
        cluster.node(1).shard = id(0);
        let header = Header { config_epoch: Epoch(1), offset: ReplOffset(1), ..cluster.header_of(1) };
        assert_eq!(resolve_epoch_collision(&mut cluster.state, &header), []);
    }

    #[test]
    fn epoch_is_bumped_unless_it_is_the_highest() {
        let mut cluster = TestCluster::new(3, &[]);
        assert_eq!(bump_epoch(&mut cluster.state), Some(Epoch(4)));
        assert_eq!(bump_epoch(&mut cluster.state), None);
    }

    #[test]
    fn replica_learns_a_promotion_from_its_demoted_master() {
        let mut cluster = TestCluster::new(3, &[(3, 1)]);
        cluster.become_replica_of(1);
        let slots = cluster.state.slots.slots_of(id(1));
        assert_eq!(find_promotion(&cluster.state, &cluster.header_of(1)), None);
        cluster.node(1).role = crate::Role::Replica(Some(id(3)));
        let header = Header { config_epoch: Epoch(9), slots: slots.clone(), ..cluster.header_of(1) };
        let update = ConfigUpdate { config_epoch: Epoch(9), id: id(3), slots };
        assert_eq!(find_promotion(&cluster.state, &header), Some(update.clone()));
        assert!(is_newer_claim(&cluster.state, &update));
    }

    /// The promoted node dies before it can tell this master.
    #[test]
    fn master_learns_a_promotion_in_another_shard_from_the_demoted_master() {
        let mut cluster = TestCluster::new(3, &[(3, 1)]);
        let slots = cluster.state.slots.slots_of(id(1));
        cluster.state.slots.release_all(id(1));
        cluster.node(1).role = crate::Role::Replica(Some(id(3)));
        let header =
            |epoch| Header { config_epoch: Epoch(epoch), slots: slots.clone(), ..cluster.header_of(1) };
        let update = ConfigUpdate { config_epoch: Epoch(9), id: id(3), slots: slots.clone() };
        assert_eq!(find_promotion(&cluster.state, &header(9)), Some(update));
        assert_eq!(find_promotion(&cluster.state, &header(2)), None, "the claim of the replaced master");
    }
}
