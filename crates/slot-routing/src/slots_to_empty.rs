//! Tracks slots that this node no longer owns but whose keys it has not deleted yet.
//!
//! A master that loses a slot deletes the slot's keys in batches while it keeps serving. If the slot returns before the
//! deletion is complete, the remaining keys are deleted first; otherwise stale keys would mix with the imported ones. A
//! replica deletes nothing, because its master replicates the deletions. If the master dies during the deletion, the
//! promoted replica completes it, so replicas track the slots as well. Leftover keys of these slots do not indicate an
//! interrupted SETSLOT migration.

use crate::route::Ownership;
use crate::slot::Slot;
use crate::slot_set::SlotSet;
use crate::topology::{Role, Topology};

/// The slots that still have keys to delete.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlotsToEmpty(SlotSet);

impl SlotsToEmpty {
    /// Adds slots that this master no longer owns.
    pub fn insert_all(&mut self, slots: &SlotSet) {
        self.0.extend(slots.iter());
    }

    /// Returns the lowest slot that still has keys to delete.
    #[must_use]
    pub fn first(&self) -> Option<Slot> {
        self.0.iter().next()
    }

    /// Returns whether `slot` still has keys to delete.
    #[must_use]
    pub fn contains(&self, slot: Slot) -> bool {
        self.0.contains(slot)
    }

    /// Removes a slot whose keys have been deleted, or need not be deleted any more.
    pub fn remove(&mut self, slot: Slot) {
        self.0.remove(slot);
    }

    /// Updates the set when the topology changes from `before` to `after`. Returns the slots that return to this node;
    /// their old keys must be deleted before `after` takes effect.
    #[must_use]
    pub fn update(&mut self, old_topology: &Topology, new_topology: &Topology) -> Vec<Slot> {
        if [old_topology, new_topology].iter().any(|topology| topology.my_member().role != Role::Master) {
            self.track_slots_lost_by_master(old_topology, new_topology);
            return Vec::new();
        }
        self.0.iter().filter(|slot| !is_owned_elsewhere(new_topology.ownership(*slot))).collect()
    }

    fn track_slots_lost_by_master(&mut self, old_topology: &Topology, new_topology: &Topology) {
        if old_topology.my_member().role == Role::Master
            || old_topology.my_member().shard != new_topology.my_member().shard
        {
            // This node resyncs from another shard, which replaces the whole dataset, so no old keys remain.
            self.0 = SlotSet::new();
            return;
        }
        let (served, serves) = (old_topology.slots_of_my_shard(), new_topology.slots_of_my_shard());
        // A slot whose new owner is in the same shard is still served by this shard and keeps its keys.
        self.0.extend(served.iter().filter(|slot| !serves.contains(*slot)));
        let is_back = |slot: &Slot| serves.contains(*slot) || new_topology.owner(*slot).is_none();
        for slot in self.0.iter().filter(is_back).collect::<Vec<_>>() {
            self.0.remove(slot);
        }
    }
}

/// Returns whether another node, or no node, owns the slot and this shard is not importing it.
#[must_use]
pub fn is_owned_elsewhere(ownership: Ownership) -> bool {
    match ownership {
        Ownership::Remote | Ownership::Unassigned => true,
        Ownership::Local
        | Ownership::Migrating
        | Ownership::Importing
        | Ownership::MasterOwned
        | Ownership::MasterMigrating
        | Ownership::MasterImporting => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Epoch, NodeId};
    use crate::topology::Member;
    use crate::topology::tests::member;

    const MYSELF: u8 = 1;
    const OTHER_NODE: u8 = 2;
    const SIBLING_NODE: u8 = 3;

    fn id(number: u8) -> NodeId {
        NodeId::from_random([number; 20])
    }

    fn slot(number: u16) -> Slot {
        Slot::new(number).unwrap()
    }

    /// Builds the topology that node `MYSELF` sees, either as a master (`is_master`) or as a replica of `SIBLING_NODE`.
    /// `owners[n]` owns slot `n`.
    fn topology(is_master: bool, owners: &[u8]) -> Topology {
        let role = if is_master { Role::Master } else { Role::Replica(id(SIBLING_NODE)) };
        let sibling = Member { shard: id(MYSELF), ..member(SIBLING_NODE, Role::Master) };
        let members = vec![member(MYSELF, role), member(OTHER_NODE, Role::Master), sibling];
        let mut topology = Topology::new(id(MYSELF), Epoch(1), true, members);
        for (number, owner) in owners.iter().enumerate() {
            topology.assign([slot(number as u16)], id(*owner));
        }
        topology
    }

    #[test]
    fn returning_slots_are_reported_for_emptying() {
        let mut pending = SlotsToEmpty::default();
        pending.insert_all(&[slot(0), slot(1), slot(2)].into_iter().collect());
        assert_eq!(pending.first(), Some(slot(0)));
        let before = topology(true, &[OTHER_NODE, OTHER_NODE, OTHER_NODE]);
        let mut after = topology(true, &[MYSELF, OTHER_NODE, OTHER_NODE]);
        after.mark_importing(slot(2), id(OTHER_NODE));
        assert_eq!(pending.update(&before, &after), [slot(0), slot(2)]);
        pending.remove(slot(0));
        pending.remove(slot(2));
        assert!(pending.contains(slot(1)) && !pending.contains(slot(0)));
        assert_eq!(pending.update(&after, &before), []);
    }

    #[test]
    fn replica_tracks_the_slots_its_master_has_to_empty() {
        let mut pending = SlotsToEmpty::default();
        let before = topology(false, &[SIBLING_NODE, SIBLING_NODE, OTHER_NODE]);
        let given = topology(false, &[OTHER_NODE, SIBLING_NODE, OTHER_NODE]);
        assert_eq!(pending.update(&before, &given), []);
        assert_eq!((pending.contains(slot(0)), pending.contains(slot(2))), (true, false));
        // A resync from another master replaces the dataset, so there is nothing left to delete.
        let is_master = topology(true, &[OTHER_NODE, MYSELF, OTHER_NODE]);
        let mut promoted = pending.clone();
        assert_eq!(promoted.update(&given, &is_master), []);
        assert!(promoted.contains(slot(0)), "the promoted replica continues the deletion");
        assert_eq!(promoted.update(&is_master, &given), []);
        assert_eq!(promoted, SlotsToEmpty::default());
        assert_eq!(pending.update(&given, &before), []);
        assert_eq!(pending, SlotsToEmpty::default(), "the slot has come back");
    }
}
