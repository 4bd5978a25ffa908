//! The rules of SETSLOT and of slots that move between nodes.
//!
//! Slots migrate between shards: if a replica takes over from the source or target node, the mark then names that
//! replica. If a node of a third shard claims a slot that is being imported here, the slot has been moved elsewhere and
//! the import ends. (Redis leaves the mark until the next SETSLOT. If the source becomes a replica, the importing node
//! never finds an owner of the slot.)
//!
//! An interrupted migration leaves keys in slots that other nodes own; for example, a promoted Redis replica has the
//! imported keys but not the mark. The driver searches for such keys
//! ([`ClusterInput::ForeignKeysFound`](crate::ClusterInput)) and this node marks their slots as importing. It then
//! serves these keys to redirected clients, and `redis-cli --cluster fix` can finish the migration.

use slot_routing::{NodeId, Slot, SlotSet};

use crate::commands::{OperatorError, SlotChange, parse_node_id};
use crate::effect::Effect;
use crate::event::ClusterEvent;
use crate::state::ClusterState;

/// Checks whether SETSLOT is allowed: the slot must have the right owner, and the named node must be a known master.
pub(crate) fn check_set_slot(
    state: &ClusterState,
    slot: Slot,
    change: &SlotChange,
    keys_in_slot: u64,
) -> Result<(), OperatorError> {
    if !state.myself().is_master() {
        return Err(OperatorError::SetSlotOnReplica);
    }
    let mine = state.slot_owner(slot) == Some(state.id());
    match change {
        SlotChange::Migrating { .. } if !mine => Err(OperatorError::NotOwner(slot)),
        SlotChange::Importing { .. } if mine => Err(OperatorError::AlreadyOwner(slot)),
        SlotChange::Migrating { target: node } | SlotChange::Importing { source: node } => {
            match state.find_master(node, OperatorError::UnknownMigrationPeer)? {
                id if id == state.id() => Err(OperatorError::TargetIsMyself),
                _ => Ok(()),
            }
        }
        SlotChange::Stable => Ok(()),
        SlotChange::AssignTo(to) => {
            let to = state.find_master(to, OperatorError::UnknownNode)?;
            if mine && to != state.id() && keys_in_slot > 0 {
                Err(OperatorError::SlotHasKeys(slot))
            } else {
                Ok(())
            }
        }
    }
}

/// Executes a SETSLOT that [`check_set_slot`] has allowed.
pub(crate) fn set_slot(
    state: &mut ClusterState,
    slot: Slot,
    change: &SlotChange,
    keys_in_slot: u64,
) -> Result<Vec<Effect>, OperatorError> {
    match change {
        SlotChange::Migrating { target: to } => {
            let to = state.find_master(to, OperatorError::UnknownMigrationPeer)?;
            state.marks.mark_migrating(slot, to);
        }
        SlotChange::Importing { source: from } => {
            let from = state.find_master(from, OperatorError::UnknownMigrationPeer)?;
            state.marks.mark_importing(slot, from);
        }
        SlotChange::Stable => state.marks.unmark(slot),
        SlotChange::AssignTo(to) => {
            let to = state.find_master(to, OperatorError::UnknownNode)?;
            return Ok(give_away_slot(state, slot, to, keys_in_slot));
        }
    }
    Ok(vec![Effect::ConfigChanged])
}

fn give_away_slot(state: &mut ClusterState, slot: Slot, new_owner: NodeId, keys_in_slot: u64) -> Vec<Effect> {
    let (me, owner) = (state.id(), state.slot_owner(slot));
    if keys_in_slot == 0 || new_owner != me {
        state.marks.end_migrating(slot);
    }
    state.slots.assign(slot, new_owner);
    let mut effects = vec![Effect::ConfigChanged];
    let emptied = owner == Some(me) && new_owner != me && state.slots.slot_count(me) == 0;
    if emptied && state.config().allow_replica_migration {
        // This master has lost its last slot and becomes a replica of the new owner.
        effects.push(Effect::Log(ClusterEvent::SlotsLost { new_owner }));
        effects.push(Effect::BecomeReplicaOf(new_owner));
    }
    let imported = new_owner == me && state.marks.end_importing(slot);
    if imported || (new_owner == me && owner.is_some_and(|owner| owner != me)) {
        // The other nodes accept the claim only with a new epoch. Redis takes a new epoch only for imports. If a power
        // failure erased the import mark, the slot would fall back to the old owner, and have no owner once the old
        // owner gives it away.
        effects.push(Effect::ClaimImportedSlots);
    }
    effects
}

