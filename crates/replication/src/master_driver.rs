//! Drives the master side of replication: combines the [`Master`] state machine with the log and a cursor per replica.
//! The node and the simulator run this same driver.
//!
//! The process owns the connections, the snapshots and the clock. It performs each [`MasterDriverAction`] in sequence:
//!
//! | | the process | the driver |
//! | --- | --- | --- |
//! | 1 | receives PSYNC or SYNC: [`MasterDriverEvent::PsyncReceived`] | checks the log and adds a cursor under the same lock |
//! | 2 | [`MasterDriverAction::TakeSnapshot`]: takes a snapshot and records the log's position with [`SnapshotPosition::record`] | |
//! | 3 | [`MasterDriverEvent::SnapshotTaken`] | sends the position and announces the snapshot |
//! | | for a snapshot on disk: [`MasterDriverEvent::SnapshotWritten`] | lists the replicas to send the file to: [`MasterDriverAction::SendFile`] |
//! | 4 | [`MasterDriverAction::SendSnapshot`] or [`MasterDriverAction::SendFile`]: sends the snapshot; [`MasterDriverEvent::SnapshotSent`] | |
//! | 5 | [`MasterDriverAction::SendStream`]: sends the log from the cursor on, until the connection closes | |
//!
//! Invariants: a replica that gets the stream has had its cursor since its position was determined, so the log retains
//! every byte that the replica still needs. A cursor is removed together with its replica, for whatever reason the
//! replica is removed.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use clock::Instant;
use slot_routing::ReplOffset;

use crate::id::ReplId;
use crate::log::{CursorId, FullSyncReason, Log, ReplPosition};
use crate::master::{self, CloseReason, Master, MasterAction, MasterConfig, PeerId, TransferId};
use crate::psync::{PeerProfile, PsyncRequest, ReplconfError, SLOT_STATES_PREFIX, SnapshotFormat};

/// Interval of checking the pending bytes while a replica is behind. It is short because an output buffer limit can be
/// exceeded within a second.
const PENDING_CHECK_PERIOD: Duration = Duration::from_millis(100);

const PING_COMMAND: &[u8] = b"*1\r\n$4\r\nPING\r\n";

/// Exclusive access to a log that is shared with other threads.
pub trait LogLock {
    /// Runs `work` while the log is locked. `work` must not take another lock.
    fn with_log<R>(&mut self, work: impl FnOnce(&mut Log) -> R) -> R;
}

impl LogLock for Log {
    fn with_log<R>(&mut self, work: impl FnOnce(&mut Log) -> R) -> R {
        work(self)
    }
}

/// The position at which a snapshot was taken, with the cursors of the replicas that get it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotPosition {
    /// The id from [`MasterDriverAction::TakeSnapshot`].
    pub transfer: TransferId,
    /// The log position at which the snapshot was taken.
    pub position: ReplPosition,
    /// The database selected in the stream at the snapshot's position; `None` if the stream starts with a SELECT.
    pub db: Option<u16>,
    /// The cursors at the snapshot's position, one for each replica that gets the snapshot.
    pub cursors: Vec<(PeerId, CursorId)>,
}

impl SnapshotPosition {
    /// Records the position of a snapshot. Must be called while all slots are locked and the log is open. `db` is the
    /// database selected in the stream, if it is sent to the replicas; with `None` the stream starts with a SELECT.
    pub fn record(log: &mut Log, transfer: TransferId, peers: &[PeerId], db: Option<u16>) -> Self {
        if db.is_none() {
            log.reset_selected_db();
        }
        let position = log.position();
        let cursors = peers.iter().map(|peer| (*peer, log.add_cursor(position.offset))).collect();
        Self { transfer, position, db, cursors }
    }
}

