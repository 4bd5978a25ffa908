//! The source side of a slot migration.

#[cfg(test)]
mod tests;

use std::time::Duration;

use clock::Instant;
use driver::Driver;

use crate::message::Message;
use crate::{ACK_PERIOD, RESUME_TIMEOUT};

/// Maximum time for which the source postpones clients' writes. If the target has not claimed the slots by then, the
/// migration fails.
pub const MAX_HOLD_TIME: Duration = Duration::from_secs(5);
/// Delay before retrying a snapshot that could not be taken because other snapshots are running.
const SNAPSHOT_RETRY_DELAY: Duration = Duration::from_millis(20);
/// Delay before retrying a failed reconnect, and before reconnecting to a target that may have closed the link because
/// it has claimed the slots.
const RECONNECT_DELAY: Duration = Duration::from_millis(100);

/// Limits and options of a migration at the source.
#[derive(Debug, Clone, Copy)]
pub struct ExportConfig {
    /// Timeout of the first connection attempt.
    pub connect_timeout: Duration,
    /// The migration fails if the target is silent for this long.
    pub timeout: Duration,
    /// Whether to authenticate to the target before the first message.
    pub authenticate: bool,
    /// Clients' writes are paused only once at most this many bytes of the log remain to be sent.
    pub max_remaining: u64,
}

/// An event for the source's state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ExportEvent {
    /// The connection to the target is established.
    Connected,
    /// The connection to the target failed.
    NotConnected(String),
    /// The target replied `+OK` to the announcement.
    Accepted,
    /// The target replied with an error.
    Refused(String),
    /// The target sent a message of a running migration.
    Received(Message),
    /// The link to the target is closed.
    Closed,
    /// A new link is established, and the source has sent all unacknowledged bytes again.
    Resumed,
    /// An attempt to reconnect failed. The source may try again.
    NotResumed,
    /// The target no longer knows the migration, or reported its end.
    EndedByPeer,
    /// The snapshot has been taken, and its content can be sent.
    SnapshotTaken,
    /// The snapshot cannot be taken at the moment; the source tries again later.
    SnapshotFailed,
    /// The whole snapshot has been sent; the log is sent next.
    SnapshotSent,
    /// The number of log bytes that remain to be sent.
    Behind(u64),
    /// Clients' writes are paused, and all earlier changes have been sent.
    Drained,
    /// The topology shows the target's shard as owner of the slots.
    TakenByTarget,
    /// The topology shows another owner for some of the slots, and not because the target has claimed them.
    TakenByOther,
    /// FLUSHALL or FLUSHDB deleted all keys on this node.
    Flushed,
    /// This node became a replica.
    Demoted,
    /// The migration cannot continue, for this reason.
    Failed(String),
    /// An operator wants to cancel the migration.
    Cancel,
    /// The time of [`Export::next_deadline`] has come.
    Deadline,
}

/// An action for the source's driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ExportAction {
    /// Authenticate to the target before any other command.
    LogIn,
    /// Query whether the target supports resumable migrations.
    AskResumable,
    /// Announce the migration to the target.
    Establish {
        /// Whether the migration can be resumed on another link.
        resumable: bool,
    },
    /// Open a new link and resume the migration over it.
    Reconnect,
    Send(Message),
    /// Take a snapshot, note its log offset, then send the slots' contents followed by all later changes.
    TakeSnapshot,
    /// Pause writes to the slots, send the rest of the log, then report [`ExportEvent::Drained`].
    HoldWrites,
    /// The migration has ended. The driver resumes paused writes and closes the link.
    End(ExportOutcome),
}

