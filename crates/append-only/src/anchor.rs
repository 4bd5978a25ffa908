//! Keeps the part of the log that is still to be written, or may have to be written again.

use clock::Millis;
use replication::{CursorId, Log};

use crate::{AppendOnly, Effect, Input, LogEnd, Lost};

/// A log cursor at the oldest offset that the state machine needs.
#[derive(Debug, Default)]
pub struct Anchor(Option<CursorId>);

impl Anchor {
    /// Reports the log's end to the state machine, or that the log can no longer be followed.
    pub fn follow(&mut self, machine: &mut AppendOnly, log: &mut Log, wall: Millis, out: &mut Vec<Effect>) {
        if let Some(anchor) = self.0 {
            let lost = match log.position_of(anchor) {
                None => Some(Lost::Replaced),
                Some(at) if !log.keeps(at) => Some(Lost::LetGo),
                Some(_) => None,
            };
            if let Some(lost) = lost {
                self.leave(log);
                machine.handle(Input::FellOff(lost), out);
            }
        }
        machine.handle(Input::LogGrew(LogEnd::of(log, wall)), out);
    }

    /// Moves the cursor to the offset the machine needs. Call after each event and each operation.
    pub fn keep(&mut self, machine: &AppendOnly, log: &mut Log) {
        match (machine.keeps_from(), self.0) {
            (Some(at), Some(anchor)) if log.position_of(anchor) == Some(at) => {}
            (Some(at), Some(anchor)) => log.move_cursor(anchor, at),
            (Some(at), None) => self.0 = Some(log.add_own_cursor(at)),
            (None, _) => self.leave(log),
        }
    }

    /// Releases the cursor.
    pub fn leave(&mut self, log: &mut Log) {
        if let Some(anchor) = self.0.take() {
            log.remove_cursor(anchor);
        }
    }
}

impl LogEnd {
    /// The end of `log`, with the current wall clock time.
    #[must_use]
    pub fn of(log: &Log, wall: Millis) -> Self {
        Self { end: log.position(), second: log.second(), wall }
    }
}
