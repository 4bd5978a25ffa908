//! The state machine of a master that serves replicas.
//!
//! A connection that sends PSYNC becomes a replica. If the backlog still contains what the replica lacks, the replica
//! gets the stream at once. Otherwise it waits for a snapshot. Replicas that wait together share one snapshot, which
//! starts after `repl-diskless-sync-delay` so that more replicas can join. A replica that arrives while a snapshot is
//! written to a file shares that snapshot as well. A replica waits for the next snapshot if it arrives while a snapshot
//! is being sent, or if it needs another format or other contents than the replica that has waited longest.
//!
//! After the snapshot a replica gets the stream from the snapshot's position: at once if the length of the snapshot was
//! announced, otherwise when the replica acknowledges that it has loaded the snapshot. A Redis replica would miss the
//! end mark if stream bytes followed it in the same packet. A dual-channel replica ([`dual`]) gets the stream as soon
//! as the snapshot is taken.
//!
//! The state machine only makes decisions. The caller takes snapshots, transfers bytes and has one log cursor per
//! replica.
//!
//! Invariants: only acknowledged offsets count (WAIT, `min-replicas-to-write`); at most one snapshot is in progress;
//! each replica is closed at most once.

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
use crate::log::ReplPosition;
pub use crate::psync::PeerId;
use crate::psync::{Capabilities, PeerProfile, SnapshotFormat};
pub use limit::OutputLimit;
pub use peer::{ConnectedReplica, PeerState};
use peer::{ReplicaPhase, SnapshotDelivery};
use throttle::Throttle;

/// Identifies a snapshot that is sent to one or more replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(pub u64);

/// Interval of checking replicas for timeouts and sending empty lines to those that wait for a snapshot.
const CHECK_PERIOD: Duration = Duration::from_secs(1);

/// The configuration of a master. Each field is documented with its redis.conf option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MasterConfig {
    /// `repl-ping-replica-period`: the interval of PINGs in the stream.
    pub ping_period: Duration,
    /// `repl-timeout`: a replica that is silent for this long is closed.
    pub timeout: Duration,
    /// `repl-diskless-sync`: snapshots are streamed to replicas instead of being written to a file first.
    pub is_diskless: bool,
    /// `repl-diskless-sync-delay`: how long a snapshot waits for more replicas to share it.
    pub diskless_delay: Duration,
    /// `repl-diskless-sync-max-replicas`: a snapshot starts at once when this many replicas wait for it; 0 disables
    /// this rule.
    pub diskless_max_replicas: usize,
    /// `dual-channel-replication-enabled`: replicas may fetch the snapshot over a second connection.
    pub dual_channel: bool,
    /// `repl-backlog-ttl`: how long the log stays open without a reader; zero means for ever.
    pub backlog_ttl: Duration,
    /// `min-replicas-max-lag`: a replica counts as good if the master received something from it within this time.
    pub max_lag: Duration,
    /// `client-output-buffer-limit replica`: pending bytes above which a replica is closed.
    pub output_limit: OutputLimit,
    /// `repl-backlog-size` in bytes.
    pub backlog_size: u64,
}

impl MasterConfig {
    /// Returns the output limit, raised to at least the backlog size: a replica that continues from the start of the
    /// backlog would otherwise be disconnected at once, and reconnect for ever.
    fn effective_output_limit(&self) -> OutputLimit {
        self.output_limit.raised_to(self.backlog_size)
    }
}

