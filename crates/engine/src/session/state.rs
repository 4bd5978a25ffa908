//! The unfinished command or transaction of a client.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use resp::Args;

use super::{CommandOrigin, Session};
use crate::clients::ClientFlags;
use crate::transaction::{DeferredExec, MAX_QUEUED_BYTES, Transaction};
use crate::waiting::Waiter;

/// The unfinished command or transaction of a client. There is at most one: a queued command does not block, a blocked
/// client runs no other command, and an EXEC has ended its transaction before it waits.
#[derive(Debug, Default)]
pub(super) enum SessionState {
    /// No command is unfinished.
    #[default]
    Normal,
    /// The client is in a transaction: commands are queued between MULTI and EXEC.
    Multi(Box<Transaction>),
    /// A command waits for keys, from [`crate::DispatchStatus::Blocked`] until [`crate::Dispatcher::end_wait`].
    Blocked(Arc<Waiter>),
    /// The wait has ended without a reply. The command runs again ([`crate::Dispatcher::retry`]) before any other
    /// command.
    RetryPending(Arc<Waiter>),
    /// An EXEC waits for queued commands that the connection must run.
    ExecSuspended(Box<DeferredExec>),
}

impl Session {
    /// Takes the state's content if `pick` accepts the state, and resets the state to `Normal`.
    fn take_state<T>(&mut self, pick: impl FnOnce(SessionState) -> Result<T, SessionState>) -> Option<T> {
        match pick(std::mem::take(&mut self.state)) {
            Ok(taken) => Some(taken),
            Err(other) => {
                self.state = other;
                None
            }
        }
    }

    /// Starts a transaction (MULTI).
    pub fn begin_transaction(&mut self) {
        self.state = SessionState::Multi(Box::new(Transaction::new_in_database(self.db)));
        self.client().set_flag(ClientFlags::MULTI, true);
        self.client().queued_commands.store(0, Ordering::Relaxed);
    }

    /// Returns whether the client is between MULTI and EXEC or DISCARD.
    #[must_use]
    pub fn in_transaction(&self) -> bool {
        self.transaction().is_some()
    }

    /// Returns the queued commands between MULTI and EXEC.
    pub(crate) fn transaction(&self) -> Option<&Transaction> {
        match &self.state {
            SessionState::Multi(transaction) => Some(transaction),
            SessionState::Normal
            | SessionState::Blocked(_)
            | SessionState::RetryPending(_)
            | SessionState::ExecSuspended(_) => None,
        }
    }

    /// Queues a command and publishes the queue's size. `selected_db` is the database that the command selects. A
    /// client that exceeds the queue's size limit is closed.
    pub(crate) fn queue_command(&mut self, command: usize, args: Args<'_>, selected_db: Option<u16>) {
        let SessionState::Multi(transaction) = &mut self.state else { return };
        transaction.push(command, args);
        transaction.db = selected_db.unwrap_or(transaction.db);
        let (commands, bytes) = (transaction.queue.len() as i32, transaction.memory_bytes);
        self.client().queued_commands.store(commands, Ordering::Relaxed);
        self.client().queued_bytes.store(bytes, Ordering::Relaxed);
        if bytes > MAX_QUEUED_BYTES && self.origin() == CommandOrigin::Client {
            self.close_after_reply();
        }
    }

    /// Records that a command of the transaction was refused, so that EXEC aborts.
    pub(crate) fn fail_transaction(&mut self) {
        if let SessionState::Multi(transaction) = &mut self.state {
            transaction.has_failed = true;
        }
    }

    /// Takes the queued commands, for EXEC and DISCARD.
    pub(crate) fn take_transaction(&mut self) -> Option<Box<Transaction>> {
        self.take_state(|state| match state {
            SessionState::Multi(transaction) => Ok(transaction),
            other => Err(other),
        })
    }

    /// Puts the queued commands back, because EXEC has not run and will start again.
    pub(crate) fn restore_transaction(&mut self, transaction: Box<Transaction>) {
        self.state = SessionState::Multi(transaction);
    }

    /// Publishes the end of a transaction to other threads.
    pub(crate) fn leave_transaction(&self) {
        self.client().set_flag(ClientFlags::MULTI, false);
        self.client().queued_commands.store(-1, Ordering::Relaxed);
        self.client().queued_bytes.store(0, Ordering::Relaxed);
    }

    /// Suspends an EXEC until the connection has run one of its commands.
    pub(crate) fn suspend_exec(&mut self, exec: Box<DeferredExec>) {
        self.state = SessionState::ExecSuspended(exec);
    }

    pub(crate) fn take_suspended_exec(&mut self) -> Option<Box<DeferredExec>> {
        self.take_state(|state| match state {
            SessionState::ExecSuspended(exec) => Ok(exec),
            other => Err(other),
        })
    }

    pub(crate) fn block_on(&mut self, waiter: Arc<Waiter>) {
        self.state = SessionState::Blocked(waiter);
    }

    /// Returns the waiter of the blocked command, if any.
    #[must_use]
    #[inline]
    pub fn waiter(&self) -> Option<&Arc<Waiter>> {
        match &self.state {
            SessionState::Blocked(waiter) => Some(waiter),
            SessionState::Normal
            | SessionState::Multi(_)
            | SessionState::RetryPending(_)
            | SessionState::ExecSuspended(_) => None,
        }
    }

    /// Ends the wait of the blocked command.
    pub(crate) fn take_waiter(&mut self) -> Option<Arc<Waiter>> {
        self.take_state(|state| match state {
            SessionState::Blocked(waiter) => Ok(waiter),
            other => Err(other),
        })
    }

    /// Schedules a command whose wait has ended to run again before any other command.
    pub(crate) fn schedule_retry(&mut self, waiter: Arc<Waiter>) {
        self.state = SessionState::RetryPending(waiter);
    }

    /// Returns the waiter of the command that must run again, if any ([`crate::Dispatcher::retry`]).
    #[must_use]
    #[inline]
    pub fn waiter_to_retry(&self) -> Option<&Arc<Waiter>> {
        match &self.state {
            SessionState::RetryPending(waiter) => Some(waiter),
            SessionState::Normal
            | SessionState::Multi(_)
            | SessionState::Blocked(_)
            | SessionState::ExecSuspended(_) => None,
        }
    }

    /// Records that the command that ran again is complete, or is blocked again.
    pub(crate) fn end_retry(&mut self) {
        if let SessionState::RetryPending(_) = &self.state {
            self.state = SessionState::Normal;
        }
    }
}
