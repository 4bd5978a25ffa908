//! The state of MULTI: queued commands and watched keys.

use std::cell::OnceCell;
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
    pub(crate) fn new_in_database(db: u16) -> Self {
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
    /// The commands in queue order.
    pub(crate) commands: Vec<DeferredCommand>,
}

/// A command of an EXEC with deferred commands.
#[derive(Debug)]
pub(crate) enum DeferredCommand {
    /// The command has run, with this reply.
    Replied(Vec<u8>),
    /// The command has not run yet: its number and its request.
    Pending(usize, Request),
}

impl DeferredExec {
    /// Returns the first command that has not run: its index, its command's number, and its request.
    pub(crate) fn next_pending(&self) -> Option<(usize, usize, &Request)> {
        self.commands.iter().enumerate().find_map(|(index, command)| match command {
            DeferredCommand::Pending(number, request) => Some((index, *number, request)),
            DeferredCommand::Replied(_) => None,
        })
    }
}

/// The transactions that a batch of requests has run. They stay in memory until the batch ends, because the batch's
/// context borrows the arguments of their commands.
#[derive(Debug, Default)]
pub(crate) struct BatchTransactions(OnceCell<Box<(Transaction, Self)>>);

impl BatchTransactions {
    /// Keeps a transaction until the batch ends. The walk is short, since a batch has few requests.
    pub(crate) fn keep(&self, transaction: Transaction) -> &Transaction {
        let mut last = self;
        while let Some(kept) = last.0.get() {
            last = &kept.1;
        }
        &last.0.get_or_init(|| Box::new((transaction, Self::default()))).0
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_of_a_batch_stay_in_memory() {
        let batch = BatchTransactions::default();
        let kept: Vec<&Transaction> = (0..3).map(|db| batch.keep(Transaction::new_in_database(db))).collect();
        assert_eq!(kept.iter().map(|transaction| transaction.db).collect::<Vec<_>>(), [0, 1, 2]);
    }
}