/// An event for the state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MasterEvent {
    /// The time of [`Master::next_deadline`] has come; an early event is harmless.
    Deadline,
    /// A connection sent PSYNC or SYNC.
    Joined {
        /// The connection that sent the request.
        peer: PeerId,
        /// The properties that the connection announced by REPLCONF.
        profile: PeerProfile,
        /// The position from which the replica can continue; `None` if it needs a full synchronisation.
        resume_position: Option<ReplPosition>,
    },
    /// The snapshot requested with [`MasterAction::TakeSnapshot`] was taken.
    SnapshotTaken {
        /// The id from [`MasterAction::TakeSnapshot`].
        transfer: TransferId,
        /// The log position at which the snapshot was taken.
        position: ReplPosition,
        /// The database selected in the stream at the snapshot's position; `None` if the stream starts with a SELECT.
        db: Option<u16>,
    },
    /// The whole snapshot has been written to its file.
    SnapshotWritten {
        /// The id from [`MasterAction::TakeSnapshot`].
        transfer: TransferId,
    },
    /// The whole snapshot has been sent to this replica.
    SnapshotSent {
        /// The replica that received the snapshot.
        peer: PeerId,
    },
    /// The snapshot could not be taken or sent.
    TransferFailed {
        /// The id from [`MasterAction::TakeSnapshot`].
        transfer: TransferId,
    },
    /// The replica acknowledged the stream with REPLCONF ACK.
    Acknowledged {
        /// The replica that acknowledged the stream.
        peer: PeerId,
        /// The offset up to which it has applied the stream.
        offset: ReplOffset,
        /// The offset up to which the replica's append-only file is on disk; `None` if the replica has no such file.
        synced_offset: Option<ReplOffset>,
    },
    /// The replica sent something other than an acknowledgement, which shows that it is alive.
    ReplicaAlive {
        /// The replica that is alive.
        peer: PeerId,
    },
    /// The number of log bytes that have not been sent to the replica yet; reported before each deadline.
    PendingBytes {
        /// The replica that these bytes are destined for.
        peer: PeerId,
        /// The bytes between the cursor of the replica and the end of the log.
        bytes: u64,
    },
    /// The connection of a replica was closed, but not by [`MasterAction::Close`].
    Closed {
        /// The replica whose connection was closed.
        peer: PeerId,
    },
    /// This node was promoted or demoted; its own replicas stay connected.
    RoleChanged {
        /// Whether this node is now a master.
        is_master: bool,
    },
    /// The history of this node was replaced: its replicas must resynchronise.
    HistoryReplaced,
}

/// An action for the caller to perform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MasterAction {
    /// Take a snapshot for these replicas and report its log position.
    TakeSnapshot {
        /// The id under which the caller reports the progress of the snapshot.
        transfer: TransferId,
        /// The replicas that wait for this snapshot.
        peers: Vec<PeerId>,
        /// Whether to stream the snapshot directly with an end mark. Otherwise it is written to a file first, and the
        /// caller reports when the file is complete.
        uses_end_mark: bool,
        /// The RDB format and the parts that the replicas requested.
        format: SnapshotFormat,
    },
    /// Send `+FULLRESYNC`, and retain the log from this position on.
    SendFullResync {
        /// The replica to inform.
        peer: PeerId,
        /// The position of the snapshot, from which the stream will continue.
        position: ReplPosition,
    },
    /// Retain the log from an earlier position for a replica that joins an existing snapshot.
    RetainLog {
        /// The replica that joins the snapshot.
        peer: PeerId,
        /// The position of the snapshot; the log must be retained from here on.
        from: ReplOffset,
    },
    /// Stream the snapshot to this replica.
    SendSnapshot {
        /// The replica that receives the snapshot while it is being taken.
        peer: PeerId,
    },
    /// Send the snapshot file, preceded by its length.
    SendFile {
        /// The id from [`MasterAction::TakeSnapshot`].
        transfer: TransferId,
        /// The replicas that get the file.
        peers: Vec<PeerId>,
    },
    /// Cancel the snapshot: no replica waits for it any more.
    CancelSnapshot {
        /// The id from [`MasterAction::TakeSnapshot`].
        transfer: TransferId,
    },
    /// Send `+CONTINUE`, which accepts the request for a partial synchronisation.
    SendContinue {
        /// The replica that can continue.
        peer: PeerId,
        /// The replication id to send; `None` if the replica does not support a changed id.
        id: Option<ReplId>,
        /// Whether to add the state of migrating slots to the reply.
        includes_slot_states: bool,
    },
    /// Send the log from this offset on.
    SendStream {
        /// The replica that gets the stream.
        peer: PeerId,
        /// The offset of the first byte to send.
        from: ReplOffset,
    },
    /// Send `$ENDOFF:offset id db peer`, then the snapshot.
    SendEndOffset {
        /// The connection that transfers the snapshot.
        peer: PeerId,
        /// The position from which the stream continues over the main connection.
        position: ReplPosition,
        /// The database selected in the stream at the snapshot's position; `None` if the stream starts with a SELECT.
        db: Option<u16>,
    },
    /// Remove the log cursor of the snapshot connection, because the replica now gets the stream over its main
    /// connection.
    RemoveCursor {
        /// The connection that transferred the snapshot.
        peer: PeerId,
    },
    /// Send an empty line, which shows a waiting replica that the master is alive.
    SendEmptyLine {
        /// The replica that waits for a snapshot.
        peer: PeerId,
    },
    /// Append a PING to the log, which tells the replicas that the master is alive.
    AppendPing,
    /// Close the connection of a replica.
    Close {
        /// The replica to disconnect.
        peer: PeerId,
        /// The reason, which is written to the server's log.
        reason: CloseReason,
    },
    /// Close the log, which has had no reader for `repl-backlog-ttl`.
    CloseLog,
}

