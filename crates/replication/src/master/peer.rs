//! The state of a connected replica, as tracked by its master.

use clock::Instant;
use slot_routing::ReplOffset;

use super::dual::MAIN_CHANNEL_TIMEOUT;
use super::{PeerId, TransferId};
use crate::psync::PeerProfile;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplicaPhase {
    /// The replica waits for a snapshot to start.
    WaitsForSnapshot { since: Instant },
    /// A snapshot is being taken for the replica or sent to it.
    Sending { transfer: TransferId, position: Option<ReplOffset>, delivery: SnapshotDelivery },
    /// The replica has received the snapshot, but has not acknowledged loading it.
    Loading { position: ReplOffset },
    /// The replica has received the snapshot over this RDB channel, which may be closed already. The replica's main
    /// channel has not connected yet.
    SnapshotDelivered { since: Instant },
    /// The replica receives the stream, but has not acknowledged loading the snapshot sent over its other connection.
    AwaitsMainChannel,
    /// The replica receives the stream and has loaded its snapshot, if it needed one.
    Online,
}

/// How a snapshot is sent to a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SnapshotDelivery {
    /// The snapshot is streamed while it is taken, with an end mark.
    Streamed,
    /// The snapshot is sent from a file, preceded by its length.
    File { is_written: bool },
}

/// The state of a replica as INFO shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerState {
    /// The snapshot is being taken. A streamed snapshot is also being sent.
    WaitBgsave,
    /// The snapshot file is being sent.
    SendBulk,
    /// The replica receives the stream while its snapshot is transferred over another connection.
    BgTransfer,
    /// The replica receives the stream.
    Online,
}

impl PeerState {
    /// Returns the name used by INFO.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::WaitBgsave => "wait_bgsave",
            Self::SendBulk => "send_bulk",
            Self::BgTransfer => "bg_transfer",
            Self::Online => "online",
        }
    }
}

/// The state of one connection of a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectedReplica {
    /// The properties that the connection announced by REPLCONF.
    pub profile: PeerProfile,
    /// The last offset that the replica acknowledged; `None` before the first acknowledgement.
    pub acknowledged_offset: Option<ReplOffset>,
    /// The offset up to which the append-only file of the replica is on disk; `None` if it has none.
    pub synced_offset: Option<ReplOffset>,
    pub(super) phase: ReplicaPhase,
    pub(super) last_heard_at: Instant,
    pub(super) over_soft_limit_since: Option<Instant>,
    /// The number of pending bytes at the last report.
    pub(super) pending_bytes: u64,
    /// For an RDB channel, the main channel of the same replica; `None` before it has connected.
    pub(super) main_channel: Option<PeerId>,
}

impl ConnectedReplica {
    pub(super) fn new(
        profile: PeerProfile,
        phase: ReplicaPhase,
        acknowledged_offset: Option<ReplOffset>,
        now: Instant,
    ) -> Self {
        Self {
            profile,
            acknowledged_offset,
            synced_offset: None,
            phase,
            last_heard_at: now,
            over_soft_limit_since: None,
            pending_bytes: 0,
            main_channel: None,
        }
    }

    /// Returns the state for INFO.
    #[must_use]
    pub fn state(&self) -> PeerState {
        match self.phase {
            ReplicaPhase::Sending { delivery: SnapshotDelivery::File { is_written: true }, .. } => {
                PeerState::SendBulk
            }
            ReplicaPhase::WaitsForSnapshot { .. }
            | ReplicaPhase::Sending { .. }
            | ReplicaPhase::SnapshotDelivered { .. } => PeerState::WaitBgsave,
            ReplicaPhase::AwaitsMainChannel => PeerState::BgTransfer,
            ReplicaPhase::Loading { .. } | ReplicaPhase::Online => PeerState::Online,
        }
    }

    /// Returns the number of pending bytes at the last report.
    #[must_use]
    pub fn pending_bytes(&self) -> u64 {
        self.pending_bytes
    }

    /// Returns whether the replica receives the stream.
    #[must_use]
    pub fn is_online(&self) -> bool {
        self.phase == ReplicaPhase::Online
    }

    /// Returns whether the replica has acknowledged everything before `offset`.
    #[must_use]
    pub fn has_acknowledged(&self, offset: ReplOffset) -> bool {
        self.acknowledged_offset >= Some(offset)
    }

    /// Returns the name that INFO uses for this kind of connection.
    #[must_use]
    pub fn channel_name(&self) -> &'static str {
        match self.phase {
            _ if self.profile.is_rdb_channel => "rdb-channel",
            ReplicaPhase::AwaitsMainChannel => "main-channel",
            _ => "replica",
        }
    }

    /// Returns the whole seconds since the replica last sent something.
    #[must_use]
    pub fn lag_seconds(&self, now: Instant) -> u64 {
        now.since(self.last_heard_at).as_secs()
    }

    pub(super) fn waiting_since(&self) -> Option<Instant> {
        match self.phase {
            ReplicaPhase::WaitsForSnapshot { since } => Some(since),
            _ => None,
        }
    }

    pub(super) fn is_in_transfer(&self, transfer: TransferId) -> bool {
        matches!(self.phase, ReplicaPhase::Sending { transfer: of, .. } if of == transfer)
    }

    /// Returns whether the replica waits for a snapshot and would time out without empty lines.
    pub(super) fn needs_keepalive(&self) -> bool {
        let waits = matches!(
            self.phase,
            ReplicaPhase::WaitsForSnapshot { .. }
                | ReplicaPhase::Sending { position: None, .. }
                | ReplicaPhase::Sending { delivery: SnapshotDelivery::File { is_written: false }, .. }
        );
        waits && !self.profile.uses_sync
    }

    /// Returns whether the replica must send acknowledgements. While a snapshot is sent, it is enough that the
    /// connection makes progress.
    pub(super) fn must_acknowledge(&self) -> bool {
        !self.profile.uses_sync && matches!(self.phase, ReplicaPhase::Online | ReplicaPhase::Loading { .. })
    }

    /// Returns whether this is an RDB channel whose main channel has not connected yet.
    pub(super) fn awaits_main_channel(&self) -> bool {
        self.profile.is_rdb_channel && self.main_channel.is_none()
    }

    /// Returns whether this is an RDB channel that has delivered its snapshot before the main channel connected.
    pub(super) fn has_delivered_snapshot(&self) -> bool {
        matches!(self.phase, ReplicaPhase::SnapshotDelivered { .. })
    }

    /// Returns whether the main channel has failed to connect in time.
    pub(super) fn has_main_channel_timed_out(&self, now: Instant) -> bool {
        matches!(self.phase, ReplicaPhase::SnapshotDelivered { since } if now >= since + MAIN_CHANNEL_TIMEOUT)
    }

    /// Returns the other connection of a dual-channel replica, if that connection is useless without this one.
    pub(super) fn dependent_connection(&self) -> Option<PeerId> {
        match self.phase {
            ReplicaPhase::Sending { .. } => self.main_channel,
            ReplicaPhase::AwaitsMainChannel => self.profile.snapshot_connection,
            ReplicaPhase::WaitsForSnapshot { .. }
            | ReplicaPhase::Loading { .. }
            | ReplicaPhase::SnapshotDelivered { .. }
            | ReplicaPhase::Online => None,
        }
    }
}
