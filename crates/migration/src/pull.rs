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
    Asked(Result<(), String>),
    /// The source has started the migration and announced its name.
    Named,
    /// The migration has ended; `Err` says why it failed.
    Ended(Result<(), String>),
    /// The request can never succeed, for this reason, so retrying is pointless.
    Hopeless(String),
    /// An operator wants to cancel the request.
    Cancel,
    /// The time of [`Pull::next_deadline`] has come.
    Deadline,
}

/// An action that the driver must perform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PullAction {
    /// Send the request to the source and report the source's reply.
    Ask,
    /// Cancel the running migration and report [`PullEvent::Ended`].
    EndJob,
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
    Asking,
    Agreed {
        until: Instant,
    },
    Importing,
    Waiting {
        until: Instant,
    },
    /// The operator cancelled the request after the source had accepted it.
    Unwanted {
        until: Instant,
    },
    Cancelling,
    Over,
}

/// State machine of a node that imports slots on request.
#[derive(Debug)]
pub struct Pull {
    state: PullState,
    retries: u32,
    last_error: String,
}

impl Pull {
    /// Starts a request. The driver must first send the request to the source.
    #[must_use]
    pub fn new() -> Self {
        Self { state: PullState::Asking, retries: 0, last_error: String::new() }
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

    fn schedule_retry(&mut self, now: Instant, why: String) {
        self.last_error = why;
        self.state = PullState::Waiting { until: now + RETRY_DELAY };
    }

    fn end(&mut self, outcome: PullOutcome, out: &mut Vec<PullAction>) {
        self.state = PullState::Over;
        out.push(PullAction::End(outcome));
    }
}

impl Driver for Pull {
    type Event = PullEvent;
    type Actions = Vec<PullAction>;

    /// Processes an event and appends the resulting actions.
    fn handle(&mut self, now: Instant, input: PullEvent, out: &mut Vec<PullAction>) {
        match (input, self.state) {
            (_, PullState::Over) => {}
            (PullEvent::Ended(Ok(())), _) => self.end(PullOutcome::Completed, out),
            (PullEvent::Ended(Err(_)) | PullEvent::Asked(Err(_)), PullState::Cancelling) => {
                self.end(PullOutcome::Cancelled, out);
            }
            (PullEvent::Asked(Ok(())), PullState::Cancelling) => {
                self.state = PullState::Unwanted { until: now + START_TIMEOUT };
            }
            (_, PullState::Cancelling) => {}
            (PullEvent::Named, PullState::Unwanted { .. }) => {
                self.state = PullState::Cancelling;
                out.push(PullAction::EndJob);
            }
            (PullEvent::Deadline, PullState::Unwanted { until }) if now >= until => {
                self.end(PullOutcome::Cancelled, out);
            }
            (_, PullState::Unwanted { .. }) => {}
            (PullEvent::Asked(Ok(())), PullState::Asking) => {
                self.state = PullState::Agreed { until: now + START_TIMEOUT };
            }
            (PullEvent::Named, _) => self.state = PullState::Importing,
            (PullEvent::Asked(Err(why)), PullState::Asking) | (PullEvent::Ended(Err(why)), _) => {
                self.schedule_retry(now, why);
            }
            (PullEvent::Asked(_), _) => {}
            (PullEvent::Hopeless(why), _) => self.end(PullOutcome::Failed(why), out),
            (PullEvent::Cancel, PullState::Importing) => {
                self.state = PullState::Cancelling;
                out.push(PullAction::EndJob);
            }
            // Wait for the source's reply, which decides how to cancel.
            (PullEvent::Cancel, PullState::Asking) => self.state = PullState::Cancelling,
            (PullEvent::Cancel, PullState::Agreed { until }) => self.state = PullState::Unwanted { until },
            (PullEvent::Cancel, _) => self.end(PullOutcome::Cancelled, out),
            (PullEvent::Deadline, PullState::Waiting { until }) if now >= until => {
                self.state = PullState::Asking;
                self.retries += 1;
                out.push(PullAction::Ask);
            }
            (PullEvent::Deadline, PullState::Agreed { until }) if now >= until => {
                self.schedule_retry(now, "The source did not begin".to_owned());
            }
            (PullEvent::Deadline, _) => {}
        }
    }

    /// When to send [`PullEvent::Deadline`] if no other event occurs first.
    fn next_deadline(&self) -> Option<Instant> {
        match self.state {
            PullState::Agreed { until } | PullState::Waiting { until } | PullState::Unwanted { until } => {
                Some(until)
            }
            PullState::Asking | PullState::Importing | PullState::Cancelling | PullState::Over => None,
        }
    }
}

impl Default for Pull {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    /// Events, each with its time in milliseconds.
    type TimedEvents = Vec<(u64, PullEvent)>;

    fn run(inputs: &[(u64, PullEvent)]) -> (Vec<PullAction>, Pull) {
        let (mut pull, mut out) = (Pull::new(), Vec::new());
        for (millis, input) in inputs {
            pull.handle(at(*millis), input.clone(), &mut out);
        }
        (out, pull)
    }

    fn lost() -> PullEvent {
        PullEvent::Ended(Err("lost".to_owned()))
    }

    #[test]
    fn retries_until_the_slots_are_imported() {
        let (out, pull) = run(&[
            (1, PullEvent::Asked(Err("busy".to_owned()))),
            (1001, PullEvent::Deadline),
            (1002, PullEvent::Asked(Ok(()))),
            (1003, PullEvent::Named),
            (1500, lost()),
            (2500, PullEvent::Deadline),
            (2501, PullEvent::Asked(Ok(()))),
            (2501, PullEvent::Named),
            (2600, PullEvent::Ended(Ok(()))),
        ]);
        assert_eq!(out, [PullAction::Ask, PullAction::Ask, PullAction::End(PullOutcome::Completed)]);
        assert_eq!((pull.retries(), pull.last_error(), pull.next_deadline()), (2, "lost", None));
    }

    #[test]
    fn source_that_does_not_start_is_asked_again() {
        let (out, pull) = run(&[(0, PullEvent::Asked(Ok(()))), (10_000, PullEvent::Deadline)]);
        assert_eq!((out.len(), pull.next_deadline()), (0, Some(at(10_000) + RETRY_DELAY)));
    }

    #[test]
    fn can_be_cancelled_in_every_state() {
        let over = [PullAction::End(PullOutcome::Cancelled)];
        let with_job = [PullAction::EndJob, PullAction::End(PullOutcome::Cancelled)];
        let asked = || (1, PullEvent::Asked(Ok(())));
        let cancel = || (5, PullEvent::Cancel);
        let table: [(TimedEvents, &[PullAction]); 7] = [
            (vec![cancel(), (6, PullEvent::Asked(Err("x".to_owned())))], &over),
            (vec![cancel(), (6, PullEvent::Asked(Ok(()))), (7, PullEvent::Named), (8, lost())], &with_job),
            (vec![asked(), cancel(), (10_001, PullEvent::Deadline)], &over),
            (vec![asked(), cancel(), (6, PullEvent::Named), (7, lost())], &with_job),
            (vec![(1, PullEvent::Asked(Err("x".to_owned()))), cancel()], &over),
            (vec![asked(), (2, PullEvent::Named), cancel(), (6, lost())], &with_job),
            (
                vec![asked(), (2, PullEvent::Named), cancel(), (6, PullEvent::Ended(Ok(())))],
                &[PullAction::EndJob, PullAction::End(PullOutcome::Completed)],
            ),
        ];
        for (inputs, expected) in table {
            assert_eq!(run(&inputs).0, expected, "{inputs:?}");
        }
    }
}