/// Why a replica's connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The replica sent nothing for `repl-timeout`.
    #[error("it has been silent for too long")]
    TimedOut,
    /// The replica's pending bytes exceed the output limit, or the log no longer retains them.
    #[error("it is too far behind")]
    TooFarBehind,
    /// The snapshot could not be taken or sent.
    #[error("the snapshot for it failed")]
    SnapshotFailed,
    /// The client requested only a snapshot, which was sent.
    #[error("it has the snapshot that it came for")]
    SnapshotSent,
    /// The other connection of a dual-channel replica closed or did not appear in time.
    #[error("its other connection was lost")]
    OtherChannelLost,
    /// The history of this node was replaced, so the replica must resynchronise.
    #[error("this node's history was replaced")]
    HistoryReplaced,
}

/// The snapshot that is being taken or sent.
#[derive(Debug, Clone, PartialEq, Eq)]
struct OutgoingTransfer {
    id: TransferId,
    format: SnapshotFormat,
    /// Whether the snapshot is streamed directly instead of being written to a file.
    is_streamed: bool,
    /// The log position of a snapshot whose file is still being written, so that replicas can join; `None` otherwise.
    joinable_position: Option<ReplPosition>,
}

/// The snapshot that a replica waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AwaitedSnapshot {
    /// A snapshot that starts after `repl-diskless-sync-delay`.
    Delayed,
    /// The next snapshot, because the current one is being streamed to other replicas.
    NextAfterStreamed,
    /// The next snapshot, because the current one has another format, or its file is already being sent.
    NextAfterFile,
    /// The current snapshot, which is being written to a file for other replicas.
    JoinedOpenFile,
}

/// The state machine of a master, or of a replica that has replicas of its own.
#[derive(Debug)]
pub struct Master {
    config: MasterConfig,
    /// Whether this node is a master. A replica forwards its master's PINGs instead of sending its own.
    is_master: bool,
    peers: BTreeMap<PeerId, ConnectedReplica>,
    transfer: Option<OutgoingTransfer>,
    next_transfer_id: u64,
    next_pending_check_at: Instant,
    /// The time of the last PING, from which the next one is scheduled.
    last_ping_at: Instant,
    /// When the last replica disconnected; `None` while replicas are connected.
    without_replicas_since: Option<Instant>,
    throttle: Throttle,
}

impl Master {
    /// Creates the state machine of a node without replicas.
    #[must_use]
    pub fn new(config: MasterConfig, is_master: bool, now: Instant) -> Self {
        Self {
            last_ping_at: now,
            config,
            is_master,
            peers: BTreeMap::new(),
            transfer: None,
            next_transfer_id: 0,
            next_pending_check_at: now,
            without_replicas_since: None,
            throttle: Throttle::default(),
        }
    }

    /// Changes the configuration at once. The caller must query [`Master::next_deadline`] afterwards, because the
    /// deadline may have changed.
    pub fn set_config(&mut self, config: MasterConfig) {
        self.config = config;
    }

