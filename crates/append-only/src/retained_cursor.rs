//! Retains the part of the log that is still to be written, or may have to be written again.

use clock::Millis;
use replication::{CursorId, Log};

use crate::machine::AofStateMachine;
use crate::{AofEffect, AofEvent, LogEnd, LogLoss};

/// A log cursor at the oldest offset that the state machine needs.
#[derive(Debug, Default)]
pub(crate) struct RetainedCursor(Option<CursorId>);

impl RetainedCursor {
    /// Reports the end of the log to the state machine, or that the log can no longer be followed.
    pub(crate) fn report_log_changes(
        &mut self,
        machine: &mut AofStateMachine,
        log: &mut Log,
        wall_time: Millis,
        out: &mut Vec<AofEffect>,
    ) {
        if let Some(cursor) = self.0 {
            let lost = match log.cursor_offset(cursor) {
                None => Some(LogLoss::Replaced),
                Some(at) if !log.retains(at) => Some(LogLoss::Trimmed),
                Some(_) => None,
            };
            if let Some(lost) = lost {
                self.release(log);
                machine.handle(AofEvent::LogLost(lost), out);
            }
        }
        if let Some(from) = machine.file_versions_needed_from() {
            for version in log.file_versions(from) {
                machine.handle(AofEvent::FileVersionAdded(version.clone()), out);
            }
        }
        machine.handle(AofEvent::LogAdvanced(LogEnd::from_log(log, wall_time)), out);
    }

    /// Moves the cursor to the offset that the state machine needs. Call this after each event and each operation.
    pub(crate) fn move_to_needed_offset(&mut self, machine: &AofStateMachine, log: &mut Log) {
        match (machine.first_retained_offset(), self.0) {
            (Some(at), Some(cursor)) if log.cursor_offset(cursor) == Some(at) => {}
            (Some(at), Some(cursor)) => log.move_cursor(cursor, at),
            (Some(at), None) => self.0 = Some(log.add_file_cursor(at)),
            (None, _) => self.release(log),
        }
    }

    /// Removes the cursor, so that the log may be trimmed.
    pub(crate) fn release(&mut self, log: &mut Log) {
        if let Some(cursor) = self.0.take() {
            log.remove_cursor(cursor);
        }
    }
}

impl LogEnd {
    /// Returns the end of `log`, with the current wall-clock time.
    #[must_use]
    pub(crate) fn from_log(log: &Log, wall_time: Millis) -> Self {
        Self { position: log.position(), previous_history: log.second_history(), wall_clock: wall_time }
    }
}