/// An event that the process reports to the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MasterDriverEvent {
    /// The time of [`MasterDriver::next_deadline`] has come.
    Deadline,
    /// A connection sent PSYNC or SYNC.
    PsyncReceived {
        /// The connection that sent the request.
        peer: PeerId,
        /// The properties that the connection announced by REPLCONF.
        profile: PeerProfile,
        /// The arguments of PSYNC; `None` for SYNC.
        request: Option<PsyncRequest>,
    },
    /// A snapshot was taken at this position.
    SnapshotTaken(SnapshotPosition),
    /// The whole snapshot has been written to its file.
    SnapshotWritten(TransferId),
    /// The whole snapshot has been sent to this replica.
    SnapshotSent(PeerId),
    /// The snapshot could not be taken or sent.
    TransferFailed(TransferId),
    /// A replica sent REPLCONF ACK over its stream connection.
    Acknowledged {
        /// The replica that acknowledged the stream.
        peer: PeerId,
        /// The offset up to which it has applied the stream.
        offset: ReplOffset,
        /// The offset up to which the replica's append-only file is on disk; `None` if the replica has no such file.
        synced_offset: Option<ReplOffset>,
    },
    /// The replica sent something other than an acknowledgement, which shows that it is alive.
    ReplicaAlive(PeerId),
    /// The connection of this replica closed.
    Closed(PeerId),
    /// This node became a master; its replicas stay connected.
    Promoted,
    /// This node became a replica; its own replicas stay connected.
    Demoted,
    /// The history of this node was replaced, so its replicas must resynchronise.
    HistoryReplaced,
}

/// The kind of synchronisation with which the master answers PSYNC, for the statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PsyncAnswer {
    /// The replica gets only the bytes that it lacks.
    Partial {
        /// The offset from which the replica continues.
        from: ReplOffset,
        /// The number of bytes from this offset to the end of the log.
        missing_bytes: u64,
    },
    /// The replica gets a snapshot first. The reason is `None` if the replica sent SYNC.
    Full(Option<FullSyncReason>),
}

/// An action for the process to perform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MasterDriverAction {
    /// Count the answer to PSYNC in the statistics.
    CountPsyncAnswer(PeerId, PsyncAnswer),
    /// Take a snapshot for these replicas, then send [`MasterDriverEvent::SnapshotTaken`].
    TakeSnapshot {
        /// The id under which the process reports the progress of the snapshot.
        transfer: TransferId,
        /// The replicas that wait for this snapshot.
        peers: Vec<PeerId>,
        /// Whether to stream the snapshot directly with an end mark, instead of writing a file first.
        uses_end_mark: bool,
        /// The RDB format and the parts that the replicas requested.
        format: SnapshotFormat,
    },
    /// Cancel the snapshot: no replica waits for it any more.
    CancelSnapshot(TransferId),
    /// Send these bytes to the replica.
    Send(PeerId, Vec<u8>),
    /// Send `+CONTINUE` with the state of migrating slots ([`continue_line`]).
    SendContinue {
        /// The replica that can continue.
        peer: PeerId,
        /// The replication id under which the stream continues.
        id: ReplId,
    },
    /// Stream the snapshot to this replica.
    SendSnapshot(PeerId),
    /// Send the snapshot file, preceded by its length.
    SendFile {
        /// The id from [`MasterDriverAction::TakeSnapshot`].
        transfer: TransferId,
        /// The replicas that get the file.
        peers: Vec<PeerId>,
    },
    /// Send the log from the cursor on, until the connection closes.
    SendStream(PeerId, CursorId),
    /// Append these bytes to the log. They concern only the replicas and change no data.
    AppendToLog(&'static [u8]),
    /// Close the connection. The process reports no [`MasterDriverEvent::Closed`] for it.
    Close(PeerId, CloseReason),
    /// Close the log, which has had no reader for `repl-backlog-ttl`.
    CloseLog,
}

/// Formats the reply `+CONTINUE` for a replica that supports the state of migrating slots.
#[must_use]
pub fn continue_line(id: ReplId, slot_states: &str) -> Vec<u8> {
    format!("+CONTINUE {id} {SLOT_STATES_PREFIX}{slot_states}\r\n").into_bytes()
}

/// When the pending bytes must be checked next. Both conditions must be satisfied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextPendingCheck {
    /// The check is due once the log has grown beyond this offset; `None` if a replica is already behind.
    pub log_end: Option<ReplOffset>,
    /// The check is not due before this time.
    pub earliest_check_at: Instant,
}

/// Drives the master side of replication. See the module documentation.
///
/// [`MasterDriver::handle`] takes the log as a further argument, so this type does not implement [`driver::Driver`]. The
/// log is shared with the threads that append to it, and the driver must read a position and add its cursor under one
/// lock: if the log were accessed by actions of the process, bytes could be dropped between the two.
#[derive(Debug)]
pub struct MasterDriver {
    master: Master,
    /// The cursor of each replica, if it has one.
    peer_cursors: BTreeMap<PeerId, Option<CursorId>>,
    last_pending_check: PendingCheck,
}

