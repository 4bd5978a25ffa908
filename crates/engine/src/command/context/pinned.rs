//! Pinned reads of large values, which release the slot locks before the values are read.

use keyspace::{EntryRef, Key, PartElements, PinnedMembers, RankRange, Snapshot, SnapshotValue};
use slot_routing::Slot;
use smallvec::SmallVec;

use super::Context;
use crate::command::Caller;

/// Consistent views of the values of some keys.
#[derive(Debug)]
pub struct PinnedValues {
    snapshot: Snapshot,
    /// The slots of the values, sorted and without duplicates.
    slots: SmallVec<[Slot; 1]>,
}

impl Context<'_> {
    /// Returns whether a read-only command may release its slot locks early, which requires that it runs in the
    /// background.
    pub fn may_release_slots(&self) -> bool {
        // With CLIENT TRACKING, the keys that were read are recorded when the command ends, and must not change before
        // that.
        self.session.background().is_on_slow_worker()
            && self.caller == Caller::Client
            && !self.session.tracks_reads()
            && self.global_lock.is_none()
    }

    /// Releases the slot locks; the command must not access slots after this.
    pub fn release_slots(&mut self) {
        // The slots are free now, so other commands need not avoid them any more.
        self.long_slots = None;
        self.slots.release();
    }

    /// Pins the values of some keys and releases the slot locks, if all values are large and the command [may release
    /// its locks](Self::may_release_slots). Otherwise returns `None` and keeps the locks.
    pub fn pin_values(&mut self, values: &[(Key<'_>, EntryRef)]) -> Option<PinnedValues> {
        if !self.may_release_slots() {
            return None;
        }
        let values: SmallVec<[_; 4]> = values.iter().map(|(key, place)| (key.slot(), *place)).collect();
        let snapshot = self.engine.keyspace.pin_values(&mut self.slots, self.session.db(), &values)?;
        let mut slots: SmallVec<_> = values.iter().map(|(slot, _)| *slot).collect();
        slots.sort_unstable();
        slots.dedup();
        self.release_slots();
        Some(PinnedValues { snapshot, slots })
    }

    /// Pins the members of a sorted set with these ranks and releases the slot locks, under the conditions of
    /// [`Self::pin_values`].
    pub fn pin_members(
        &mut self,
        key: &Key<'_>,
        entry_ref: EntryRef,
        ranks: RankRange,
    ) -> Option<PinnedMembers> {
        if !self.may_release_slots() {
            return None;
        }
        let (keyspace, db) = (&self.engine.keyspace, self.session.db());
        let pinned = keyspace.pin_members(&mut self.slots, db, key.slot(), entry_ref, ranks)?;
        self.release_slots();
        Some(pinned)
    }
}

impl PinnedValues {
    /// Visits the elements in chunks, each with its key, until `visit` returns false. The elements of a list or another
    /// ordered value are visited in order.
    pub fn visit_elements(mut self, mut visit: impl FnMut(&[u8], PartElements<'_>) -> bool) {
        let mut keeps_waiting = true;
        for slot in self.slots {
            let mut more = true;
            while keeps_waiting && more {
                more = self.snapshot.walk_part(slot, &mut |entry| {
                    if let SnapshotValue::Part(part) = entry.value {
                        keeps_waiting = keeps_waiting && visit(entry.key, part.elements);
                    }
                });
            }
        }
    }
}
