//! A full synchronisation over two connections, as Valkey has it since version 8: the snapshot over one, and at the
//! same time the stream over the other. So what is written meanwhile waits at the replica, and not here.
//!
//! | | main channel | RDB channel |
//! | --- | --- | --- |
//! | 1 | REPLCONF capa dual-channel, PSYNC: `+DUALCHANNELSYNC` | |
//! | 2 | | REPLCONF rdb-channel 1, SYNC: empty lines until the snapshot is cut |
//! | 3 | | `$ENDOFF:offset id db peer`, then the snapshot with an end mark |
//! | 4 | REPLCONF set-rdb-client-id peer: `+OK` | |
//! | 5 | PSYNC id offset+1: `+CONTINUE id`, then the stream | |
//! | 6 | REPLCONF ACK: it has loaded the snapshot | closed, since all of it was sent |
//!
//! Until its second PSYNC the main channel is a client like any other, and no replica. From the cut on the log is kept
//! for the RDB channel, and from step 5 on for the main channel. Each needs the other: if one is lost before the
//! snapshot has been sent, the other is closed. The replica begins anew. A replica that has its snapshot may close the
//! RDB channel before its main channel has come as far as step 5: the log is kept for it all the same.
//!
//! A replica says nothing on its main channel until it has loaded the snapshot, so silence means nothing there.
//!
//! Source: what Valkey 9.1's servers say to each other.

use std::time::Duration;

use clock::Instant;

use super::peer::{Phase, Replica};
use super::{Action, CloseReason, Master, PeerId};
use crate::log::Position;
use crate::psync::Profile;

/// How long the main channel may be missing when the snapshot has been sent, as in Valkey.
pub(super) const MAIN_CHANNEL_PATIENCE: Duration = Duration::from_secs(60);

impl Master {
    /// Whether a replica that asked PSYNC and needs a snapshot is to fetch it over a second connection.
    #[must_use]
    pub fn sends_apart(&self, profile: &Profile) -> bool {
        let capable = profile.capabilities.dual_channel && profile.capabilities.eof;
        // A replica that has fetched one already is told that this did not help.
        let first = profile.snapshot_over.is_none();
        self.config.dual_channel && self.config.diskless && capable && first
    }

    /// Whether this is a connection for a snapshot that has been cut, and its replica's other one has not come.
    #[must_use]
    pub fn awaits_main_channel(&self, rdb: PeerId) -> bool {
        self.peers.get(&rdb).is_some_and(|peer| {
            let cut = matches!(peer.phase, Phase::Sending { cut: Some(_), .. } | Phase::Fetched { .. });
            cut && peer.lacks_main_channel()
        })
    }

    /// How many replicas fetch a snapshot and have not asked for the stream.
    #[must_use]
    pub fn waiting_for_psync(&self) -> usize {
        self.peers.keys().filter(|peer| self.awaits_main_channel(**peer)).count()
    }

    /// The main channel asked for the stream.
    pub(super) fn on_main_channel(
        &mut self,
        now: Instant,
        peer: PeerId,
        profile: Profile,
        resume: Option<Position>,
        out: &mut Vec<Action>,
    ) {
        let Some(rdb) = profile.snapshot_over else { return };
        let awaited = self.awaits_main_channel(rdb);
        let (true, Some(Position { id, offset })) = (awaited, resume) else {
            let reason = if awaited { CloseReason::TooFarBehind } else { CloseReason::OtherChannelLost };
            // A snapshot connection that is not its own is left alone.
            let profile = Profile { snapshot_over: Some(rdb).filter(|_| awaited), ..profile };
            self.peers.insert(peer, Replica::new(profile, Phase::Apart, None, now));
            return self.close(now, peer, reason, out);
        };
        let id = Some(id).filter(|_| profile.capabilities.psync2);
        // They come with the snapshot.
        out.push(Action::Continue { peer, id, with_slot_states: false });
        out.push(Action::Stream { peer, from: offset });
        out.push(Action::Release { peer: rdb });
        // It has as much as it says that it has loaded.
        self.peers.insert(peer, Replica::new(profile, Phase::Apart, None, now));
        let fetched = self.peers.get_mut(&rdb).is_some_and(|rdb| {
            rdb.main = Some(peer);
            rdb.is_fetched()
        });
        if fetched {
            self.close(now, rdb, CloseReason::Served, out);
        }
    }
}