/// The result of the last check of pending bytes.
#[derive(Debug)]
struct PendingCheck {
    checked_at: Instant,
    /// The end of the log at the last check; `None` if a replica was behind.
    caught_up_at: Option<ReplOffset>,
    /// Whether writers were throttled after that check.
    is_throttling: bool,
}

impl MasterDriver {
    /// Creates the driver of a master without replicas.
    #[must_use]
    pub fn new(config: MasterConfig, now: Instant) -> Self {
        let last_check = PendingCheck { checked_at: now, caught_up_at: None, is_throttling: false };
        Self {
            master: Master::new(config, true, now),
            peer_cursors: BTreeMap::new(),
            last_pending_check: last_check,
        }
    }

    /// Returns the state machine, for queries about its replicas.
    #[must_use]
    pub fn master(&self) -> &Master {
        &self.master
    }

    /// Changes the configuration; the state machine applies it at once.
    pub fn set_config(&mut self, config: MasterConfig) {
        self.master.set_config(config);
    }

    /// Returns the time of the next [`MasterDriverEvent::Deadline`].
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.master.next_deadline()
    }

    /// Returns when to call [`MasterDriver::check_pending`] next; `None` if there are no replicas and no throttled
    /// writers.
    #[must_use]
    pub fn next_pending_check(&self) -> Option<NextPendingCheck> {
        let PendingCheck { checked_at: at, caught_up_at: all_had, is_throttling: slowed } =
            self.last_pending_check;
        (!self.peer_cursors.is_empty() || slowed)
            .then_some(NextPendingCheck { log_end: all_had, earliest_check_at: at + PENDING_CHECK_PERIOD })
    }

    /// Returns why a replica needs a full synchronisation, if it must use a second connection for the snapshot
    /// (`+DUALCHANNELSYNC`). The connection that sent PSYNC remains a normal client until it sends PSYNC again.
    pub fn needs_rdb_channel(
        &self,
        log: &mut impl LogLock,
        request: &PsyncRequest,
        profile: &PeerProfile,
    ) -> Option<FullSyncReason> {
        if !self.master.needs_rdb_channel(profile) {
            return None;
        }
        log.with_log(|log| log.resume_offset(&request.repl_id, request.first_byte)).err()
    }

    /// Marks a connection as the stream connection of the replica that gets its snapshot over `rdb`.
    ///
    /// # Errors
    /// No replica with this snapshot connection waits for its stream connection.
    pub fn link_channels(&self, profile: &mut PeerProfile, rdb_peer: PeerId) -> Result<(), ReplconfError> {
        if !self.master.awaits_main_channel(rdb_peer) {
            return Err(ReplconfError::UnknownRdbClient(rdb_peer));
        }
        profile.snapshot_connection = Some(rdb_peer);
        Ok(())
    }

    /// Handles an event and appends the resulting actions to `out`.
    pub fn handle(
        &mut self,
        now: Instant,
        event: MasterDriverEvent,
        log: &mut impl LogLock,
        out: &mut Vec<MasterDriverAction>,
    ) {
        match event {
            MasterDriverEvent::Deadline => self.feed_master(now, master::MasterEvent::Deadline, log, out),
            MasterDriverEvent::PsyncReceived { peer, profile, request } => {
                let resume = self.choose_sync_mode(peer, request.as_ref(), log, out);
                // A dual-channel replica acknowledges over its main connection.
                let sync = request.is_none() && !profile.is_rdb_channel;
                let profile = PeerProfile { uses_sync: sync, ..profile };
                self.feed_master(
                    now,
                    master::MasterEvent::Joined { peer, profile, resume_position: resume },
                    log,
                    out,
                );
            }
            MasterDriverEvent::SnapshotTaken(cut) => self.on_snapshot_taken(now, cut, log, out),
            MasterDriverEvent::SnapshotWritten(transfer) => {
                self.feed_master(now, master::MasterEvent::SnapshotWritten { transfer }, log, out);
            }
            MasterDriverEvent::SnapshotSent(peer) => {
                self.feed_master(now, master::MasterEvent::SnapshotSent { peer }, log, out);
            }
            MasterDriverEvent::TransferFailed(transfer) => {
                self.feed_master(now, master::MasterEvent::TransferFailed { transfer }, log, out);
            }
            MasterDriverEvent::Acknowledged { peer, offset, synced_offset: synced } => {
                self.feed_master(
                    now,
                    master::MasterEvent::Acknowledged { peer, offset, synced_offset: synced },
                    log,
                    out,
                );
            }
            MasterDriverEvent::ReplicaAlive(peer) => {
                self.feed_master(now, master::MasterEvent::ReplicaAlive { peer }, log, out);
            }
            MasterDriverEvent::Closed(peer) => {
                self.feed_master(now, master::MasterEvent::Closed { peer }, log, out);
                // A dual-channel replica stays registered until its main channel requests the stream.
                if !self.master.has_replica(peer) {
                    self.remove_cursor(peer, log);
                }
            }
            MasterDriverEvent::Promoted => {
                self.feed_master(now, master::MasterEvent::RoleChanged { is_master: true }, log, out);
                // Replicas reconnect and learn the new id.
                self.feed_master(now, master::MasterEvent::HistoryReplaced, log, out);
            }
            MasterDriverEvent::Demoted => {
                self.feed_master(now, master::MasterEvent::RoleChanged { is_master: false }, log, out);
            }
            MasterDriverEvent::HistoryReplaced => {
                self.feed_master(now, master::MasterEvent::HistoryReplaced, log, out);
            }
        }
    }

    /// Checks how many bytes are pending for each replica. Must be called when [`MasterDriver::next_pending_check`] is
    /// satisfied and when the log dropped a cursor. Returns how long writers are delayed after each batch.
    pub fn check_pending(
        &mut self,
        now: Instant,
        log: &mut impl LogLock,
        out: &mut Vec<MasterDriverAction>,
    ) -> Duration {
        let (pending, end) = log.with_log(|log| {
            let pending = |(peer, cursor): (&PeerId, &Option<CursorId>)| {
                log.unread_bytes((*cursor)?).ok().map(|bytes| (*peer, bytes))
            };
            let pending: Vec<_> = self.peer_cursors.iter().filter_map(pending).collect();
            (pending, log.position().offset)
        });
        let all_have =
            pending.len() == self.peer_cursors.len() && pending.iter().all(|(_, bytes)| *bytes == 0);
        for (peer, bytes) in pending {
            self.feed_master(now, master::MasterEvent::PendingBytes { peer, bytes }, log, out);
        }
        let delay = self.master.write_delay(now);
        let slowed = !delay.is_zero();
        self.last_pending_check = PendingCheck {
            checked_at: now,
            caught_up_at: Some(end).filter(|_| all_have && !slowed),
            is_throttling: slowed,
        };
        delay
    }

    /// Decides between partial and full synchronisation. Adds a cursor and returns its position if a partial one is
    /// possible.
    fn choose_sync_mode(
        &mut self,
        peer: PeerId,
        request: Option<&PsyncRequest>,
        log: &mut impl LogLock,
        out: &mut Vec<MasterDriverAction>,
    ) -> Option<ReplPosition> {
        self.last_pending_check.caught_up_at = None;
        let place = request.map(|request| {
            log.with_log(|log| {
                let from = log.resume_offset(&request.repl_id, request.first_byte)?;
                let ReplPosition { id, offset: end } = log.position();
                let missing = end.0.saturating_sub(from.0);
                Ok((ReplPosition { id, offset: from }, log.add_cursor(from), missing))
            })
        });
        let (resume, cursor, answer) = match place {
            Some(Ok((position, cursor, missing))) => {
                let from = position.offset;
                (Some(position), Some(cursor), PsyncAnswer::Partial { from, missing_bytes: missing })
            }
            Some(Err(refusal)) => (None, None, PsyncAnswer::Full(Some(refusal))),
            None => (None, None, PsyncAnswer::Full(None)),
        };
        self.peer_cursors.insert(peer, cursor);
        out.push(MasterDriverAction::CountPsyncAnswer(peer, answer));
        resume
    }

    /// Assigns the cursors at the snapshot's position to the replicas that are still connected.
    fn on_snapshot_taken(
        &mut self,
        now: Instant,
        snapshot: SnapshotPosition,
        log: &mut impl LogLock,
        out: &mut Vec<MasterDriverAction>,
    ) {
        self.last_pending_check.caught_up_at = None;
        let SnapshotPosition { transfer, position, db, cursors } = snapshot;
        for (peer, cursor) in cursors {
            match self.peer_cursors.get_mut(&peer) {
                Some(place) => *place = Some(cursor),
                None => log.with_log(|log| log.remove_cursor(cursor)),
            }
        }
        self.feed_master(now, master::MasterEvent::SnapshotTaken { transfer, position, db }, log, out);
    }

    fn feed_master(
        &mut self,
        now: Instant,
        event: master::MasterEvent,
        log: &mut impl LogLock,
        out: &mut Vec<MasterDriverAction>,
    ) {
        let mut actions = Vec::new();
        self.master.handle(now, event, &mut actions);
        for action in actions {
            out.extend(self.perform_action(action, log));
        }
    }

    fn perform_action(&mut self, action: MasterAction, log: &mut impl LogLock) -> Option<MasterDriverAction> {
        let line = |peer, line: String| Some(MasterDriverAction::Send(peer, line.into_bytes()));
        match action {
            MasterAction::TakeSnapshot { transfer, peers, uses_end_mark: eof, format: form } => {
                Some(MasterDriverAction::TakeSnapshot { transfer, peers, uses_end_mark: eof, format: form })
            }
            // The cursors of the replicas that requested the snapshot retain the log from its position on. If these
            // cursors were dropped for being too slow, the joining replica would be too slow as well.
            MasterAction::RetainLog { peer, from } => {
                let cursor = log.with_log(|log| log.add_cursor(from));
                self.last_pending_check.caught_up_at = None;
                self.peer_cursors.insert(peer, Some(cursor));
                None
            }
            MasterAction::SendSnapshot { peer } => Some(MasterDriverAction::SendSnapshot(peer)),
            MasterAction::SendFile { transfer, peers } => {
                Some(MasterDriverAction::SendFile { transfer, peers })
            }
            MasterAction::CancelSnapshot { transfer } => Some(MasterDriverAction::CancelSnapshot(transfer)),
            MasterAction::SendFullResync { peer, position: ReplPosition { id, offset } } => {
                line(peer, format!("+FULLRESYNC {id} {offset}\r\n"))
            }
            MasterAction::SendContinue { peer, id: Some(id), includes_slot_states: true } => {
                Some(MasterDriverAction::SendContinue { peer, id })
            }
            MasterAction::SendContinue { peer, id: Some(id), .. } => {
                line(peer, format!("+CONTINUE {id}\r\n"))
            }
            MasterAction::SendContinue { peer, id: None, .. } => line(peer, "+CONTINUE\r\n".to_owned()),
            MasterAction::SendStream { peer, .. } => {
                let cursor = self.peer_cursors.get(&peer).copied().flatten();
                let cursor = cursor.expect("a replica has its cursor since it asked or since the cut");
                Some(MasterDriverAction::SendStream(peer, cursor))
            }
            MasterAction::SendEndOffset { peer, position: ReplPosition { id, offset }, db } => {
                let db = db.map_or(-1, i32::from);
                line(peer, format!("$ENDOFF:{offset} {id} {db} {}\r\n", peer.0))
            }
            MasterAction::RemoveCursor { peer } => {
                if let Some(cursor) = self.peer_cursors.get_mut(&peer).and_then(Option::take) {
                    log.with_log(|log| log.remove_cursor(cursor));
                }
                None
            }
            MasterAction::SendEmptyLine { peer } => line(peer, "\n".to_owned()),
            MasterAction::AppendPing => Some(MasterDriverAction::AppendToLog(PING_COMMAND)),
            MasterAction::Close { peer, reason } => {
                self.remove_cursor(peer, log);
                Some(MasterDriverAction::Close(peer, reason))
            }
            MasterAction::CloseLog => Some(MasterDriverAction::CloseLog),
        }
    }

    fn remove_cursor(&mut self, peer: PeerId, log: &mut impl LogLock) {
        if let Some(Some(cursor)) = self.peer_cursors.remove(&peer) {
            log.with_log(|log| log.remove_cursor(cursor));
        }
    }
}
