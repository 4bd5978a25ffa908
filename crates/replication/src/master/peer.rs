//! A replica as seen by its master.

use clock::Instant;
use slot_routing::ReplOffset;

use super::dual::MAIN_CHANNEL_TIMEOUT;
use super::{PeerId, TransferId};
use crate::psync::PeerProfile;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Waits for a snapshot to start.
    Waiting { since: Instant },
    /// A snapshot is being taken for it or sent to it.
    Sending { transfer: TransferId, cut: Option<ReplOffset>, way: Way },
    /// Has received the snapshot and has not acknowledged loading it.
    Loading { cut: ReplOffset },
    /// Has received the snapshot over this connection, which may be closed already; its main connection has not
    /// appeared.
    Fetched { since: Instant },
    /// Receives the stream and has not acknowledged loading the snapshot of its other connection.
    Apart,
    /// Receives the stream.
    Online,
}

/// How a snapshot is sent to a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Streamed while it is taken, with an end mark.
    Streamed,
    /// From a file, preceded by its length.
    File { is_written: bool },
}

/// The state of a replica as INFO shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerState {
    /// The snapshot is being taken, and also sent if it is streamed.
    WaitBgsave,
    /// The snapshot file is being sent.
    SendBulk,
    /// Receives the stream while the snapshot is transferred over another connection.
    BgTransfer,
    /// Receives the stream.
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

/// The state of one replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    /// The properties announced by REPLCONF.
    pub profile: PeerProfile,
    /// The acknowledged offset; `None` before the first acknowledgement.
    pub acknowledged: Option<ReplOffset>,
    /// The offset up to which its append-only file is on disk; `None` if it has none.
    pub synced: Option<ReplOffset>,
    pub(super) phase: Phase,
    pub(super) last_heard: Instant,
    pub(super) over_soft_since: Option<Instant>,
    /// The pending bytes as last reported.
    pub(super) pending: u64,
    /// The main connection of a dual-channel replica, on its RDB channel.
    pub(super) main: Option<PeerId>,
}

impl Replica {
    pub(super) fn new(
        profile: PeerProfile,
        phase: Phase,
        acknowledged: Option<ReplOffset>,
        now: Instant,
    ) -> Self {
        Self {
            profile,
            acknowledged,
            synced: None,
            phase,
            last_heard: now,
            over_soft_since: None,
            pending: 0,
            main: None,
        }
    }

    /// Returns the synchronisation state.
    #[must_use]
    pub fn state(&self) -> PeerState {
        match self.phase {
            Phase::Sending { way: Way::File { is_written: true }, .. } => PeerState::SendBulk,
            Phase::Waiting { .. } | Phase::Sending { .. } | Phase::Fetched { .. } => PeerState::WaitBgsave,
            Phase::Apart => PeerState::BgTransfer,
            Phase::Loading { .. } | Phase::Online => PeerState::Online,
        }
    }

    /// Returns the pending bytes as last reported.
    #[must_use]
    pub fn pending(&self) -> u64 {
        self.pending
    }

    /// Returns whether the replica receives the stream.
    #[must_use]
    pub fn is_online(&self) -> bool {
        self.phase == Phase::Online
    }

    /// Returns whether the replica has acknowledged everything before `offset`.
    #[must_use]
    pub fn has(&self, offset: ReplOffset) -> bool {
        self.acknowledged >= Some(offset)
    }

    /// Returns the name of the connection's kind in INFO.
    #[must_use]
    pub fn channel(&self) -> &'static str {
        match self.phase {
            _ if self.profile.rdb_channel => "rdb-channel",
            Phase::Apart => "main-channel",
            _ => "replica",
        }
    }

    /// Returns the whole seconds since the replica was last heard from.
    #[must_use]
    pub fn lag(&self, now: Instant) -> u64 {
        now.since(self.last_heard).as_secs()
    }

    pub(super) fn waiting_since(&self) -> Option<Instant> {
        match self.phase {
            Phase::Waiting { since } => Some(since),
            _ => None,
        }
    }

    pub(super) fn is_in(&self, transfer: TransferId) -> bool {
        matches!(self.phase, Phase::Sending { transfer: of, .. } if of == transfer)
    }

    /// Returns whether the replica waits for a snapshot and would time out without empty lines.
    pub(super) fn needs_keepalive(&self) -> bool {
        let waits = matches!(
            self.phase,
            Phase::Waiting { .. }
                | Phase::Sending { cut: None, .. }
                | Phase::Sending { way: Way::File { is_written: false }, .. }
        );
        waits && !self.profile.sync
    }

    /// Returns whether the replica must send acknowledgements. While a snapshot is sent, progress of the connection
    /// counts.
    pub(super) fn must_acknowledge(&self) -> bool {
        !self.profile.sync && matches!(self.phase, Phase::Online | Phase::Loading { .. })
    }

    /// Returns whether this is an RDB channel whose main channel has not appeared.
    pub(super) fn awaits_main_channel(&self) -> bool {
        self.profile.rdb_channel && self.main.is_none()
    }

    /// Returns whether this is an RDB channel that has received its snapshot and whose main channel has not appeared.
    pub(super) fn is_fetched(&self) -> bool {
        matches!(self.phase, Phase::Fetched { .. })
    }

    /// Returns whether the main channel has been missing for too long.
    pub(super) fn main_channel_timed_out(&self, now: Instant) -> bool {
        matches!(self.phase, Phase::Fetched { since } if now >= since + MAIN_CHANNEL_TIMEOUT)
    }

    /// Returns the other connection of a dual-channel replica, if it cannot be used without this one.
    pub(super) fn needs(&self) -> Option<PeerId> {
        match self.phase {
            Phase::Sending { .. } => self.main,
            Phase::Apart => self.profile.snapshot_over,
            Phase::Waiting { .. } | Phase::Loading { .. } | Phase::Fetched { .. } | Phase::Online => None,
        }
    }
}
