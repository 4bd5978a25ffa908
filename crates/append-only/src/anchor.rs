//! The machine's place in the log: it has the log keep what is to be written, or written again.

use clock::Millis;
use replication::{CursorId, Log};

use crate::{AppendOnly, Effect, Input, LogEnd, Lost};

/// A cursor of the log at the place that the machine needs it from.
#[derive(Debug, Default)]
pub struct Anchor(Option<CursorId>);

impl Anchor {
    /// Tells the machine how long the log is, or that it cannot be followed any more.
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

    /// Has the log keep what the machine needs of it: to be called after each input and each operation.
    pub fn keep(&mut self, machine: &AppendOnly, log: &mut Log) {
        match (machine.keeps_from(), self.0) {
            (Some(at), Some(anchor)) if log.position_of(anchor) == Some(at) => {}
            (Some(at), Some(anchor)) => log.move_cursor(anchor, at),
            (Some(at), None) => self.0 = Some(log.add_own_cursor(at)),
            (None, _) => self.leave(log),
        }
    }

    /// The log is followed no longer.
    pub fn leave(&mut self, log: &mut Log) {
        if let Some(anchor) = self.0.take() {
            log.remove_cursor(anchor);
        }
    }
}

impl LogEnd {
    /// The end of `log`, at this time of day.
    #[must_use]
    pub fn of(log: &Log, wall: Millis) -> Self {
        Self { end: log.position(), second: log.second(), wall }
    }
}