/// Assigns slots to this node after an atomic import, under a new epoch.
pub(crate) fn claim_slots(
    state: &mut ClusterState,
    slots: &SlotSet,
    source: NodeId,
) -> Result<Vec<Effect>, OperatorError> {
    if !state.myself().is_master() {
        return Err(OperatorError::ClaimOnReplica);
    }
    if source == state.id() || !slots.iter().all(|slot| state.slot_owner(slot) == Some(source)) {
        return Err(OperatorError::SourceIsNotOwner);
    }
    for slot in slots.iter() {
        state.marks.unmark(slot);
        state.slots.assign(slot, state.id());
    }
    Ok(vec![Effect::ConfigChanged, Effect::ClaimImportedSlots])
}

/// Applies a slot change that this node read from its master's replication stream, or wrote to its own stream as a
/// master.
pub(crate) fn apply_replicated_change(
    state: &mut ClusterState,
    slot: Slot,
    change: &SlotChange,
) -> Vec<Effect> {
    let known = |name: &String| parse_node_id(name).filter(|id| state.is_known_node(*id));
    let unknown =
        |node: &String| vec![Effect::Log(ClusterEvent::SlotOfUnknownNode { slot, node: node.clone() })];
    match change {
        SlotChange::Migrating { target: node } => {
            let Some(to) = known(node) else { return unknown(node) };
            state.marks.mark_migrating(slot, to);
        }
        SlotChange::Importing { source: node } => {
            let Some(from) = known(node) else { return unknown(node) };
            state.marks.mark_importing(slot, from);
        }
        SlotChange::Stable => state.marks.unmark(slot),
        SlotChange::AssignTo(node) => {
            let Some(owner) = known(node) else { return unknown(node) };
            state.marks.end_migrating(slot);
            if state.myself().master() == Some(owner) {
                state.marks.end_importing(slot);
            }
            // The node named in the stream may have been demoted since. Replicas own no slots, and the bus announces
            // the current owner.
            if state.node(owner).is_some_and(crate::node::Node::is_master) {
                state.slots.assign(slot, owner);
            }
        }
    }
    vec![Effect::ConfigChanged]
}

/// Replaces all marks with those of a loaded snapshot.
pub(crate) fn load_marks(state: &mut ClusterState, slot_changes: &[(Slot, SlotChange)]) -> Vec<Effect> {
    let mut effects = Vec::new();
    if !state.marks.is_empty() {
        effects.push(Effect::ConfigChanged);
    }
    state.marks.clear();
    effects
        .extend(slot_changes.iter().flat_map(|(slot, change)| apply_replicated_change(state, *slot, change)));
    effects
}

