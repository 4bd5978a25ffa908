//! Serving replicas.
//!
//! A connection that asked PSYNC is a replica from then on. One that can go on from the backlog streams
//! at once. The others wait for a snapshot: replicas that wait together share one, after
//! `repl-diskless-sync-delay` so that more may join. One that comes while a snapshot is written to a file, before that
//! is sent, gets that one too; one that comes while a snapshot is being sent waits for the next, and so do those that
//! read another format, or want other contents, than the one that has waited longest.
//! After the snapshot a replica streams from the cut: at once if the snapshot's length was told
//! beforehand, otherwise when it acknowledges that it has loaded, since what follows the end mark in one
//! packet would hide the mark from a Redis replica. One that has its snapshot sent over a connection of its own
//! ([`dual`]) streams as soon as that is cut.
//!
//! The machine decides; the shell takes snapshots, moves bytes and keeps a cursor of the log for each.
//!
//! Invariants: of a replica only what it has acknowledged counts (WAIT, `min-replicas-to-write`); at
//! most one snapshot is on its way at any time; every replica is closed at most once.

mod dual;
mod limit;
mod peer;
#[cfg(test)]
mod tests;
mod throttle;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use clock::Instant;
use slot_routing::{NodeId, ReplOffset};

use crate::id::ReplId;
use crate::log::Position;
use crate::psync::{Capabilities, Profile, SnapshotForm};
pub use limit::OutputLimit;
pub use peer::{PeerState, Replica};
use peer::{Phase, Way};
use throttle::Throttle;

/// One replica's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u64);

/// One snapshot on its way to some replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(pub u64);

/// How often the machine looks at its replicas, and shows life to those that wait for a snapshot.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// The settings, under their names in redis.conf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `repl-ping-replica-period`.
    pub ping_period: Duration,
    /// `repl-timeout`.
    pub timeout: Duration,
    /// `repl-diskless-sync`.
    pub diskless: bool,
    /// `repl-diskless-sync-delay`, `repl-diskless-sync-max-replicas`.
    pub diskless_delay: Duration,
    /// So many replicas that wait begin a transfer at once; 0 is no such number.
    pub diskless_max_replicas: usize,
    /// `dual-channel-replication-enabled`.
    pub dual_channel: bool,
    /// `repl-backlog-ttl`; zero keeps the backlog for ever.
    pub backlog_ttl: Duration,
    /// `min-replicas-max-lag`.
    pub max_lag: Duration,
    /// `client-output-buffer-limit replica`.
    pub output_limit: OutputLimit,
    /// `repl-backlog-size`.
    pub backlog: u64,
}

impl Config {
    /// How much may wait for a replica. The backlog may: it is kept anyway, and a replica that is let go on from it
    /// would otherwise be given up at once, come back, and be given up again for ever.
    fn limit(&self) -> OutputLimit {
        self.output_limit.at_least(self.backlog)
    }
}

/// An event that the machine is told of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Time has passed.
    Deadline,
    /// A connection asked PSYNC or SYNC. `resume` is where the log lets it go on, if it can.
    Joined {
        /// The replica.
        peer: PeerId,
        /// The replica's description of itself.
        profile: Profile,
        /// Where the log lets it go on.
        resume: Option<Position>,
    },
    /// The snapshot was cut here.
    Cut {
        /// The snapshot.
        transfer: TransferId,
        /// Where it was cut.
        position: Position,
        /// The database that the stream has selected there, if it does not select one at once.
        db: Option<u16>,
    },
    /// The snapshot is in its file, and can be sent.
    Written {
        /// The snapshot.
        transfer: TransferId,
    },
    /// The snapshot has been sent to this replica.
    Sent {
        /// The replica.
        peer: PeerId,
    },
    /// No snapshot could be taken, or it broke.
    TransferFailed {
        /// The snapshot.
        transfer: TransferId,
    },
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
    Heard {
        /// The replica.
        peer: PeerId,
    },
    /// How many bytes the replica has still to be sent; told before each deadline.
    Pending {
        /// The replica.
        peer: PeerId,
        /// The bytes.
        bytes: u64,
    },
    /// The connection is gone.
    Closed {
        /// The replica.
        peer: PeerId,
    },
    /// This node became a master or a replica.
    Role {
        /// Whether it is a master now.
        master: bool,
    },
    /// This node's history was replaced: its replicas must ask again.
    HistoryReplaced,
}

