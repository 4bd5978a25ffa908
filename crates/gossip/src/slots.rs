//! The slot table: the owner of each slot in this node's view.
//!
//! The table consists of one 16-bit handle per slot and a counter per owner, 32 KiB in total regardless of the number
//! of owners; the simulator has one table for each of a thousand nodes.

use std::collections::BTreeMap;

use slot_routing::{NodeId, SLOT_COUNT, Slot, SlotSet};

const NO_OWNER: u16 = u16::MAX;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlotTable {
    /// The handle of the owner for each slot; [`NO_OWNER`] if the slot is unassigned.
    owners: Box<[u16]>,
    /// Node id for each handle; `None` marks a free handle.
    node_ids: Vec<Option<NodeId>>,
    handles: BTreeMap<NodeId, u16>,
    slot_counts: Vec<u16>,
    assigned_count: usize,
    /// Slots that their owner no longer claims, because it gave them to a node whose claim has not arrived yet. They
    /// still belong to the old owner, which redirects clients until the claim arrives.
    disclaimed: SlotSet,
    /// Nodes that got their first slot or lost their last one since the last [`SlotTable::take_changed_owners`].
    changed_owners: Vec<NodeId>,
    /// Incremented by every change, so that caches can detect that they are outdated.
    version: u64,
}

impl SlotTable {
    pub(crate) fn new() -> Self {
        Self {
            owners: vec![NO_OWNER; SLOT_COUNT].into_boxed_slice(),
            node_ids: Vec::new(),
            handles: BTreeMap::new(),
            slot_counts: Vec::new(),
            assigned_count: 0,
            disclaimed: SlotSet::new(),
            changed_owners: Vec::new(),
            version: 0,
        }
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn owner(&self, slot: Slot) -> Option<NodeId> {
        self.node_ids.get(usize::from(self.owners[slot.index()])).copied().flatten()
    }

    /// The owner of `slot`, or `None` if the owner no longer claims it.
    pub(crate) fn claimant(&self, slot: Slot) -> Option<NodeId> {
        self.owner(slot).filter(|_| !self.disclaimed.contains(slot))
    }

    /// Records which of its slots `owner` still claims. `claimed` is the slot set of its header.
    pub(crate) fn record_claim(&mut self, owner: NodeId, claimed_slots: &SlotSet) {
        for slot in self.slots_of(owner).iter() {
            if claimed_slots.contains(slot) {
                self.disclaimed.remove(slot);
            } else {
                self.disclaimed.insert(slot);
            }
        }
    }

    /// Number of slots that `id` owns.
    pub(crate) fn slot_count(&self, id: NodeId) -> usize {
        self.handles.get(&id).map_or(0, |&handle| usize::from(self.slot_counts[usize::from(handle)]))
    }

    /// Number of slots with an owner.
    pub(crate) fn assigned_count(&self) -> usize {
        self.assigned_count
    }

    /// Number of nodes that own slots.
    pub(crate) fn owner_count(&self) -> usize {
        self.handles.len()
    }

    /// Removes and returns the nodes that got their first slot or lost their last one since the last call.
    pub(crate) fn take_changed_owners(&mut self) -> impl Iterator<Item = NodeId> + '_ {
        self.changed_owners.drain(..)
    }

