//! The state machine of a replica's link to its master.
//!
//! The link connects, performs the handshake (PING, AUTH, REPLCONF), requests a partial synchronisation (PSYNC),
//! receives a snapshot if the master refuses that, and then passes on the master's stream. The replica acknowledges the
//! applied offset every second, detects timeouts, and reconnects: at once after a link that had worked broke, every
//! [`REFUSED_RETRY_DELAY`] while the master's host refuses connections because its process restarts, and every
//! [`FAILED_RETRY_DELAY`] after other failures. Full synchronisations are expensive for the master. After two in a row
//! without a lasting link, the replica waits for [`FAILED_RETRY_DELAY`] before the next one; each synchronisation that fails
//! on an unreadable snapshot or stream doubles that delay.
//!
//! Invariant: the position always matches the data. Only [`ReplicaEvent::Applied`] advances it. The position is unset
//! while a snapshot replaces the data, and set again once the snapshot is loaded.
//!
//! Received stream bytes are passed on without a copy.

mod dual;
mod lines;
mod link;
mod stream_buffer;
#[cfg(test)]
mod tests;
mod transfer;

use std::time::Duration;

use clock::Instant;
use slot_routing::{NodeId, ReplOffset};

use crate::id::ReplId;
use crate::log::ReplPosition;
use dual::DualChannelSync;
use link::{Handshake, HandshakeStep};
use stream_buffer::StreamBuffer;
use transfer::IncomingTransfer;

/// Delay before retrying a connection that the master's host refused.
pub const REFUSED_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Delay before retrying after any other failure, as in Redis.
pub const FAILED_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Delay before reconnecting after a link that had worked broke.
pub const LOST_RETRY_DELAY: Duration = Duration::from_millis(20);
/// How long a link must be up to count as lasting.
pub const STABLE_LINK_DURATION: Duration = Duration::from_secs(5);
/// Interval of acknowledgements, and of the empty lines sent while a snapshot is loaded.
const ACK_PERIOD: Duration = Duration::from_secs(1);

/// The configuration of a replica's link to its master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaConfig {
    /// The port announced to the master (`replica-announce-port` or `port`).
    pub listening_port: u16,
    /// `replica-announce-ip`: the address that the master shows for this replica, if it differs from the address of the
    /// connection.
    pub announce_ip: Option<String>,
    /// The node id to announce in cluster mode; `None` without cluster mode.
    pub node_id: Option<NodeId>,
    /// `masteruser`: the user to authenticate as; `None` means the default user.
    pub user: Option<Vec<u8>>,
    /// `masterauth`: the password; without it no AUTH is sent.
    pub password: Option<Vec<u8>>,
    /// `repl-timeout`: the link is closed after receiving nothing for this long.
    pub timeout: Duration,
    /// Whether the new master is a former replica of this node, which must be asked to take over (FAILOVER).
    pub requests_takeover: bool,
    /// `dual-channel-replication-enabled`: the snapshot may come over a second connection, concurrently with the
    /// stream.
    pub dual_channel: bool,
    /// How many stream bytes are buffered until the snapshot is loaded; zero means no limit. As in Valkey, this is the
    /// hard limit of `client-output-buffer-limit replica`.
    pub buffer_limit: u64,
}

/// An event of the link to the master. All except `Deadline` are results of actions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplicaEvent {
    /// The time of [`Replica::next_deadline`] has come; an early event is harmless.
    Deadline,
    /// The connection to the master is established.
    Connected,
    /// The connection to the master could not be established.
    ConnectFailed {
        /// Whether the host refused the connection because nothing listens on the port.
        is_refused: bool,
    },
    /// The connection to the master broke or was closed by the master.
    Closed,
    /// The master sent these bytes.
    Received(Vec<u8>),
    /// An event of the snapshot connection.
    RdbChannel(RdbChannelEvent),
    /// A snapshot that is loaded during its transfer is about to replace the data.
    ReplacingData,
    /// The snapshot was loaded and has replaced the data.
    Loaded,
    /// The snapshot could not be loaded, and the old data has been deleted.
    LoadFailed,
    /// The snapshot is invalid; the old data is unchanged.
    LoadRejected,
    /// The process has applied and logged a batch of the stream.
    Applied {
        /// The number of bytes by which the offset advances. A transaction counts when its EXEC is applied.
        bytes: u64,
    },
    /// The stream contained REPLCONF GETACK, so the master wants an acknowledgement now.
    AckRequested,
    /// The stream cannot be parsed, so the data may differ from the master's.
    InvalidStream(String),
}