/// An action for the shell to carry out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Take a snapshot for these replicas and say where it was cut. `eof`: send it while it is made, with
    /// an end mark; otherwise write it to a file first, and say when it is there whole.
    Snapshot {
        /// The snapshot's number.
        transfer: TransferId,
        /// The replicas that get it.
        peers: Vec<PeerId>,
        /// Whether it is sent while it is made.
        eof: bool,
        /// The snapshot's format and contents.
        form: SnapshotForm,
    },
    /// Tell the replica that it gets everything, as of this position, and keep the log for it from there.
    FullResync {
        /// The replica.
        peer: PeerId,
        /// Where its stream begins.
        position: Position,
    },
    /// Keep the log for one that joins a snapshot which was cut before, from the cut on.
    KeepLog {
        /// The replica.
        peer: PeerId,
        /// The cut.
        from: ReplOffset,
    },
    /// Send the snapshot that is made for it.
    SendSnapshot {
        /// The replica.
        peer: PeerId,
    },
    /// Send the snapshot, which is in its file, with its length to these.
    SendFile {
        /// The snapshot's number.
        transfer: TransferId,
        /// The replicas that get it.
        peers: Vec<PeerId>,
    },
    /// Nobody waits for the snapshot any more.
    CancelSnapshot {
        /// The snapshot.
        transfer: TransferId,
    },
    /// Tell the replica that it can go on. The identifier is for replicas that understand a new one.
    Continue {
        /// The replica.
        peer: PeerId,
        /// The history's identifier, for replicas that understand a new one.
        id: Option<ReplId>,
        /// Whether it reads which slots are on the move.
        with_slot_states: bool,
    },
    /// Send the log from here on.
    Stream {
        /// The replica.
        peer: PeerId,
        /// The first byte it gets.
        from: ReplOffset,
    },
    /// Answer `$ENDOFF:offset id db peer`, then send the snapshot.
    EndOffset {
        /// The connection for the snapshot.
        peer: PeerId,
        /// Where the stream goes on, over the replica's other connection.
        position: Position,
        /// The database that the stream has selected there, if it does not select one at once.
        db: Option<u16>,
    },
    /// Keep nothing of the log for this one: its other connection gets the stream.
    Release {
        /// The connection for the snapshot.
        peer: PeerId,
    },
    /// Send an empty line.
    ShowLife {
        /// The replica.
        peer: PeerId,
    },
    /// Append a PING to the log.
    Ping,
    /// Close the connection.
    Close {
        /// The replica.
        peer: PeerId,
        /// Why.
        reason: CloseReason,
    },
    /// Nobody has read the log for long: keep it no longer.
    CloseLog,
}

/// Why a replica's connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// It said nothing for `repl-timeout`.
    #[error("it has been silent for too long")]
    Silent,
    /// The bytes that wait for it are beyond its limit, or gone from the log.
    #[error("it is too far behind")]
    TooFarBehind,
    /// Its snapshot could not be made or sent.
    #[error("the snapshot for it failed")]
    SnapshotFailed,
    /// It was given a snapshot and wants no more.
    #[error("it has the snapshot that it came for")]
    Served,
    /// It has two connections, and the other one is gone or never came.
    #[error("its other connection was lost")]
    OtherChannelLost,
    /// The history that it follows was replaced.
    #[error("this node's history was replaced")]
    HistoryReplaced,
}

