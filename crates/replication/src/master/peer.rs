//! What a master knows of one replica.

use clock::Instant;
use slot_routing::ReplOffset;

use super::TransferId;
use crate::psync::Profile;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// For a snapshot to begin.
    Waiting { since: Instant },
    /// A snapshot is being made for it or sent to it.
    Sending { transfer: TransferId, cut: Option<ReplOffset>, eof: bool },
    /// It has the snapshot and has not said yet that it has loaded it.
    Loading { cut: ReplOffset },
    /// It gets the stream.
    Online,
}

/// The state of a replica as INFO names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerState {
    /// It waits for a snapshot to begin.
    WaitBgsave,
    /// Its snapshot is on the way.
    SendBulk,
    /// It gets the stream.
    Online,
}

impl PeerState {
    /// The word for it in INFO.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::WaitBgsave => "wait_bgsave",
            Self::SendBulk => "send_bulk",
            Self::Online => "online",
        }
    }
}

/// One replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    /// What it said of itself.
    pub profile: Profile,
    /// Everything before this offset has been applied there.
    pub acknowledged: ReplOffset,
    /// Everything before this offset is on the disk there, in an append-only file; `None` if it has none.
    pub synced: Option<ReplOffset>,
    pub(super) phase: Phase,
    pub(super) last_heard: Instant,
    pub(super) over_soft_since: Option<Instant>,
    /// Bytes that it has still to be sent, as last told.
    pub(super) pending: u64,
}

impl Replica {
    pub(super) fn new(profile: Profile, phase: Phase, acknowledged: ReplOffset, now: Instant) -> Self {
        Self {
            profile,
            acknowledged,
            synced: None,
            phase,
            last_heard: now,
            over_soft_since: None,
            pending: 0,
        }
    }

    /// How far its synchronisation is.
    #[must_use]
    pub fn state(&self) -> PeerState {
        match self.phase {
            Phase::Waiting { .. } | Phase::Sending { cut: None, .. } => PeerState::WaitBgsave,
            Phase::Sending { .. } | Phase::Loading { .. } => PeerState::SendBulk,
            Phase::Online => PeerState::Online,
        }
    }

    /// Whether it gets the stream.
    #[must_use]
    pub fn is_online(&self) -> bool {
        self.phase == Phase::Online
    }

    /// Whole seconds since it was last heard.
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

    /// Whether it waits for the first byte of a snapshot and would give up if nothing came.
    pub(super) fn expects_life(&self) -> bool {
        !self.profile.sync && self.state() == PeerState::WaitBgsave
    }

    /// Whether it must show life by itself. Who takes a snapshot is seen to by the connection.
    pub(super) fn must_acknowledge(&self) -> bool {
        !self.profile.sync && matches!(self.phase, Phase::Online | Phase::Loading { .. })
    }
}