/// An event of the snapshot connection. `Connected` or `Closed` follows [`RdbChannelAction::Connect`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RdbChannelEvent {
    /// The snapshot connection is established.
    Connected,
    /// The snapshot connection could not be established, or closed.
    Closed,
    /// The master sent these bytes over the snapshot connection.
    Received(Vec<u8>),
}

/// An action that concerns the snapshot connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RdbChannelAction {
    /// Open a second connection to the same master.
    Connect,
    /// Send bytes over the snapshot connection.
    Send(Vec<u8>),
    /// Close the snapshot connection.
    Close,
}

/// An action for the caller to perform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplicaAction {
    /// Open a connection to the master.
    Connect,
    /// Close the connection, and the snapshot connection if there is one.
    Close(LinkError),
    /// Send bytes to the master.
    Send(Vec<u8>),
    /// Perform an action on the snapshot connection.
    RdbChannel(RdbChannelAction),
    /// The transfer of a snapshot starts. The current data stays until the snapshot is complete.
    BeginTransfer {
        /// The position in the master's history at which the snapshot was taken.
        position: ReplPosition,
        /// The length in bytes; `None` if the snapshot ends with a mark.
        len: Option<u64>,
    },
    /// The next bytes of the snapshot.
    SnapshotBytes(Vec<u8>),
    /// The snapshot is complete: replace the data with it, adopt its position, and report the result. During the load,
    /// read from the master only while [`Replica::should_read`] is true.
    LoadSnapshot {
        /// The position of the snapshot, to be adopted together with its data.
        position: ReplPosition,
    },
    /// The master accepted a partial synchronisation.
    Resume {
        /// The replication id under which the stream continues.
        id: ReplId,
        /// The migrating slots of the master, if it sent them; they replace the known ones.
        slot_states: Option<Vec<u8>>,
    },
    /// The link is up; the stream follows.
    LinkUp,
    /// The next bytes of the stream: apply the commands, append them to the log, and report [`ReplicaEvent::Applied`].
    StreamBytes(Vec<u8>),
}

/// Why the replica closed the link to its master.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The master sent nothing for `repl-timeout`.
    #[error("the master has been silent for too long")]
    TimedOut,
    /// The master replied with this error.
    #[error("the master answered: {0}")]
    Refused(String),
    /// The master sent a malformed reply.
    #[error("the master's answer makes no sense: {0}")]
    MalformedReply(String),
    /// The snapshot is invalid or could not be loaded.
    #[error("the snapshot could not be loaded")]
    LoadFailed,
    /// The snapshot connection failed before the snapshot was complete.
    #[error("the connection for the snapshot was lost")]
    RdbChannelLost,
}

/// The state of the link as ROLE and INFO show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// The replica is not connected and will try again.
    Connect,
    /// A connection attempt is in progress.
    Connecting,
    /// PING, AUTH, REPLCONF and PSYNC are being exchanged.
    Handshake,
    /// A snapshot is being received or loaded.
    Sync,
    /// The replica receives the stream.
    Connected,
}

impl LinkState {
    /// Returns the name used by ROLE.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Connecting => "connecting",
            Self::Handshake => "handshake",
            Self::Sync => "sync",
            Self::Connected => "connected",
        }
    }
}

#[derive(Debug)]
enum LinkPhase {
    Idle {
        retry_at: Instant,
    },
    Connecting,
    Handshake(Handshake),
    TransferringSnapshot(IncomingTransfer),
    DualChannel(DualChannelSync),
    Loading {
        position: ReplPosition,
        /// The position before the load started, to be restored if the snapshot is rejected.
        position_before_load: Option<ReplPosition>,
        stream_buffer: StreamBuffer,
        next_keepalive_at: Instant,
        stream: StreamDuringLoad,
    },
    /// The stream is being applied. Bytes that were buffered during the load are applied before more bytes are read. If
    /// the link is `lost`, it is re-established afterwards.
    Streaming {
        next_ack_at: Instant,
        stable_at: Instant,
        stream_buffer: StreamBuffer,
        is_link_lost: bool,
    },
}

