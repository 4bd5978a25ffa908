//! Estimates of how long a request will run, computed from data sizes before it runs.
//!
//! A row of the command table may have an estimate function ([`super::Command::with_estimate`]). It reads only sizes
//! and changes nothing: it does not touch usage data and does not delete expired keys.

use clock::Millis;
use keyspace::{KeyLookup, LockedSlots, Value};
use resp::Args;
use slot_routing::Slot;

use super::Command;
use crate::engine::Engine;
use crate::keys::KeyFlags;

/// Returns the estimated duration of a request in nanoseconds.
pub(crate) type EstimateFn = fn(&EstimateInput<'_>) -> u64;

/// A request with locked slots, as seen by an estimate function.
pub struct EstimateInput<'e> {
    /// The arguments, with the command's name first.
    pub args: Args<'e>,
    pub(crate) command: &'static Command,
    pub(crate) engine: &'e Engine,
    pub(crate) slots: &'e LockedSlots<'e>,
    pub(crate) db: u16,
    pub(crate) now: Millis,
}

impl std::fmt::Debug for EstimateInput<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Estimated").field("args", &self.args).finish_non_exhaustive()
    }
}

impl EstimateInput<'_> {
    /// Passes the value of the key at argument `index` to `read`. Returns `None` if the value is small or missing.
    pub fn with_value<R>(&self, index: usize, read: impl FnOnce(Value<'_>) -> R) -> Option<R> {
        let word = self.args.get(index)?;
        let slot = Slot::of_key(word);
        if !self.slots.is_locked(slot) {
            return None;
        }
        let table = self.slots.slot(slot).existing_table(self.db)?;
        // In most slots no value is large, so this check saves the lookup.
        if !table.may_have_large_values() {
            return None;
        }
        match table.find(&self.engine.keyspace.key_in_slot(slot, word), self.now) {
            KeyLookup::Live(place) => Some(read(table.value(place))),
            KeyLookup::Missing | KeyLookup::Expired(_) => None,
        }
    }

    /// Returns the number of elements of the value at argument `index`, or of bytes if it is a string; 0 if it is
    /// small.
    pub fn value_size(&self, index: usize) -> usize {
        self.with_value(index, |value| value.element_count()).unwrap_or(0)
    }

    /// Visits the sizes of all values that the request reads.
    pub fn visit_value_sizes(&self, mut visit: impl FnMut(usize)) {
        self.command.visit_keys(self.args, &mut |index, flags| {
            if !flags.contains(KeyFlags::OW) {
                visit(self.value_size(index));
            }
        });
    }

    /// Returns the number of keys in all databases. Each slot publishes its count when it is unlocked, and the request
    /// may hold slot locks now, so the count may be slightly out of date.
    pub fn key_count(&self) -> usize {
        self.engine.keyspace.key_count()
    }
}
