//! The reference node: an engine that replays the log and has no files.

use clock::Millis;
use engine::{CommandOrigin, NoLog, Session};

use crate::clients;
use crate::executor::Executor;

/// The data after a prefix of the history has been replayed.
pub(super) struct Model {
    data: Executor,
    session: Session,
    applied: Vec<u8>,
}

impl Model {
    pub(super) fn new() -> Self {
        Self {
            data: clients::executor(Box::new(NoLog)),
            session: Session::new(0, CommandOrigin::Master, true),
            applied: Vec::new(),
        }
    }

    /// Returns the digest of the data after all of `history` has been replayed.
    pub(super) fn digest(&mut self, history: &[u8], wall: Millis) -> String {
        if self.follow(history, wall) {
            self.data.digest(wall)
        } else {
            "none, for that is within a command or a transaction".to_owned()
        }
    }

    /// Returns the reply to a command after all of `history` has been replayed.
    pub(super) fn ask(&mut self, history: &[u8], db: u16, wall: Millis, words: &[String]) -> Vec<u8> {
        if self.follow(history, wall) { self.data.run_command(db, wall, words) } else { Vec::new() }
    }

    /// Replays the part of `history` that has not been replayed yet. Returns `false` if this part ends within a command
    /// or transaction.
    fn follow(&mut self, history: &[u8], wall: Millis) -> bool {
        if !history.starts_with(&self.applied) {
            *self = Self::new();
        }
        let more = history[self.applied.len()..].to_vec();
        self.applied.extend_from_slice(&more);
        let (ran, _) = self.data.run(&mut self.session, wall, more);
        if !ran.is_complete || self.session.in_transaction() {
            *self = Self::new();
            return false;
        }
        true
    }
}
