//! Drives the source side of a slot migration: combines [`ExportStateMachine`] with the link to the target, the bytes
//! to repeat after a reconnect, and the filter for the log. The node and the simulator run this same driver.
//!
//! The process owns the connection, the snapshot, the log and the pauses. It performs each [`ExportDriverAction`] in
//! sequence:
//!
//! | | the process | the driver |
//! | --- | --- | --- |
//! | 1 | [`ExportDriverAction::Connect`]: connects to the target; [`ExportDriverEvent::Connected`] | announces the job |
//! | 2 | [`ExportDriverAction::TakeSnapshot`]: takes a snapshot and notes its log position; [`ExportDriverEvent::SnapshotTaken`], [`ExportDriverEvent::SnapshotChunk`] repeatedly, [`ExportDriverEvent::SnapshotEnd`] | sends the snapshot |
//! | 3 | reads the log from the noted position; [`ExportDriverEvent::LogChunk`], [`ExportDriverEvent::UnreadLogBytes`] | sends the commands about the slots |
//! | 4 | [`ExportDriverAction::PauseWrites`]: pauses clients' writes; [`ExportDriverEvent::WritesPaused`] | sends the rest of the log, then grants the slots |
//! | 5 | publishes the target's claim; [`ExportDriverEvent::Topology`] | ends the job |
//!
//! The process reports snapshot and log data only while [`ExportDriver::accepts_data`] is true. No action waits for the
//! disk: the claim of the target transfers the slots, and the cluster persists that claim.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use clock::Instant;
use driver::Driver;
use slot_routing::{NodeId, SlotSet, Topology};

use crate::export::{ExportAction, ExportEvent, ExportStateMachine};
use crate::filter::{LogContent, LogFilter};
use crate::target_replies::{TargetReply, TargetReplyParser};
use crate::window::ResendWindow;
use crate::{
    EstablishMessage, ExportConfig, ExportOutcome, FinishMessage, LoggedCommandDecoder, MigrationMessage,
    SyncSlotsCommand, owns_slots,
};

/// Timeout of a reconnect attempt, first for the connection and then for the reply to RESUME.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A migration of slots away from this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportJob {
    /// The message that announces the migration, with this node as the source.
    pub establish_message: EstablishMessage,
    /// The id of the node that gets the slots.
    pub target: NodeId,
}

/// An event that the process reports to the driver.
#[derive(Debug, Clone)]
pub enum ExportDriverEvent {
    /// The topology. Reported at the start of the migration and after every change.
    Topology {
        /// The topology by which this node currently routes commands.
        topology: Arc<Topology>,
        /// Whether this node is a replica. A migration ends when its source becomes a replica.
        is_replica: bool,
    },
    /// The connection requested with [`ExportDriverAction::Connect`] is established.
    Connected,
    /// The connection to the target failed, for this reason.
    ConnectFailed(String),
    /// The target sent these bytes.
    Received(Vec<u8>),
    /// The connection closed, or no more bytes can be sent over it.
    Closed,
    /// The snapshot has been taken, and its log position is noted.
    SnapshotTaken,
    /// The snapshot cannot be taken at the moment, because other snapshots are running; the driver retries.
    SnapshotUnavailable,
    /// The next chunk of the snapshot, as commands in wire form.
    SnapshotChunk(Vec<u8>),
    /// The snapshot is complete; the log is sent next.
    SnapshotEnd,
    /// The next chunk of the log.
    LogChunk(Vec<u8>),
    /// The number of unread log bytes. Reported when nothing else is pending.
    UnreadLogBytes(u64),
    /// Clients' writes to the slots are paused.
    WritesPaused {
        /// The number of unread log bytes. The log no longer grows for these slots.
        unread_bytes: u64,
    },
    /// The migration cannot continue, for this reason.
    Failed(String),
    /// An operator wants to cancel the migration.
    Cancel,
    /// The time of [`Driver::next_deadline`] has come.
    Deadline,
}

/// An action that the process must perform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExportDriverAction {
    /// Connect to the target; the attempt fails after this time.
    Connect(Duration),
    /// Send the credentials with which nodes authenticate to each other.
    SendCredentials,
    /// Send these bytes to the target.
    Send(Vec<u8>),
    /// Write a message to the server's log: the migration continues on a new link.
    ReportResumed,
    /// Close the connection, or abort the connection attempt. The process reports no event for it.
    Close,
    /// Take a snapshot of the slots and note the position of the log.
    TakeSnapshot,
    /// Pause clients' writes to the slots until the migration ends.
    PauseWrites,
    /// The migration has ended: close the connection, resume paused writes, and remove the cursor in the log.
    End(ExportOutcome),
}