    /// Returns the replicas with their state, ordered by connection id.
    pub fn peers(&self) -> impl ExactSizeIterator<Item = (PeerId, &ConnectedReplica)> {
        self.peers.iter().map(|(id, peer)| (*id, peer))
    }

    /// Returns whether this replica is connected over this connection or expected over another one.
    #[must_use]
    pub fn has_replica(&self, peer: PeerId) -> bool {
        self.peers.contains_key(&peer)
    }

    /// Returns the snapshot that a replica waits for after requesting a full synchronisation; `None` if it does not
    /// wait.
    #[must_use]
    pub fn awaited_snapshot(&self, peer: PeerId) -> Option<AwaitedSnapshot> {
        match (self.peers.get(&peer)?.phase, &self.transfer) {
            (ReplicaPhase::WaitsForSnapshot { .. }, None) => Some(AwaitedSnapshot::Delayed),
            (ReplicaPhase::WaitsForSnapshot { .. }, Some(transfer)) if transfer.is_streamed => {
                Some(AwaitedSnapshot::NextAfterStreamed)
            }
            (ReplicaPhase::WaitsForSnapshot { .. }, Some(_)) => Some(AwaitedSnapshot::NextAfterFile),
            (ReplicaPhase::Sending { position: Some(_), .. }, _) => Some(AwaitedSnapshot::JoinedOpenFile),
            _ => None,
        }
    }

    /// Returns whether a snapshot is being streamed to replicas.
    #[must_use]
    pub fn is_streaming_snapshot(&self) -> bool {
        self.transfer.as_ref().is_some_and(|transfer| transfer.is_streamed)
    }

    /// Returns the replicas that receive the stream. A replica that reconnected before its old connection timed out
    /// counts once, with its last connection.
    pub fn online_replicas(&self) -> impl Iterator<Item = &ConnectedReplica> + Clone {
        self.latest_connections(ConnectedReplica::is_online)
    }

    /// Returns the number of replicas that a shutdown waits for: those that receive the stream and those that are still
    /// loading a snapshot. INFO shows both as online. A loading replica has not acknowledged any offset yet.
    #[must_use]
    pub fn replicas_awaited_at_shutdown(&self) -> usize {
        self.latest_connections(|peer| peer.state() == PeerState::Online).count()
    }

    /// Returns the replicas that satisfy the condition. Of several connections of one node, only the last counts.
    fn latest_connections(
        &self,
        predicate: fn(&ConnectedReplica) -> bool,
    ) -> impl Iterator<Item = &ConnectedReplica> + Clone {
        let later = |id: PeerId| self.peers.range((Bound::Excluded(id), Bound::Unbounded));
        let has_come_again = move |id: PeerId, node: NodeId| {
            later(id).any(|(_, peer)| peer.profile.node_id == Some(node) && !peer.profile.is_rdb_channel)
        };
        let of_kind = self.peers.iter().filter(move |(_, peer)| predicate(peer));
        let last = of_kind
            .filter(move |(id, peer)| !peer.profile.node_id.is_some_and(|node| has_come_again(**id, node)));
        last.map(|(_, peer)| peer)
    }

    /// Returns the offset up to which the append-only file is on disk, for each online replica that has such a file.
    pub fn synced_offsets(&self) -> Vec<ReplOffset> {
        self.online_replicas().filter_map(|peer| peer.synced_offset).collect()
    }

    /// Returns the acknowledged offset of each online replica, except those still loading a snapshot.
    pub fn acknowledged_offsets(&self) -> Vec<ReplOffset> {
        self.online_replicas().filter_map(|peer| peer.acknowledged_offset).collect()
    }

    /// Returns how many replicas must acknowledge the state of migrating slots. `None` if a connected replica does not
    /// support this state, so that it must not be replicated. Without replicas the result is 0 and the state is still
    /// logged, for replicas that reconnect.
    #[must_use]
    pub fn slot_state_replica_count(&self) -> Option<usize> {
        let mut stay = self.peers.values().filter(|peer| !peer.profile.is_rdb_only);
        let online = self.online_replicas().filter(|peer| !peer.profile.is_rdb_only);
        stay.all(|peer| peer.profile.capabilities.slot_moves).then(|| online.count())
    }

