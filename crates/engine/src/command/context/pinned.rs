//! A large value that is read while others have its slot.

use keyspace::{Elements, Key, Place, Shown, Snapshot};
use slot_routing::Slot;

use super::Context;
use crate::command::Caller;
use crate::session::Background;

/// The value of a key at one moment.
#[derive(Debug)]
pub struct PinnedValue {
    snapshot: Snapshot,
    slot: Slot,
}

impl Context<'_> {
    /// The value at `place` as it is now, if it is large and the command only reads it and has time, in the background: its
    /// slots are free from here on, and nothing more may be done with them.
    pub fn pin(&mut self, key: &Key<'_>, place: Place) -> Option<PinnedValue> {
        // Tracked keys are noted when the command has ended, and no change may come before that.
        let may_let_go = self.session.background == Background::Here
            && self.caller == Caller::Client
            && !self.session.tracks
            && self.turn.is_none();
        if !may_let_go {
            return None;
        }
        let (slot, db, keyspace) = (key.slot(), self.session.db, &self.engine.keyspace);
        let snapshot = keyspace.pin_value(self.slots.slot_mut(slot), slot, db, place)?;
        // Nobody is to wait for this command any more.
        self.long = None;
        self.slots.release();
        Some(PinnedValue { snapshot, slot })
    }
}

impl PinnedValue {
    /// Visits its elements, some at a time, in the order that the value has if it has one, until `visit` says no.
    pub fn visit(mut self, mut visit: impl FnMut(Elements<'_>) -> bool) {
        let (mut goes_on, mut more) = (true, true);
        while goes_on && more {
            more = self.snapshot.walk_part(self.slot, &mut |entry| {
                if let Shown::Part(part) = entry.value {
                    goes_on = goes_on && visit(part.elements);
                }
            });
        }
    }
}
