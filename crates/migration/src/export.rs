//! The source side of a slot migration.

#[cfg(test)]
mod tests;

use std::time::Duration;

use clock::Instant;

use crate::message::Message;
use crate::{ACK_PERIOD, RESUME_WITHIN};

/// Maximum time for which writes are held. If the target has not claimed the slots by then, the migration fails.
pub const HOLD_FOR: Duration = Duration::from_secs(5);
/// Delay before retrying a snapshot that could not be taken because others are running.
const CUT_AGAIN: Duration = Duration::from_millis(20);
/// Delay before reconnecting after a failure, and after the target closed the link, which it may have done because it
/// has claimed the slots.
const LINK_AGAIN: Duration = Duration::from_millis(100);

/// Parameters of a migration.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// The migration fails if the target is silent for this long.
    pub timeout: Duration,
    /// Whether to authenticate to the target first.
    pub logs_in: bool,
    /// Writes are held only once at most this many bytes remain to be sent.
    pub most_behind: u64,
}

/// An event for the source's state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Connected to the target.
    Connected,
    /// The connection to the target failed.
    NotConnected(String),
    /// The target replied `+OK`.
    Accepted,
    /// The target replied with an error.
    Refused(String),
    /// The target sent this message.
    Heard(Message),
    /// The link is closed.
    Closed,
    /// The migration continues on a new link, and unacknowledged bytes were sent again.
    Resumed,
    /// Reconnecting failed for now.
    NotResumed,
    /// The target has forgotten the migration, or reported its end.
    EndedThere,
    /// The snapshot has been taken.
    Cut,
    /// The snapshot cannot be taken at the moment.
    NotCut,
    /// The whole snapshot has been sent.
    SnapshotSent,
    /// Number of log bytes that remain to be sent.
    Behind(u64),
    /// Writes are held, and all earlier changes have been sent.
    Drained,
    /// The topology shows the target's shard as owner of the slots.
    TakenByTarget,
    /// The topology shows another owner of the slots.
    TakenByOther,
    /// All keys were deleted here (FLUSHALL or FLUSHDB).
    Flushed,
    /// This node is no longer a master.
    Demoted,
    /// The migration cannot continue, for this reason.
    Broken(String),
    /// An operator cancels the migration.
    Cancel,
    /// The time of [`Export::next_deadline`] has come.
    Deadline,
}

/// An action for the source's driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Authenticate to the target.
    LogIn,
    /// Ask the target whether it supports resumable migrations.
    AskResumable,
    /// Announce the migration to the target.
    Establish {
        /// Whether it can be resumed on another link.
        resumable: bool,
    },
    /// Reconnect and resume the migration.
    Reconnect,
    /// Send this message to the target.
    Send(Message),
    /// Take a snapshot, note the log offset, then send the slots' contents and all later changes.
    Cut,
    /// Hold writes to the slots, send the rest of the log, then report [`Input::Drained`].
    Hold,
    /// The migration has ended: release held writes and close the link.
    End(Outcome),
}

/// The result of a migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The target now owns the slots.
    Success,
    /// The migration failed for this reason. This node still owns the slots.
    Failed(String),
    /// An operator cancelled the migration.
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

/// State machine of a migration's source.
#[derive(Debug)]
pub struct Export {
    config: Config,
    state: State,
    heard: Instant,
    next_ack: Option<Instant>,
    resumable: bool,
    /// Whether the migration has used an earlier link.
    is_resumed: bool,
    /// Set while there is no link.
    down: Option<Down>,
}

/// The state of a migration without a link.
#[derive(Debug, Clone, Copy)]
struct Down {
    /// The migration fails at this time.
    until: Instant,
    /// Time of the next attempt to reconnect; `None` during an attempt.
    again: Option<Instant>,
}

impl Export {
    /// Starts a migration. The driver must connect to the target.
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

    /// The name that Valkey has for this state.
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

    /// When to send [`Input::Deadline`] if no event occurs before.
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

    /// Processes an event and appends the resulting actions.
    pub fn handle(&mut self, now: Instant, input: Input, out: &mut Vec<Action>) {
        if self.state == State::Over {
            return;
        }
        match input {
            Input::Connected if self.config.logs_in => self.enter(State::LoggingIn, Action::LogIn, out),
            Input::Connected => self.enter(State::Asking, Action::AskResumable, out),
            Input::NotConnected(why) => self.fail(format!("Unable to connect to target node: {why}"), out),
            Input::Accepted => self.on_accepted(now, out),
            // Valkey replies with an error, as it does not know RESUMABLE.
            Input::Refused(_) if self.state == State::Asking => self.establish(false, out),
            Input::Refused(why) => {
                self.fail(format!("Received error during handshake to target: -{why}"), out);
            }
            Input::Heard(message) => self.on_heard(now, message, out),
            Input::Closed if self.down.is_some() => {}
            Input::Closed if self.resumable => self.on_break(now, out),
            // The target closes the link when it has claimed the slots.
            Input::Closed if matches!(self.state, State::Granted { .. }) => self.next_ack = None,
            Input::Closed => self.lost(out),
            Input::Resumed => self.on_resumed(now, out),
            Input::NotResumed => {
                if let Some(down) = &mut self.down {
                    down.again = Some(now + LINK_AGAIN);
                }
            }
            // The cluster bus will show whether the target has claimed the slots.
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
            // The target may have claimed the slots already. The cluster bus will show it before the deadline, or not
            // at all.
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

    /// The link of a resumable migration broke.
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
            // The target accepted the migration, but the reply was lost.
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
            // After reconnecting the target repeats its last request.
            (Message::RequestPause, State::AwaitingPause | State::Holding { .. } | State::Paused { .. })
                if self.is_resumed => {}
            // Once granted, the slots may be claimed, whatever else the target sends.
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
