//! Drives the master side of replication: combines the [`Master`] state machine with the log and a cursor per replica.
//! The node and the simulator run this same driver.
//!
//! The process owns the connections, the snapshots and the clock. It performs each [`Order`] in sequence:
//!
//! | | the process | the driver |
//! | --- | --- | --- |
//! | 1 | receives PSYNC or SYNC: [`Input::Asked`] | checks the log and adds a cursor under the same lock |
//! | 2 | [`Order::Snapshot`]: takes a snapshot and records the log's position with [`Cut::note`] | |
//! | 3 | [`Input::Cut`] | sends the position and announces the snapshot |
//! | | for a snapshot on disk: [`Input::Written`] | lists the replicas that get it: [`Order::SendFile`] |
//! | 4 | [`Order::SendSnapshot`] or [`Order::SendFile`]: sends it; [`Input::Sent`] | |
//! | 5 | [`Order::Stream`]: sends the log from the cursor on, until the connection closes | |
//!
//! Invariants: a replica that gets the stream has had its cursor since its position was determined, so the log keeps
//! every byte that it still needs. A cursor is removed with its replica, whatever the reason.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use clock::Instant;
use slot_routing::ReplOffset;

use crate::id::ReplId;
use crate::log::{CursorId, Log, Position, Refusal};
use crate::master::{self, Action, CloseReason, Config, Master, PeerId, TransferId};
use crate::psync::{Profile, PsyncRequest, ReplconfError, SLOT_STATES, SnapshotForm};

/// How often the pending bytes are checked while a replica is behind. An output buffer limit can be exceeded within a
/// second.
const PENDING_PERIOD: Duration = Duration::from_millis(100);

const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

/// Exclusive access to a log that is shared with other threads.
pub trait LogTurns {
    /// Runs `work` under the log's lock. `work` must not take another lock.
    fn turn<R>(&mut self, work: impl FnOnce(&mut Log) -> R) -> R;
}

impl LogTurns for Log {
    fn turn<R>(&mut self, work: impl FnOnce(&mut Log) -> R) -> R {
        work(self)
    }
}

/// The position of a snapshot in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The snapshot.
    pub transfer: TransferId,
    /// The position in the log at which the snapshot was taken.
    pub position: Position,
    /// The database selected in the stream at that position; `None` if the stream selects one next.
    pub db: Option<u16>,
    /// The cursors at that position, one for each replica that gets the snapshot.
    pub cursors: Vec<(PeerId, CursorId)>,
}

impl Cut {
    /// Records the position of a snapshot while all slots are locked. The log is open. `db` is the database selected in
    /// the stream if the replicas are told it; with `None` the stream selects one next.
    pub fn note(log: &mut Log, transfer: TransferId, peers: &[PeerId], db: Option<u16>) -> Self {
        if db.is_none() {
            log.forget_db();
        }
        let position = log.position();
        let cursors = peers.iter().map(|peer| (*peer, log.add_cursor(position.offset))).collect();
        Self { transfer, position, db, cursors }
    }
}

/// An event that the process reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// The time of [`Serving::next_deadline`].
    Deadline,
    /// A connection sent PSYNC or SYNC.
    Asked {
        /// The replica.
        peer: PeerId,
        /// The properties announced by REPLCONF.
        profile: Profile,
        /// The arguments of PSYNC; `None` for SYNC.
        request: Option<PsyncRequest>,
    },
    /// A snapshot was taken.
    Cut(Cut),
    /// The snapshot was written to its file.
    Written(TransferId),
    /// The snapshot was sent to this replica.
    Sent(PeerId),
    /// The snapshot could not be taken or sent.
    TransferFailed(TransferId),
    /// A replica sent REPLCONF ACK.
    Acknowledged {
        /// The replica.
        peer: PeerId,
        /// The offset up to which it has applied the stream.
        offset: ReplOffset,
        /// The offset up to which its append-only file is on disk, if it has one.
        synced: Option<ReplOffset>,
    },
    /// The replica sent something else, which shows that it is alive.
    Heard(PeerId),
    /// The connection closed.
    Closed(PeerId),
    /// This node became a master.
    Promoted,
    /// This node became a replica.
    Demoted,
    /// The history of this node was replaced: its replicas must resynchronise.
    HistoryReplaced,
}

