//! The state of MULTI: queued commands and watched keys.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use resp::{Args, Request};

use crate::watch::{DirtyFlag, WatchedKey};

/// Maximum size in bytes of a transaction queue; clients that exceed it are disconnected.
pub(crate) const MAX_QUEUED_BYTES: usize = 1024 * 1024 * 1024;

/// The commands queued since MULTI.
#[derive(Debug)]
pub(crate) struct Transaction {
    /// The queued requests, each with its command's number.
    pub(crate) queue: Vec<(usize, Request)>,
    /// Whether a command was refused, so that EXEC aborts.
    pub(crate) has_failed: bool,
    /// Memory used by the queued requests, in bytes.
    pub(crate) memory_bytes: usize,
    /// The database in which the next queued command will run.
    pub(crate) db: u16,
}

impl Transaction {
    /// Creates an empty transaction in this database.
    pub(crate) fn new_in(db: u16) -> Self {
        Self { queue: Vec::new(), has_failed: false, memory_bytes: 0, db }
    }

    pub(crate) fn push(&mut self, command: usize, args: Args<'_>) {
        let request = Request::from(args);
        self.memory_bytes += size_of::<(usize, Request)>() + request.heap_bytes();
        self.queue.push((command, request));
    }
}

/// An EXEC with queued commands that wait for something other than keys. They run after all others, without slot locks.
#[derive(Debug)]
pub(crate) struct DeferredExec {
    pub(crate) transaction: Box<Transaction>,
    /// The replies in queue order; `None` where a command has not run yet.
    pub(crate) replies: Vec<Option<Vec<u8>>>,
}

impl DeferredExec {
    /// Returns the first command without a reply.
    pub(crate) fn next_pending_command(&self) -> Option<usize> {
        self.replies.iter().position(Option::is_none)
    }
}

/// The keys that a session watches, and whether one of them has changed.
#[derive(Debug, Default)]
pub(crate) struct WatchState {
    pub(crate) keys: BTreeSet<WatchedKey>,
    pub(crate) dirty: DirtyFlag,
}

impl WatchState {
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }

    /// Unwatches all keys and returns them. Changes that other threads report later have no effect.
    pub(crate) fn unwatch_all(&mut self) -> BTreeSet<WatchedKey> {
        self.dirty = Arc::new(AtomicBool::new(false));
        std::mem::take(&mut self.keys)
    }
}