/// How a migration has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExportOutcome {
    /// The target now owns the slots.
    Success,
    /// The migration failed for this reason. This node still owns the slots.
    Failed(String),
    /// An operator cancelled the migration.
    Cancelled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExportState {
    Connecting,
    LoggingIn,
    Asking,
    Establishing,
    AwaitingSnapshot { retry_at: Option<Instant> },
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
pub(crate) struct Export {
    config: ExportConfig,
    state: ExportState,
    last_received: Instant,
    next_ack: Option<Instant>,
    resumable: bool,
    /// Whether the current link replaces an earlier one.
    is_resumed: bool,
    /// The reconnect state; `None` while a link exists.
    disconnected: Option<Disconnected>,
}

/// Timers of a migration whose link broke.
#[derive(Debug, Clone, Copy)]
struct Disconnected {
    /// The migration fails if no new link is established before this time.
    until: Instant,
    /// When to try to reconnect; `None` during an attempt.
    retry_at: Option<Instant>,
}

impl Export {
    /// Starts a migration; the driver must connect to the target next.
    #[must_use]
    pub(crate) fn new(now: Instant, config: ExportConfig) -> Self {
        Self {
            config,
            state: ExportState::Connecting,
            last_received: now,
            next_ack: None,
            resumable: false,
            is_resumed: false,
            disconnected: None,
        }
    }

    /// Returns the name of the current state in Valkey.
    #[must_use]
    pub(crate) fn state_name(&self) -> &'static str {
        match self.state {
            ExportState::Connecting => "connecting",
            ExportState::LoggingIn => "reading-auth-response",
            ExportState::Asking | ExportState::Establishing => "reading-establish-response",
            ExportState::AwaitingSnapshot { .. } => "waiting-to-snapshot",
            ExportState::Snapshotting => "snapshotting",
            ExportState::Replicating => "replicating",
            ExportState::AwaitingPause => "waiting-to-pause",
            ExportState::Holding { .. } | ExportState::Paused { .. } => "failover-paused",
            ExportState::Granted { .. } => "failover-granted",
            ExportState::Over => "success",
        }
    }

    fn retry_reconnect_at(&mut self, at: Instant) {
        if let Some(disconnected) = &mut self.disconnected {
            disconnected.retry_at = Some(at);
        }
    }

    fn on_accepted(&mut self, now: Instant, out: &mut Vec<ExportAction>) {
        match self.state {
            ExportState::LoggingIn => self.transition(ExportState::Asking, ExportAction::AskResumable, out),
            ExportState::Asking => self.establish(true, out),
            ExportState::Establishing => {
                self.next_ack = Some(now + ACK_PERIOD);
                out.push(ExportAction::Send(Message::Ack));
                self.transition(
                    ExportState::AwaitingSnapshot { retry_at: None },
                    ExportAction::TakeSnapshot,
                    out,
                );
            }
            _ => {}
        }
        self.last_received = now;
    }

    fn establish(&mut self, resumable: bool, out: &mut Vec<ExportAction>) {
        self.resumable = resumable;
        self.transition(ExportState::Establishing, ExportAction::Establish { resumable }, out);
    }

    /// Schedules a reconnect after the link of a resumable migration broke.
    fn on_disconnect(&mut self, now: Instant, out: &mut Vec<ExportAction>) {
        let at_once = !matches!(self.state, ExportState::Granted { .. });
        let retry_at = (!at_once).then(|| now + RECONNECT_DELAY);
        self.disconnected = Some(Disconnected { until: now + RESUME_TIMEOUT, retry_at });
        out.extend(at_once.then_some(ExportAction::Reconnect));
    }

    fn on_resumed(&mut self, now: Instant, out: &mut Vec<ExportAction>) {
        (self.disconnected, self.is_resumed, self.last_received) = (None, true, now);
        self.next_ack = Some(now + ACK_PERIOD);
        if self.state == ExportState::Establishing {
            // The target accepted the migration, but the reply was lost.
            self.on_accepted(now, out);
        }
    }

    fn fail_disconnected(&mut self, out: &mut Vec<ExportAction>) {
        self.fail(
            "Connection lost to target. Check CLUSTER GETSLOTMIGRATIONS on the target node for more information.",
            out,
        );
    }

    fn on_message(&mut self, now: Instant, message: Message, out: &mut Vec<ExportAction>) {
        self.last_received = now;
        match (message, self.state) {
            (Message::Ack, _) => {}
            (Message::RequestPause, ExportState::Replicating) => self.state = ExportState::AwaitingPause,
            (Message::RequestFailover, ExportState::Paused { .. }) => {
                let granted = ExportState::Granted { until: now + MAX_HOLD_TIME };
                self.transition(granted, ExportAction::Send(Message::FailoverGranted), out);
            }
            // After a reconnect the target repeats its last request, which the source may have received before.
            (
                Message::RequestPause,
                ExportState::AwaitingPause | ExportState::Holding { .. } | ExportState::Paused { .. },
            ) if self.is_resumed => {}
            // Once the slots are granted, the target may claim them, so no other message matters.
            (_, ExportState::Granted { .. }) => {}
            (message, _) => {
                self.fail(format!("Target node sent {} out of order", message.word()), out);
            }
        }
    }

    fn on_deadline(&mut self, now: Instant, out: &mut Vec<ExportAction>) {
        match self.state {
            ExportState::Granted { until } if now >= until => {
                return self.fail(
                    "Unpaused before migration completed (migration may have succeeded with lost writes)",
                    out,
                );
            }
            ExportState::Holding { until } | ExportState::Paused { until } if now >= until => {
                return self.fail("Unpaused before migration completed", out);
            }
            _ => {}
        }
        if !matches!(self.state, ExportState::Granted { .. })
            && now >= self.last_received + self.config.timeout
        {
            return self.fail("Timed out after too long with no interaction", out);
        }
        if let ExportState::AwaitingSnapshot { retry_at: Some(at) } = self.state
            && now >= at
        {
            self.transition(
                ExportState::AwaitingSnapshot { retry_at: None },
                ExportAction::TakeSnapshot,
                out,
            );
        }
        match &mut self.disconnected {
            Some(disconnected)
                if now >= disconnected.until && !matches!(self.state, ExportState::Granted { .. }) =>
            {
                self.fail_disconnected(out);
            }
            Some(disconnected) if now >= disconnected.until => {
                (self.disconnected, self.next_ack, self.resumable) = (None, None, false);
            }
            Some(disconnected) if disconnected.retry_at.is_some_and(|at| now >= at) => {
                disconnected.retry_at = None;
                out.push(ExportAction::Reconnect);
            }
            Some(_) => {}
            None if self.next_ack.is_some_and(|at| now >= at) => {
                self.next_ack = Some(now + ACK_PERIOD);
                out.push(ExportAction::Send(Message::Ack));
            }
            None => {}
        }
    }

    fn transition(&mut self, state: ExportState, action: ExportAction, out: &mut Vec<ExportAction>) {
        self.state = state;
        out.push(action);
    }

    fn fail(&mut self, why: impl Into<String>, out: &mut Vec<ExportAction>) {
        self.end(ExportOutcome::Failed(why.into()), out);
    }

    fn end(&mut self, outcome: ExportOutcome, out: &mut Vec<ExportAction>) {
        self.transition(ExportState::Over, ExportAction::End(outcome), out);
    }
}