    /// Returns the node ids of the online replicas that have everything before `offset`. `None` if a connected replica
    /// does not support the message that names the master's successor in the stream.
    pub fn in_sync_node_ids(&self, offset: ReplOffset) -> Option<Vec<NodeId>> {
        let mut stay = self.peers.values().filter(|peer| !peer.profile.is_rdb_only);
        let in_sync =
            self.online_replicas().filter(|peer| !peer.profile.is_rdb_only && peer.has_acknowledged(offset));
        let nodes = in_sync.filter_map(|peer| peer.profile.node_id).collect();
        stay.all(|peer| peer.profile.node_id.is_some()).then_some(nodes)
    }

    /// Returns the number of online replicas from which the master received something within `min-replicas-max-lag`.
    #[must_use]
    pub fn good_replica_count(&self, now: Instant) -> usize {
        self.online_replicas().filter(|peer| peer.lag_seconds(now) <= self.config.max_lag.as_secs()).count()
    }

    /// Returns how long writers are delayed after each batch so that a slow replica can catch up.
    pub fn write_delay(&mut self, now: Instant) -> Duration {
        let pending = self.peers.values().map(|peer| peer.pending_bytes).max().unwrap_or(0);
        self.throttle.write_delay(now, pending, self.config.effective_output_limit())
    }

    /// Returns when to send the next PING by the current period. A PING scheduled with an earlier, shorter period would
    /// advance the offset past the point where a promoted replica branched off.
    fn next_ping_at(&self) -> Instant {
        self.last_ping_at + self.config.ping_period
    }

