//! Full synchronisation over two connections, as in Valkey 8 and later: the snapshot over one and concurrently the
//! stream over the other. The replica, instead of the master, buffers the writes made during the transfer.
//!
//! | | main channel | RDB channel |
//! | --- | --- | --- |
//! | 1 | REPLCONF capa dual-channel, PSYNC: `+DUALCHANNELSYNC` | |
//! | 2 | | REPLCONF rdb-channel 1, SYNC: empty lines until the snapshot is taken |
//! | 3 | | `$ENDOFF:offset id db peer`, then the snapshot with an end mark |
//! | 4 | REPLCONF set-rdb-client-id peer: `+OK` | |
//! | 5 | PSYNC id offset+1: `+CONTINUE id`, then the stream | |
//! | 6 | REPLCONF ACK once the snapshot is loaded | closed after the snapshot |
//!
//! Until its second PSYNC the main channel is a normal client. The log is retained for the RDB channel from the
//! snapshot's position on, and for the main channel from step 5 on. If one connection is lost before the snapshot has
//! been sent, the other is closed and the replica starts again. A replica with a complete snapshot may close the RDB
//! channel before step 5; the log is retained for this replica nevertheless.
//!
//! A replica sends nothing on its main channel until it has loaded the snapshot, so the main channel has no timeout
//! before that.
//!
//! Source: observed traffic between Valkey 9.1 servers.

use std::time::Duration;

use clock::Instant;

use super::peer::{ConnectedReplica, ReplicaPhase};
use super::{CloseReason, Master, MasterAction, PeerId};
use crate::log::ReplPosition;
use crate::psync::PeerProfile;

/// How long to wait for the main channel after the snapshot has been sent, as in Valkey.
pub(super) const MAIN_CHANNEL_TIMEOUT: Duration = Duration::from_secs(60);

impl Master {
    /// Returns whether a replica that needs a full synchronisation must use a second connection for the snapshot.
    #[must_use]
    pub fn needs_rdb_channel(&self, profile: &PeerProfile) -> bool {
        let capable = profile.capabilities.dual_channel && profile.capabilities.end_mark;
        // After a failed dual-channel synchronisation, the replica falls back to a single connection.
        let first = profile.snapshot_connection.is_none();
        self.config.dual_channel && self.config.is_diskless && capable && first
    }

    /// Returns whether this is an RDB channel whose snapshot was taken and whose main channel has not appeared yet.
    #[must_use]
    pub fn awaits_main_channel(&self, rdb_peer: PeerId) -> bool {
        self.peers.get(&rdb_peer).is_some_and(|peer| {
            let cut = matches!(
                peer.phase,
                ReplicaPhase::Sending { position: Some(_), .. } | ReplicaPhase::SnapshotDelivered { .. }
            );
            cut && peer.awaits_main_channel()
        })
    }

    /// Returns the number of replicas that receive a snapshot and have not requested the stream yet.
    #[must_use]
    pub fn awaiting_psync_count(&self) -> usize {
        self.peers.keys().filter(|peer| self.awaits_main_channel(**peer)).count()
    }

    /// Handles PSYNC on the main channel.
    pub(super) fn on_main_channel(
        &mut self,
        now: Instant,
        peer: PeerId,
        profile: PeerProfile,
        resume_position: Option<ReplPosition>,
        out: &mut Vec<MasterAction>,
    ) {
        let Some(rdb) = profile.snapshot_connection else { return };
        let awaited = self.awaits_main_channel(rdb);
        let (true, Some(ReplPosition { id, offset })) = (awaited, resume_position) else {
            let reason = if awaited { CloseReason::TooFarBehind } else { CloseReason::OtherChannelLost };
            // Ignore a snapshot connection that belongs to another replica.
            let profile = PeerProfile { snapshot_connection: Some(rdb).filter(|_| awaited), ..profile };
            self.peers
                .insert(peer, ConnectedReplica::new(profile, ReplicaPhase::AwaitsMainChannel, None, now));
            return self.close(now, peer, reason, out);
        };
        let id = Some(id).filter(|_| profile.capabilities.psync2);
        // The slot states are not needed here, because the snapshot contains them.
        out.push(MasterAction::SendContinue { peer, id, includes_slot_states: false });
        out.push(MasterAction::SendStream { peer, from: offset });
        out.push(MasterAction::RemoveCursor { peer: rdb });
        // The offset is still unknown: a replica acknowledges only data that it has loaded.
        self.peers.insert(peer, ConnectedReplica::new(profile, ReplicaPhase::AwaitsMainChannel, None, now));
        let fetched = self.peers.get_mut(&rdb).is_some_and(|rdb| {
            rdb.main_channel = Some(peer);
            rdb.has_delivered_snapshot()
        });
        if fetched {
            self.close(now, rdb, CloseReason::SnapshotSent, out);
        }
    }
}
