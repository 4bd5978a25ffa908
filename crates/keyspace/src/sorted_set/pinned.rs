//! Reads members of a large sorted set in order while other threads modify it.
//!
//! A snapshot preserves the members but not their order ([`super`]). So the order of the requested members is copied
//! first, four bytes each; the snapshot keeps their entries in place until it is dropped.

use std::ops::Range;
use std::sync::Arc;

use slot_routing::Slot;

use super::{ScoredMember, SortedSetFields, SortedSetRef};
use crate::entries::EntryRef;
use crate::fields::LargeFields;
use crate::keyspace::Keyspace;
use crate::large::LargeValue;
use crate::locked_slots::LockedSlots;
use crate::packed::CollectionShape;
use crate::snapshot::Snapshot;

/// Maximum number of members that are copied while the slot is locked once, which takes some microseconds.
const MEMBERS_PER_LOCK: usize = 256;
const BYTES_PER_LOCK: usize = 32 << 10;

/// The members whose ranks were in a range at one moment.
#[derive(Debug)]
pub struct PinnedMembers {
    snapshot: Snapshot,
    slot: Slot,
    /// The entries of the members, in the order in which they are visited.
    entries: Vec<EntryRef>,
}

/// The ranks of members, and the direction in which these are visited.
#[derive(Debug, Clone)]
pub struct RankRange {
    /// The ranks, counted from the lowest member.
    pub ranks: Range<usize>,
    /// Whether the members are visited from the highest rank to the lowest.
    pub reversed: bool,
}

impl Keyspace {
    /// Pins the sorted set at `entry_ref`, whose slot must be locked, to read the members whose ranks are in a range.
    /// Returns `None` in the same cases as [`Keyspace::pin_values`].
    pub fn pin_members(
        self: &Arc<Self>,
        slots: &mut LockedSlots<'_>,
        db: u16,
        slot: Slot,
        entry_ref: EntryRef,
        ranks: RankRange,
    ) -> Option<PinnedMembers> {
        let places = slots.slot(slot).table_ref(db).sorted_set(entry_ref)?.entries(ranks)?;
        let snapshot = self.pin_values(slots, db, &[(slot, entry_ref)])?;
        Some(PinnedMembers { snapshot, slot, entries: places })
    }
}

impl SortedSetRef<'_> {
    /// Returns the entries of the members with these ranks; `None` if the set is packed.
    fn entries(&self, RankRange { ranks, reversed }: RankRange) -> Option<Vec<EntryRef>> {
        let CollectionShape::Large(members) = self.shape else { return None };
        let mut places = Vec::with_capacity(ranks.len());
        members.entries.secondary_order.visit_runs(ranks, reversed, &mut |run| {
            let first = places.len();
            places.extend(run.iter().copied().map(EntryRef));
            if reversed {
                places[first..].reverse();
            }
            true
        });
        Some(places)
    }
}

impl PinnedMembers {
    /// Visits the members in batches, while the slot is unlocked, until `visit` returns false.
    pub fn visit(self, visit: &mut dyn FnMut(ScoredMember<'_>) -> bool) {
        let (mut left, mut copied) = (&self.entries[..], CopiedMembers::default());
        while !left.is_empty() {
            let next = &left[..left.len().min(MEMBERS_PER_LOCK)];
            self.snapshot.with_next_value(self.slot, |value| {
                if let LargeValue::SortedSet(members) = value {
                    copied.copy_members(members, next);
                }
            });
            left = &left[copied.members.len()..];
            if copied.members.is_empty() || !copied.visit_and_clear(visit) {
                break;
            }
        }
    }
}

/// Copied members. The name of each member ends at an offset in `names`.
#[derive(Default)]
struct CopiedMembers {
    names: Vec<u8>,
    members: Vec<(f64, usize)>,
}

impl CopiedMembers {
    /// Copies the first of these members; always at least one.
    fn copy_members(&mut self, members: &LargeFields<SortedSetFields>, entries: &[EntryRef]) {
        entries.iter().for_each(|place| members.entries.prefetch_at(*place));
        for place in entries {
            let member = ScoredMember::from(members.field_at(*place));
            self.names.extend_from_slice(member.name);
            self.members.push((member.score, self.names.len()));
            if self.names.len() > BYTES_PER_LOCK {
                break;
            }
        }
    }

    /// Visits and clears the copied members. Stops early if `visit` returns false.
    fn visit_and_clear(&mut self, visit: &mut dyn FnMut(ScoredMember<'_>) -> bool) -> bool {
        let mut start = 0;
        let goes_on = self.members.iter().all(|&(score, end)| {
            let name = &self.names[start..end];
            start = end;
            visit(ScoredMember { name, score })
        });
        self.members.clear();
        self.names.clear();
        goes_on
    }
}
