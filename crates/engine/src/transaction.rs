//! The commands that a session has queued since MULTI, and the keys that it watches.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use resp::{Args, Request};

use crate::watch::{Dirty, Watched};

/// A client that queues more than this is cut off.
pub(crate) const MAX_QUEUED_BYTES: usize = 1024 * 1024 * 1024;

/// The commands since MULTI.
#[derive(Debug)]
pub(crate) struct Transaction {
    /// Each with its command's number.
    pub(crate) queue: Vec<(usize, Request)>,
    /// A command was refused: EXEC will run none.
    pub(crate) failed: bool,
    /// The bytes that the queue takes.
    pub(crate) bytes: usize,
    /// The database in which the next command of the queue will run.
    pub(crate) db: u16,
}

impl Transaction {
    /// One without commands, begun in this database.
    pub(crate) fn begun_in(db: u16) -> Self {
        Self { queue: Vec::new(), failed: false, bytes: 0, db }
    }

    pub(crate) fn push(&mut self, command: usize, args: Args<'_>) {
        let request = Request::from(args);
        self.bytes += size_of::<(usize, Request)>() + request.bytes();
        self.queue.push((command, request));
    }
}

/// An EXEC of which some commands wait for more than keys: they are carried out when the others have run, and nothing
/// is locked any more.
#[derive(Debug)]
pub(crate) struct Unfinished {
    pub(crate) transaction: Box<Transaction>,
    /// The replies, in the order of the queue, as far as they are there.
    pub(crate) replies: Vec<Option<Vec<u8>>>,
}

impl Unfinished {
    /// The first command that has no reply yet.
    pub(crate) fn next(&self) -> Option<usize> {
        self.replies.iter().position(Option::is_none)
    }
}

/// The keys that a session watches.
#[derive(Debug, Default)]
pub(crate) struct Watching {
    pub(crate) keys: BTreeSet<Watched>,
    pub(crate) dirty: Dirty,
}

impl Watching {
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }

    /// Forgets everything; returns the keys that were watched. Marks that are still on their way have no effect.
    pub(crate) fn take(&mut self) -> BTreeSet<Watched> {
        self.dirty = Arc::new(AtomicBool::new(false));
        std::mem::take(&mut self.keys)
    }
}