/// The answer to PSYNC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// A partial synchronisation.
    Partial {
        /// The offset from which the replica continues.
        from: ReplOffset,
        /// The number of bytes from there to the end of the log.
        missing: u64,
    },
    /// A full synchronisation, with the reason unless the replica sent SYNC.
    Full(Option<Refusal>),
}

/// An action for the process to perform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Count the answer to PSYNC in the statistics.
    Answered(PeerId, Answer),
    /// Take a snapshot for these replicas, then send [`Input::Cut`].
    Snapshot {
        /// The id of the snapshot.
        transfer: TransferId,
        /// The replicas that get it.
        peers: Vec<PeerId>,
        /// Whether to stream it directly with an end mark, instead of writing a file first.
        eof: bool,
        /// The format and contents.
        form: SnapshotForm,
    },
    /// Cancel the snapshot: no replica waits for it any more.
    CancelSnapshot(TransferId),
    /// Send these bytes.
    Send(PeerId, Vec<u8>),
    /// Send `+CONTINUE` with the state of migrating slots ([`continue_with`]).
    Continue {
        /// The replica.
        peer: PeerId,
        /// The replication id.
        id: ReplId,
    },
    /// Stream the snapshot to this replica.
    SendSnapshot(PeerId),
    /// Send the snapshot file, preceded by its length, to these replicas only.
    SendFile {
        /// The id of the snapshot.
        transfer: TransferId,
        /// The replicas that get it.
        peers: Vec<PeerId>,
    },
    /// Send the log from the cursor on.
    Stream(PeerId, CursorId),
    /// Append these bytes to the log.
    Append(&'static [u8]),
    /// Close the connection. No [`Input::Closed`] is expected afterwards.
    Close(PeerId, CloseReason),
    /// Close the log, which has had no reader for `repl-backlog-ttl`.
    CloseLog,
}

/// Formats `+CONTINUE` for a replica that accepts the state of migrating slots.
#[must_use]
pub fn continue_with(id: ReplId, slot_states: &str) -> Vec<u8> {
    format!("+CONTINUE {id} {SLOT_STATES}{slot_states}\r\n").into_bytes()
}

/// The condition for the next check of pending bytes. Both fields must be satisfied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextLook {
    /// The log has grown beyond this offset. `None` if a replica is already behind.
    pub past: Option<ReplOffset>,
    /// The earliest time.
    pub at: Instant,
}

/// Drives the master side of replication.
#[derive(Debug)]
pub struct Serving {
    master: Master,
    /// The cursor of each replica, if it has one.
    peers: BTreeMap<PeerId, Option<CursorId>>,
    looked: Looked,
}

/// The result of the last check of pending bytes.
#[derive(Debug)]
struct Looked {
    at: Instant,
    /// The end of the log, if every replica had caught up.
    all_had: Option<ReplOffset>,
    /// Whether writers were throttled.
    slowed: bool,
}

impl Serving {
    /// Creates the driver of a master without replicas.
    #[must_use]
    pub fn new(config: Config, now: Instant) -> Self {
        let looked = Looked { at: now, all_had: None, slowed: false };
        Self { master: Master::new(config, true, now), peers: BTreeMap::new(), looked }
    }

    /// Returns the state machine, for queries about replicas.
    #[must_use]
    pub fn master(&self) -> &Master {
        &self.master
    }

    /// Changes the configuration.
    pub fn set_config(&mut self, config: Config) {
        self.master.set_config(config);
    }