/// Marks slots as importing that contain keys but are owned by another node. At startup, unassigned slots with keys are
/// claimed instead.
pub(crate) fn mark_slots_with_keys(
    state: &mut ClusterState,
    slots: &SlotSet,
    at_startup: bool,
) -> Vec<Effect> {
    if !state.myself().is_master() {
        return Vec::new();
    }
    let mut effects = Vec::new();
    for slot in slots.iter() {
        match state.slot_owner(slot) {
            Some(owner) if owner == state.id() || state.marks.importing().contains_key(&slot) => {}
            Some(owner) => {
                state.marks.mark_importing(slot, owner);
                effects.push(Effect::Log(ClusterEvent::KeysInForeignSlot { slot, owner }));
            }
            // After startup, an unassigned slot is usually moving from one owner to another, so it is not claimed.
            None if at_startup => {
                state.slots.assign(slot, state.id());
                effects.push(Effect::Log(ClusterEvent::KeysInUnassignedSlot { slot }));
            }
            None => continue,
        }
        effects.push(Effect::ConfigChanged);
    }
    effects
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_state::{TestCluster, id};

    fn slot(number: u16) -> Slot {
        Slot::new(number).unwrap()
    }

    fn node_name(index: u8) -> String {
        id(index).to_string()
    }

    #[test]
    fn set_slot_is_checked_against_owners_and_keys() {
        let cluster = TestCluster::new(2, &[(2, 1)]);
        // Columns: slot number, change, keys in the slot, expected error
        for (number, change, keys, expected) in [
            (0, SlotChange::Migrating { target: node_name(1) }, 0, Ok(())),
            (0, SlotChange::Migrating { target: node_name(0) }, 0, Err(OperatorError::TargetIsMyself)),
            (0, SlotChange::Migrating { target: node_name(2) }, 0, Err(OperatorError::TargetNotMaster)),
            (0, SlotChange::Importing { source: node_name(1) }, 0, Err(OperatorError::AlreadyOwner(slot(0)))),
            (
                16_383,
                SlotChange::Migrating { target: node_name(1) },
                0,
                Err(OperatorError::NotOwner(slot(16_383))),
            ),
            (16_383, SlotChange::Importing { source: node_name(1) }, 0, Ok(())),
            (0, SlotChange::AssignTo(node_name(1)), 0, Ok(())),
            (0, SlotChange::AssignTo(node_name(1)), 1, Err(OperatorError::SlotHasKeys(slot(0)))),
            (0, SlotChange::AssignTo(node_name(9)), 0, Err(OperatorError::UnknownNode(node_name(9)))),
        ] {
            assert_eq!(check_set_slot(&cluster.state, slot(number), &change, keys), expected, "{change:?}");
        }
    }

    #[test]
    fn only_imported_slots_are_claimed_under_a_new_epoch() {
        let mut cluster = TestCluster::new(2, &[]);
        let to_me =
            set_slot(&mut cluster.state, slot(16_383), &SlotChange::AssignTo(node_name(0)), 0).unwrap();
        assert_eq!(to_me, [Effect::ConfigChanged, Effect::ClaimImportedSlots]);
        let away =
            set_slot(&mut cluster.state, slot(16_383), &SlotChange::AssignTo(node_name(1)), 0).unwrap();
        assert_eq!(away, [Effect::ConfigChanged]);
        assert_eq!(cluster.state.slot_owner(slot(16_383)), Some(id(1)));
    }

    #[test]
    fn master_that_gives_its_last_slot_away_follows_the_new_owner() {
        let mut cluster = TestCluster::new(2, &[]);
        cluster.state.slots.release_all(id(0));
        cluster.state.slots.assign(slot(0), id(0));
        let effects = set_slot(&mut cluster.state, slot(0), &SlotChange::AssignTo(node_name(1)), 0).unwrap();
        assert_eq!(effects.last(), Some(&Effect::BecomeReplicaOf(id(1))));
    }

    #[test]
    fn atomic_import_requires_the_named_owner() {
        let mut cluster = TestCluster::new(3, &[]);
        let slots: SlotSet = [slot(16_383)].into_iter().collect();
        assert_eq!(claim_slots(&mut cluster.state, &slots, id(1)), Err(OperatorError::SourceIsNotOwner));
        assert!(claim_slots(&mut cluster.state, &slots, id(2)).is_ok());
        assert_eq!(cluster.state.slot_owner(slot(16_383)), Some(id(0)));
    }

    #[test]
    fn loaded_marks_replace_all_others() {
        let mut cluster = TestCluster::new(2, &[]);
        cluster.state.marks.mark_migrating(slot(1), id(1));
        let moves = [(slot(2), SlotChange::Importing { source: node_name(1) })];
        assert_eq!(load_marks(&mut cluster.state, &moves), [Effect::ConfigChanged, Effect::ConfigChanged]);
        assert!(cluster.state.marks.migrating().is_empty());
        assert_eq!(cluster.state.marks.importing()[&slot(2)], id(1));
        let unknown = SlotChange::AssignTo(node_name(9));
        let effects = apply_replicated_change(&mut cluster.state, slot(3), &unknown);
        assert!(matches!(effects[..], [Effect::Log(ClusterEvent::SlotOfUnknownNode { .. })]));
    }

    #[test]
    fn slots_with_keys_are_imported_and_unassigned_ones_claimed_only_at_start() {
        let mut cluster = TestCluster::new(2, &[]);
        cluster.state.slots.release(slot(5));
        let slots: SlotSet = [slot(0), slot(5), slot(16_383)].into_iter().collect();
        mark_slots_with_keys(&mut cluster.state, &slots, false);
        assert_eq!(cluster.state.marks.importing()[&slot(16_383)], id(1));
        assert_eq!(cluster.state.slot_owner(slot(5)), None);
        mark_slots_with_keys(&mut cluster.state, &slots, true);
        assert_eq!(cluster.state.slot_owner(slot(5)), Some(id(0)));
    }
}