/// The stream while a snapshot is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamDuringLoad {
    /// The connection is not read, because the master sends nothing until it knows that the snapshot is loaded.
    Unread,
    Buffered,
    /// The link broke; the bytes received before are still applied.
    Lost,
}

/// The state machine of the link. A new one is created for each followed master, with the position that the data has
/// reached.
#[derive(Debug)]
pub struct Replica {
    config: ReplicaConfig,
    phase: LinkPhase,
    /// The position that the data has reached; `None` if the data belongs to no history.
    position: Option<ReplPosition>,
    /// The offset up to which the append-only file is on disk; `None` without such a file.
    fsynced_offset: Option<ReplOffset>,
    last_heard_at: Instant,
    /// When the link went down; `None` while it is up.
    down_since: Option<Instant>,
    /// Whether the link was ever up, so that the data is a possibly old state of this master.
    was_ever_up: bool,
    /// Whether the last PSYNC was answered with an error.
    is_psync_refused: bool,
    /// The number of bytes received of the current or last snapshot.
    received_bytes: u64,
    /// The number of full synchronisations since the last lasting link.
    consecutive_full_syncs: u32,
    failed_full_syncs: u32,
}

impl Replica {
    /// Creates the state machine for data that has reached `position`. It connects at the first deadline.
    #[must_use]
    pub fn new(config: ReplicaConfig, position: Option<ReplPosition>, now: Instant) -> Self {
        Self {
            config,
            phase: LinkPhase::Idle { retry_at: now },
            position,
            fsynced_offset: None,
            last_heard_at: now,
            down_since: Some(now),
            was_ever_up: false,
            is_psync_refused: false,
            received_bytes: 0,
            consecutive_full_syncs: 0,
            failed_full_syncs: 0,
        }
    }

    /// Sets the position of the data before the first connection.
    pub fn set_initial_position(&mut self, position: Option<ReplPosition>) {
        assert!(matches!(self.phase, LinkPhase::Idle { .. }), "the data is told before it is asked for");
        self.position = position;
    }

    /// Sets the offset up to which the append-only file is on disk, for the next acknowledgement.
    pub fn set_fsynced_offset(&mut self, synced_offset: Option<ReplOffset>) {
        self.fsynced_offset = synced_offset;
    }

    /// Returns the position that the data has reached; `None` if the data belongs to no history.
    #[must_use]
    pub fn position(&self) -> Option<ReplPosition> {
        self.position
    }

    /// Returns the state of the link as ROLE and INFO show it.
    #[must_use]
    pub fn link_state(&self) -> LinkState {
        match &self.phase {
            LinkPhase::Idle { .. } => LinkState::Connect,
            LinkPhase::Connecting => LinkState::Connecting,
            LinkPhase::Handshake(_) => LinkState::Handshake,
            LinkPhase::DualChannel(dual) if !dual.has_snapshot_started() => LinkState::Handshake,
            LinkPhase::DualChannel(_) | LinkPhase::TransferringSnapshot(_) | LinkPhase::Loading { .. } => {
                LinkState::Sync
            }
            LinkPhase::Streaming { .. } => LinkState::Connected,
        }
    }

    /// Returns when the link went down, or `None` while it is up.
    #[must_use]
    pub fn down_since(&self) -> Option<Instant> {
        self.down_since
    }

    /// Returns whether the link to this master was ever up, so that the data is a possibly old state of this master.
    #[must_use]
    pub fn was_ever_up(&self) -> bool {
        self.was_ever_up
    }

    /// Returns whether the master refused the last PSYNC.
    #[must_use]
    pub fn is_psync_refused(&self) -> bool {
        self.is_psync_refused
    }

