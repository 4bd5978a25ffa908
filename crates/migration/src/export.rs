//! The source side of a slot migration.

#[cfg(test)]
mod tests;

use std::time::Duration;

use clock::Instant;
use driver::Driver;

use crate::message::MigrationMessage;
use crate::{ACK_PERIOD, RESUME_TIMEOUT};

/// Maximum time for which the source postpones clients' writes. If the target has not claimed the slots by then, the
/// migration fails.
pub const MAX_WRITE_PAUSE: Duration = Duration::from_secs(5);
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
    pub requires_authentication: bool,
    /// Clients' writes are paused only once at most this many bytes of the log remain to be sent.
    pub max_remaining_bytes: u64,
}

/// An event for the source's state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ExportEvent {
    /// The connection to the target is established.
    Connected,
    /// The connection to the target failed.
    ConnectFailed(String),
    /// The target replied `+OK` to the announcement.
    Accepted,
    /// The target replied with an error.
    Refused(String),
    /// The target sent a message of a running migration.
    Received(MigrationMessage),
    /// The link to the target is closed.
    Closed,
    /// A new link is established, and the source has sent all unacknowledged bytes again.
    Resumed,
    /// An attempt to reconnect failed. The source may try again.
    ResumeFailed,
    /// The target no longer knows the migration, or reported its end.
    EndedByPeer,
    /// The snapshot has been taken, and its content can be sent.
    SnapshotTaken,
    /// The snapshot cannot be taken at the moment; the source tries again later.
    SnapshotFailed,
    /// The whole snapshot has been sent; the log is sent next.
    SnapshotSent,
    /// The number of log bytes that remain to be sent.
    BytesRemaining(u64),
    /// Clients' writes are paused, and all earlier changes have been sent.
    LogDrained,
    /// The topology shows the target's shard as owner of the slots.
    ClaimedByTarget,
    /// The topology shows another owner for some of the slots, and not because the target has claimed them.
    ClaimedByOther,
    /// FLUSHALL or FLUSHDB deleted all keys on this node.
    Flushed,
    /// This node became a replica.
    Demoted,
    /// The migration cannot continue, for this reason.
    Failed(String),
    /// An operator wants to cancel the migration.
    Cancel,
    /// The time of [`ExportStateMachine::next_deadline`] has come.
    Deadline,
}

/// An action for the source's driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ExportAction {
    /// Authenticate to the target before any other command.
    Authenticate,
    /// Query whether the target supports resumable migrations.
    QueryResumable,
    /// Announce the migration to the target.
    Establish {
        /// Whether the migration can be resumed on another link.
        is_resumable: bool,
    },
    /// Open a new link and resume the migration over it.
    Reconnect,
    Send(MigrationMessage),
    /// Take a snapshot, note its log offset, then send the slots' contents followed by all later changes.
    TakeSnapshot,
    /// Pause writes to the slots, send the rest of the log, then report [`ExportEvent::LogDrained`].
    PauseWrites,
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
    Authenticating,
    QueryingResumable,
    Establishing,
    AwaitingSnapshot { retry_at: Option<Instant> },
    Snapshotting,
    Replicating,
    AwaitingPause,
    PausingWrites { deadline: Instant },
    Paused { deadline: Instant },
    Granted { deadline: Instant },
    Ended,
}

/// State machine of a migration's source.
#[derive(Debug)]
pub(crate) struct ExportStateMachine {
    config: ExportConfig,
    state: ExportState,
    last_received_at: Instant,
    next_ack_at: Option<Instant>,
    is_resumable: bool,
    /// Whether the current link replaces an earlier one.
    is_resumed: bool,
    /// The reconnect state; `None` while a link exists.
    reconnect_timers: Option<ReconnectTimers>,
}

/// Timers of a migration whose link broke.
#[derive(Debug, Clone, Copy)]
struct ReconnectTimers {
    /// The migration fails if no new link is established before this time.
    deadline: Instant,
    /// When to try to reconnect; `None` during an attempt.
    retry_at: Option<Instant>,
}

impl ExportStateMachine {
    /// Starts a migration; the driver must connect to the target next.
    #[must_use]
    pub(crate) fn new(now: Instant, config: ExportConfig) -> Self {
        Self {
            config,
            state: ExportState::Connecting,
            last_received_at: now,
            next_ack_at: None,
            is_resumable: false,
            is_resumed: false,
            reconnect_timers: None,
        }
    }

