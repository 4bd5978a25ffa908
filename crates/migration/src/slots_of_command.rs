//! Finds the slots of a command's keys. This crate must not depend on the command table, so the process provides the
//! function.

use std::fmt;
use std::sync::Arc;

use resp::Args;
use slot_routing::{Slot, SlotSet};

/// A function that calls the visitor with the slot of each key of a command.
type SlotVisitor = dyn Fn(Args<'_>, &mut dyn FnMut(Slot)) + Send + Sync;

/// Finds the slots that the keys of a command belong to.
#[derive(Clone)]
pub struct CommandSlotFinder(Arc<SlotVisitor>);

impl CommandSlotFinder {
    /// Wraps a function that calls its second argument with the slot of each key of a command.
    pub fn new(visit: impl Fn(Args<'_>, &mut dyn FnMut(Slot)) + Send + Sync + 'static) -> Self {
        Self(Arc::new(visit))
    }

    /// Returns whether any key of the command is in these slots.
    pub(crate) fn touches_any(&self, args: Args<'_>, slots: &SlotSet) -> bool {
        let mut any = false;
        (self.0)(args, &mut |slot| any |= slots.contains(slot));
        any
    }

    /// Returns whether the command has keys, all of them in these slots.
    pub(crate) fn touches_only(&self, args: Args<'_>, slots: &SlotSet) -> bool {
        let (mut any, mut all) = (false, true);
        (self.0)(args, &mut |slot| {
            any = true;
            all &= slots.contains(slot);
        });
        any && all
    }
}

impl fmt::Debug for CommandSlotFinder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SlotsOfCommand")
    }
}

/// Creates a finder for tests. It treats every argument that begins with a hash tag as a key.
#[cfg(test)]
pub(crate) fn tagged_argument_finder() -> CommandSlotFinder {
    CommandSlotFinder::new(|args, visit| {
        args.iter().skip(1).filter(|arg| arg.starts_with(b"{")).for_each(|key| visit(Slot::of_key(key)));
    })
}