    /// The owners with their number of slots, sorted by id.
    pub(crate) fn owners(&self) -> impl Iterator<Item = (NodeId, usize)> + '_ {
        self.handles.iter().map(|(&id, &handle)| (id, usize::from(self.slot_counts[usize::from(handle)])))
    }

    pub(crate) fn slots_of(&self, id: NodeId) -> SlotSet {
        let Some(&handle) = self.handles.get(&id) else { return SlotSet::new() };
        let mut bitmap = [0; SLOT_COUNT / 8];
        for (bytes, owners) in bitmap.chunks_exact_mut(8).zip(self.owners.chunks_exact(64)) {
            // Slots are owned in long ranges, so most groups of 64 have a single owner.
            let word = match owners.iter().map(|&owner| u8::from(owner == handle)).sum::<u8>() {
                0 => 0,
                64 => u64::MAX,
                _ => owners.iter().rev().fold(0, |word, &owner| (word << 1) | u64::from(owner == handle)),
            };
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        SlotSet::from_bitmap(&bitmap)
    }

    /// Maximal ranges of slots with the same owner as (first, last, owner), in ascending order.
    pub(crate) fn owner_ranges(&self) -> impl Iterator<Item = (Slot, Slot, NodeId)> + '_ {
        let slot = |index: usize| Slot::new(index as u16).expect("within the table");
        let mut start = 0;
        self.owners.chunk_by(|one, next| one == next).filter_map(move |run| {
            let first = start;
            start += run.len();
            let owner = self.node_ids.get(usize::from(run[0])).copied().flatten()?;
            Some((slot(first), slot(start - 1), owner))
        })
    }

    /// Whether `id` owns exactly `slots` and still claims all of them.
    pub(crate) fn owns_exactly(&self, id: NodeId, slots: &SlotSet) -> bool {
        slots.len() == self.slot_count(id)
            && self.owns_all(id, slots)
            && slots.words().zip(self.disclaimed.words()).all(|(slots, disclaimed)| slots & disclaimed == 0)
    }

    /// Returns whether `id` owns all `slots`. This runs for every packet from a master, so it allocates nothing and
    /// compares 64 slots at a time.
    fn owns_all(&self, id: NodeId, slots: &SlotSet) -> bool {
        let Some(&handle) = self.handles.get(&id) else { return slots.is_empty() };
        slots.words().zip(self.owners.chunks_exact(64)).all(|(word, owners)| match word {
            0 => true,
            // No early exit, so that the compiler can vectorize the loop.
            u64::MAX => owners.iter().fold(0, |differ, &owner| differ | (owner ^ handle)) == 0,
            _ => owners.iter().enumerate().all(|(bit, &owner)| word >> bit & 1 == 0 || owner == handle),
        })
    }

    /// Makes `id` the owner of `slot`, whoever owned it before.
    pub(crate) fn assign(&mut self, slot: Slot, id: NodeId) {
        self.release(slot);
        let handle = self.handle_or_insert(id);
        self.owners[slot.index()] = handle;
        self.slot_counts[usize::from(handle)] += 1;
        self.assigned_count += 1;
        self.version += 1;
    }

    /// Removes the owner of `slot` and returns it.
    pub(crate) fn release(&mut self, slot: Slot) -> Option<NodeId> {
        let handle = std::mem::replace(&mut self.owners[slot.index()], NO_OWNER);
        let id = self.node_ids.get(usize::from(handle)).copied().flatten()?;
        self.disclaimed.remove(slot);
        self.assigned_count -= 1;
        self.version += 1;
        let count = &mut self.slot_counts[usize::from(handle)];
        *count -= 1;
        if *count == 0 {
            self.handles.remove(&id);
            self.changed_owners.push(id);
            self.node_ids[usize::from(handle)] = None;
        }
        Some(id)
    }

    /// Removes all slots from `id` and returns them.
    pub(crate) fn release_all(&mut self, id: NodeId) -> SlotSet {
        let slots = self.slots_of(id);
        for slot in slots.iter() {
            self.release(slot);
        }
        slots
    }

    fn handle_or_insert(&mut self, id: NodeId) -> u16 {
        if let Some(&handle) = self.handles.get(&id) {
            return handle;
        }
        let free = self.node_ids.iter().position(Option::is_none).unwrap_or_else(|| {
            self.node_ids.push(None);
            self.slot_counts.push(0);
            self.node_ids.len() - 1
        });
        self.node_ids[free] = Some(id);
        let handle = u16::try_from(free).expect("no more owners than slots");
        self.handles.insert(id, handle);
        self.changed_owners.push(id);
        handle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_counts_and_sets_match_the_owners() {
        let (one, two) = (NodeId::from_random([1; 20]), NodeId::from_random([2; 20]));
        let slot = |number| Slot::new(number).unwrap();
        let mut table = SlotTable::new();
        for number in 0..10 {
            table.assign(slot(number), one);
        }
        table.assign(slot(3), two);
        table.assign(slot(3), two);
        assert_eq!((table.slot_count(one), table.slot_count(two), table.assigned_count()), (9, 1, 10));
        assert_eq!(table.slots_of(two).ranges(), [(slot(3), slot(3))]);
        assert!(table.owns_exactly(two, &[slot(3)].into_iter().collect()));
        assert!(!table.owns_exactly(one, &table.slots_of(two)));
        let runs: Vec<_> =
            table.owner_ranges().map(|(first, last, id)| (first.number(), last.number(), id)).collect();
        assert_eq!(runs, [(0, 2, one), (3, 3, two), (4, 9, one)]);
        table.record_claim(two, &SlotSet::new());
        assert_eq!((table.owner(slot(3)), table.claimant(slot(3))), (Some(two), None));
        table.record_claim(two, &table.slots_of(two));
        assert_eq!(table.claimant(slot(3)), Some(two));
        table.record_claim(two, &SlotSet::new());
        assert_eq!(table.release(slot(3)), Some(two));
        assert_eq!(table.release(slot(3)), None);
        assert!(table.disclaimed.is_empty());
        assert_eq!(table.owners().collect::<Vec<_>>(), [(one, 9)]);
        assert_eq!(table.release_all(one).len(), 9);
        assert_eq!(table.assigned_count(), 0);
        assert_eq!(table.owners().count(), 0);
    }
}
