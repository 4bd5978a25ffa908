//! The source of a job.

#[cfg(test)]
mod tests;

use std::time::Duration;

use clock::Instant;

use crate::message::Message;
use crate::{ACK_PERIOD, RESUME_WITHIN};

/// For so long writes are held for a target that does not come to its claim; then the job has failed.
pub const HOLD_FOR: Duration = Duration::from_secs(5);
/// A snapshot that could not be cut (others are under way) is tried again after this.
const CUT_AGAIN: Duration = Duration::from_millis(20);
/// A link that cannot be made is tried again after this; so is one that the target may have closed as it has claimed the
/// slots.
const LINK_AGAIN: Duration = Duration::from_millis(100);

/// The bounds of a job.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// The target may be silent for so long.
    pub timeout: Duration,
    /// The target asks for a password first.
    pub logs_in: bool,
    /// Writes are held only when no more than this is still to be sent.
    pub most_behind: u64,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// The target was reached.
    Connected,
    /// It was not.
    NotConnected(String),
    /// It answered +OK.
    Accepted,
    /// It answered with an error.
    Refused(String),
    /// It said this.
    Heard(Message),
    /// The link has ended.
    Closed,
    /// The job goes on with another link, and what had not come was sent once more.
    Resumed,
    /// No other link can be made just now.
    NotResumed,
    /// The target knows nothing of the job any more, or has said that it has ended there.
    EndedThere,
    /// The snapshot was cut.
    Cut,
    /// It could not be cut now.
    NotCut,
    /// All of the snapshot was sent.
    SnapshotSent,
    /// So much of the log is still to be read.
    Behind(u64),
    /// Writes are held, and everything before that was sent.
    Drained,
    /// The topology says that the target, or one of its shard, serves the slots.
    TakenByTarget,
    /// It says that another does.
    TakenByOther,
    /// All keys were deleted here.
    Flushed,
    /// This node is no master any more.
    Demoted,
    /// The job cannot go on, for this reason.
    Broken(String),
    /// An operator ends it.
    Cancel,
    /// The time of [`Export::next_deadline`] has come.
    Deadline,
}

/// Something to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Log in at the target.
    LogIn,
    /// Ask it whether a job goes on with another link.
    AskResumable,
    /// Name the job to it, as one that goes on with another link or does not.
    Establish {
        /// Whether it does.
        resumable: bool,
    },
    /// Make another link, and have the job go on with it.
    Reconnect,
    /// Say this to it.
    Send(Message),
    /// Cut a snapshot, note where the log stands, and send what the slots hold, then what changes in them.
    Cut,
    /// Hold writes to the slots, send what is in the log, and tell.
    Hold,
    /// It is over: hold nothing, close the link.
    End(Outcome),
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The target serves the slots.
    Success,
    /// This node goes on with them, and this is why.
    Failed(String),
    /// An operator wanted that.
    Cancelled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Connecting,
    LoggingIn,
    Asking,
    Establishing,
    AwaitingCut { again: Option<Instant> },
    Snapshotting,
    Replicating,
    AwaitingPause,
    Holding { until: Instant },
    Paused { until: Instant },
    Granted { until: Instant },
    Over,
}

/// The machine of a job's source.
#[derive(Debug)]
pub struct Export {
    config: Config,
    state: State,
    heard: Instant,
    next_ack: Option<Instant>,
    resumable: bool,
    /// It had another link before.
    is_resumed: bool,
    /// There is no link.
    down: Option<Down>,
}

/// A job between two links.
#[derive(Debug, Clone, Copy)]
struct Down {
    /// It ends then.
    until: Instant,
    /// The next link is tried then; it is being tried if that is not said.
    again: Option<Instant>,
}

impl Export {
    /// A job that begins now: its target is to be reached.
    #[must_use]
    pub fn new(now: Instant, config: Config) -> Self {
        Self {
            config,
            state: State::Connecting,
            heard: now,
            next_ack: None,
            resumable: false,
            is_resumed: false,
            down: None,
        }
    }

