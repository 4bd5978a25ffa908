//! Imports slots from another node (CLUSTER MIGRATION IMPORT, as in Redis 8.4): asks the source to run the migration.
//! After a failure the request is retried until an operator cancels it.

use std::time::Duration;

use clock::Instant;
use driver::Driver;

/// Delay before retrying after a failure.
pub const RETRY_DELAY: Duration = Duration::from_secs(1);
/// A source that accepted the request must start the migration within this time.
pub const START_TIMEOUT: Duration = Duration::from_secs(10);

/// An event for the state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PullEvent {
    /// The source replied to the request; `Err` contains its error text.
    RequestAnswered(Result<(), String>),
    /// The source has started the migration and announced its name.
    MigrationStarted,
    /// The migration has ended; `Err` says why it failed.
    MigrationEnded(Result<(), String>),
    /// The request can never succeed, for this reason, so retrying is pointless.
    PermanentFailure(String),
    /// An operator wants to cancel the request.
    Cancel,
    /// The time of [`PullStateMachine::next_deadline`] has come.
    Deadline,
}

/// An action that the driver must perform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PullAction {
    /// Send the request to the source and report the source's reply.
    SendRequest,
    /// Cancel the running migration and report [`PullEvent::Ended`].
    CancelMigration,
    /// The request has ended and will not be retried.
    End(PullOutcome),
}

/// How a request has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PullOutcome {
    /// The slots have been imported.
    Completed,
    /// The request failed with this error and is not retried.
    Failed(String),
    /// An operator cancelled the request.
    Cancelled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PullState {
    AwaitingReply,
    AwaitingStart {
        deadline: Instant,
    },
    Importing,
    AwaitingRetry {
        retry_at: Instant,
    },
    /// The operator cancelled the request after the source had accepted it.
    CancelledAfterAccept {
        deadline: Instant,
    },
    Cancelling,
    Ended,
}

/// State machine of a node that imports slots on request.
#[derive(Debug)]
pub struct PullStateMachine {
    state: PullState,
    retries: u32,
    last_error: String,
}

impl PullStateMachine {
    /// Starts a request. The driver must first send the request to the source.
    #[must_use]
    pub fn new() -> Self {
        Self { state: PullState::AwaitingReply, retries: 0, last_error: String::new() }
    }

    /// Number of retries since the request began.
    #[must_use]
    pub fn retries(&self) -> u32 {
        self.retries
    }

    /// Why the last attempt failed; empty if no attempt has failed.
    #[must_use]
    pub fn last_error(&self) -> &str {
        &self.last_error
    }

    fn schedule_retry(&mut self, now: Instant, reason: String) {
        self.last_error = reason;
        self.state = PullState::AwaitingRetry { retry_at: now + RETRY_DELAY };
    }

    fn end(&mut self, outcome: PullOutcome, out: &mut Vec<PullAction>) {
        self.state = PullState::Ended;
        out.push(PullAction::End(outcome));
    }
}

impl Driver for PullStateMachine {
    type Event = PullEvent;
    type Actions = Vec<PullAction>;

    /// Processes an event and appends the resulting actions.
    fn handle(&mut self, now: Instant, event: PullEvent, out: &mut Vec<PullAction>) {
        match (event, self.state) {
            (_, PullState::Ended) => {}
            (PullEvent::MigrationEnded(Ok(())), _) => self.end(PullOutcome::Completed, out),
            (
                PullEvent::MigrationEnded(Err(_)) | PullEvent::RequestAnswered(Err(_)),
                PullState::Cancelling,
            ) => {
                self.end(PullOutcome::Cancelled, out);
            }
            (PullEvent::RequestAnswered(Ok(())), PullState::Cancelling) => {
                self.state = PullState::CancelledAfterAccept { deadline: now + START_TIMEOUT };
            }
            (_, PullState::Cancelling) => {}
            (PullEvent::MigrationStarted, PullState::CancelledAfterAccept { .. }) => {
                self.state = PullState::Cancelling;
                out.push(PullAction::CancelMigration);
            }
            (PullEvent::Deadline, PullState::CancelledAfterAccept { deadline: until }) if now >= until => {
                self.end(PullOutcome::Cancelled, out);
            }
            (_, PullState::CancelledAfterAccept { .. }) => {}
            (PullEvent::RequestAnswered(Ok(())), PullState::AwaitingReply) => {
                self.state = PullState::AwaitingStart { deadline: now + START_TIMEOUT };
            }
            (PullEvent::MigrationStarted, _) => self.state = PullState::Importing,
            (PullEvent::RequestAnswered(Err(why)), PullState::AwaitingReply)
            | (PullEvent::MigrationEnded(Err(why)), _) => {
                self.schedule_retry(now, why);
            }
            (PullEvent::RequestAnswered(_), _) => {}
            (PullEvent::PermanentFailure(why), _) => self.end(PullOutcome::Failed(why), out),
            (PullEvent::Cancel, PullState::Importing) => {
                self.state = PullState::Cancelling;
                out.push(PullAction::CancelMigration);
            }
            // Wait for the source's reply, which decides how to cancel.
            (PullEvent::Cancel, PullState::AwaitingReply) => self.state = PullState::Cancelling,
            (PullEvent::Cancel, PullState::AwaitingStart { deadline: until }) => {
                self.state = PullState::CancelledAfterAccept { deadline: until }
            }
            (PullEvent::Cancel, _) => self.end(PullOutcome::Cancelled, out),
            (PullEvent::Deadline, PullState::AwaitingRetry { retry_at: until }) if now >= until => {
                self.state = PullState::AwaitingReply;
                self.retries += 1;
                out.push(PullAction::SendRequest);
            }
            (PullEvent::Deadline, PullState::AwaitingStart { deadline: until }) if now >= until => {
                self.schedule_retry(now, "The source did not begin".to_owned());
            }
            (PullEvent::Deadline, _) => {}
        }
    }