    /// Returns the time at which the last bytes were received.
    #[must_use]
    pub fn last_heard_at(&self) -> Instant {
        self.last_heard_at
    }

    /// Returns the length, if known, and the received size of the snapshot that is being transferred.
    #[must_use]
    pub fn transfer_progress(&self) -> Option<(Option<u64>, u64)> {
        match &self.phase {
            LinkPhase::TransferringSnapshot(transfer) => Some((transfer.len(), self.received_bytes)),
            LinkPhase::DualChannel(dual) if dual.has_snapshot_started() => {
                Some((dual.transfer_progress().and_then(IncomingTransfer::len), self.received_bytes))
            }
            LinkPhase::Loading { .. } => Some((Some(self.received_bytes), self.received_bytes)),
            _ => None,
        }
    }

    /// Returns how many bytes of the stream are buffered until a snapshot is loaded.
    #[must_use]
    pub fn buffered_bytes(&self) -> u64 {
        match &self.phase {
            LinkPhase::DualChannel(dual) => dual.buffered_bytes(),
            LinkPhase::Loading { stream_buffer: held, .. }
            | LinkPhase::Streaming { stream_buffer: held, .. } => held.buffered_bytes(),
            LinkPhase::Idle { .. }
            | LinkPhase::Connecting
            | LinkPhase::Handshake(_)
            | LinkPhase::TransferringSnapshot(_) => 0,
        }
    }

    /// Returns whether the caller should read from the connection. Unread data stays in the master's output buffer.
    #[must_use]
    pub fn should_read(&self) -> bool {
        let limit = self.config.buffer_limit;
        match &self.phase {
            LinkPhase::DualChannel(_) | LinkPhase::Loading { stream: StreamDuringLoad::Buffered, .. } => {
                limit == 0 || self.buffered_bytes() < limit
            }
            LinkPhase::Loading { .. } => false,
            LinkPhase::Idle { .. }
            | LinkPhase::Connecting
            | LinkPhase::Handshake(_)
            | LinkPhase::TransferringSnapshot(_)
            | LinkPhase::Streaming { .. } => true,
        }
    }

    /// Changes the configuration. The timeout applies at once, the other options with the next handshake.
    pub fn set_config(&mut self, config: ReplicaConfig) {
        self.config = config;
    }