    /// Returns the time of the next [`MasterEvent::Deadline`].
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.peers.is_empty() {
            let ttl = self.config.backlog_ttl;
            return self
                .without_replicas_since
                .filter(|_| self.is_master && !ttl.is_zero())
                .map(|since| since + ttl);
        }
        let mut next = self.next_pending_check_at;
        if self.is_master {
            next = next.min(self.next_ping_at());
        }
        if self.transfer.is_none()
            && let Some(start) = self.snapshot_due_at()
        {
            next = next.min(start);
        }
        Some(next)
    }

    /// Handles an event and appends the resulting actions to `out`.
    pub fn handle(&mut self, now: Instant, event: MasterEvent, out: &mut Vec<MasterAction>) {
        match event {
            MasterEvent::Deadline => self.on_deadline(now, out),
            MasterEvent::Joined { peer, profile, resume_position: resume } => {
                self.on_joined(now, peer, profile, resume, out);
            }
            MasterEvent::SnapshotTaken { transfer, position, db } => {
                self.on_snapshot_taken(transfer, position, db, out);
            }
            MasterEvent::SnapshotWritten { transfer } => self.on_snapshot_written(transfer, out),
            MasterEvent::SnapshotSent { peer } => self.on_snapshot_sent(now, peer, out),
            MasterEvent::TransferFailed { transfer } => self.on_transfer_failed(now, transfer, out),
            MasterEvent::Acknowledged { peer, offset, synced_offset: synced } => {
                if let Some(replica) = self.peers.get_mut(&peer) {
                    replica.synced_offset = replica.synced_offset.max(synced);
                }
                self.on_acknowledged(now, peer, offset, out);
            }
            MasterEvent::ReplicaAlive { peer } => {
                if let Some(peer) = self.peers.get_mut(&peer) {
                    peer.last_heard_at = now;
                }
            }
            MasterEvent::PendingBytes { peer, bytes } => self.on_pending_bytes(now, peer, bytes, out),
            MasterEvent::Closed { peer } => {
                // The log dropped the cursor of this replica, so the replica is too slow, although no deadline has
                // reported it yet.
                let limit = self.config.effective_output_limit().hard_bytes;
                if limit > 0 && self.peers.get(&peer).is_some_and(|peer| peer.pending_bytes > limit / 2) {
                    self.throttle.on_replica_closed(now);
                }
                // A dual-channel replica closes its RDB channel when it has the snapshot. Its main channel has yet to
                // connect.
                if !self.peers.get(&peer).is_some_and(ConnectedReplica::has_delivered_snapshot) {
                    self.remove_peer(now, peer, out);
                }
            }
            MasterEvent::RoleChanged { is_master: master } => {
                self.is_master = master;
                self.last_ping_at = now;
                self.without_replicas_since = Some(now).filter(|_| self.peers.is_empty());
            }
            MasterEvent::HistoryReplaced => {
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
        profile: PeerProfile,
        resume_position: Option<ReplPosition>,
        out: &mut Vec<MasterAction>,
    ) {
        if self.peers.is_empty() {
            (self.next_pending_check_at, self.last_ping_at) = (now + CHECK_PERIOD, now);
        }
        self.without_replicas_since = None;
        if profile.snapshot_connection.is_some() {
            return self.on_main_channel(now, peer, profile, resume_position, out);
        }
        let Capabilities { psync2, slot_states, .. } = profile.capabilities;
        let phase = match resume_position {
            Some(position) => {
                let id = Some(position.id).filter(|_| psync2);
                out.push(MasterAction::SendContinue { peer, id, includes_slot_states: slot_states });
                out.push(MasterAction::SendStream { peer, from: position.offset });
                ReplicaPhase::Online
            }
            None => ReplicaPhase::WaitsForSnapshot { since: now },
        };
        let acknowledged = resume_position.map(|position| position.offset);
        self.peers.insert(peer, ConnectedReplica::new(profile, phase, acknowledged, now));
        self.join_open_transfer(out);
        self.start_due_snapshot(now, out);
    }

    /// Lets waiting replicas share the snapshot that is being written to a file, if its format and contents match their
    /// requests.
    fn join_open_transfer(&mut self, out: &mut Vec<MasterAction>) {
        let Some(OutgoingTransfer { id: transfer, format: form, joinable_position: Some(position), .. }) =
            &self.transfer
        else {
            return;
        };
        for (id, peer) in &mut self.peers {
            let joins = peer.waiting_since().is_some()
                && peer.profile.snapshot_format() == *form
                && !peer.profile.is_rdb_channel;
            if joins {
                let (cut, way) = (Some(position.offset), SnapshotDelivery::File { is_written: false });
                peer.phase = ReplicaPhase::Sending { transfer: *transfer, position: cut, delivery: way };
                out.push(MasterAction::RetainLog { peer: *id, from: position.offset });
                if !peer.profile.uses_sync {
                    out.push(MasterAction::SendFullResync { peer: *id, position: *position });
                }
            }
        }
    }

    /// Returns when to take a snapshot for the waiting replicas: at once, after the delay, or when enough replicas
    /// wait.
    fn snapshot_due_at(&self) -> Option<Instant> {
        let waiting = self.peers.values().filter_map(ConnectedReplica::waiting_since);
        let first = waiting.clone().min()?;
        let most = self.config.diskless_max_replicas;
        let enough = most > 0 && waiting.count() >= most;
        let at_once = !self.can_stream_to_waiting_replicas() || enough;
        Some(if at_once { first } else { first + self.config.diskless_delay })
    }

    /// Returns whether a snapshot for the waiting replicas may be streamed without a length, as dual-channel replicas
    /// expect.
    fn can_stream_to_waiting_replicas(&self) -> bool {
        let mut waiting = self.peers.values().filter(|peer| peer.waiting_since().is_some());
        let may = self.config.is_diskless || waiting.clone().any(|peer| peer.profile.is_rdb_channel);
        may && waiting.all(|peer| peer.profile.capabilities.end_mark)
    }

    fn start_due_snapshot(&mut self, now: Instant, out: &mut Vec<MasterAction>) {
        if self.transfer.is_some() || self.snapshot_due_at().is_none_or(|due| due > now) {
            return;
        }
        let eof = self.can_stream_to_waiting_replicas();
        let waiting = self.peers.values().filter(|peer| peer.waiting_since().is_some());
        let first =
            waiting.min_by_key(|peer| peer.waiting_since()).expect("somebody waits, since one is due");
        let form = first.profile.snapshot_format();
        self.next_transfer_id += 1;
        let transfer = TransferId(self.next_transfer_id);
        self.transfer =
            Some(OutgoingTransfer { id: transfer, format: form, is_streamed: eof, joinable_position: None });
        let way = if eof { SnapshotDelivery::Streamed } else { SnapshotDelivery::File { is_written: false } };
        let mut peers = Vec::new();
        for (id, peer) in &mut self.peers {
            if peer.profile.snapshot_format() == form && peer.waiting_since().is_some() {
                peer.phase = ReplicaPhase::Sending { transfer, position: None, delivery: way };
                peers.push(*id);
            }
        }
        out.push(MasterAction::TakeSnapshot { transfer, peers, uses_end_mark: eof, format: form });
    }

    fn on_snapshot_taken(
        &mut self,
        transfer: TransferId,
        position: ReplPosition,
        db: Option<u16>,
        out: &mut Vec<MasterAction>,
    ) {
        let mut is_file = false;
        for (id, peer) in &mut self.peers {
            if let ReplicaPhase::Sending { transfer: of, position: cut, delivery: way } = &mut peer.phase
                && *of == transfer
            {
                *cut = Some(position.offset);
                is_file |= *way != SnapshotDelivery::Streamed;
                if peer.profile.is_rdb_channel {
                    out.push(MasterAction::SendEndOffset { peer: *id, position, db });
                } else if !peer.profile.uses_sync {
                    out.push(MasterAction::SendFullResync { peer: *id, position });
                }
                if *way == SnapshotDelivery::Streamed {
                    out.push(MasterAction::SendSnapshot { peer: *id });
                }
            }
        }
        if let Some(current) = self.transfer.as_mut().filter(|current| is_file && current.id == transfer) {
            current.joinable_position = Some(position);
            self.join_open_transfer(out);
        }
    }

    fn on_snapshot_written(&mut self, transfer: TransferId, out: &mut Vec<MasterAction>) {
        let Some(current) = self.transfer.as_mut().filter(|current| current.id == transfer) else { return };
        current.joinable_position = None;
        let mut peers = Vec::new();
        for (id, peer) in &mut self.peers {
            if let ReplicaPhase::Sending {
                transfer: of, delivery: SnapshotDelivery::File { is_written }, ..
            } = &mut peer.phase
                && *of == transfer
            {
                *is_written = true;
                peers.push(*id);
            }
        }
        out.push(MasterAction::SendFile { transfer, peers });
    }

    fn on_snapshot_sent(&mut self, now: Instant, peer_id: PeerId, out: &mut Vec<MasterAction>) {
        let Some(peer) = self.peers.get_mut(&peer_id) else { return };
        let ReplicaPhase::Sending { position: Some(cut), delivery: way, .. } = peer.phase else { return };
        let eof = way == SnapshotDelivery::Streamed;
        peer.last_heard_at = now;
        let served = (peer.profile.is_rdb_only || peer.profile.is_rdb_channel) && !peer.awaits_main_channel();
        if peer.awaits_main_channel() {
            peer.phase = ReplicaPhase::SnapshotDelivered { since: now };
        } else if served || (eof && !peer.profile.uses_sync) {
            peer.phase = ReplicaPhase::Loading { position: cut };
        } else {
            peer.phase = ReplicaPhase::Online;
            out.push(MasterAction::SendStream { peer: peer_id, from: cut });
        }
        self.end_transfer(now, out);
        if served {
            self.close(now, peer_id, CloseReason::SnapshotSent, out);
        }
    }

    /// Ends the transfer once all its replicas have received the snapshot or disconnected, and starts the next one.
    fn end_transfer(&mut self, now: Instant, out: &mut Vec<MasterAction>) {
        let Some(transfer) = self.transfer.as_ref().map(|transfer| transfer.id) else { return };
        if self.peers.values().any(|peer| peer.is_in_transfer(transfer)) {
            return;
        }
        self.transfer = None;
        self.start_due_snapshot(now, out);
    }

    fn on_transfer_failed(&mut self, now: Instant, transfer: TransferId, out: &mut Vec<MasterAction>) {
        let broken: Vec<PeerId> =
            self.peers.iter().filter(|(_, peer)| peer.is_in_transfer(transfer)).map(|(id, _)| *id).collect();
        for peer in broken {
            self.close(now, peer, CloseReason::SnapshotFailed, out);
        }
    }

    fn on_acknowledged(
        &mut self,
        now: Instant,
        peer_id: PeerId,
        offset: ReplOffset,
        out: &mut Vec<MasterAction>,
    ) {
        let Some(peer) = self.peers.get_mut(&peer_id) else { return };
        peer.last_heard_at = now;
        peer.acknowledged_offset = peer.acknowledged_offset.max(Some(offset));
        match peer.phase {
            ReplicaPhase::Loading { position: cut } => {
                peer.phase = ReplicaPhase::Online;
                out.push(MasterAction::SendStream { peer: peer_id, from: cut });
            }
            ReplicaPhase::AwaitsMainChannel => peer.phase = ReplicaPhase::Online,
            ReplicaPhase::WaitsForSnapshot { .. }
            | ReplicaPhase::Sending { .. }
            | ReplicaPhase::SnapshotDelivered { .. }
            | ReplicaPhase::Online => {}
        }
    }

    fn on_pending_bytes(&mut self, now: Instant, peer_id: PeerId, bytes: u64, out: &mut Vec<MasterAction>) {
        let limit = self.config.effective_output_limit();
        let Some(peer) = self.peers.get_mut(&peer_id) else { return };
        peer.pending_bytes = bytes;
        if limit.is_exceeded(now, bytes, &mut peer.over_soft_limit_since) {
            self.throttle.on_replica_closed(now);
            self.close(now, peer_id, CloseReason::TooFarBehind, out);
        }
    }

    fn on_deadline(&mut self, now: Instant, out: &mut Vec<MasterAction>) {
        self.start_due_snapshot(now, out);
        if self.is_master && now >= self.next_ping_at() && !self.peers.is_empty() {
            self.last_ping_at = now;
            out.push(MasterAction::AppendPing);
        }
        if now >= self.next_pending_check_at && !self.peers.is_empty() {
            self.next_pending_check_at = now + CHECK_PERIOD;
            self.check_replicas(now, out);
        }
        let ttl = self.config.backlog_ttl;
        if self.is_master
            && !ttl.is_zero()
            && self.without_replicas_since.is_some_and(|since| now >= since + ttl)
        {
            self.without_replicas_since = None;
            out.push(MasterAction::CloseLog);
        }
    }

    fn check_replicas(&mut self, now: Instant, out: &mut Vec<MasterAction>) {
        let timeout = self.config.timeout;
        let (mut silent, mut unlinked) = (Vec::new(), Vec::new());
        for (id, peer) in &self.peers {
            if peer.needs_keepalive() {
                out.push(MasterAction::SendEmptyLine { peer: *id });
            } else if peer.has_main_channel_timed_out(now) {
                unlinked.push(*id);
            } else if peer.must_acknowledge() && now >= peer.last_heard_at + timeout {
                silent.push(*id);
            }
        }
        for peer in silent {
            self.close(now, peer, CloseReason::TimedOut, out);
        }
        for peer in unlinked {
            self.close(now, peer, CloseReason::OtherChannelLost, out);
        }
    }

    fn close(&mut self, now: Instant, peer: PeerId, reason: CloseReason, out: &mut Vec<MasterAction>) {
        if self.peers.contains_key(&peer) {
            out.push(MasterAction::Close { peer, reason });
            self.remove_peer(now, peer, out);
        }
    }

    fn remove_peer(&mut self, now: Instant, peer: PeerId, out: &mut Vec<MasterAction>) {
        let Some(gone) = self.peers.remove(&peer) else { return };
        if let Some(transfer) = self.transfer.as_ref().map(|transfer| transfer.id)
            && !self.peers.values().any(|peer| peer.is_in_transfer(transfer))
        {
            out.push(MasterAction::CancelSnapshot { transfer });
        }
        self.end_transfer(now, out);
        if let Some(other) = gone.dependent_connection() {
            self.close(now, other, CloseReason::OtherChannelLost, out);
        }
        if self.peers.is_empty() {
            self.without_replicas_since = Some(now);
        }
    }
}
