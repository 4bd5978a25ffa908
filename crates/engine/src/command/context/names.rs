//! Lists all key names at one point in time, for KEYS.

use clock::Millis;
use keyspace::{LockedSlots, SlotData};

use super::Context;
use crate::outcome::CommandOutcome;

/// Number of keys up to which all their slots are locked together for the listing.
pub const MAX_KEYS_LOCKED_TOGETHER: usize = 4096;

/// Maximum number of attempts to lock all non-empty slots together; an attempt fails if another slot gets its first
/// key.
const MAX_LOCK_ATTEMPTS: usize = 3;

/// Function that receives the name and the expiry of each key.
type KeyVisitor<'v> = dyn FnMut(&[u8], Option<Millis>) + 'v;

impl Context<'_> {
    /// Visits the names of all keys in the selected database at one point in time. If there are few keys, all slots are
    /// locked together. If there are many, the slots are pinned, and then each is locked for a few microseconds at a
    /// time.
    ///
    /// # Errors
    /// Another thread has locked slots for long, so the command has to run on another worker.
    pub fn visit_names(&mut self, visit: &mut KeyVisitor<'_>) -> Result<(), CommandOutcome> {
        let (engine, db) = (self.engine, self.session.db());
        if self.holds_all_slots {
            self.slots.iter_mut().for_each(|data| visit_slot(data, db, visit));
            return Ok(());
        }
        let keyspace = &engine.keyspace;
        let (turn, wait) = (engine.take_global_lock(self)?, engine.start_slot_wait(self, &[]));
        for _ in 0..MAX_LOCK_ATTEMPTS {
            let changes = keyspace.non_empty_change_count();
            if keyspace.key_count() > MAX_KEYS_LOCKED_TOGETHER {
                break;
            }
            let mut locked = LockedSlots::default();
            if !locked
                .add_slots(&turn, keyspace.non_empty_slots(), &|waited| wait.should_keep_waiting(waited))
            {
                return Err(wait.outcome(self.session));
            }
            // All other slots are still empty, so the listing is complete.
            if keyspace.non_empty_change_count() == changes {
                locked.iter_mut().for_each(|data| visit_slot(data, db, visit));
                return Ok(());
            }
        }
        let cut = keyspace
            .prepare_snapshot()
            .take_for_command(&turn, || keyspace.non_empty_slots().collect::<Vec<_>>());
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
            // The maximum number of concurrent snapshots is reached.
            None => self.each_slot(|_, data| visit_slot(data, db, visit)),
        }
        Ok(())
    }
}

fn visit_slot(data: &SlotData, db: u16, visit: &mut KeyVisitor<'_>) {
    if !data.is_hidden() {
        data.table_ref(db).scan(0, usize::MAX, &mut |item| visit(item.key, item.expiry));
    }
}
