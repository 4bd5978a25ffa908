//! Pulls slots from another node (CLUSTER MIGRATION IMPORT, as in Redis 8.4). The source runs the migration; after a
//! failure it is asked again, until an operator cancels.

use std::time::Duration;

use clock::Instant;

/// Delay before retrying after a failure.
pub const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// A source that has agreed must start the migration within this time.
pub const NAMED_WITHIN: Duration = Duration::from_secs(10);

/// An event for the state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// The source's reply to the request.
    Asked(Result<(), String>),
    /// The source has started the migration.
    Named,
    /// The migration has ended.
    Ended(Result<(), String>),
    /// The request can never succeed, for this reason.
    Hopeless(String),
    /// An operator cancels the request.
    Cancel,
    /// The time of [`Pull::next_deadline`] has come.
    Deadline,
}

/// An action for the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send the request to the source.
    Ask,
    /// Cancel the running migration, and report its end.
    EndJob,
    /// The request has ended.
    End(Outcome),
}

/// The result of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The slots have been imported.
    Completed,
    /// The request failed permanently.
    Failed(String),
    /// An operator cancelled the request.
    Cancelled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Asking,
    Agreed {
        until: Instant,
    },
    Importing,
    Waiting {
        until: Instant,
    },
    /// Cancelled after the source had agreed.
    Unwanted {
        until: Instant,
    },
    Cancelling,
    Over,
}

/// State machine of a node that requests slots.
#[derive(Debug)]
pub struct Pull {
    state: State,
    retries: u32,
    last_error: String,
}

impl Pull {
    /// Starts a request. The driver must send it to the source.
    #[must_use]
    pub fn new() -> Self {
        Self { state: State::Asking, retries: 0, last_error: String::new() }
    }

    /// Number of retries so far.
    #[must_use]
    pub fn retries(&self) -> u32 {
        self.retries
    }

    /// Why the last attempt failed.
    #[must_use]
    pub fn last_error(&self) -> &str {
        &self.last_error
    }

    /// When to send [`Input::Deadline`] if no event occurs before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        match self.state {
            State::Agreed { until } | State::Waiting { until } | State::Unwanted { until } => Some(until),
            State::Asking | State::Importing | State::Cancelling | State::Over => None,
        }
    }

    /// Processes an event and appends the resulting actions.
    pub fn handle(&mut self, now: Instant, input: Input, out: &mut Vec<Action>) {
        match (input, self.state) {
            (_, State::Over) => {}
            (Input::Ended(Ok(())), _) => self.end(Outcome::Completed, out),
            (Input::Ended(Err(_)) | Input::Asked(Err(_)), State::Cancelling) => {
                self.end(Outcome::Cancelled, out);
            }
            (Input::Asked(Ok(())), State::Cancelling) => {
                self.state = State::Unwanted { until: now + NAMED_WITHIN };
            }
            (_, State::Cancelling) => {}
            (Input::Named, State::Unwanted { .. }) => {
                self.state = State::Cancelling;
                out.push(Action::EndJob);
            }
            (Input::Deadline, State::Unwanted { until }) if now >= until => {
                self.end(Outcome::Cancelled, out);
            }
            (_, State::Unwanted { .. }) => {}
            (Input::Asked(Ok(())), State::Asking) => {
                self.state = State::Agreed { until: now + NAMED_WITHIN };
            }
            (Input::Named, _) => self.state = State::Importing,
            (Input::Asked(Err(why)), State::Asking) | (Input::Ended(Err(why)), _) => self.try_later(now, why),
            (Input::Asked(_), _) => {}
            (Input::Hopeless(why), _) => self.end(Outcome::Failed(why), out),
            (Input::Cancel, State::Importing) => {
                self.state = State::Cancelling;
                out.push(Action::EndJob);
            }
            // The source's answer decides how to cancel.
            (Input::Cancel, State::Asking) => self.state = State::Cancelling,
            (Input::Cancel, State::Agreed { until }) => self.state = State::Unwanted { until },
            (Input::Cancel, _) => self.end(Outcome::Cancelled, out),
            (Input::Deadline, State::Waiting { until }) if now >= until => {
                self.state = State::Asking;
                self.retries += 1;
                out.push(Action::Ask);
            }
            (Input::Deadline, State::Agreed { until }) if now >= until => {
                self.try_later(now, "The source did not begin".to_owned());
            }
            (Input::Deadline, _) => {}
        }
    }

    fn try_later(&mut self, now: Instant, why: String) {
        self.last_error = why;
        self.state = State::Waiting { until: now + AGAIN_AFTER };
    }

    fn end(&mut self, outcome: Outcome, out: &mut Vec<Action>) {
        self.state = State::Over;
        out.push(Action::End(outcome));
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

    /// Events with their times in milliseconds.
    type Inputs = Vec<(u64, Input)>;

    fn run(inputs: &[(u64, Input)]) -> (Vec<Action>, Pull) {
        let (mut pull, mut out) = (Pull::new(), Vec::new());
        for (millis, input) in inputs {
            pull.handle(at(*millis), input.clone(), &mut out);
        }
        (out, pull)
    }

    fn lost() -> Input {
        Input::Ended(Err("lost".to_owned()))
    }

    #[test]
    fn it_tries_again_until_the_slots_are_here() {
        let (out, pull) = run(&[
            (1, Input::Asked(Err("busy".to_owned()))),
            (1001, Input::Deadline),
            (1002, Input::Asked(Ok(()))),
            (1003, Input::Named),
            (1500, lost()),
            (2500, Input::Deadline),
            (2501, Input::Asked(Ok(()))),
            (2501, Input::Named),
            (2600, Input::Ended(Ok(()))),
        ]);
        assert_eq!(out, [Action::Ask, Action::Ask, Action::End(Outcome::Completed)]);
        assert_eq!((pull.retries(), pull.last_error(), pull.next_deadline()), (2, "lost", None));
    }

    #[test]
    fn a_source_that_agrees_and_does_nothing_is_asked_again() {
        let (out, pull) = run(&[(0, Input::Asked(Ok(()))), (10_000, Input::Deadline)]);
        assert_eq!((out.len(), pull.next_deadline()), (0, Some(at(10_000) + AGAIN_AFTER)));
    }

    #[test]
    fn it_is_cancelled_wherever_it_stands() {
        let over = [Action::End(Outcome::Cancelled)];
        let with_job = [Action::EndJob, Action::End(Outcome::Cancelled)];
        let asked = || (1, Input::Asked(Ok(())));
        let cancel = || (5, Input::Cancel);
        let table: [(Inputs, &[Action]); 7] = [
            (vec![cancel(), (6, Input::Asked(Err("x".to_owned())))], &over),
            (vec![cancel(), (6, Input::Asked(Ok(()))), (7, Input::Named), (8, lost())], &with_job),
            (vec![asked(), cancel(), (10_001, Input::Deadline)], &over),
            (vec![asked(), cancel(), (6, Input::Named), (7, lost())], &with_job),
            (vec![(1, Input::Asked(Err("x".to_owned()))), cancel()], &over),
            (vec![asked(), (2, Input::Named), cancel(), (6, lost())], &with_job),
            (
                vec![asked(), (2, Input::Named), cancel(), (6, Input::Ended(Ok(())))],
                &[Action::EndJob, Action::End(Outcome::Completed)],
            ),
        ];
        for (inputs, expected) in table {
            assert_eq!(run(&inputs).0, expected, "{inputs:?}");
        }
    }
}
