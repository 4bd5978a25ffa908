//! The names of all keys at one moment, for a command that gives them all.

use clock::Millis;
use keyspace::{LockedSlots, SlotData};

use super::Context;
use crate::error::CommandError;

/// The slots of more keys than this are not locked together while their names are read.
pub const FEW_KEYS: usize = 4096;

/// How often slots are locked together before that is given up, since others get their first keys meanwhile.
const ATTEMPTS: usize = 3;

/// Sees the name of a key, and when it expires.
type Visit<'v> = dyn FnMut(&[u8], Option<Millis>) + 'v;

impl Context<'_> {
    /// Visits the names of all keys of the client's database as they are at one moment. The slots of few keys are locked
    /// together; those of many are pinned, and then each is locked for some microseconds at a time.
    ///
    /// # Errors
    /// Others hold slots for long, and the command is to run elsewhere.
    pub fn visit_names(&mut self, visit: &mut Visit<'_>) -> Result<(), CommandError> {
        let (engine, db) = (self.engine, self.session.db);
        if self.holds_all {
            self.slots.iter_mut().for_each(|data| visit_slot(data, db, visit));
            return Ok(());
        }
        let keyspace = &engine.keyspace;
        let (turn, wait) = (engine.turn_of(self)?, engine.slot_wait(self, &[]));
        for _ in 0..ATTEMPTS {
            let changes = keyspace.filled_changes();
            if keyspace.keys() > FEW_KEYS {
                break;
            }
            let mut locked = LockedSlots::default();
            if !locked.add_each(&turn, keyspace.filled_slots(), &|waited| wait.goes_on(waited)) {
                return Err(wait.refusal());
            }
            // Nothing came to a slot that was not locked, from one of these or otherwise.
            if keyspace.filled_changes() == changes {
                locked.iter_mut().for_each(|data| visit_slot(data, db, visit));
                return Ok(());
            }
        }
        let cut = keyspace.prepare_cut().cut_to_read(&turn, || keyspace.filled_slots().collect::<Vec<_>>());
        drop(turn);
        match cut {
            Some((mut snapshot, filled)) => {
                for slot in filled {
                    snapshot.walk_names(slot, |of, key, expiry| {
                        if of == db {
                            visit(key, expiry);
                        }
                    });
                }
            }
            // As many snapshots are under way as there can be.
            None => self.each_slot(|_, data| visit_slot(data, db, visit)),
        }
        Ok(())
    }
}

fn visit_slot(data: &SlotData, db: u16, visit: &mut Visit<'_>) {
    if !data.is_hidden() {
        data.view(db).scan(0, usize::MAX, &mut |item| visit(item.key, item.expiry));
    }
}