/// The snapshot on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Transfer {
    id: TransferId,
    form: SnapshotForm,
    /// Whether it is sent while it is made.
    is_streamed: bool,
    /// Of one that is being written to a file: where it was cut. Replicas can still join it.
    open_from: Option<Position>,
}

/// The snapshot that a replica which has asked for one waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AwaitedSnapshot {
    /// One that begins after `repl-diskless-sync-delay`.
    Delayed,
    /// The one behind a snapshot that is being sent to others while it is made.
    BehindStreamed,
    /// The one behind a snapshot in a file that is of another form, or is being sent already.
    BehindFile,
    /// One that is being written to a file, for others too.
    Joined,
}

/// The machine.
#[derive(Debug)]
pub struct Master {
    config: Config,
    /// Whether this node is a master. A replica serves replicas too, but sends no pings of its own.
    master: bool,
    peers: BTreeMap<PeerId, Replica>,
    transfer: Option<Transfer>,
    next_transfer: u64,
    next_look: Instant,
    /// The ping before the next one, or when the count of the period began.
    last_ping: Instant,
    /// Since when there have been no replicas.
    alone_since: Option<Instant>,
    throttle: Throttle,
}

impl Master {
    /// A node with no replicas, which is a `master` or not.
    #[must_use]
    pub fn new(config: Config, master: bool, now: Instant) -> Self {
        Self {
            last_ping: now,
            config,
            master,
            peers: BTreeMap::new(),
            transfer: None,
            next_transfer: 0,
            next_look: now,
            alone_since: None,
            throttle: Throttle::default(),
        }
    }

    /// Takes new settings, which count at once: ask for [`Master::next_deadline`] again.
    pub fn set_config(&mut self, config: Config) {
        self.config = config;
    }

    /// The replicas, in the order in which they came.
    pub fn peers(&self) -> impl ExactSizeIterator<Item = (PeerId, &Replica)> {
        self.peers.iter().map(|(id, peer)| (*id, peer))
    }

    /// Whether this replica is there, or is to come over another connection.
    #[must_use]
    pub fn serves(&self, peer: PeerId) -> bool {
        self.peers.contains_key(&peer)
    }

    /// The snapshot that a replica waits for which has just asked for one.
    #[must_use]
    pub fn awaited_snapshot(&self, peer: PeerId) -> Option<AwaitedSnapshot> {
        match (self.peers.get(&peer)?.phase, &self.transfer) {
            (Phase::Waiting { .. }, None) => Some(AwaitedSnapshot::Delayed),
            (Phase::Waiting { .. }, Some(transfer)) if transfer.is_streamed => {
                Some(AwaitedSnapshot::BehindStreamed)
            }
            (Phase::Waiting { .. }, Some(_)) => Some(AwaitedSnapshot::BehindFile),
            (Phase::Sending { cut: Some(_), .. }, _) => Some(AwaitedSnapshot::Joined),
            _ => None,
        }
    }

    /// Whether the snapshot on its way, if there is one, goes to the replicas while it is made.
    #[must_use]
    pub fn is_streaming_snapshot(&self) -> bool {
        self.transfer.as_ref().is_some_and(|transfer| transfer.is_streamed)
    }

    /// The replicas that get the stream. Of a node that has come again, before it was noticed that its former connection
    /// is lost, the last one counts.
    pub fn online(&self) -> impl Iterator<Item = &Replica> + Clone {
        self.last_connections(Replica::is_online)
    }

    /// How many replicas a stop waits for: those that get the stream, and those that have their snapshot and are still
    /// loading it. INFO calls both online, and the latter have acknowledged nothing yet.
    #[must_use]
    pub fn awaited_at_stop(&self) -> usize {
        self.last_connections(|peer| peer.state() == PeerState::Online).count()
    }