/// The state of the link to the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TargetLink {
    Connecting,
    Up,
    /// A reconnect is in progress: the new link is being opened, or the source waits for the reply to RESUME.
    Resuming {
        deadline: Instant,
    },
    Down,
}

/// Which data is being sent to the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TransferPhase {
    NotStarted,
    Snapshot,
    Log,
    /// The end of the log is being sent while writes are paused; this many bytes have not been read yet.
    FinalLog {
        unread_bytes: u64,
    },
    Ended,
}

/// Drives the source side of a slot migration.
#[derive(Debug)]
pub struct ExportDriver {
    job: ExportJob,
    slots: SlotSet,
    config: ExportConfig,
    state_machine: ExportStateMachine,
    link: TargetLink,
    target_replies: TargetReplyParser,
    /// Sent bytes that may have to be sent again on a new link; `None` if the migration cannot be resumed.
    resend_window: Option<ResendWindow>,
    transfer_phase: TransferPhase,
    filter: LogFilter,
    sent_bytes: u64,
}

type Actions = Vec<ExportDriverAction>;

impl ExportDriver {
    /// Starts a migration. The first action is to connect to the target.
    #[must_use]
    pub fn new(
        now: Instant,
        job: ExportJob,
        config: ExportConfig,
        slot_finder: LoggedCommandDecoder,
    ) -> (Self, Actions) {
        let slots = job.establish_message.slots();
        let driver = Self {
            filter: LogFilter::new(slots.clone(), slot_finder),
            state_machine: ExportStateMachine::new(now, config),
            job,
            slots,
            config,
            link: TargetLink::Connecting,
            target_replies: TargetReplyParser::default(),
            resend_window: None,
            transfer_phase: TransferPhase::NotStarted,
            sent_bytes: 0,
        };
        (driver, vec![ExportDriverAction::Connect(config.connect_timeout)])
    }

