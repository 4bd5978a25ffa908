//! Serving replicas as a whole: the machine that decides ([`Master`]), the log, and a cursor of the log for each
//! replica. A node and the simulator drive the same.
//!
//! The machine says which replica gets what; here that becomes bytes for a connection and places in the log. The
//! process has connections, snapshots and a clock, and does what [`Order`] says, in order:
//!
//! | | the process | the driver |
//! | --- | --- | --- |
//! | 1 | a connection asked PSYNC or SYNC: [`Input::Asked`] | asks the log; adds a cursor in the same turn |
//! | 2 | [`Order::Snapshot`]: cuts, and notes the log there by [`Cut::note`] | |
//! | 3 | [`Input::Cut`] | says where it was cut, and that the snapshot follows |
//! | | one that goes into a file first: [`Input::Written`] | says who gets it: [`Order::SendFile`] |
//! | 4 | [`Order::SendSnapshot`] or [`Order::SendFile`]: sends it; [`Input::Sent`] | |
//! | 5 | [`Order::Stream`]: sends the log from the cursor on, for ever | |
//!
//! Invariants: a replica that gets the stream has had its cursor since the moment at which its place was settled, so
//! the log keeps every byte that it is still to get; a cursor goes with its replica, whatever ends that.

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

/// How often the pending bytes are looked at while a replica is behind: a limit can be passed within a second.
const PENDING_PERIOD: Duration = Duration::from_millis(100);

const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

/// The log, which others use between two turns.
pub trait LogTurns {
    /// Does that with the log, which nobody else has meanwhile. It takes no other lock.
    fn turn<R>(&mut self, work: impl FnOnce(&mut Log) -> R) -> R;
}

impl LogTurns for Log {
    fn turn<R>(&mut self, work: impl FnOnce(&mut Log) -> R) -> R {
        work(self)
    }
}

/// The note of a snapshot's cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The snapshot.
    pub transfer: TransferId,
    /// Where it was cut.
    pub position: Position,
    /// The database that the stream has selected there, if it does not select one at once.
    pub db: Option<u16>,
    /// From here on the log is kept for those that get it.
    pub cursors: Vec<(PeerId, CursorId)>,
}

impl Cut {
    /// Notes a cut that is made at this moment, in which every slot is held. The log is open. `db`: the database that
    /// the stream has selected, if those that get the snapshot are told; otherwise the stream will select one.
    pub fn note(log: &mut Log, transfer: TransferId, peers: &[PeerId], db: Option<u16>) -> Self {
        if db.is_none() {
            log.forget_db();
        }
        let position = log.position();
        let cursors = peers.iter().map(|peer| (*peer, log.add_cursor(position.offset))).collect();
        Self { transfer, position, db, cursors }
    }
}

/// An event that the driver is told of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Time has passed.
    Deadline,
    /// A connection asked PSYNC, or SYNC, which is no request.
    Asked {
        /// The replica.
        peer: PeerId,
        /// The replica's description of itself.
        profile: Profile,
        /// From where it would go on.
        request: Option<PsyncRequest>,
    },
    /// The snapshot was cut.
    Cut(Cut),
    /// The snapshot is in its file.
    Written(TransferId),
    /// The snapshot has been sent to this replica.
    Sent(PeerId),
    /// No snapshot could be taken, or it broke.
    TransferFailed(TransferId),
    /// The replica said how far it is.
    Acknowledged {
        /// The replica.
        peer: PeerId,
        /// The end of what it has.
        offset: ReplOffset,
        /// The end of what its append-only file has on the disk, if it has one.
        synced: Option<ReplOffset>,
    },
    /// The replica showed life.
    Heard(PeerId),
    /// The connection is gone.
    Closed(PeerId),
    /// This node takes writes from now on.
    Promoted,
    /// This node follows a master from now on.
    Demoted,
    /// This node's history was replaced: its replicas must ask again.
    HistoryReplaced,
}

/// The log's answer to a replica that asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It goes on from here, and lacks so many bytes.
    Partial {
        /// Where it goes on.
        from: ReplOffset,
        /// The bytes that it lacks.
        missing: u64,
    },
    /// It gets everything, and why, unless it asked SYNC.
    Full(Option<Refusal>),
}

