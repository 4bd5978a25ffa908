//! One replica, as its master knows it.

use clock::Instant;
use slot_routing::ReplOffset;

use super::dual::MAIN_CHANNEL_PATIENCE;
use super::{PeerId, TransferId};
use crate::psync::Profile;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// For a snapshot to begin.
    Waiting { since: Instant },
    /// A snapshot is being made for it or sent to it.
    Sending { transfer: TransferId, cut: Option<ReplOffset>, way: Way },
    /// It has the snapshot and has not said yet that it has loaded it.
    Loading { cut: ReplOffset },
    /// The snapshot has gone over this connection, which may be gone, too; the one for the stream has not come.
    Fetched { since: Instant },
    /// It gets the stream, and has not said yet that it has loaded the snapshot that goes over another connection.
    Apart,
    /// It gets the stream.
    Online,
}

/// How a snapshot goes to a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// While it is made, with an end mark.
    Streamed,
    /// With its length, once it is in a file.
    File { is_written: bool },
}

/// The state of a replica as INFO names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerState {
    /// Its snapshot is being made; it is sent at the same time, if it needs no file.
    WaitBgsave,
    /// The file of its snapshot is on the way.
    SendBulk,
    /// It gets the stream while its snapshot is on the way over another connection.
    BgTransfer,
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
            Self::BgTransfer => "bg_transfer",
            Self::Online => "online",
        }
    }
}

/// One replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    /// The replica's description of itself.
    pub profile: Profile,
    /// Everything before this offset has been applied there; `None` before it has said so.
    pub acknowledged: Option<ReplOffset>,
    /// Everything before this offset is on the disk there, in an append-only file; `None` if it has none.
    pub synced: Option<ReplOffset>,
    pub(super) phase: Phase,
    pub(super) last_heard: Instant,
    pub(super) over_soft_since: Option<Instant>,
    /// Bytes that it has still to be sent, as last told.
    pub(super) pending: u64,
    /// The connection that gets the stream, of one that gets the snapshot alone.
    pub(super) main: Option<PeerId>,
}

impl Replica {
    pub(super) fn new(
        profile: Profile,
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

    /// How far its synchronisation is.
    #[must_use]
    pub fn state(&self) -> PeerState {
        match self.phase {
            Phase::Sending { way: Way::File { is_written: true }, .. } => PeerState::SendBulk,
            Phase::Waiting { .. } | Phase::Sending { .. } | Phase::Fetched { .. } => PeerState::WaitBgsave,
            Phase::Apart => PeerState::BgTransfer,
            Phase::Loading { .. } | Phase::Online => PeerState::Online,
        }
    }

    /// How many bytes it has still to be sent, as last told.
    #[must_use]
    pub fn pending(&self) -> u64 {
        self.pending
    }

    /// Whether it gets the stream.
    #[must_use]
    pub fn is_online(&self) -> bool {
        self.phase == Phase::Online
    }

    /// Whether it has said that it has everything before `offset`.
    #[must_use]
    pub fn has(&self, offset: ReplOffset) -> bool {
        self.acknowledged >= Some(offset)
    }

    /// Returns the name that INFO has for the kind of this connection.
    #[must_use]
    pub fn channel(&self) -> &'static str {
        match self.phase {
            _ if self.profile.rdb_channel => "rdb-channel",
            Phase::Apart => "main-channel",
            _ => "replica",
        }
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
        let waits = matches!(
            self.phase,
            Phase::Waiting { .. }
                | Phase::Sending { cut: None, .. }
                | Phase::Sending { way: Way::File { is_written: false }, .. }
        );
        waits && !self.profile.sync
    }

    /// Whether it must show life by itself. The connection sees to one that takes a snapshot.
    pub(super) fn must_acknowledge(&self) -> bool {
        !self.profile.sync && matches!(self.phase, Phase::Online | Phase::Loading { .. })
    }

    /// Whether the snapshot goes over this connection, and the one for the stream has not come.
    pub(super) fn lacks_main_channel(&self) -> bool {
        self.profile.rdb_channel && self.main.is_none()
    }

    /// Whether all of its snapshot has gone over this connection, and the one for the stream has not come.
    pub(super) fn is_fetched(&self) -> bool {
        matches!(self.phase, Phase::Fetched { .. })
    }

    /// Whether the connection for the stream has not come for too long.
    pub(super) fn gives_up_main_channel(&self, now: Instant) -> bool {
        matches!(self.phase, Phase::Fetched { since } if now >= since + MAIN_CHANNEL_PATIENCE)
    }

    /// The other connection of this replica, if it is of no use without this one.
    pub(super) fn needs(&self) -> Option<PeerId> {
        match self.phase {
            Phase::Sending { .. } => self.main,
            Phase::Apart => self.profile.snapshot_over,
            Phase::Waiting { .. } | Phase::Loading { .. } | Phase::Fetched { .. } | Phase::Online => None,
        }
    }
}
