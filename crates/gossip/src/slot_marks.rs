//! The marks of slots that are migrating or being imported.
//!
//! Slots migrate between shards: if a replica takes over from the source or target node, the mark then names that
//! replica.

use std::collections::BTreeMap;

use slot_routing::{NodeId, Slot};

use crate::slots::SlotTable;

/// The marked slots of this node or, on a replica, of its master.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct SlotMarks {
    migrating: BTreeMap<Slot, NodeId>,
    importing: BTreeMap<Slot, NodeId>,
}

impl SlotMarks {
    /// The migrating slots with their targets.
    pub(crate) fn migrating(&self) -> &BTreeMap<Slot, NodeId> {
        &self.migrating
    }

    /// The importing slots with their sources.
    pub(crate) fn importing(&self) -> &BTreeMap<Slot, NodeId> {
        &self.importing
    }

    /// The targets of all migrating slots and the sources of all imported ones.
    pub(crate) fn peer_nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.migrating.values().chain(self.importing.values()).copied()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.migrating.is_empty() && self.importing.is_empty()
    }

    pub(crate) fn mark_migrating(&mut self, slot: Slot, target: NodeId) {
        self.migrating.insert(slot, target);
    }

    pub(crate) fn mark_importing(&mut self, slot: Slot, source: NodeId) {
        self.importing.insert(slot, source);
    }

    /// Removes the mark of a migrating slot. Returns whether there was one.
    pub(crate) fn end_migrating(&mut self, slot: Slot) -> bool {
        self.migrating.remove(&slot).is_some()
    }

    /// Removes the mark of an imported slot. Returns whether there was one.
    pub(crate) fn end_importing(&mut self, slot: Slot) -> bool {
        self.importing.remove(&slot).is_some()
    }

    pub(crate) fn unmark(&mut self, slot: Slot) {
        self.migrating.remove(&slot);
        self.importing.remove(&slot);
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn clear_migrating(&mut self) {
        self.migrating.clear();
    }

    /// Removes marks that contradict the slot owners, after a promotion: a migrating slot must belong to `me`, and an
    /// imported one to another node.
    pub(crate) fn remove_invalid(&mut self, slots: &SlotTable, my_id: NodeId) {
        self.migrating.retain(|slot, _| slots.owner(*slot) == Some(my_id));
        self.importing.retain(|slot, _| slots.owner(*slot) != Some(my_id));
    }

    /// Replaces `old` by `new` in all marks, because the node `new` took over from `old`. Returns whether any mark
    /// named `old`.
    pub(crate) fn replace_node(&mut self, old_id: NodeId, new_id: NodeId) -> bool {
        let ends = self.migrating.values_mut().chain(self.importing.values_mut());
        let mut found = false;
        for end in ends.filter(|end| **end == old_id) {
            *end = new_id;
            found = true;
        }
        found
    }

    /// Removes the marks that name a node which was removed.
    pub(crate) fn on_node_removed(&mut self, id: NodeId) {
        self.migrating.retain(|_, to| *to != id);
        self.importing.retain(|_, from| *from != id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(index: u8) -> NodeId {
        NodeId::from_random([index; 20])
    }

    fn slot(number: u16) -> Slot {
        Slot::new(number).unwrap()
    }

    fn test_marks() -> SlotMarks {
        let mut marks = SlotMarks::default();
        marks.mark_migrating(slot(1), id(1));
        marks.mark_importing(slot(2), id(1));
        marks.mark_importing(slot(3), id(2));
        marks
    }

    #[test]
    fn marks_name_the_successor_of_a_replaced_node() {
        let mut marks = test_marks();
        assert!(marks.replace_node(id(1), id(3)));
        assert!(!marks.replace_node(id(1), id(3)));
        assert_eq!(marks.migrating()[&slot(1)], id(3));
        assert_eq!(marks.importing()[&slot(2)], id(3));
        assert_eq!(marks.importing()[&slot(3)], id(2));
    }

    #[test]
    fn marks_of_a_removed_node_are_dropped() {
        let mut marks = test_marks();
        marks.on_node_removed(id(1));
        assert!(marks.migrating().is_empty() && marks.importing().len() == 1);
        assert!(marks.end_importing(slot(3)) && !marks.end_importing(slot(3)));
        assert!(marks.is_empty());
    }

    #[test]
    fn only_own_slots_migrate_and_only_foreign_slots_are_imported() {
        let (mut marks, mut slots) = (test_marks(), SlotTable::new());
        slots.assign(slot(2), id(0));
        marks.remove_invalid(&slots, id(0));
        assert!(marks.migrating().is_empty(), "slot 1 has no owner");
        assert_eq!(marks.importing().keys().copied().collect::<Vec<_>>(), [slot(3)]);
    }
}