    /// Returns the name of the current state in Valkey.
    #[must_use]
    pub(crate) fn state_name(&self) -> &'static str {
        match self.state {
            ExportState::Connecting => "connecting",
            ExportState::Authenticating => "reading-auth-response",
            ExportState::QueryingResumable | ExportState::Establishing => "reading-establish-response",
            ExportState::AwaitingSnapshot { .. } => "waiting-to-snapshot",
            ExportState::Snapshotting => "snapshotting",
            ExportState::Replicating => "replicating",
            ExportState::AwaitingPause => "waiting-to-pause",
            ExportState::PausingWrites { .. } | ExportState::Paused { .. } => "failover-paused",
            ExportState::Granted { .. } => "failover-granted",
            ExportState::Ended => "success",
        }
    }

    fn schedule_reconnect(&mut self, at: Instant) {
        if let Some(disconnected) = &mut self.reconnect_timers {
            disconnected.retry_at = Some(at);
        }
    }

    fn on_connected(&mut self, out: &mut Vec<ExportAction>) {
        if self.config.requires_authentication {
            self.transition(ExportState::Authenticating, ExportAction::Authenticate, out);
        } else {
            self.transition(ExportState::QueryingResumable, ExportAction::QueryResumable, out);
        }
    }

    fn on_accepted(&mut self, now: Instant, out: &mut Vec<ExportAction>) {
        match self.state {
            ExportState::Authenticating => {
                self.transition(ExportState::QueryingResumable, ExportAction::QueryResumable, out);
            }
            ExportState::QueryingResumable => self.establish(true, out),
            ExportState::Establishing => {
                self.next_ack_at = Some(now + ACK_PERIOD);
                out.push(ExportAction::Send(MigrationMessage::Ack));
                self.transition(
                    ExportState::AwaitingSnapshot { retry_at: None },
                    ExportAction::TakeSnapshot,
                    out,
                );
            }
            _ => {}
        }
        self.last_received_at = now;
    }

    fn establish(&mut self, is_resumable: bool, out: &mut Vec<ExportAction>) {
        self.is_resumable = is_resumable;
        self.transition(ExportState::Establishing, ExportAction::Establish { is_resumable }, out);
    }

    /// Schedules a reconnect after the link of a resumable migration broke.
    fn on_disconnect(&mut self, now: Instant, out: &mut Vec<ExportAction>) {
        let at_once = !matches!(self.state, ExportState::Granted { .. });
        let retry_at = (!at_once).then(|| now + RECONNECT_DELAY);
        self.reconnect_timers = Some(ReconnectTimers { deadline: now + RESUME_TIMEOUT, retry_at });
        out.extend(at_once.then_some(ExportAction::Reconnect));
    }

    fn on_resumed(&mut self, now: Instant, out: &mut Vec<ExportAction>) {
        (self.reconnect_timers, self.is_resumed, self.last_received_at) = (None, true, now);
        self.next_ack_at = Some(now + ACK_PERIOD);
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

    fn on_message(&mut self, now: Instant, message: MigrationMessage, out: &mut Vec<ExportAction>) {
        self.last_received_at = now;
        match (message, self.state) {
            (MigrationMessage::Ack, _) => {}
            (MigrationMessage::RequestPause, ExportState::Replicating) => {
                self.state = ExportState::AwaitingPause;
            }
            (MigrationMessage::RequestFailover, ExportState::Paused { .. }) => {
                let granted = ExportState::Granted { deadline: now + MAX_WRITE_PAUSE };
                self.transition(granted, ExportAction::Send(MigrationMessage::FailoverGranted), out);
            }
            // After a reconnect the target repeats its last request, which the source may have received before.
            (
                MigrationMessage::RequestPause,
                ExportState::AwaitingPause | ExportState::PausingWrites { .. } | ExportState::Paused { .. },
            ) if self.is_resumed => {}
            // Once the slots are granted, the target may claim them, so no other message matters.
            (_, ExportState::Granted { .. }) => {}
            (message, _) => {
                self.fail(format!("Target node sent {} out of order", message.wire_name()), out);
            }
        }
    }

    fn on_deadline(&mut self, now: Instant, out: &mut Vec<ExportAction>) {
        match self.state {
            ExportState::Granted { deadline: until } if now >= until => {
                return self.fail(
                    "Unpaused before migration completed (migration may have succeeded with lost writes)",
                    out,
                );
            }
            ExportState::PausingWrites { deadline: until } | ExportState::Paused { deadline: until }
                if now >= until =>
            {
                return self.fail("Unpaused before migration completed", out);
            }
            _ => {}
        }
        if !matches!(self.state, ExportState::Granted { .. })
            && now >= self.last_received_at + self.config.timeout
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
        match &mut self.reconnect_timers {
            Some(disconnected)
                if now >= disconnected.deadline && !matches!(self.state, ExportState::Granted { .. }) =>
            {
                self.fail_disconnected(out);
            }
            Some(disconnected) if now >= disconnected.deadline => {
                (self.reconnect_timers, self.next_ack_at, self.is_resumable) = (None, None, false);
            }
            Some(disconnected) if disconnected.retry_at.is_some_and(|at| now >= at) => {
                disconnected.retry_at = None;
                out.push(ExportAction::Reconnect);
            }
            Some(_) => {}
            None if self.next_ack_at.is_some_and(|at| now >= at) => {
                self.next_ack_at = Some(now + ACK_PERIOD);
                out.push(ExportAction::Send(MigrationMessage::Ack));
            }
            None => {}
        }
    }

    fn transition(&mut self, state: ExportState, action: ExportAction, out: &mut Vec<ExportAction>) {
        self.state = state;
        out.push(action);
    }

    fn fail(&mut self, reason: impl Into<String>, out: &mut Vec<ExportAction>) {
        self.end(ExportOutcome::Failed(reason.into()), out);
    }

    fn end(&mut self, outcome: ExportOutcome, out: &mut Vec<ExportAction>) {
        self.transition(ExportState::Ended, ExportAction::End(outcome), out);
    }
}