    /// The replicas of a kind, each node by its last connection.
    fn last_connections(&self, is_of_kind: fn(&Replica) -> bool) -> impl Iterator<Item = &Replica> + Clone {
        let later = |id: PeerId| self.peers.range((Bound::Excluded(id), Bound::Unbounded));
        let has_come_again = move |id: PeerId, node: NodeId| {
            later(id).any(|(_, peer)| peer.profile.node == Some(node) && !peer.profile.rdb_channel)
        };
        let of_kind = self.peers.iter().filter(move |(_, peer)| is_of_kind(peer));
        let last = of_kind
            .filter(move |(id, peer)| !peer.profile.node.is_some_and(|node| has_come_again(**id, node)));
        last.map(|(_, peer)| peer)
    }

    /// How far the append-only file of each replica that gets the stream, and has one, is on its disk.
    pub fn synced(&self) -> Vec<ReplOffset> {
        self.online().filter_map(|peer| peer.synced).collect()
    }

    /// How far each replica that gets the stream has acknowledged. One that has not, since it loads its snapshot, is none.
    pub fn acknowledged(&self) -> Vec<ReplOffset> {
        self.online().filter_map(|peer| peer.acknowledged).collect()
    }

    /// How many replicas are to acknowledge the news of slots on the move; `None` if it is not told, since a replica is
    /// there that would take it for a mistake. Without replicas it is told all the same: one that was cut off for a
    /// moment reads on where it was.
    #[must_use]
    pub fn readers_of_slot_moves(&self) -> Option<usize> {
        let mut stay = self.peers.values().filter(|peer| !peer.profile.rdb_only);
        let online = self.online().filter(|peer| !peer.profile.rdb_only);
        stay.all(|peer| peer.profile.capabilities.slot_moves).then(|| online.count())
    }

    /// The replicas that get the stream and have everything before `offset`, by the nodes that they are: each knows what
    /// it means that the stream names it as the next master. None if there is one that may not.
    pub fn successors(&self, offset: ReplOffset) -> Option<Vec<NodeId>> {
        let mut stay = self.peers.values().filter(|peer| !peer.profile.rdb_only);
        let in_sync = self.online().filter(|peer| !peer.profile.rdb_only && peer.has(offset));
        let nodes = in_sync.filter_map(|peer| peer.profile.node).collect();
        stay.all(|peer| peer.profile.node.is_some()).then_some(nodes)
    }

    /// How many replicas get the stream and were heard within `min-replicas-max-lag`.
    #[must_use]
    pub fn good_replicas(&self, now: Instant) -> usize {
        self.online().filter(|peer| peer.lag(now) <= self.config.max_lag.as_secs()).count()
    }

    /// How long a writer is to wait after each batch, so that a replica that was given up can keep up.
    pub fn write_delay(&mut self, now: Instant) -> Duration {
        let pending = self.peers.values().map(|peer| peer.pending).max().unwrap_or(0);
        self.throttle.delay(now, pending, self.config.limit())
    }

    /// Counted with the present period: a ping that was due by a shorter one before would put the replicas past a branch.
    fn next_ping(&self) -> Instant {
        self.last_ping + self.config.ping_period
    }

