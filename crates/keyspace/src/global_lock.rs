//! The script turn: the right to wait for a slot while holding another.
//!
//! A thread that never waits while it holds a slot cannot be part of a deadlock. Of those that must wait so (a script
//! with undeclared keys, a command that takes every slot), only the holder of the turn may: it waits for threads of
//! which none waits for it while holding a slot. A function that takes a [`ScriptTurn`] cannot be called without
//! the turn.

use std::time::Duration;

use parking_lot::MutexGuard;

use crate::keyspace::{ASKED, Keyspace, Patience};

/// Held by the thread that waits for a slot while holding another. To be waited for while holding no slot.
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

    /// The script turn, waited for as long as `patient` lets it.
    #[must_use]
    pub fn script_turn_while(&self, patient: Patience<'_>) -> Option<ScriptTurn<'_>> {
        let mut waited = ASKED;
        loop {
            match self.script_turn_within(ASKED) {
                None if patient(waited) => waited += ASKED,
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