impl Driver for ExportStateMachine {
    type Event = ExportEvent;
    type Actions = Vec<ExportAction>;

    /// Processes an event and appends the resulting actions.
    fn handle(&mut self, now: Instant, event: ExportEvent, out: &mut Vec<ExportAction>) {
        if self.state == ExportState::Ended {
            return;
        }
        let is_granted = matches!(self.state, ExportState::Granted { .. });
        match event {
            ExportEvent::Connected => self.on_connected(out),
            ExportEvent::ConnectFailed(why) => {
                self.fail(format!("Unable to connect to target node: {why}"), out);
            }
            ExportEvent::Accepted => self.on_accepted(now, out),
            // Valkey does not know RESUMABLE and replies with an error.
            ExportEvent::Refused(_) if self.state == ExportState::QueryingResumable => {
                self.establish(false, out);
            }
            ExportEvent::Refused(why) => {
                self.fail(format!("Received error during handshake to target: -{why}"), out);
            }
            ExportEvent::Received(message) => self.on_message(now, message, out),
            ExportEvent::Closed if self.reconnect_timers.is_some() => {}
            ExportEvent::Closed if self.is_resumable => self.on_disconnect(now, out),
            // The target closes the link when it has claimed the slots.
            ExportEvent::Closed if is_granted => self.next_ack_at = None,
            ExportEvent::Closed => self.fail_disconnected(out),
            ExportEvent::Resumed => self.on_resumed(now, out),
            ExportEvent::ResumeFailed => self.schedule_reconnect(now + RECONNECT_DELAY),
            // The cluster bus will show whether the target has claimed the slots.
            ExportEvent::EndedByPeer if is_granted => {
                (self.next_ack_at, self.reconnect_timers, self.is_resumable) = (None, None, false);
            }
            ExportEvent::EndedByPeer => self.fail_disconnected(out),
            ExportEvent::SnapshotTaken => self.state = ExportState::Snapshotting,
            ExportEvent::SnapshotFailed => {
                self.state = ExportState::AwaitingSnapshot { retry_at: Some(now + SNAPSHOT_RETRY_DELAY) }
            }
            ExportEvent::SnapshotSent => {
                let message = ExportAction::Send(MigrationMessage::SnapshotEof);
                self.transition(ExportState::Replicating, message, out);
            }
            ExportEvent::BytesRemaining(bytes) => {
                if self.state == ExportState::AwaitingPause && bytes <= self.config.max_remaining_bytes {
                    let state = ExportState::PausingWrites { deadline: now + MAX_WRITE_PAUSE };
                    self.transition(state, ExportAction::PauseWrites, out);
                }
            }
            ExportEvent::LogDrained => {
                if let ExportState::PausingWrites { deadline } = self.state {
                    let message = ExportAction::Send(MigrationMessage::Paused);
                    self.transition(ExportState::Paused { deadline }, message, out);
                }
            }
            ExportEvent::ClaimedByTarget if is_granted => {
                self.end(ExportOutcome::Success, out);
            }
            ExportEvent::ClaimedByTarget | ExportEvent::ClaimedByOther => {
                self.fail("Slots are no longer owned by myself.", out);
            }
            ExportEvent::Flushed => self.fail("Data was flushed", out),
            ExportEvent::Demoted => self.fail("A failover occurred during slot export", out),
            ExportEvent::Failed(why) => self.fail(why, out),
            // A granted migration cannot be cancelled, because the target may have claimed the slots already. The
            // cluster bus shows a claim before the deadline.
            ExportEvent::Cancel if is_granted => {}
            ExportEvent::Cancel => self.end(ExportOutcome::Cancelled, out),
            ExportEvent::Deadline => self.on_deadline(now, out),
        }
    }

    /// When to send [`ExportEvent::Deadline`] if no other event occurs first.
    fn next_deadline(&self) -> Option<Instant> {
        let own = match self.state {
            ExportState::AwaitingSnapshot { retry_at } => retry_at,
            ExportState::PausingWrites { deadline: until }
            | ExportState::Paused { deadline: until }
            | ExportState::Granted { deadline: until } => Some(until),
            ExportState::Ended => return None,
            _ => None,
        };
        let silence = (!matches!(self.state, ExportState::Granted { .. }))
            .then(|| self.last_received_at + self.config.timeout);
        let link = self.reconnect_timers.map_or(self.next_ack_at, |disconnected| {
            Some(disconnected.retry_at.unwrap_or(disconnected.deadline).min(disconnected.deadline))
        });
        [own, silence, link].into_iter().flatten().min()
    }
}