    /// When to send [`PullEvent::Deadline`] if no other event occurs first.
    fn next_deadline(&self) -> Option<Instant> {
        match self.state {
            PullState::AwaitingStart { deadline: until }
            | PullState::AwaitingRetry { retry_at: until }
            | PullState::CancelledAfterAccept { deadline: until } => Some(until),
            PullState::AwaitingReply | PullState::Importing | PullState::Cancelling | PullState::Ended => {
                None
            }
        }
    }
}

impl Default for PullStateMachine {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_millis(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    /// Events, each with its time in milliseconds.
    type TimedEvents = Vec<(u64, PullEvent)>;

    fn run_events(timed_events: &[(u64, PullEvent)]) -> (Vec<PullAction>, PullStateMachine) {
        let (mut pull, mut out) = (PullStateMachine::new(), Vec::new());
        for (millis, input) in timed_events {
            pull.handle(at_millis(*millis), input.clone(), &mut out);
        }
        (out, pull)
    }

    fn connection_lost() -> PullEvent {
        PullEvent::MigrationEnded(Err("lost".to_owned()))
    }

    #[test]
    fn request_is_retried_until_the_slots_are_imported() {
        let (out, pull) = run_events(&[
            (1, PullEvent::RequestAnswered(Err("busy".to_owned()))),
            (1001, PullEvent::Deadline),
            (1002, PullEvent::RequestAnswered(Ok(()))),
            (1003, PullEvent::MigrationStarted),
            (1500, connection_lost()),
            (2500, PullEvent::Deadline),
            (2501, PullEvent::RequestAnswered(Ok(()))),
            (2501, PullEvent::MigrationStarted),
            (2600, PullEvent::MigrationEnded(Ok(()))),
        ]);
        assert_eq!(
            out,
            [PullAction::SendRequest, PullAction::SendRequest, PullAction::End(PullOutcome::Completed)]
        );
        assert_eq!((pull.retries(), pull.last_error(), pull.next_deadline()), (2, "lost", None));
    }

    #[test]
    fn request_is_repeated_if_the_source_does_not_start() {
        let (out, pull) =
            run_events(&[(0, PullEvent::RequestAnswered(Ok(()))), (10_000, PullEvent::Deadline)]);
        assert_eq!((out.len(), pull.next_deadline()), (0, Some(at_millis(10_000) + RETRY_DELAY)));
    }

    #[test]
    fn request_can_be_cancelled_in_every_state() {
        let over = [PullAction::End(PullOutcome::Cancelled)];
        let with_job = [PullAction::CancelMigration, PullAction::End(PullOutcome::Cancelled)];
        let asked = || (1, PullEvent::RequestAnswered(Ok(())));
        let cancel = || (5, PullEvent::Cancel);
        let table: [(TimedEvents, &[PullAction]); 7] = [
            (vec![cancel(), (6, PullEvent::RequestAnswered(Err("x".to_owned())))], &over),
            (
                vec![
                    cancel(),
                    (6, PullEvent::RequestAnswered(Ok(()))),
                    (7, PullEvent::MigrationStarted),
                    (8, connection_lost()),
                ],
                &with_job,
            ),
            (vec![asked(), cancel(), (10_001, PullEvent::Deadline)], &over),
            (vec![asked(), cancel(), (6, PullEvent::MigrationStarted), (7, connection_lost())], &with_job),
            (vec![(1, PullEvent::RequestAnswered(Err("x".to_owned()))), cancel()], &over),
            (vec![asked(), (2, PullEvent::MigrationStarted), cancel(), (6, connection_lost())], &with_job),
            (
                vec![
                    asked(),
                    (2, PullEvent::MigrationStarted),
                    cancel(),
                    (6, PullEvent::MigrationEnded(Ok(()))),
                ],
                &[PullAction::CancelMigration, PullAction::End(PullOutcome::Completed)],
            ),
        ];
        for (inputs, expected) in table {
            assert_eq!(run_events(&inputs).0, expected, "{inputs:?}");
        }
    }
}