    /// The name of the current state in Valkey; `None` after the end of the migration.
    #[must_use]
    pub fn state_name(&self) -> Option<&'static str> {
        (self.transfer_phase != TransferPhase::Ended).then(|| self.state_machine.state_name())
    }

    /// The number of bytes sent since the start of the migration; repeated bytes count once.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    /// Whether the process may report more snapshot or log data. False without a link, and while too many bytes are
    /// unacknowledged.
    #[must_use]
    pub fn accepts_data(&self) -> bool {
        self.link == TargetLink::Up && self.resend_window.as_ref().is_none_or(ResendWindow::is_open)
    }

    /// Whether the snapshot has been sent and the log is being sent.
    #[must_use]
    pub fn is_sending_log(&self) -> bool {
        matches!(self.transfer_phase, TransferPhase::Log | TransferPhase::FinalLog { .. })
    }

    /// The migrating slots.
    #[must_use]
    pub fn slots(&self) -> &SlotSet {
        &self.slots
    }

    /// Passes an event to the state machine and translates its actions.
    fn feed_state_machine(&mut self, now: Instant, event: ExportEvent, out: &mut Actions) {
        let mut actions = Vec::new();
        self.state_machine.handle(now, event, &mut actions);
        for action in actions {
            match action {
                ExportAction::Authenticate => out.push(ExportDriverAction::SendCredentials),
                ExportAction::QueryResumable => self.send(&SyncSlotsCommand::QueryResumable.to_resp(), out),
                ExportAction::Establish { is_resumable: resumable } => {
                    let establish =
                        EstablishMessage { is_resumable: resumable, ..self.job.establish_message.clone() };
                    self.send(&SyncSlotsCommand::Establish(establish).to_resp(), out);
                    // All bytes sent from here on must be retained for a reconnect.
                    self.resend_window = resumable.then(ResendWindow::default);
                }
                ExportAction::Reconnect => {
                    self.link = TargetLink::Resuming { deadline: now + RECONNECT_TIMEOUT };
                    out.push(ExportDriverAction::Connect(RECONNECT_TIMEOUT));
                }
                ExportAction::Send(message) => self.send(&SyncSlotsCommand::Message(message).to_resp(), out),
                ExportAction::TakeSnapshot => out.push(ExportDriverAction::TakeSnapshot),
                ExportAction::PauseWrites => out.push(ExportDriverAction::PauseWrites),
                ExportAction::End(outcome) => self.end(outcome, out),
            }
        }
    }

    fn end(&mut self, outcome: ExportOutcome, out: &mut Actions) {
        self.transfer_phase = TransferPhase::Ended;
        // The target may be waiting for a new link, so tell it that the migration has ended.
        if outcome != ExportOutcome::Success && self.resend_window.is_some() && self.link == TargetLink::Up {
            let finish = FinishMessage::failed(self.job.establish_message.name);
            out.push(ExportDriverAction::Send(SyncSlotsCommand::Finish(finish).to_resp()));
        }
        out.push(ExportDriverAction::End(outcome));
    }

    /// Sends bytes. A resumable migration also retains them until they are acknowledged.
    fn send(&mut self, bytes: &[u8], out: &mut Actions) {
        self.sent_bytes += bytes.len() as u64;
        if let Some(window) = &mut self.resend_window {
            window.push(bytes);
        }
        if self.link == TargetLink::Up {
            out.push(ExportDriverAction::Send(bytes.to_vec()));
        }
    }

    fn on_connected(&mut self, now: Instant, out: &mut Actions) {
        match self.link {
            TargetLink::Connecting => {
                self.link = TargetLink::Up;
                self.feed_state_machine(now, ExportEvent::Connected, out);
            }
            TargetLink::Resuming { .. } => {
                self.link = TargetLink::Resuming { deadline: now + RECONNECT_TIMEOUT };
                self.target_replies.reset_for_new_link();
                out.extend(
                    self.config.requires_authentication.then_some(ExportDriverAction::SendCredentials),
                );
                out.push(ExportDriverAction::Send(
                    SyncSlotsCommand::Resume(self.job.establish_message.name).to_resp(),
                ));
            }
            TargetLink::Up | TargetLink::Down => {}
        }
    }

    fn on_closed(&mut self, now: Instant, out: &mut Actions) {
        match std::mem::replace(&mut self.link, TargetLink::Down) {
            TargetLink::Up | TargetLink::Connecting => self.feed_state_machine(now, ExportEvent::Closed, out),
            TargetLink::Resuming { .. } => self.feed_state_machine(now, ExportEvent::ResumeFailed, out),
            TargetLink::Down => {}
        }
    }

    fn on_received(&mut self, now: Instant, bytes: &[u8], out: &mut Actions) {
        self.target_replies.input_buffer().extend_from_slice(bytes);
        while self.transfer_phase != TransferPhase::Ended {
            match (self.target_replies.next_reply(), self.link) {
                (Ok(Some(reply)), TargetLink::Up) => self.on_reply(now, reply, out),
                (Ok(Some(reply)), TargetLink::Resuming { .. }) => self.on_resume_reply(now, &reply, out),
                (Ok(Some(_)), TargetLink::Connecting | TargetLink::Down) => {}
                (Ok(None), _) => return,
                (Err(error), _) => {
                    return self.feed_state_machine(now, ExportEvent::Failed(error.to_string()), out);
                }
            }
        }
    }

    fn on_reply(&mut self, now: Instant, reply: TargetReply, out: &mut Actions) {
        let event = match reply {
            TargetReply::Accepted => ExportEvent::Accepted,
            TargetReply::Refused(text) => ExportEvent::Refused(text),
            TargetReply::Command(SyncSlotsCommand::Finish(_)) => ExportEvent::EndedByPeer,
            TargetReply::Command(SyncSlotsCommand::Message(message)) => ExportEvent::Received(message),
            TargetReply::Command(SyncSlotsCommand::AppliedBytes(count)) => {
                self.acknowledge(count, MigrationMessage::Ack)
            }
            // Ignore a late reply to RESUME, and commands that only a source may send.
            TargetReply::Applied(_) | TargetReply::Command(_) => return,
        };
        self.feed_state_machine(now, event, out);
    }

    /// Discards the sent bytes that the target has applied. Returns the event for the state machine.
    fn acknowledge(&mut self, applied_bytes: u64, message: MigrationMessage) -> ExportEvent {
        if self.resend_window.as_mut().is_none_or(|window| window.acknowledge(applied_bytes)) {
            ExportEvent::Received(message)
        } else {
            ExportEvent::Failed("Target node has applied more than was sent".to_owned())
        }
    }

    /// Sends the bytes that the target has not applied again. The reply to AUTH may precede the reply to RESUME.
    fn on_resume_reply(&mut self, now: Instant, reply: &TargetReply, out: &mut Actions) {
        match reply {
            TargetReply::Applied(count) => match self.acknowledge(*count, MigrationMessage::Ack) {
                failed @ ExportEvent::Failed(_) => self.feed_state_machine(now, failed, out),
                _ => {
                    self.link = TargetLink::Up;
                    out.push(ExportDriverAction::ReportResumed);
                    let rest = self.resend_window.as_mut().map(|window| window.unacknowledged().to_vec());
                    out.extend(rest.filter(|rest| !rest.is_empty()).map(ExportDriverAction::Send));
                    self.feed_state_machine(now, ExportEvent::Resumed, out);
                }
            },
            TargetReply::Refused(_) => {
                self.link = TargetLink::Down;
                out.push(ExportDriverAction::Close);
                self.feed_state_machine(now, ExportEvent::EndedByPeer, out);
            }
            TargetReply::Accepted | TargetReply::Command(_) => {}
        }
    }

    fn on_topology(&mut self, now: Instant, topology: &Topology, is_replica: bool, out: &mut Actions) {
        // Check the claim first, because a node that loses its last slot becomes a replica of the new owner.
        let event = if owns_slots(topology, self.job.target, &self.slots) {
            ExportEvent::ClaimedByTarget
        } else if is_replica {
            ExportEvent::Demoted
        } else if !owns_slots(topology, topology.myself, &self.slots) {
            ExportEvent::ClaimedByOther
        } else {
            return;
        };
        self.feed_state_machine(now, event, out);
    }

    fn on_log_chunk(&mut self, now: Instant, bytes: &[u8], out: &mut Actions) {
        let mut passed = Vec::new();
        let content = self.filter.filter(bytes, &mut passed);
        if !passed.is_empty() {
            self.send(&passed, out);
        }
        match content {
            Ok(LogContent::Changes) => {}
            Ok(LogContent::FlushAll) => return self.feed_state_machine(now, ExportEvent::Flushed, out),
            Err(error) => return self.feed_state_machine(now, ExportEvent::Failed(error.to_string()), out),
        }
        if let TransferPhase::FinalLog { unread_bytes: unread } = self.transfer_phase {
            self.on_unread_bytes(now, unread.saturating_sub(bytes.len() as u64), out);
        }
    }

    fn on_unread_bytes(&mut self, now: Instant, unread_bytes: u64, out: &mut Actions) {
        self.transfer_phase = TransferPhase::FinalLog { unread_bytes };
        if unread_bytes == 0 {
            self.transfer_phase = TransferPhase::Log;
            self.feed_state_machine(now, ExportEvent::LogDrained, out);
        }
    }

    fn on_deadline(&mut self, now: Instant, out: &mut Actions) {
        if let TargetLink::Resuming { deadline: until } = self.link
            && now >= until
        {
            self.link = TargetLink::Down;
            out.push(ExportDriverAction::Close);
            self.feed_state_machine(now, ExportEvent::ResumeFailed, out);
        }
        self.feed_state_machine(now, ExportEvent::Deadline, out);
    }
}