    /// When to call with [`Input::Deadline`].
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.peers.is_empty() {
            let ttl = self.config.backlog_ttl;
            return self.alone_since.filter(|_| self.master && !ttl.is_zero()).map(|since| since + ttl);
        }
        let mut next = self.next_look;
        if self.master {
            next = next.min(self.next_ping());
        }
        if self.transfer.is_none()
            && let Some(start) = self.snapshot_due()
        {
            next = next.min(start);
        }
        Some(next)
    }

    /// Takes in `input` at `now` and appends what follows from it to `out`.
    pub fn handle(&mut self, now: Instant, input: Input, out: &mut Vec<Action>) {
        match input {
            Input::Deadline => self.on_deadline(now, out),
            Input::Joined { peer, profile, resume } => self.on_joined(now, peer, profile, resume, out),
            Input::Cut { transfer, position, db } => self.on_cut(transfer, position, db, out),
            Input::Written { transfer } => self.on_written(transfer, out),
            Input::Sent { peer } => self.on_sent(now, peer, out),
            Input::TransferFailed { transfer } => self.on_failed(now, transfer, out),
            Input::Acknowledged { peer, offset, synced } => {
                if let Some(replica) = self.peers.get_mut(&peer) {
                    replica.synced = replica.synced.max(synced);
                }
                self.on_acknowledged(now, peer, offset, out);
            }
            Input::Heard { peer } => {
                if let Some(peer) = self.peers.get_mut(&peer) {
                    peer.last_heard = now;
                }
            }
            Input::Pending { peer, bytes } => self.on_pending(now, peer, bytes, out),
            Input::Closed { peer } => {
                // The bytes that it had still to read are gone: its connection found that first.
                let limit = self.config.limit().hard;
                if limit > 0 && self.peers.get(&peer).is_some_and(|peer| peer.pending > limit / 2) {
                    self.throttle.on_given_up(now);
                }
                // The replica that has its snapshot leaves by itself; its other connection is still to come.
                if !self.peers.get(&peer).is_some_and(Replica::is_fetched) {
                    self.forget(now, peer, out);
                }
            }
            Input::Role { master } => {
                self.master = master;
                self.last_ping = now;
                self.alone_since = Some(now).filter(|_| self.peers.is_empty());
            }
            Input::HistoryReplaced => {
                let peers: Vec<PeerId> = self.peers.keys().copied().collect();
                for peer in peers {
                    self.close(now, peer, CloseReason::HistoryReplaced, out);
                }
            }
        }
    }

    fn on_joined(
        &mut self,
        now: Instant,
        peer: PeerId,
        profile: Profile,
        resume: Option<Position>,
        out: &mut Vec<Action>,
    ) {
        if self.peers.is_empty() {
            (self.next_look, self.last_ping) = (now + LOOK_PERIOD, now);
        }
        self.alone_since = None;
        if profile.snapshot_over.is_some() {
            return self.on_main_channel(now, peer, profile, resume, out);
        }
        let Capabilities { psync2, slot_states, .. } = profile.capabilities;
        let phase = match resume {
            Some(position) => {
                let id = Some(position.id).filter(|_| psync2);
                out.push(Action::Continue { peer, id, with_slot_states: slot_states });
                out.push(Action::Stream { peer, from: position.offset });
                Phase::Online
            }
            None => Phase::Waiting { since: now },
        };
        let acknowledged = resume.map(|position| position.offset);
        self.peers.insert(peer, Replica::new(profile, phase, acknowledged, now));
        self.join_open_transfer(out);
        self.start_due_snapshot(now, out);
    }

    /// Has those that wait share the snapshot that is being written to a file, where they want the same.
    fn join_open_transfer(&mut self, out: &mut Vec<Action>) {
        let Some(Transfer { id: transfer, form, open_from: Some(position), .. }) = &self.transfer else {
            return;
        };
        for (id, peer) in &mut self.peers {
            let joins = peer.waiting_since().is_some()
                && peer.profile.snapshot_form() == *form
                && !peer.profile.rdb_channel;
            if joins {
                let (cut, way) = (Some(position.offset), Way::File { is_written: false });
                peer.phase = Phase::Sending { transfer: *transfer, cut, way };
                out.push(Action::KeepLog { peer: *id, from: position.offset });
                if !peer.profile.sync {
                    out.push(Action::FullResync { peer: *id, position: *position });
                }
            }
        }
    }

    /// When the snapshot for the waiting replicas is to be taken: at once, or when the first of them has
    /// waited long enough, or when enough of them wait.
    fn snapshot_due(&self) -> Option<Instant> {
        let waiting = self.peers.values().filter_map(Replica::waiting_since);
        let first = waiting.clone().min()?;
        let most = self.config.diskless_max_replicas;
        let enough = most > 0 && waiting.count() >= most;
        let at_once = !self.diskless_for_waiting() || enough;
        Some(if at_once { first } else { first + self.config.diskless_delay })
    }

    /// Whether all waiting replicas understand a snapshot without a length, and it may have none. One that waits with a
    /// connection of its own was promised that.
    fn diskless_for_waiting(&self) -> bool {
        let mut waiting = self.peers.values().filter(|peer| peer.waiting_since().is_some());
        let may = self.config.diskless || waiting.clone().any(|peer| peer.profile.rdb_channel);
        may && waiting.all(|peer| peer.profile.capabilities.eof)
    }

    fn start_due_snapshot(&mut self, now: Instant, out: &mut Vec<Action>) {
        if self.transfer.is_some() || self.snapshot_due().is_none_or(|due| due > now) {
            return;
        }
        let eof = self.diskless_for_waiting();
        let waiting = self.peers.values().filter(|peer| peer.waiting_since().is_some());
        let first =
            waiting.min_by_key(|peer| peer.waiting_since()).expect("somebody waits, since one is due");
        let form = first.profile.snapshot_form();
        self.next_transfer += 1;
        let transfer = TransferId(self.next_transfer);
        self.transfer = Some(Transfer { id: transfer, form, is_streamed: eof, open_from: None });
        let way = if eof { Way::Streamed } else { Way::File { is_written: false } };
        let mut peers = Vec::new();
        for (id, peer) in &mut self.peers {
            if peer.profile.snapshot_form() == form && peer.waiting_since().is_some() {
                peer.phase = Phase::Sending { transfer, cut: None, way };
                peers.push(*id);
            }
        }
        out.push(Action::Snapshot { transfer, peers, eof, form });
    }

    fn on_cut(&mut self, transfer: TransferId, position: Position, db: Option<u16>, out: &mut Vec<Action>) {
        let mut is_file = false;
        for (id, peer) in &mut self.peers {
            if let Phase::Sending { transfer: of, cut, way } = &mut peer.phase
                && *of == transfer
            {
                *cut = Some(position.offset);
                is_file |= *way != Way::Streamed;
                if peer.profile.rdb_channel {
                    out.push(Action::EndOffset { peer: *id, position, db });
                } else if !peer.profile.sync {
                    out.push(Action::FullResync { peer: *id, position });
                }
                if *way == Way::Streamed {
                    out.push(Action::SendSnapshot { peer: *id });
                }
            }
        }
        if let Some(current) = self.transfer.as_mut().filter(|current| is_file && current.id == transfer) {
            current.open_from = Some(position);
            self.join_open_transfer(out);
        }
    }

    fn on_written(&mut self, transfer: TransferId, out: &mut Vec<Action>) {
        let Some(current) = self.transfer.as_mut().filter(|current| current.id == transfer) else { return };
        current.open_from = None;
        let mut peers = Vec::new();
        for (id, peer) in &mut self.peers {
            if let Phase::Sending { transfer: of, way: Way::File { is_written }, .. } = &mut peer.phase
                && *of == transfer
            {
                *is_written = true;
                peers.push(*id);
            }
        }
        out.push(Action::SendFile { transfer, peers });
    }

    fn on_sent(&mut self, now: Instant, id: PeerId, out: &mut Vec<Action>) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Phase::Sending { cut: Some(cut), way, .. } = peer.phase else { return };
        let eof = way == Way::Streamed;
        peer.last_heard = now;
        let served = (peer.profile.rdb_only || peer.profile.rdb_channel) && !peer.lacks_main_channel();
        if peer.lacks_main_channel() {
            peer.phase = Phase::Fetched { since: now };
        } else if served || (eof && !peer.profile.sync) {
            peer.phase = Phase::Loading { cut };
        } else {
            peer.phase = Phase::Online;
            out.push(Action::Stream { peer: id, from: cut });
        }
        self.end_transfer(now, out);
        if served {
            self.close(now, id, CloseReason::Served, out);
        }
    }

    /// Once the last replica has its snapshot, or has gone, the next may begin.
    fn end_transfer(&mut self, now: Instant, out: &mut Vec<Action>) {
        let Some(transfer) = self.transfer.as_ref().map(|transfer| transfer.id) else { return };
        if self.peers.values().any(|peer| peer.is_in(transfer)) {
            return;
        }
        self.transfer = None;
        self.start_due_snapshot(now, out);
    }

    fn on_failed(&mut self, now: Instant, transfer: TransferId, out: &mut Vec<Action>) {
        let broken: Vec<PeerId> =
            self.peers.iter().filter(|(_, peer)| peer.is_in(transfer)).map(|(id, _)| *id).collect();
        for peer in broken {
            self.close(now, peer, CloseReason::SnapshotFailed, out);
        }
    }

    fn on_acknowledged(&mut self, now: Instant, id: PeerId, offset: ReplOffset, out: &mut Vec<Action>) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.last_heard = now;
        peer.acknowledged = peer.acknowledged.max(Some(offset));
        match peer.phase {
            Phase::Loading { cut } => {
                peer.phase = Phase::Online;
                out.push(Action::Stream { peer: id, from: cut });
            }
            Phase::Apart => peer.phase = Phase::Online,
            Phase::Waiting { .. } | Phase::Sending { .. } | Phase::Fetched { .. } | Phase::Online => {}
        }
    }

    fn on_pending(&mut self, now: Instant, id: PeerId, bytes: u64, out: &mut Vec<Action>) {
        let limit = self.config.limit();
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.pending = bytes;
        if limit.exceeded(now, bytes, &mut peer.over_soft_since) {
            self.throttle.on_given_up(now);
            self.close(now, id, CloseReason::TooFarBehind, out);
        }
    }

    fn on_deadline(&mut self, now: Instant, out: &mut Vec<Action>) {
        self.start_due_snapshot(now, out);
        if self.master && now >= self.next_ping() && !self.peers.is_empty() {
            self.last_ping = now;
            out.push(Action::Ping);
        }
        if now >= self.next_look && !self.peers.is_empty() {
            self.next_look = now + LOOK_PERIOD;
            self.look(now, out);
        }
        let ttl = self.config.backlog_ttl;
        if self.master && !ttl.is_zero() && self.alone_since.is_some_and(|since| now >= since + ttl) {
            self.alone_since = None;
            out.push(Action::CloseLog);
        }
    }

    fn look(&mut self, now: Instant, out: &mut Vec<Action>) {
        let timeout = self.config.timeout;
        let (mut silent, mut unlinked) = (Vec::new(), Vec::new());
        for (id, peer) in &self.peers {
            if peer.expects_life() {
                out.push(Action::ShowLife { peer: *id });
            } else if peer.gives_up_main_channel(now) {
                unlinked.push(*id);
            } else if peer.must_acknowledge() && now >= peer.last_heard + timeout {
                silent.push(*id);
            }
        }
        for peer in silent {
            self.close(now, peer, CloseReason::Silent, out);
        }
        for peer in unlinked {
            self.close(now, peer, CloseReason::OtherChannelLost, out);
        }
    }

    fn close(&mut self, now: Instant, peer: PeerId, reason: CloseReason, out: &mut Vec<Action>) {
        if self.peers.contains_key(&peer) {
            out.push(Action::Close { peer, reason });
            self.forget(now, peer, out);
        }
    }

    fn forget(&mut self, now: Instant, peer: PeerId, out: &mut Vec<Action>) {
        let Some(gone) = self.peers.remove(&peer) else { return };
        if let Some(transfer) = self.transfer.as_ref().map(|transfer| transfer.id)
            && !self.peers.values().any(|peer| peer.is_in(transfer))
        {
            out.push(Action::CancelSnapshot { transfer });
        }
        self.end_transfer(now, out);
        if let Some(other) = gone.needs() {
            self.close(now, other, CloseReason::OtherChannelLost, out);
        }
        if self.peers.is_empty() {
            self.alone_since = Some(now);
        }
    }
}
