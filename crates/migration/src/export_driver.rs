//! Drives the source side of a slot migration: combines the [`Export`] state machine with the link to the target, the
//! bytes to repeat after a reconnect, and the filter for the log. The node and the simulator run this same driver.
//!
//! The process owns the connection, the snapshot, the log and the pauses. It performs each [`ExportDriverAction`] in
//! sequence:
//!
//! | | the process | the driver |
//! | --- | --- | --- |
//! | 1 | [`ExportDriverAction::Connect`]: connects to the target; [`ExportDriverEvent::Connected`] | announces the job |
//! | 2 | [`ExportDriverAction::TakeSnapshot`]: takes a snapshot and notes its log position; [`ExportDriverEvent::SnapshotTaken`], [`ExportDriverEvent::SnapshotPart`] repeatedly, [`ExportDriverEvent::SnapshotEnd`] | sends the snapshot |
//! | 3 | reads the log from the noted position; [`ExportDriverEvent::LogRead`], [`ExportDriverEvent::Remaining`] | sends the commands about the slots |
//! | 4 | [`ExportDriverAction::HoldWrites`]: pauses clients' writes; [`ExportDriverEvent::WritesHeld`] | sends the rest of the log, then grants the slots |
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

use crate::export::{Export, ExportAction, ExportEvent};
use crate::filter::{LogContent, LogFilter};
use crate::target_replies::{TargetReplies, TargetReply};
use crate::window::ResendWindow;
use crate::{Establish, ExportConfig, ExportOutcome, Finish, Message, SlotsOfCommand, SyncSlots, serves};

/// Timeout of a reconnect attempt, first for the connection and then for the reply to RESUME.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A migration of slots away from this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportJob {
    /// The message that announces the migration, with this node as the source.
    pub establish: Establish,
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
    NotConnected(String),
    /// The target sent these bytes.
    Received(Vec<u8>),
    /// The connection closed, or no more bytes can be sent over it.
    Closed,
    /// The snapshot has been taken, and its log position is noted.
    SnapshotTaken,
    /// The snapshot cannot be taken at the moment, because other snapshots are running; the driver retries.
    SnapshotBusy,
    /// The next chunk of the snapshot, as commands in wire form.
    SnapshotPart(Vec<u8>),
    /// The snapshot is complete; the log is sent next.
    SnapshotEnd,
    /// The next chunk of the log.
    LogRead(Vec<u8>),
    /// The number of unread log bytes. Reported when nothing else is pending.
    Remaining(u64),
    /// Clients' writes to the slots are paused.
    WritesHeld {
        /// The number of unread log bytes. The log no longer grows for these slots.
        unread: u64,
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
    LogResumed,
    /// Close the connection, or abort the connection attempt. The process reports no event for it.
    Close,
    /// Take a snapshot of the slots and note the position of the log.
    TakeSnapshot,
    /// Pause clients' writes to the slots until the migration ends.
    HoldWrites,
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
        until: Instant,
    },
    Down,
}

/// Which data is being sent to the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transfer {
    Nothing,
    Snapshot,
    Log,
    /// The end of the log is being sent while writes are paused; this many bytes have not been read yet.
    LastLog {
        unread: u64,
    },
    Over,
}

/// Drives the source side of a slot migration.
#[derive(Debug)]
pub struct ExportDriver {
    job: ExportJob,
    slots: SlotSet,
    config: ExportConfig,
    machine: Export,
    link: TargetLink,
    replies: TargetReplies,
    /// Sent bytes that may have to be sent again on a new link; `None` if the migration cannot be resumed.
    window: Option<ResendWindow>,
    transfer: Transfer,
    filter: LogFilter,
    sent: u64,
}

type Actions = Vec<ExportDriverAction>;

impl ExportDriver {
    /// Starts a migration. The first action is to connect to the target.
    #[must_use]
    pub fn new(
        now: Instant,
        job: ExportJob,
        config: ExportConfig,
        commands: SlotsOfCommand,
    ) -> (Self, Actions) {
        let slots = job.establish.slots();
        let driver = Self {
            filter: LogFilter::new(slots.clone(), commands),
            machine: Export::new(now, config),
            job,
            slots,
            config,
            link: TargetLink::Connecting,
            replies: TargetReplies::default(),
            window: None,
            transfer: Transfer::Nothing,
            sent: 0,
        };
        (driver, vec![ExportDriverAction::Connect(config.connect_timeout)])
    }

