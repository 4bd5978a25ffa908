//! The reference node: an engine that replays the log and has no files.

use clock::Millis;
use engine::{CommandOrigin, NoLog, Session};

use crate::clients;
use crate::executor::Executor;

/// The data after a prefix of the history has been replayed.
pub(super) struct ReferenceNode {
    executor: Executor,
    session: Session,
    applied_history: Vec<u8>,
}

impl ReferenceNode {
    pub(super) fn new() -> Self {
        Self {
            executor: clients::new_executor(Box::new(NoLog)),
            session: Session::new(0, CommandOrigin::Master, true),
            applied_history: Vec::new(),
        }
    }

    /// Returns the digest of the data after all of `history` has been replayed.
    pub(super) fn digest(&mut self, history: &[u8], wall_time: Millis) -> String {
        if self.replay(history, wall_time) {
            self.executor.digest(wall_time)
        } else {
            "none, for that is within a command or a transaction".to_owned()
        }
    }

    /// Returns the reply to a command after all of `history` has been replayed.
    pub(super) fn reply_to(
        &mut self,
        history: &[u8],
        db: u16,
        wall_time: Millis,
        words: &[String],
    ) -> Vec<u8> {
        if self.replay(history, wall_time) {
            self.executor.run_command(db, wall_time, words)
        } else {
            Vec::new()
        }
    }

    /// Replays the part of `history` that has not been replayed yet. Returns `false` if this part ends within a command
    /// or transaction.
    fn replay(&mut self, history: &[u8], wall_time: Millis) -> bool {
        if !history.starts_with(&self.applied_history) {
            *self = Self::new();
        }
        let more = history[self.applied_history.len()..].to_vec();
        self.applied_history.extend_from_slice(&more);
        let (ran, _) = self.executor.run(&mut self.session, wall_time, more);
        if !ran.is_complete || self.session.in_transaction() {
            *self = Self::new();
            return false;
        }
        true
    }
}