/// An order for the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Count what a replica that asked was told.
    Answered(PeerId, Answer),
    /// Take a snapshot for these replicas and say where it was cut.
    Snapshot {
        /// The snapshot's number.
        transfer: TransferId,
        /// The replicas that get it.
        peers: Vec<PeerId>,
        /// Whether it is sent while it is made, with an end mark; otherwise it goes into a file first.
        eof: bool,
        /// The snapshot's format and contents.
        form: SnapshotForm,
    },
    /// Nobody waits for the snapshot any more.
    CancelSnapshot(TransferId),
    /// Send this behind what was sent before.
    Send(PeerId, Vec<u8>),
    /// Tell it that it can go on, and which slots are on the move ([`continue_with`]).
    Continue {
        /// The replica.
        peer: PeerId,
        /// The history's name.
        id: ReplId,
    },
    /// Send the snapshot that is made for it behind that.
    SendSnapshot(PeerId),
    /// Send the snapshot, which is in its file, with its length, to these and no others.
    SendFile {
        /// The snapshot's number.
        transfer: TransferId,
        /// The replicas that get it.
        peers: Vec<PeerId>,
    },
    /// Send the log behind that, from the cursor on.
    Stream(PeerId, CursorId),
    /// Append this to the log.
    Append(&'static [u8]),
    /// Close the connection. No [`Input::Closed`] need be told.
    Close(PeerId, CloseReason),
    /// Nobody has read the log for long: keep it no longer.
    CloseLog,
}

/// The line that lets a replica go on that reads slots' states.
#[must_use]
pub fn continue_with(id: ReplId, slot_states: &str) -> Vec<u8> {
    format!("+CONTINUE {id} {SLOT_STATES}{slot_states}\r\n").into_bytes()
}

/// When the pending bytes are to be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextLook {
    /// Not before the log has got past this: until then there is nothing new to see.
    pub past: Option<ReplOffset>,
    /// Nor before this.
    pub at: Instant,
}

/// The driver.
#[derive(Debug)]
pub struct Serving {
    master: Master,
    /// Each replica's place in the log, if it has one.
    peers: BTreeMap<PeerId, Option<CursorId>>,
    looked: Looked,
}

/// The last look at how far behind the replicas are.
#[derive(Debug)]
struct Looked {
    at: Instant,
    /// The log's end, if they all had everything.
    all_had: Option<ReplOffset>,
    /// Writers were slowed down.
    slowed: bool,
}

impl Serving {
    /// A node with no replicas, which is a master.
    #[must_use]
    pub fn new(config: Config, now: Instant) -> Self {
        let looked = Looked { at: now, all_had: None, slowed: false };
        Self { master: Master::new(config, true, now), peers: BTreeMap::new(), looked }
    }

    /// Returns the machine, to ask it about its replicas.
    #[must_use]
    pub fn master(&self) -> &Master {
        &self.master
    }

    /// Takes new settings.
    pub fn set_config(&mut self, config: Config) {
        self.master.set_config(config);
    }

    /// When to call with [`Input::Deadline`].
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.master.next_deadline()
    }

    /// When to call [`Serving::look`]; never, while there is nobody to look at and no delay to end.
    #[must_use]
    pub fn next_look(&self) -> Option<NextLook> {
        let Looked { at, all_had, slowed } = self.looked;
        (!self.peers.is_empty() || slowed).then_some(NextLook { past: all_had, at: at + PENDING_PERIOD })
    }

    /// Whether a replica that asks this fetches its snapshot over a second connection (`+DUALCHANNELSYNC`), and why it
    /// needs one; this connection then stays a client's.
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

    /// Takes a connection for the one that gets the stream of the replica whose snapshot goes over `rdb`.
    ///
    /// # Errors
    /// There is no such snapshot on its way.
    pub fn link_channels(&self, profile: &mut Profile, rdb: PeerId) -> Result<(), ReplconfError> {
        if !self.master.awaits_main_channel(rdb) {
            return Err(ReplconfError::UnknownRdbClient(rdb));
        }
        profile.snapshot_over = Some(rdb);
        Ok(())
    }

    /// Takes in `input` at `now` and appends what follows from it to `out`.
    pub fn handle(&mut self, now: Instant, input: Input, log: &mut impl LogTurns, out: &mut Vec<Order>) {
        match input {
            Input::Deadline => self.give(now, master::Input::Deadline, log, out),
            Input::Asked { peer, profile, request } => {
                let resume = self.place(peer, request.as_ref(), log, out);
                // With a connection of its own for the snapshot it acknowledges over the other.
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
                // Unless its other connection is still to come.
                if !self.master.serves(peer) {
                    self.forget(peer, log);
                }
            }
            Input::Promoted => {
                self.give(now, master::Input::Role { master: true }, log, out);
                // They come back, and learn the new identifier.
                self.give(now, master::Input::HistoryReplaced, log, out);
            }
            Input::Demoted => self.give(now, master::Input::Role { master: false }, log, out),
            Input::HistoryReplaced => self.give(now, master::Input::HistoryReplaced, log, out),
        }
    }

    /// Looks how far each replica is behind: when [`Serving::next_look`] says so, and when a cursor has fallen off.
    /// Returns how long a writer is to wait after each batch.
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

    /// Where the log lets a replica that asks go on, with a cursor there.
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

    /// Those that are still there read the log from the cut on.
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
            // Those that the snapshot was begun for have kept the log since the cut. Had it let go of that for their
            // being too far behind, this one is too.
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