impl Driver for ExportDriver {
    type Event = ExportDriverEvent;
    type Actions = Actions;

    fn handle(&mut self, now: Instant, event: ExportDriverEvent, out: &mut Actions) {
        if self.transfer_phase == TransferPhase::Ended {
            return;
        }
        match event {
            ExportDriverEvent::Topology { topology, is_replica } => {
                self.on_topology(now, &topology, is_replica, out);
            }
            ExportDriverEvent::Connected => self.on_connected(now, out),
            ExportDriverEvent::ConnectFailed(why) if self.link == TargetLink::Connecting => {
                self.feed_state_machine(now, ExportEvent::ConnectFailed(why), out);
            }
            ExportDriverEvent::ConnectFailed(_) | ExportDriverEvent::Closed => self.on_closed(now, out),
            ExportDriverEvent::Received(bytes) => self.on_received(now, &bytes, out),
            ExportDriverEvent::SnapshotTaken => {
                self.transfer_phase = TransferPhase::Snapshot;
                self.feed_state_machine(now, ExportEvent::SnapshotTaken, out);
            }
            ExportDriverEvent::SnapshotUnavailable => {
                self.feed_state_machine(now, ExportEvent::SnapshotFailed, out);
            }
            ExportDriverEvent::SnapshotChunk(bytes) => self.send(&bytes, out),
            ExportDriverEvent::SnapshotEnd => {
                self.transfer_phase = TransferPhase::Log;
                self.feed_state_machine(now, ExportEvent::SnapshotSent, out);
            }
            ExportDriverEvent::LogChunk(bytes) => self.on_log_chunk(now, &bytes, out),
            ExportDriverEvent::UnreadLogBytes(bytes) if self.is_sending_log() => {
                self.feed_state_machine(now, ExportEvent::BytesRemaining(bytes), out);
            }
            ExportDriverEvent::UnreadLogBytes(_) => {}
            ExportDriverEvent::WritesPaused { unread_bytes: unread } => {
                self.on_unread_bytes(now, unread, out);
            }
            ExportDriverEvent::Failed(why) => self.feed_state_machine(now, ExportEvent::Failed(why), out),
            ExportDriverEvent::Cancel => self.feed_state_machine(now, ExportEvent::Cancel, out),
            ExportDriverEvent::Deadline => self.on_deadline(now, out),
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let resuming = match self.link {
            TargetLink::Resuming { deadline: until } if self.transfer_phase != TransferPhase::Ended => {
                Some(until)
            }
            _ => None,
        };
        self.state_machine.next_deadline().into_iter().chain(resuming).min()
    }
}