    /// The name of the current state in Valkey; `None` after the end of the migration.
    #[must_use]
    pub fn state_name(&self) -> Option<&'static str> {
        (self.transfer != Transfer::Over).then(|| self.machine.state_name())
    }

    /// The number of bytes sent since the start of the migration; repeated bytes count once.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.sent
    }

    /// Whether the process may report more snapshot or log data. False without a link, and while too many bytes are
    /// unacknowledged.
    #[must_use]
    pub fn accepts_data(&self) -> bool {
        self.link == TargetLink::Up && self.window.as_ref().is_none_or(ResendWindow::is_open)
    }

    /// Whether the snapshot has been sent and the log is being sent.
    #[must_use]
    pub fn reads_log(&self) -> bool {
        matches!(self.transfer, Transfer::Log | Transfer::LastLog { .. })
    }

    /// The migrating slots.
    #[must_use]
    pub fn slots(&self) -> &SlotSet {
        &self.slots
    }

    /// Passes an event to the state machine and translates its actions.
    fn feed(&mut self, now: Instant, event: ExportEvent, out: &mut Actions) {
        let mut actions = Vec::new();
        self.machine.handle(now, event, &mut actions);
        for action in actions {
            match action {
                ExportAction::LogIn => out.push(ExportDriverAction::SendCredentials),
                ExportAction::AskResumable => self.send(&SyncSlots::AskResumable.encoded(), out),
                ExportAction::Establish { resumable } => {
                    let establish = Establish { resumable, ..self.job.establish.clone() };
                    self.send(&SyncSlots::Establish(establish).encoded(), out);
                    // All bytes sent from here on must be retained for a reconnect.
                    self.window = resumable.then(ResendWindow::default);
                }
                ExportAction::Reconnect => {
                    self.link = TargetLink::Resuming { until: now + RECONNECT_TIMEOUT };
                    out.push(ExportDriverAction::Connect(RECONNECT_TIMEOUT));
                }
                ExportAction::Send(message) => self.send(&SyncSlots::Message(message).encoded(), out),
                ExportAction::TakeSnapshot => out.push(ExportDriverAction::TakeSnapshot),
                ExportAction::HoldWrites => out.push(ExportDriverAction::HoldWrites),
                ExportAction::End(outcome) => self.end(outcome, out),
            }
        }
    }

    fn end(&mut self, outcome: ExportOutcome, out: &mut Actions) {
        self.transfer = Transfer::Over;
        // The target may be waiting for a new link, so tell it that the migration has ended.
        if outcome != ExportOutcome::Success && self.window.is_some() && self.link == TargetLink::Up {
            let finish = Finish::failed(self.job.establish.name);
            out.push(ExportDriverAction::Send(SyncSlots::Finish(finish).encoded()));
        }
        out.push(ExportDriverAction::End(outcome));
    }

    /// Sends bytes. A resumable migration also retains them until they are acknowledged.
    fn send(&mut self, bytes: &[u8], out: &mut Actions) {
        self.sent += bytes.len() as u64;
        if let Some(window) = &mut self.window {
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
                self.feed(now, ExportEvent::Connected, out);
            }
            TargetLink::Resuming { .. } => {
                self.link = TargetLink::Resuming { until: now + RECONNECT_TIMEOUT };
                self.replies.begin_link();
                out.extend(self.config.authenticate.then_some(ExportDriverAction::SendCredentials));
                out.push(ExportDriverAction::Send(SyncSlots::Resume(self.job.establish.name).encoded()));
            }
            TargetLink::Up | TargetLink::Down => {}
        }
    }

    fn on_closed(&mut self, now: Instant, out: &mut Actions) {
        match std::mem::replace(&mut self.link, TargetLink::Down) {
            TargetLink::Up | TargetLink::Connecting => self.feed(now, ExportEvent::Closed, out),
            TargetLink::Resuming { .. } => self.feed(now, ExportEvent::NotResumed, out),
            TargetLink::Down => {}
        }
    }

    fn on_received(&mut self, now: Instant, bytes: &[u8], out: &mut Actions) {
        self.replies.buffer().extend_from_slice(bytes);
        while self.transfer != Transfer::Over {
            match (self.replies.next_reply(), self.link) {
                (Ok(Some(reply)), TargetLink::Up) => self.on_reply(now, reply, out),
                (Ok(Some(reply)), TargetLink::Resuming { .. }) => self.on_reply_to_resume(now, &reply, out),
                (Ok(Some(_)), TargetLink::Connecting | TargetLink::Down) => {}
                (Ok(None), _) => return,
                (Err(error), _) => return self.feed(now, ExportEvent::Failed(error.to_string()), out),
            }
        }
    }

    fn on_reply(&mut self, now: Instant, reply: TargetReply, out: &mut Actions) {
        let event = match reply {
            TargetReply::Accepted => ExportEvent::Accepted,
            TargetReply::Refused(text) => ExportEvent::Refused(text),
            TargetReply::Command(SyncSlots::Finish(_)) => ExportEvent::EndedByPeer,
            TargetReply::Command(SyncSlots::Message(message)) => ExportEvent::Received(message),
            TargetReply::Command(SyncSlots::Applied(count)) => self.acknowledge(count, Message::Ack),
            // Ignore a late reply to RESUME, and commands that only a source may send.
            TargetReply::Applied(_) | TargetReply::Command(_) => return,
        };
        self.feed(now, event, out);
    }

    /// Discards the sent bytes that the target has applied. Returns the event for the state machine.
    fn acknowledge(&mut self, count: u64, message: Message) -> ExportEvent {
        if self.window.as_mut().is_none_or(|window| window.acknowledge(count)) {
            ExportEvent::Received(message)
        } else {
            ExportEvent::Failed("Target node has applied more than was sent".to_owned())
        }
    }

    /// Sends the bytes that the target has not applied again. The reply to AUTH may precede the reply to RESUME.
    fn on_reply_to_resume(&mut self, now: Instant, reply: &TargetReply, out: &mut Actions) {
        match reply {
            TargetReply::Applied(count) => match self.acknowledge(*count, Message::Ack) {
                failed @ ExportEvent::Failed(_) => self.feed(now, failed, out),
                _ => {
                    self.link = TargetLink::Up;
                    out.push(ExportDriverAction::LogResumed);
                    let rest = self.window.as_mut().map(|window| window.unacknowledged().to_vec());
                    out.extend(rest.filter(|rest| !rest.is_empty()).map(ExportDriverAction::Send));
                    self.feed(now, ExportEvent::Resumed, out);
                }
            },
            TargetReply::Refused(_) => {
                self.link = TargetLink::Down;
                out.push(ExportDriverAction::Close);
                self.feed(now, ExportEvent::EndedByPeer, out);
            }
            TargetReply::Accepted | TargetReply::Command(_) => {}
        }
    }

    fn on_topology(&mut self, now: Instant, topology: &Topology, is_replica: bool, out: &mut Actions) {
        // Check the claim first, because a node that loses its last slot becomes a replica of the new owner.
        let event = if serves(topology, self.job.target, &self.slots) {
            ExportEvent::TakenByTarget
        } else if is_replica {
            ExportEvent::Demoted
        } else if !serves(topology, topology.myself, &self.slots) {
            ExportEvent::TakenByOther
        } else {
            return;
        };
        self.feed(now, event, out);
    }

    fn on_log(&mut self, now: Instant, bytes: &[u8], out: &mut Actions) {
        let mut passed = Vec::new();
        let content = self.filter.feed(bytes, &mut passed);
        if !passed.is_empty() {
            self.send(&passed, out);
        }
        match content {
            Ok(LogContent::Changes) => {}
            Ok(LogContent::Flush) => return self.feed(now, ExportEvent::Flushed, out),
            Err(error) => return self.feed(now, ExportEvent::Failed(error.to_string()), out),
        }
        if let Transfer::LastLog { unread } = self.transfer {
            self.on_unread(now, unread.saturating_sub(bytes.len() as u64), out);
        }
    }

    fn on_unread(&mut self, now: Instant, unread: u64, out: &mut Actions) {
        self.transfer = Transfer::LastLog { unread };
        if unread == 0 {
            self.transfer = Transfer::Log;
            self.feed(now, ExportEvent::Drained, out);
        }
    }

    fn on_deadline(&mut self, now: Instant, out: &mut Actions) {
        if let TargetLink::Resuming { until } = self.link
            && now >= until
        {
            self.link = TargetLink::Down;
            out.push(ExportDriverAction::Close);
            self.feed(now, ExportEvent::NotResumed, out);
        }
        self.feed(now, ExportEvent::Deadline, out);
    }
}