    /// The state by the name that Valkey gives it.
    #[must_use]
    pub fn state_name(&self) -> &'static str {
        match self.state {
            State::Connecting => "connecting",
            State::LoggingIn => "reading-auth-response",
            State::Asking | State::Establishing => "reading-establish-response",
            State::AwaitingCut { .. } => "waiting-to-snapshot",
            State::Snapshotting => "snapshotting",
            State::Replicating => "replicating",
            State::AwaitingPause => "waiting-to-pause",
            State::Holding { .. } | State::Paused { .. } => "failover-paused",
            State::Granted { .. } => "failover-granted",
            State::Over => "success",
        }
    }

    /// When something is to be done if nothing happens.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let own = match self.state {
            State::AwaitingCut { again } => again,
            State::Holding { until } | State::Paused { until } | State::Granted { until } => Some(until),
            State::Over => return None,
            _ => None,
        };
        let silence =
            (!matches!(self.state, State::Granted { .. })).then(|| self.heard + self.config.timeout);
        let link =
            self.down.map_or(self.next_ack, |down| Some(down.again.unwrap_or(down.until).min(down.until)));
        [own, silence, link].into_iter().flatten().min()
    }

    /// Takes what happened; says what is to be done.
    pub fn handle(&mut self, now: Instant, input: Input, out: &mut Vec<Action>) {
        if self.state == State::Over {
            return;
        }
        match input {
            Input::Connected if self.config.logs_in => self.enter(State::LoggingIn, Action::LogIn, out),
            Input::Connected => self.enter(State::Asking, Action::AskResumable, out),
            Input::NotConnected(why) => self.fail(format!("Unable to connect to target node: {why}"), out),
            Input::Accepted => self.on_accepted(now, out),
            // A Valkey.
            Input::Refused(_) if self.state == State::Asking => self.establish(false, out),
            Input::Refused(why) => {
                self.fail(format!("Received error during handshake to target: -{why}"), out);
            }
            Input::Heard(message) => self.on_heard(now, message, out),
            Input::Closed if self.down.is_some() => {}
            Input::Closed if self.resumable => self.on_break(now, out),
            // It closes the link when it has claimed them.
            Input::Closed if matches!(self.state, State::Granted { .. }) => self.next_ack = None,
            Input::Closed => self.lost(out),
            Input::Resumed => self.on_resumed(now, out),
            Input::NotResumed => {
                if let Some(down) = &mut self.down {
                    down.again = Some(now + LINK_AGAIN);
                }
            }
            // It has claimed them, or has not: the bus tells.
            Input::EndedThere if matches!(self.state, State::Granted { .. }) => {
                (self.next_ack, self.down, self.resumable) = (None, None, false);
            }
            Input::EndedThere => self.lost(out),
            Input::Cut => self.state = State::Snapshotting,
            Input::NotCut => self.state = State::AwaitingCut { again: Some(now + CUT_AGAIN) },
            Input::SnapshotSent => {
                self.enter(State::Replicating, Action::Send(Message::SnapshotEof), out);
            }
            Input::Behind(bytes) => {
                if self.state == State::AwaitingPause && bytes <= self.config.most_behind {
                    self.enter(State::Holding { until: now + HOLD_FOR }, Action::Hold, out);
                }
            }
            Input::Drained => {
                if let State::Holding { until } = self.state {
                    self.enter(State::Paused { until }, Action::Send(Message::Paused), out);
                }
            }
            Input::TakenByTarget if matches!(self.state, State::Granted { .. }) => {
                self.end(Outcome::Success, out);
            }
            Input::TakenByTarget | Input::TakenByOther => {
                self.fail("Slots are no longer owned by myself.", out);
            }
            Input::Flushed => self.fail("Data was flushed", out),
            Input::Demoted => self.fail("A failover occurred during slot export", out),
            Input::Broken(why) => self.fail(why, out),
            // The target may have claimed them: that is heard, or not in time.
            Input::Cancel if matches!(self.state, State::Granted { .. }) => {}
            Input::Cancel => self.end(Outcome::Cancelled, out),
            Input::Deadline => self.on_deadline(now, out),
        }
    }

    fn on_accepted(&mut self, now: Instant, out: &mut Vec<Action>) {
        match self.state {
            State::LoggingIn => self.enter(State::Asking, Action::AskResumable, out),
            State::Asking => self.establish(true, out),
            State::Establishing => {
                self.next_ack = Some(now + ACK_PERIOD);
                out.push(Action::Send(Message::Ack));
                self.enter(State::AwaitingCut { again: None }, Action::Cut, out);
            }
            _ => {}
        }
        self.heard = now;
    }

    fn establish(&mut self, resumable: bool, out: &mut Vec<Action>) {
        self.resumable = resumable;
        self.enter(State::Establishing, Action::Establish { resumable }, out);
    }

    /// The link of a job that goes on with another broke.
    fn on_break(&mut self, now: Instant, out: &mut Vec<Action>) {
        let at_once = !matches!(self.state, State::Granted { .. });
        let again = (!at_once).then(|| now + LINK_AGAIN);
        self.down = Some(Down { until: now + RESUME_WITHIN, again });
        out.extend(at_once.then_some(Action::Reconnect));
    }

    fn on_resumed(&mut self, now: Instant, out: &mut Vec<Action>) {
        (self.down, self.is_resumed, self.heard) = (None, true, now);
        self.next_ack = Some(now + ACK_PERIOD);
        if self.state == State::Establishing {
            // It was accepted, and the answer was lost.
            self.on_accepted(now, out);
        }
    }

    fn lost(&mut self, out: &mut Vec<Action>) {
        self.fail(
            "Connection lost to target. Check CLUSTER GETSLOTMIGRATIONS on the target node for more information.",
            out,
        );
    }

    fn on_heard(&mut self, now: Instant, message: Message, out: &mut Vec<Action>) {
        self.heard = now;
        match (message, self.state) {
            (Message::Ack, _) => {}
            (Message::RequestPause, State::Replicating) => self.state = State::AwaitingPause,
            (Message::RequestFailover, State::Paused { .. }) => {
                let granted = State::Granted { until: now + HOLD_FOR };
                self.enter(granted, Action::Send(Message::FailoverGranted), out);
            }
            // It says what it awaits once more on another link.
            (Message::RequestPause, State::AwaitingPause | State::Holding { .. } | State::Paused { .. })
                if self.is_resumed => {}
            // Once granted, they may be claimed whatever else it says.
            (_, State::Granted { .. }) => {}
            (message, _) => {
                self.fail(format!("Target node sent {} out of order", message.word()), out);
            }
        }
    }

    fn on_deadline(&mut self, now: Instant, out: &mut Vec<Action>) {
        match self.state {
            State::Granted { until } if now >= until => {
                return self.fail(
                    "Unpaused before migration completed (migration may have succeeded with lost writes)",
                    out,
                );
            }
            State::Holding { until } | State::Paused { until } if now >= until => {
                return self.fail("Unpaused before migration completed", out);
            }
            _ => {}
        }
        if !matches!(self.state, State::Granted { .. }) && now >= self.heard + self.config.timeout {
            return self.fail("Timed out after too long with no interaction", out);
        }
        if let State::AwaitingCut { again: Some(at) } = self.state
            && now >= at
        {
            self.enter(State::AwaitingCut { again: None }, Action::Cut, out);
        }
        match &mut self.down {
            Some(down) if now >= down.until && !matches!(self.state, State::Granted { .. }) => self.lost(out),
            Some(down) if now >= down.until => {
                (self.down, self.next_ack, self.resumable) = (None, None, false);
            }
            Some(down) if down.again.is_some_and(|at| now >= at) => {
                down.again = None;
                out.push(Action::Reconnect);
            }
            Some(_) => {}
            None if self.next_ack.is_some_and(|at| now >= at) => {
                self.next_ack = Some(now + ACK_PERIOD);
                out.push(Action::Send(Message::Ack));
            }
            None => {}
        }
    }

    fn enter(&mut self, state: State, action: Action, out: &mut Vec<Action>) {
        self.state = state;
        out.push(action);
    }

    fn fail(&mut self, why: impl Into<String>, out: &mut Vec<Action>) {
        self.end(Outcome::Failed(why.into()), out);
    }

    fn end(&mut self, outcome: Outcome, out: &mut Vec<Action>) {
        self.enter(State::Over, Action::End(outcome), out);
    }
}
