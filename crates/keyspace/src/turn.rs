//! The script turn: the right to wait for a slot while holding another.
//!
//! Who never waits with a slot in hand cannot be part of a circle of waiters. Of those who must wait so (a script
//! that names its keys as it goes, whatever takes every slot), one at a time is let: its holder waits for others,
//! none of whom waits for it with a slot in hand. What asks for a [`ScriptTurn`] cannot be called without it.

use std::time::Duration;

use parking_lot::MutexGuard;

use crate::keyspace::{ASKED, Keyspace};

/// Held by whoever waits for a slot while holding another. To be waited for with no slot in hand.
#[derive(Debug)]
pub struct ScriptTurn<'k> {
    pub(crate) keyspace: &'k Keyspace,
    _held: MutexGuard<'k, ()>,
}

impl Keyspace {
    /// Waits for the script turn. The caller must hold no slot.
    #[must_use]
    pub fn script_turn(&self) -> ScriptTurn<'_> {
        ScriptTurn { keyspace: self, _held: self.turn.lock() }
    }

    /// The script turn, waited for as long as `patient`, asked now and then, lets it.
    #[must_use]
    pub fn script_turn_while(&self, patient: &dyn Fn() -> bool) -> Option<ScriptTurn<'_>> {
        loop {
            match self.script_turn_within(ASKED) {
                None if patient() => {}
                turn => return turn,
            }
        }
    }

    /// The script turn, if it is free within `time`. The caller may hold slots, since it does not wait for ever.
    #[must_use]
    pub fn script_turn_within(&self, time: Duration) -> Option<ScriptTurn<'_>> {
        self.turn.try_lock_for(time).map(|held| ScriptTurn { keyspace: self, _held: held })
    }
}