    /// Returns the time of the next [`ReplicaEvent::Deadline`].
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let silence = self.last_heard_at + self.config.timeout;
        Some(match &self.phase {
            LinkPhase::Idle { retry_at } => *retry_at,
            LinkPhase::Connecting
            | LinkPhase::Handshake(_)
            | LinkPhase::TransferringSnapshot(_)
            | LinkPhase::DualChannel(_) => silence,
            // The connection is not read while the snapshot is loaded, so only keepalives are due.
            LinkPhase::Loading { next_keepalive_at: next_sign, .. } => *next_sign,
            LinkPhase::Streaming { next_ack_at: next_ack, .. } => (*next_ack).min(silence),
        })
    }

    /// Handles an event and appends the resulting actions to `out`.
    pub fn handle(&mut self, now: Instant, event: ReplicaEvent, out: &mut Vec<ReplicaAction>) {
        match event {
            ReplicaEvent::Deadline => self.on_deadline(now, out),
            ReplicaEvent::Connected => self.on_connected(now, out),
            ReplicaEvent::ConnectFailed { is_refused: refused } => {
                self.schedule_reconnect(now, if refused { REFUSED_RETRY_DELAY } else { FAILED_RETRY_DELAY });
            }
            ReplicaEvent::Closed => self.on_closed(now, out),
            ReplicaEvent::RdbChannel(input) => self.on_rdb_channel(now, input, out),
            ReplicaEvent::Received(bytes) => {
                self.last_heard_at = now;
                self.on_received(now, bytes, out);
            }
            ReplicaEvent::ReplacingData => self.position = None,
            ReplicaEvent::Loaded => self.on_loaded(now, out),
            ReplicaEvent::LoadFailed => {
                self.position = None;
                self.failed_full_syncs += 1;
                self.close_link(now, LinkError::LoadFailed, out);
            }
            ReplicaEvent::Applied { bytes } => {
                let position = self.position.as_mut().expect("only a stream is applied, and it has a place");
                position.offset.0 += bytes;
                self.apply_buffered(now, out);
            }
            ReplicaEvent::LoadRejected => {
                if let LinkPhase::Loading { position_before_load: before, .. } = self.phase {
                    self.position = before;
                }
                self.failed_full_syncs += 1;
                self.close_link(now, LinkError::LoadFailed, out);
            }
            ReplicaEvent::AckRequested => self.send_acknowledgement(out),
            ReplicaEvent::InvalidStream(what) => {
                self.position = None;
                self.failed_full_syncs += 1;
                self.close_link(now, LinkError::MalformedReply(what), out);
            }
        }
    }

    fn on_deadline(&mut self, now: Instant, out: &mut Vec<ReplicaAction>) {
        let silent = now >= self.last_heard_at + self.config.timeout;
        match &mut self.phase {
            LinkPhase::Idle { retry_at } => {
                if now >= *retry_at {
                    self.phase = LinkPhase::Connecting;
                    self.last_heard_at = now;
                    out.push(ReplicaAction::Connect);
                }
            }
            LinkPhase::Loading { next_keepalive_at: next_sign, .. } => {
                if now >= *next_sign {
                    *next_sign = now + ACK_PERIOD;
                    self.last_heard_at = now;
                    // An empty line tells the master that the replica is alive.
                    out.push(ReplicaAction::Send(b"\n".to_vec()));
                }
            }
            _ if silent => self.close_link(now, LinkError::TimedOut, out),
            LinkPhase::Streaming { next_ack_at: next_ack, stable_at: lasts_at, .. } => {
                if now >= *lasts_at {
                    (self.consecutive_full_syncs, self.failed_full_syncs) = (0, 0);
                }
                if now >= *next_ack {
                    *next_ack = now + ACK_PERIOD;
                    self.send_acknowledgement(out);
                }
            }
            LinkPhase::Connecting
            | LinkPhase::Handshake(_)
            | LinkPhase::TransferringSnapshot(_)
            | LinkPhase::DualChannel(_) => {}
        }
    }

    fn on_connected(&mut self, now: Instant, out: &mut Vec<ReplicaAction>) {
        self.last_heard_at = now;
        let mut hello = Vec::new();
        self.phase = LinkPhase::Handshake(Handshake::start(&mut hello));
        out.push(ReplicaAction::Send(hello));
    }

    fn on_closed(&mut self, now: Instant, out: &mut Vec<ReplicaAction>) {
        if let LinkPhase::Loading { stream, .. } = &mut self.phase {
            // The replica has received the whole snapshot, so the load continues and the link is re-established
            // afterwards.
            *stream = StreamDuringLoad::Lost;
            return;
        }
        if matches!(self.phase, LinkPhase::DualChannel(_)) {
            out.push(ReplicaAction::RdbChannel(RdbChannelAction::Close));
        }
        let worked = matches!(self.phase, LinkPhase::Streaming { .. });
        self.schedule_reconnect(now, if worked { LOST_RETRY_DELAY } else { FAILED_RETRY_DELAY });
    }

    fn on_received(&mut self, now: Instant, bytes: Vec<u8>, out: &mut Vec<ReplicaAction>) {
        match &mut self.phase {
            // Drop late data of a closed connection.
            LinkPhase::Idle { .. } | LinkPhase::Connecting => {}
            LinkPhase::Handshake(_) => self.on_handshake_bytes(now, &bytes, out),
            LinkPhase::TransferringSnapshot(_) => self.on_snapshot_bytes(now, bytes, out),
            LinkPhase::Loading { stream_buffer: held, .. } => held.push(&bytes),
            LinkPhase::DualChannel(dual) => {
                let outcome = dual.on_main_received(&bytes, out);
                self.continue_dual_channel(now, outcome, out);
            }
            LinkPhase::Streaming { .. } => out.push(ReplicaAction::StreamBytes(bytes)),
        }
    }

    fn on_handshake_bytes(&mut self, now: Instant, bytes: &[u8], out: &mut Vec<ReplicaAction>) {
        let LinkPhase::Handshake(handshake) = &mut self.phase else { return };
        let mut send = Vec::new();
        let step = handshake.advance(bytes, &self.config, self.position, &mut send);
        if !send.is_empty() {
            out.push(ReplicaAction::Send(send));
        }
        self.is_psync_refused = handshake.has_sent_psync() && matches!(step, HandshakeStep::Failed(_));
        match step {
            HandshakeStep::Incomplete => {}
            HandshakeStep::Failed(reason) => self.close_link(now, reason, out),
            HandshakeStep::DualChannel => self.phase = LinkPhase::DualChannel(DualChannelSync::start(out)),
            HandshakeStep::FullResync { position, remaining: rest } => {
                self.received_bytes = 0;
                self.consecutive_full_syncs += 1;
                self.phase = LinkPhase::TransferringSnapshot(IncomingTransfer::new(position));
                if !rest.is_empty() {
                    self.on_snapshot_bytes(now, rest, out);
                }
            }
            HandshakeStep::Continue { id, slot_states, remaining: rest } => {
                let position = self.position.as_mut().expect("only who has a position asks to go on");
                position.id = id.unwrap_or(position.id);
                out.push(ReplicaAction::Resume { id: position.id, slot_states });
                let mut held = StreamBuffer::default();
                held.push(&rest);
                self.start_streaming(now, held, false, out);
            }
        }
    }

    fn on_snapshot_bytes(&mut self, now: Instant, bytes: Vec<u8>, out: &mut Vec<ReplicaAction>) {
        let LinkPhase::TransferringSnapshot(transfer) = &mut self.phase else { return };
        let before = out.len();
        let outcome = transfer.advance(bytes, out);
        self.received_bytes += count_snapshot_bytes(&out[before..]);
        match outcome {
            Ok(None) => {}
            Ok(Some(rest)) => {
                let position = transfer.position();
                let mut held = StreamBuffer::default();
                held.push(&rest);
                self.start_load(now, position, held, StreamDuringLoad::Unread, out);
            }
            Err(reason) => self.close_link(now, reason, out),
        }
    }

    fn start_load(
        &mut self,
        now: Instant,
        position: ReplPosition,
        stream_buffer: StreamBuffer,
        stream: StreamDuringLoad,
        out: &mut Vec<ReplicaAction>,
    ) {
        // From now on the data is an incomplete mix, so it has no position.
        let before = self.position.take();
        self.phase = LinkPhase::Loading {
            position,
            position_before_load: before,
            stream_buffer,
            next_keepalive_at: now + ACK_PERIOD,
            stream,
        };
        out.push(ReplicaAction::LoadSnapshot { position });
    }

    fn on_rdb_channel(&mut self, now: Instant, event: RdbChannelEvent, out: &mut Vec<ReplicaAction>) {
        // Drop late data of a closed connection.
        let LinkPhase::DualChannel(dual) = &mut self.phase else { return };
        let outcome = match event {
            RdbChannelEvent::Connected => {
                dual.on_rdb_connected(&self.config, out);
                Ok(())
            }
            RdbChannelEvent::Closed if dual.needs_rdb_channel() => Err(LinkError::RdbChannelLost),
            RdbChannelEvent::Closed => Ok(()),
            RdbChannelEvent::Received(bytes) => {
                let (had_begun, before) = (dual.has_snapshot_started(), out.len());
                let outcome = dual.on_rdb_received(bytes, out);
                if !had_begun && dual.has_snapshot_started() {
                    self.received_bytes = 0;
                    self.consecutive_full_syncs += 1;
                }
                self.received_bytes += count_snapshot_bytes(&out[before..]);
                outcome
            }
        };
        self.last_heard_at = now;
        self.continue_dual_channel(now, outcome, out);
    }

    fn continue_dual_channel(
        &mut self,
        now: Instant,
        result: Result<(), LinkError>,
        out: &mut Vec<ReplicaAction>,
    ) {
        let LinkPhase::DualChannel(dual) = &mut self.phase else { return };
        match result {
            Err(reason) => self.close_link(now, reason, out),
            Ok(()) => {
                if let Some((position, held)) = dual.take_completed_sync() {
                    self.start_load(now, position, held, StreamDuringLoad::Buffered, out);
                }
            }
        }
    }

    fn on_loaded(&mut self, now: Instant, out: &mut Vec<ReplicaAction>) {
        self.last_heard_at = now;
        match &mut self.phase {
            LinkPhase::Loading { position, stream_buffer: held, stream, .. } => {
                self.position = Some(*position);
                let (held, lost) = (std::mem::take(held), *stream == StreamDuringLoad::Lost);
                self.start_streaming(now, held, lost, out);
                // This acknowledgement makes the master start the stream.
                self.send_acknowledgement(out);
            }
            state => panic!("a snapshot was loaded that nobody asked for, in {state:?}"),
        }
    }

    fn start_streaming(
        &mut self,
        now: Instant,
        stream_buffer: StreamBuffer,
        is_link_lost: bool,
        out: &mut Vec<ReplicaAction>,
    ) {
        let (next_ack, lasts_at) = (now + ACK_PERIOD, now + STABLE_LINK_DURATION);
        self.phase =
            LinkPhase::Streaming { next_ack_at: next_ack, stable_at: lasts_at, stream_buffer, is_link_lost };
        self.was_ever_up = true;
        self.down_since = None;
        out.push(ReplicaAction::LinkUp);
        self.apply_buffered(now, out);
    }

    /// Passes on the next buffered chunk after the previous one was applied. Needs no deadline in between.
    fn apply_buffered(&mut self, now: Instant, out: &mut Vec<ReplicaAction>) {
        let LinkPhase::Streaming { next_ack_at: next_ack, stream_buffer: held, is_link_lost: lost, .. } =
            &mut self.phase
        else {
            return;
        };
        let lost = *lost;
        match held.pop() {
            Some(piece) => {
                out.push(ReplicaAction::StreamBytes(piece));
                if now >= *next_ack {
                    *next_ack = now + ACK_PERIOD;
                    self.send_acknowledgement(out);
                }
            }
            None if lost => self.schedule_reconnect(now, LOST_RETRY_DELAY),
            None => {}
        }
    }

    fn send_acknowledgement(&self, out: &mut Vec<ReplicaAction>) {
        if let (LinkPhase::Streaming { .. }, Some(position)) = (&self.phase, self.position) {
            let ReplOffset(offset) = position.offset;
            let mut ack = Vec::new();
            let offset = offset.to_string();
            match self.fsynced_offset.map(|synced| synced.to_string()) {
                None => resp::encode_request(&mut ack, [&b"REPLCONF"[..], b"ACK", offset.as_bytes()]),
                Some(synced) => {
                    let words = [&b"REPLCONF"[..], b"ACK", offset.as_bytes(), b"FACK", synced.as_bytes()];
                    resp::encode_request(&mut ack, words);
                }
            }
            out.push(ReplicaAction::Send(ack));
        }
    }

    fn close_link(&mut self, now: Instant, reason: LinkError, out: &mut Vec<ReplicaAction>) {
        let retry = if reason == LinkError::TimedOut { LOST_RETRY_DELAY } else { FAILED_RETRY_DELAY };
        out.push(ReplicaAction::Close(reason));
        self.schedule_reconnect(now, retry);
    }

    fn schedule_reconnect(&mut self, now: Instant, retry_delay: Duration) {
        let least = match (self.consecutive_full_syncs, self.failed_full_syncs) {
            (0 | 1, 0) => Duration::ZERO,
            (_, spoiled) => FAILED_RETRY_DELAY * (1 << spoiled.saturating_sub(1).min(4)),
        };
        self.phase = LinkPhase::Idle { retry_at: now + retry_delay.max(least) };
        self.down_since.get_or_insert(now);
    }
}

/// Returns the total size of the snapshot bytes in these actions.
fn count_snapshot_bytes(actions: &[ReplicaAction]) -> u64 {
    let len = |action: &ReplicaAction| {
        if let ReplicaAction::SnapshotBytes(bytes) = action { bytes.len() as u64 } else { 0 }
    };
    actions.iter().map(len).sum()
}