    /// Returns the time of the next [`Input::Deadline`].
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.master.next_deadline()
    }

    /// Returns when to call [`Serving::look`]; `None` without replicas, unless throttled writers must be released.
    #[must_use]
    pub fn next_look(&self) -> Option<NextLook> {
        let Looked { at, all_had, slowed } = self.looked;
        (!self.peers.is_empty() || slowed).then_some(NextLook { past: all_had, at: at + PENDING_PERIOD })
    }

    /// Returns why a replica needs a full synchronisation, if it is to fetch the snapshot over a second connection
    /// (`+DUALCHANNELSYNC`). The connection that sent PSYNC stays a normal client until then.
    pub fn sends_apart(
        &self,
        log: &mut impl LogTurns,
        request: &PsyncRequest,
        profile: &Profile,
    ) -> Option<Refusal> {
        if !self.master.sends_apart(profile) {
            return None;
        }
        log.turn(|log| log.resume(&request.id, request.first_byte)).err()
    }

    /// Marks a connection as the stream connection of the replica whose snapshot goes over `rdb`.
    ///
    /// # Errors
    /// If no replica waits for its stream connection under that id.
    pub fn link_channels(&self, profile: &mut Profile, rdb: PeerId) -> Result<(), ReplconfError> {
        if !self.master.awaits_main_channel(rdb) {
            return Err(ReplconfError::UnknownRdbClient(rdb));
        }
        profile.snapshot_over = Some(rdb);
        Ok(())
    }

    /// Handles an event and appends the resulting actions to `out`.
    pub fn handle(&mut self, now: Instant, input: Input, log: &mut impl LogTurns, out: &mut Vec<Order>) {
        match input {
            Input::Deadline => self.give(now, master::Input::Deadline, log, out),
            Input::Asked { peer, profile, request } => {
                let resume = self.place(peer, request.as_ref(), log, out);
                // A dual-channel replica acknowledges over its main connection.
                let sync = request.is_none() && !profile.rdb_channel;
                let profile = Profile { sync, ..profile };
                self.give(now, master::Input::Joined { peer, profile, resume }, log, out);
            }
            Input::Cut(cut) => self.on_cut(now, cut, log, out),
            Input::Written(transfer) => self.give(now, master::Input::Written { transfer }, log, out),
            Input::Sent(peer) => self.give(now, master::Input::Sent { peer }, log, out),
            Input::TransferFailed(transfer) => {
                self.give(now, master::Input::TransferFailed { transfer }, log, out);
            }
            Input::Acknowledged { peer, offset, synced } => {
                self.give(now, master::Input::Acknowledged { peer, offset, synced }, log, out);
            }
            Input::Heard(peer) => self.give(now, master::Input::Heard { peer }, log, out),
            Input::Closed(peer) => {
                self.give(now, master::Input::Closed { peer }, log, out);
                // A dual-channel replica stays until its main connection asks for the stream.
                if !self.master.serves(peer) {
                    self.forget(peer, log);
                }
            }
            Input::Promoted => {
                self.give(now, master::Input::Role { master: true }, log, out);
                // Replicas reconnect and learn the new id.
                self.give(now, master::Input::HistoryReplaced, log, out);
            }
            Input::Demoted => self.give(now, master::Input::Role { master: false }, log, out),
            Input::HistoryReplaced => self.give(now, master::Input::HistoryReplaced, log, out),
        }
    }

    /// Checks how far behind each replica is. Call it when [`Serving::next_look`] says so and when the log dropped a
    /// cursor. Returns how long writers are delayed after each batch.
    pub fn look(&mut self, now: Instant, log: &mut impl LogTurns, out: &mut Vec<Order>) -> Duration {
        let (pending, end) = log.turn(|log| {
            let pending = |(peer, cursor): (&PeerId, &Option<CursorId>)| {
                log.pending((*cursor)?).ok().map(|bytes| (*peer, bytes))
            };
            let pending: Vec<_> = self.peers.iter().filter_map(pending).collect();
            (pending, log.position().offset)
        });
        let all_have = pending.len() == self.peers.len() && pending.iter().all(|(_, bytes)| *bytes == 0);
        for (peer, bytes) in pending {
            self.give(now, master::Input::Pending { peer, bytes }, log, out);
        }
        let delay = self.master.write_delay(now);
        let slowed = !delay.is_zero();
        self.looked = Looked { at: now, all_had: Some(end).filter(|_| all_have && !slowed), slowed };
        delay
    }

    /// Decides between partial and full synchronisation. For a partial one, returns the position and adds a cursor.
    fn place(
        &mut self,
        peer: PeerId,
        request: Option<&PsyncRequest>,
        log: &mut impl LogTurns,
        out: &mut Vec<Order>,
    ) -> Option<Position> {
        self.looked.all_had = None;
        let place = request.map(|request| {
            log.turn(|log| {
                let from = log.resume(&request.id, request.first_byte)?;
                let Position { id, offset: end } = log.position();
                let missing = end.0.saturating_sub(from.0);
                Ok((Position { id, offset: from }, log.add_cursor(from), missing))
            })
        });
        let (resume, cursor, answer) = match place {
            Some(Ok((position, cursor, missing))) => {
                let from = position.offset;
                (Some(position), Some(cursor), Answer::Partial { from, missing })
            }
            Some(Err(refusal)) => (None, None, Answer::Full(Some(refusal))),
            None => (None, None, Answer::Full(None)),
        };
        self.peers.insert(peer, cursor);
        out.push(Order::Answered(peer, answer));
        resume
    }

    /// Gives the replicas that are still connected their cursors at the snapshot's position.
    fn on_cut(&mut self, now: Instant, cut: Cut, log: &mut impl LogTurns, out: &mut Vec<Order>) {
        self.looked.all_had = None;
        let Cut { transfer, position, db, cursors } = cut;
        for (peer, cursor) in cursors {
            match self.peers.get_mut(&peer) {
                Some(place) => *place = Some(cursor),
                None => log.turn(|log| log.remove_cursor(cursor)),
            }
        }
        self.give(now, master::Input::Cut { transfer, position, db }, log, out);
    }

    fn give(&mut self, now: Instant, input: master::Input, log: &mut impl LogTurns, out: &mut Vec<Order>) {
        let mut actions = Vec::new();
        self.master.handle(now, input, &mut actions);
        for action in actions {
            out.extend(self.order(action, log));
        }
    }

    fn order(&mut self, action: Action, log: &mut impl LogTurns) -> Option<Order> {
        let line = |peer, line: String| Some(Order::Send(peer, line.into_bytes()));
        match action {
            Action::Snapshot { transfer, peers, eof, form } => {
                Some(Order::Snapshot { transfer, peers, eof, form })
            }
            // The cursors of the replicas that the snapshot was started for keep the log from its position on. If they
            // were dropped for being too far behind, this replica is too far behind as well.
            Action::KeepLog { peer, from } => {
                let cursor = log.turn(|log| log.add_cursor(from));
                self.looked.all_had = None;
                self.peers.insert(peer, Some(cursor));
                None
            }
            Action::SendSnapshot { peer } => Some(Order::SendSnapshot(peer)),
            Action::SendFile { transfer, peers } => Some(Order::SendFile { transfer, peers }),
            Action::CancelSnapshot { transfer } => Some(Order::CancelSnapshot(transfer)),
            Action::FullResync { peer, position: Position { id, offset } } => {
                line(peer, format!("+FULLRESYNC {id} {offset}\r\n"))
            }
            Action::Continue { peer, id: Some(id), with_slot_states: true } => {
                Some(Order::Continue { peer, id })
            }
            Action::Continue { peer, id: Some(id), .. } => line(peer, format!("+CONTINUE {id}\r\n")),
            Action::Continue { peer, id: None, .. } => line(peer, "+CONTINUE\r\n".to_owned()),
            Action::Stream { peer, .. } => {
                let cursor = self.peers.get(&peer).copied().flatten();
                let cursor = cursor.expect("a replica has its cursor since it asked or since the cut");
                Some(Order::Stream(peer, cursor))
            }
            Action::EndOffset { peer, position: Position { id, offset }, db } => {
                let db = db.map_or(-1, i32::from);
                line(peer, format!("$ENDOFF:{offset} {id} {db} {}\r\n", peer.0))
            }
            Action::Release { peer } => {
                if let Some(cursor) = self.peers.get_mut(&peer).and_then(Option::take) {
                    log.turn(|log| log.remove_cursor(cursor));
                }
                None
            }
            Action::ShowLife { peer } => line(peer, "\n".to_owned()),
            Action::Ping => Some(Order::Append(PING)),
            Action::Close { peer, reason } => {
                self.forget(peer, log);
                Some(Order::Close(peer, reason))
            }
            Action::CloseLog => Some(Order::CloseLog),
        }
    }

    fn forget(&mut self, peer: PeerId, log: &mut impl LogTurns) {
        if let Some(Some(cursor)) = self.peers.remove(&peer) {
            log.turn(|log| log.remove_cursor(cursor));
        }
    }
}