impl Driver for Export {
    type Event = ExportEvent;
    type Actions = Vec<ExportAction>;

    /// Processes an event and appends the resulting actions.
    fn handle(&mut self, now: Instant, input: ExportEvent, out: &mut Vec<ExportAction>) {
        if self.state == ExportState::Over {
            return;
        }
        match input {
            ExportEvent::Connected if self.config.authenticate => {
                self.transition(ExportState::LoggingIn, ExportAction::LogIn, out);
            }
            ExportEvent::Connected => self.transition(ExportState::Asking, ExportAction::AskResumable, out),
            ExportEvent::NotConnected(why) => {
                self.fail(format!("Unable to connect to target node: {why}"), out);
            }
            ExportEvent::Accepted => self.on_accepted(now, out),
            // Valkey does not know RESUMABLE and replies with an error.
            ExportEvent::Refused(_) if self.state == ExportState::Asking => self.establish(false, out),
            ExportEvent::Refused(why) => {
                self.fail(format!("Received error during handshake to target: -{why}"), out);
            }
            ExportEvent::Received(message) => self.on_message(now, message, out),
            ExportEvent::Closed if self.disconnected.is_some() => {}
            ExportEvent::Closed if self.resumable => self.on_disconnect(now, out),
            // The target closes the link when it has claimed the slots.
            ExportEvent::Closed if matches!(self.state, ExportState::Granted { .. }) => self.next_ack = None,
            ExportEvent::Closed => self.fail_disconnected(out),
            ExportEvent::Resumed => self.on_resumed(now, out),
            ExportEvent::NotResumed => self.retry_reconnect_at(now + RECONNECT_DELAY),
            // The cluster bus will show whether the target has claimed the slots.
            ExportEvent::EndedByPeer if matches!(self.state, ExportState::Granted { .. }) => {
                (self.next_ack, self.disconnected, self.resumable) = (None, None, false);
            }
            ExportEvent::EndedByPeer => self.fail_disconnected(out),
            ExportEvent::SnapshotTaken => self.state = ExportState::Snapshotting,
            ExportEvent::SnapshotFailed => {
                self.state = ExportState::AwaitingSnapshot { retry_at: Some(now + SNAPSHOT_RETRY_DELAY) }
            }
            ExportEvent::SnapshotSent => {
                self.transition(ExportState::Replicating, ExportAction::Send(Message::SnapshotEof), out);
            }
            ExportEvent::Behind(bytes) => {
                if self.state == ExportState::AwaitingPause && bytes <= self.config.max_remaining {
                    let until = now + MAX_HOLD_TIME;
                    self.transition(ExportState::Holding { until }, ExportAction::HoldWrites, out);
                }
            }
            ExportEvent::Drained => {
                if let ExportState::Holding { until } = self.state {
                    self.transition(ExportState::Paused { until }, ExportAction::Send(Message::Paused), out);
                }
            }
            ExportEvent::TakenByTarget if matches!(self.state, ExportState::Granted { .. }) => {
                self.end(ExportOutcome::Success, out);
            }
            ExportEvent::TakenByTarget | ExportEvent::TakenByOther => {
                self.fail("Slots are no longer owned by myself.", out);
            }
            ExportEvent::Flushed => self.fail("Data was flushed", out),
            ExportEvent::Demoted => self.fail("A failover occurred during slot export", out),
            ExportEvent::Failed(why) => self.fail(why, out),
            // A granted migration cannot be cancelled, because the target may have claimed the slots already. The
            // cluster bus shows a claim before the deadline.
            ExportEvent::Cancel if matches!(self.state, ExportState::Granted { .. }) => {}
            ExportEvent::Cancel => self.end(ExportOutcome::Cancelled, out),
            ExportEvent::Deadline => self.on_deadline(now, out),
        }
    }

    /// When to send [`ExportEvent::Deadline`] if no other event occurs first.
    fn next_deadline(&self) -> Option<Instant> {
        let own = match self.state {
            ExportState::AwaitingSnapshot { retry_at } => retry_at,
            ExportState::Holding { until }
            | ExportState::Paused { until }
            | ExportState::Granted { until } => Some(until),
            ExportState::Over => return None,
            _ => None,
        };
        let silence = (!matches!(self.state, ExportState::Granted { .. }))
            .then(|| self.last_received + self.config.timeout);
        let link = self.disconnected.map_or(self.next_ack, |disconnected| {
            Some(disconnected.retry_at.unwrap_or(disconnected.until).min(disconnected.until))
        });
        [own, silence, link].into_iter().flatten().min()
    }
}