impl Driver for ExportDriver {
    type Event = ExportDriverEvent;
    type Actions = Actions;

    fn handle(&mut self, now: Instant, event: ExportDriverEvent, out: &mut Actions) {
        if self.transfer == Transfer::Over {
            return;
        }
        match event {
            ExportDriverEvent::Topology { topology, is_replica } => {
                self.on_topology(now, &topology, is_replica, out);
            }
            ExportDriverEvent::Connected => self.on_connected(now, out),
            ExportDriverEvent::NotConnected(why) if self.link == TargetLink::Connecting => {
                self.feed(now, ExportEvent::NotConnected(why), out);
            }
            ExportDriverEvent::NotConnected(_) | ExportDriverEvent::Closed => self.on_closed(now, out),
            ExportDriverEvent::Received(bytes) => self.on_received(now, &bytes, out),
            ExportDriverEvent::SnapshotTaken => {
                self.transfer = Transfer::Snapshot;
                self.feed(now, ExportEvent::SnapshotTaken, out);
            }
            ExportDriverEvent::SnapshotBusy => self.feed(now, ExportEvent::SnapshotFailed, out),
            ExportDriverEvent::SnapshotPart(bytes) => self.send(&bytes, out),
            ExportDriverEvent::SnapshotEnd => {
                self.transfer = Transfer::Log;
                self.feed(now, ExportEvent::SnapshotSent, out);
            }
            ExportDriverEvent::LogRead(bytes) => self.on_log(now, &bytes, out),
            ExportDriverEvent::Remaining(bytes) if self.reads_log() => {
                self.feed(now, ExportEvent::Behind(bytes), out);
            }
            ExportDriverEvent::Remaining(_) => {}
            ExportDriverEvent::WritesHeld { unread } => self.on_unread(now, unread, out),
            ExportDriverEvent::Failed(why) => self.feed(now, ExportEvent::Failed(why), out),
            ExportDriverEvent::Cancel => self.feed(now, ExportEvent::Cancel, out),
            ExportDriverEvent::Deadline => self.on_deadline(now, out),
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let resuming = match self.link {
            TargetLink::Resuming { until } if self.transfer != Transfer::Over => Some(until),
            _ => None,
        };
        self.machine.next_deadline().into_iter().chain(resuming).min()
    }
}
