//! Decodes commands of the log with the command table. This crate must not depend on the table, so the process provides
//! the function.

use std::fmt;
use std::sync::Arc;

use resp::Args;
use slot_routing::{Slot, SlotSet};

/// What a command means in the log of a master or in the stream of a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoggedCommandKind {
    /// SELECT: the following commands change another database.
    SelectDb,
    /// MULTI: the following commands belong to a transaction.
    BeginTransaction,
    /// EXEC: the transaction is complete.
    EndTransaction,
    /// FLUSHALL, FLUSHDB or SWAPDB: the command changes keys that it does not name.
    ChangesUnnamedKeys,
    /// PING: the master shows that it is alive.
    KeepAlive,
    /// Any other command. It concerns the slots of its keys.
    Other,
}

/// A function that calls the visitor with the slot of each key of a command, and returns the kind of the command.
type DecodeFn = dyn Fn(Args<'_>, &mut dyn FnMut(Slot)) -> LoggedCommandKind + Send + Sync;

/// Determines the kind of a command and the slots that its keys belong to.
#[derive(Clone)]
pub struct LoggedCommandDecoder(Arc<DecodeFn>);

impl LoggedCommandDecoder {
    /// Wraps a function that calls its second argument with the slot of each key of a command, and returns the kind of
    /// the command.
    pub fn new(
        decode: impl Fn(Args<'_>, &mut dyn FnMut(Slot)) -> LoggedCommandKind + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(decode))
    }

    /// Returns the kind of the command and which of its keys are in these slots.
    pub(crate) fn decode(&self, args: Args<'_>, slots: &SlotSet) -> (LoggedCommandKind, KeysInSlots) {
        let (mut any_inside, mut any_outside) = (false, false);
        let kind = (self.0)(args, &mut |slot| match slots.contains(slot) {
            true => any_inside = true,
            false => any_outside = true,
        });
        let keys = match (any_inside, any_outside) {
            (false, _) => KeysInSlots::None,
            (true, true) => KeysInSlots::Some,
            (true, false) => KeysInSlots::All,
        };
        (kind, keys)
    }
}

/// Which keys of a command are in a set of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeysInSlots {
    /// No key is in the slots, or the command has no keys.
    None,
    /// Some keys are in the slots and others are not.
    Some,
    /// The command has keys, all of them in the slots.
    All,
}

impl fmt::Debug for LoggedCommandDecoder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("LoggedCommandDecoder")
    }
}

/// Creates a decoder for tests. It treats every argument that begins with a hash tag as a key.
#[cfg(test)]
pub(crate) fn tagged_argument_decoder() -> LoggedCommandDecoder {
    LoggedCommandDecoder::new(|args, visit| {
        args.iter().skip(1).filter(|arg| arg.starts_with(b"{")).for_each(|key| visit(Slot::of_key(key)));
        match args.get(0).unwrap_or_default().to_ascii_lowercase().as_slice() {
            b"select" => LoggedCommandKind::SelectDb,
            b"multi" => LoggedCommandKind::BeginTransaction,
            b"exec" => LoggedCommandKind::EndTransaction,
            b"flushall" | b"flushdb" | b"swapdb" => LoggedCommandKind::ChangesUnnamedKeys,
            b"ping" => LoggedCommandKind::KeepAlive,
            _ => LoggedCommandKind::Other,
        }
    })
}
