//! The slots that a command concerns. The command table is above this crate, so the process passes the function in.

use std::fmt;
use std::sync::Arc;

use resp::Args;
use slot_routing::{Slot, SlotSet};

/// A function that passes each slot of a command's keys to the visitor.
type VisitSlots = dyn Fn(Args<'_>, &mut dyn FnMut(Slot)) + Send + Sync;

/// Finds the slots that the keys of a command belong to.
#[derive(Clone)]
pub struct SlotsOfCommand(Arc<VisitSlots>);

impl SlotsOfCommand {
    /// Wraps a function that passes each slot of a command's keys to its second argument.
    pub fn new(visit: impl Fn(Args<'_>, &mut dyn FnMut(Slot)) + Send + Sync + 'static) -> Self {
        Self(Arc::new(visit))
    }

    /// Returns whether the command concerns any of these slots.
    pub(crate) fn touch_any(&self, args: Args<'_>, slots: &SlotSet) -> bool {
        let mut any = false;
        (self.0)(args, &mut |slot| any |= slots.contains(slot));
        any
    }

    /// Returns whether the command has keys, all of them in these slots.
    pub(crate) fn touch_only(&self, args: Args<'_>, slots: &SlotSet) -> bool {
        let (mut any, mut all) = (false, true);
        (self.0)(args, &mut |slot| {
            any = true;
            all &= slots.contains(slot);
        });
        any && all
    }
}

impl fmt::Debug for SlotsOfCommand {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SlotsOfCommand")
    }
}

/// Creates a finder for tests, which takes every argument that begins with a hash tag for a key.
#[cfg(test)]
pub(crate) fn of_tagged_words() -> SlotsOfCommand {
    SlotsOfCommand::new(|args, visit| {
        args.iter().skip(1).filter(|arg| arg.starts_with(b"{")).for_each(|key| visit(Slot::of_key(key)));
    })
}
