//! Large values that are read while others have their slots.

use std::ops::Range;

use keyspace::{EntryRef, Key, PartElements, PinnedMembers, Snapshot, SnapshotValue};
use slot_routing::Slot;
use smallvec::SmallVec;

use super::Context;
use crate::command::Caller;
use crate::session::Background;

/// The values of some keys at one moment.
#[derive(Debug)]
pub struct PinnedValues {
    snapshot: Snapshot,
    /// In rising order, each once.
    slots: SmallVec<[Slot; 1]>,
}

impl Context<'_> {
    /// Whether a command that only reads may do the rest of its work with its slots free: it has time, in the background.
    pub fn may_let_go(&self) -> bool {
        // Tracked keys are noted when the command has ended, and no change may come before that.
        self.session.background == Background::Here
            && self.caller == Caller::Client
            && !self.session.tracks
            && self.turn.is_none()
    }

    /// From here on the command's slots are free, and nothing more may be done with them.
    pub fn let_go(&mut self) {
        // Nobody is to wait for this command any more.
        self.long = None;
        self.slots.release();
    }

    /// The values of some keys as they are now, if all are large and the command [may let go](Self::may_let_go), which it
    /// has done then.
    pub fn pin(&mut self, values: &[(Key<'_>, EntryRef)]) -> Option<PinnedValues> {
        if !self.may_let_go() {
            return None;
        }
        let values: SmallVec<[_; 4]> = values.iter().map(|(key, place)| (key.slot(), *place)).collect();
        let snapshot = self.engine.keyspace.pin_values(&mut self.slots, self.session.db, &values)?;
        let mut slots: SmallVec<_> = values.iter().map(|(slot, _)| *slot).collect();
        slots.sort_unstable();
        slots.dedup();
        self.let_go();
        Some(PinnedValues { snapshot, slots })
    }

    /// The same of the members of a sorted set that have these ranks.
    pub fn pin_members(
        &mut self,
        key: &Key<'_>,
        place: EntryRef,
        ranks: Range<usize>,
        reversed: bool,
    ) -> Option<PinnedMembers> {
        if !self.may_let_go() {
            return None;
        }
        let (keyspace, db) = (&self.engine.keyspace, self.session.db);
        let pinned = keyspace.pin_members(&mut self.slots, db, (key.slot(), place), ranks, reversed)?;
        self.let_go();
        Some(pinned)
    }
}

impl PinnedValues {
    /// Visits their elements, some of one value at a time with its key, in the order that the value has if it has one,
    /// until `visit` says no.
    pub fn visit(mut self, mut visit: impl FnMut(&[u8], PartElements<'_>) -> bool) {
        let mut goes_on = true;
        for slot in self.slots {
            let mut more = true;
            while goes_on && more {
                more = self.snapshot.walk_part(slot, &mut |entry| {
                    if let SnapshotValue::Part(part) = entry.value {
                        goes_on = goes_on && visit(entry.key, part.elements);
                    }
                });
            }
        }
    }
}
