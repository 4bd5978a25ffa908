//! What a session has queued since MULTI, and what it watches.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use resp::{Args, Request};

use crate::command::{Flags, Reach};
use crate::lookup::Registered;
use crate::watch::{Dirty, Watched};

/// A client that queues more than this is cut off.
pub(crate) const MAX_QUEUED_BYTES: usize = 1024 * 1024 * 1024;

/// The commands since MULTI.
#[derive(Debug, Default)]
pub(crate) struct Transaction {
    pub(crate) queue: Vec<(&'static Registered, Request)>,
    /// A command was refused: EXEC will run none.
    pub(crate) failed: bool,
    /// What the queue takes.
    pub(crate) bytes: usize,
}

impl Transaction {
    pub(crate) fn push(&mut self, entry: &'static Registered, args: Args<'_>) {
        let request = Request::from(args);
        self.bytes += size_of::<(&Registered, Request)>() + request.bytes();
        self.queue.push((entry, request));
    }

    /// The flags of EXEC: what one command of the queue is (it writes, it needs memory), and what all of
    /// them are (they may run while the data is loaded or old).
    pub(crate) fn flags_of_exec(&self, own: Flags) -> Flags {
        let of_all = Flags::LOADING | Flags::STALE;
        self.queue.iter().fold(own, |flags, (entry, _)| {
            let command = entry.command.flags;
            ((flags | command) - of_all) | (flags & command & of_all)
        })
    }

    /// Whether it needs all slots: a command in it goes through them.
    pub(crate) fn holds_all(&self) -> bool {
        let through_them = |reach| matches!(reach, Reach::EachSlot | Reach::AllSlots);
        self.queue.iter().any(|(entry, _)| through_them(entry.command.reach))
    }

    /// Whether a command in it names keys while it runs.
    pub(crate) fn names_keys_later(&self) -> bool {
        self.queue.iter().any(|(entry, request)| entry.command.names_keys_later(request.args()))
    }

    pub(crate) fn has_keys(&self) -> bool {
        self.queue.iter().any(|(entry, _)| !entry.command.keys.is_empty())
    }
}

/// The keys that a session watches.
#[derive(Debug, Default)]
pub(crate) struct Watching {
    /// Each with whether it was past its time already, so that its going is no change.
    pub(crate) keys: BTreeMap<Watched, bool>,
    pub(crate) dirty: Dirty,
}

impl Watching {
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }

    /// Forgets everything; returns what was watched. Marks that are still on their way reach nobody.
    pub(crate) fn take(&mut self) -> BTreeMap<Watched, bool> {
        self.dirty = Arc::new(AtomicBool::new(false));
        std::mem::take(&mut self.keys)
    }
}
