//! About how long a request will take, known before it runs from how much it walks.
//!
//! A row of the command table may have a function that says so ([`super::Command::long`]). It looks at sizes alone, and
//! changes nothing: neither a key's time of use, nor a key whose time has come.

use clock::Millis;
use keyspace::{KeyLookup, LockedSlots, Value};
use resp::Args;
use slot_routing::Slot;

use super::Command;
use crate::engine::Engine;
use crate::keys::KeyFlags;

/// Says for about how many nanoseconds a request will run.
pub(crate) type Estimate = fn(&Estimated<'_>) -> u64;

/// A request whose slots are locked, as an estimate looks at it.
pub struct Estimated<'e> {
    /// The command's name first.
    pub args: Args<'e>,
    pub(crate) command: &'static Command,
    pub(crate) engine: &'e Engine,
    pub(crate) slots: &'e LockedSlots<'e>,
    pub(crate) db: u16,
    pub(crate) now: Millis,
}

impl std::fmt::Debug for Estimated<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Estimated").field("args", &self.args).finish_non_exhaustive()
    }
}

impl Estimated<'_> {
    /// Hands the value under the key that stands at `index` to `look`, unless it is small or there is none.
    pub fn value<R>(&self, index: usize, look: impl FnOnce(Value<'_>) -> R) -> Option<R> {
        let word = self.args.get(index)?;
        let slot = Slot::of_key(word);
        if !self.slots.has(slot) {
            return None;
        }
        let table = self.slots.slot(slot).table_if(self.db)?;
        // Most slots have none, and no key needs to be looked for.
        if !table.may_have_large() {
            return None;
        }
        match table.find(&self.engine.keyspace.key_in(slot, word), self.now) {
            KeyLookup::Live(place) => Some(look(table.value(place))),
            KeyLookup::Missing | KeyLookup::Expired(_) => None,
        }
    }

    /// How many elements the value under the key that stands at `index` has, or bytes if it is a string. None if it is
    /// small.
    pub fn extent(&self, index: usize) -> usize {
        self.value(index, |value| value.extent()).unwrap_or(0)
    }

    /// Visits the extents of the values that are read.
    pub fn each_extent(&self, mut visit: impl FnMut(usize)) {
        self.command.visit_keys(self.args, &mut |index, flags| {
            if !flags.contains(KeyFlags::OW) {
                visit(self.extent(index));
            }
        });
    }

    /// How many keys all databases have: that is known without a lock, which this request may have itself.
    pub fn keys(&self) -> usize {
        self.engine.keyspace.keys()
    }
}
