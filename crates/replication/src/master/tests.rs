use super::*;
use crate::psync::{Capabilities, SnapshotContents};

fn config() -> MasterConfig {
    MasterConfig {
        ping_period: Duration::from_secs(10),
        timeout: Duration::from_secs(60),
        is_diskless: true,
        diskless_delay: Duration::from_secs(5),
        diskless_max_replicas: 0,
        dual_channel: false,
        backlog_ttl: Duration::from_secs(3600),
        max_lag: Duration::from_secs(10),
        output_limit: OutputLimit { hard_bytes: 1000, soft_bytes: 0, soft_duration: Duration::ZERO },
        backlog_size: 0,
    }
}

fn modern_profile() -> PeerProfile {
    PeerProfile {
        capabilities: Capabilities { end_mark: true, psync2: true, ..Capabilities::default() },
        ..PeerProfile::default()
    }
}

fn position_at(offset: u64) -> ReplPosition {
    ReplPosition { id: ReplId::NONE, offset: ReplOffset(offset) }
}

const PEER_1: PeerId = PeerId(1);
const PEER_2: PeerId = PeerId(2);
const TRANSFER_1: TransferId = TransferId(1);
const TRANSFER_2: TransferId = TransferId(2);

struct MasterFixture(Master);

impl MasterFixture {
    fn new(config: MasterConfig) -> Self {
        Self(Master::new(config, true, Instant::ORIGIN))
    }

    fn handle(&mut self, second: u64, event: MasterEvent) -> Vec<MasterAction> {
        let mut out = Vec::new();
        self.0.handle(Instant::from_millis(second * 1000), event, &mut out);
        out
    }

    fn join(
        &mut self,
        second: u64,
        peer: PeerId,
        profile: PeerProfile,
        resume_offset: Option<u64>,
    ) -> Vec<MasterAction> {
        self.handle(
            second,
            MasterEvent::Joined { peer, profile, resume_position: resume_offset.map(position_at) },
        )
    }

    fn acknowledge(&mut self, second: u64, peer: PeerId, offset: u64) -> Vec<MasterAction> {
        self.handle(
            second,
            MasterEvent::Acknowledged { peer, offset: ReplOffset(offset), synced_offset: None },
        )
    }

    fn peer_states(&self) -> Vec<&'static str> {
        self.0.peers().map(|(_, peer)| peer.state().name()).collect()
    }
}

fn stream_action(peer: PeerId, start_offset: u64) -> MasterAction {
    MasterAction::SendStream { peer, from: ReplOffset(start_offset) }
}

#[test]
fn replicas_that_wait_together_share_a_snapshot_and_stream_from_its_position() {
    let mut master = MasterFixture::new(config());
    assert_eq!(master.join(0, PEER_1, modern_profile(), None), []);
    assert_eq!(master.join(3, PEER_2, modern_profile(), None), []);
    assert_eq!(master.peer_states(), ["wait_bgsave"; 2]);
    let life = |peer| MasterAction::SendEmptyLine { peer };
    assert_eq!(master.handle(4, MasterEvent::Deadline), [life(PEER_1), life(PEER_2)]);
    let snapshot = MasterAction::TakeSnapshot {
        transfer: TRANSFER_1,
        peers: vec![PEER_1, PEER_2],
        uses_end_mark: true,
        format: SnapshotFormat::default(),
    };
    let actions = master.handle(5, MasterEvent::Deadline);
    assert_eq!(actions, [snapshot, life(PEER_1), life(PEER_2)]);

    let full = |peer| MasterAction::SendFullResync { peer, position: position_at(70) };
    let cut = MasterEvent::SnapshotTaken { transfer: TRANSFER_1, position: position_at(70), db: None };
    let sent = |peer| MasterAction::SendSnapshot { peer };
    assert_eq!(master.handle(5, cut), [full(PEER_1), sent(PEER_1), full(PEER_2), sent(PEER_2)]);
    assert_eq!(master.peer_states(), ["wait_bgsave"; 2]);
    assert_eq!(master.handle(6, MasterEvent::SnapshotSent { peer: PEER_1 }), []);
    assert_eq!(master.acknowledge(7, PEER_1, 70), [stream_action(PEER_1, 70)]);
    assert_eq!(master.peer_states(), ["online", "wait_bgsave"]);
    assert_eq!(master.handle(8, MasterEvent::SnapshotSent { peer: PEER_2 }), []);
    assert_eq!(master.acknowledge(8, PEER_2, 70), [stream_action(PEER_2, 70)]);
    assert_eq!(master.acknowledge(9, PEER_2, 90), []);
    assert_eq!(master.0.acknowledged_offsets(), [ReplOffset(70), ReplOffset(90)]);
}

#[test]
fn replica_that_joins_during_a_streamed_snapshot_waits_for_the_next() {
    let mut master = MasterFixture::new(MasterConfig { diskless_delay: Duration::ZERO, ..config() });
    let first = MasterAction::TakeSnapshot {
        transfer: TRANSFER_1,
        peers: vec![PEER_1],
        uses_end_mark: true,
        format: SnapshotFormat::default(),
    };
    assert_eq!(master.join(0, PEER_1, modern_profile(), None), [first]);
    assert_eq!(master.join(0, PEER_2, modern_profile(), None), []);
    assert_eq!(master.0.awaited_snapshot(PEER_2), Some(AwaitedSnapshot::NextAfterStreamed));
    master.handle(0, MasterEvent::SnapshotTaken { transfer: TRANSFER_1, position: position_at(7), db: None });
    let second = MasterAction::TakeSnapshot {
        transfer: TRANSFER_2,
        peers: vec![PEER_2],
        uses_end_mark: true,
        format: SnapshotFormat::default(),
    };
    assert_eq!(master.handle(1, MasterEvent::SnapshotSent { peer: PEER_1 }), [second]);
}

/// Other replicas can join a snapshot file until it is complete and is sent.
#[test]
fn replica_joins_a_snapshot_that_is_being_written_to_a_file() {
    let mut master = MasterFixture::new(MasterConfig { is_diskless: false, ..config() });
    let form = SnapshotFormat::default();
    let first = MasterAction::TakeSnapshot {
        transfer: TRANSFER_1,
        peers: vec![PEER_1],
        uses_end_mark: false,
        format: form,
    };
    assert_eq!(master.join(0, PEER_1, modern_profile(), None), [first]);
    assert_eq!(master.join(0, PEER_2, modern_profile(), None), [], "it is not cut yet");
    let awaited = |master: &MasterFixture, peer| master.0.awaited_snapshot(peer);
    assert_eq!(awaited(&master, PEER_2), Some(AwaitedSnapshot::NextAfterFile));
    let full = |peer| MasterAction::SendFullResync { peer, position: position_at(7) };
    let keep = |peer| MasterAction::RetainLog { peer, from: ReplOffset(7) };
    let cut = MasterEvent::SnapshotTaken { transfer: TRANSFER_1, position: position_at(7), db: None };
    assert_eq!(master.handle(0, cut), [full(PEER_1), keep(PEER_2), full(PEER_2)]);
    let three = PeerId(3);
    assert_eq!(master.join(1, three, modern_profile(), None), [keep(three), full(three)]);
    assert_eq!(awaited(&master, three), Some(AwaitedSnapshot::JoinedOpenFile));
    let other = PeerProfile {
        is_rdb_only: true,
        contents: SnapshotContents { includes_data: false, includes_functions: true },
        ..modern_profile()
    };
    assert_eq!(master.join(1, PeerId(4), other, None), [], "it wants other contents");
    assert_eq!(master.peer_states(), ["wait_bgsave"; 4]);
    let lives = master.handle(2, MasterEvent::Deadline);
    assert_eq!(lives.len(), 4, "writing may take longer than repl-timeout: {lives:?}");
    master.handle(2, MasterEvent::Closed { peer: PEER_2 });
    let sends = MasterAction::SendFile { transfer: TRANSFER_1, peers: vec![PEER_1, three] };
    assert_eq!(master.handle(3, MasterEvent::SnapshotWritten { transfer: TRANSFER_1 }), [sends]);
    assert_eq!(master.peer_states(), ["send_bulk", "send_bulk", "wait_bgsave"]);
    assert_eq!(master.join(3, PEER_2, modern_profile(), None), [], "too late");
    assert_eq!(master.handle(4, MasterEvent::SnapshotSent { peer: PEER_1 }), [stream_action(PEER_1, 7)]);
    let next = master.handle(4, MasterEvent::SnapshotSent { peer: three });
    assert!(
        matches!(
            next[..],
            [MasterAction::SendStream { .. }, MasterAction::TakeSnapshot { transfer: TRANSFER_2, .. }]
        ),
        "{next:?}"
    );
}

#[test]
fn enough_waiting_replicas_start_the_snapshot_early() {
    let mut master = MasterFixture::new(MasterConfig { diskless_max_replicas: 2, ..config() });
    assert_eq!(master.join(0, PEER_1, modern_profile(), None), []);
    let snapshot = MasterAction::TakeSnapshot {
        transfer: TRANSFER_1,
        peers: vec![PEER_1, PEER_2],
        uses_end_mark: true,
        format: SnapshotFormat::default(),
    };
    assert_eq!(master.join(0, PEER_2, modern_profile(), None), [snapshot]);
}

#[test]
fn replica_without_eof_capability_gets_a_length_and_streams_at_once() {
    let mut master = MasterFixture::new(config());
    let old = PeerProfile::default();
    let snapshot = MasterAction::TakeSnapshot {
        transfer: TRANSFER_1,
        peers: vec![PEER_1],
        uses_end_mark: false,
        format: SnapshotFormat::default(),
    };
    assert_eq!(master.join(0, PEER_1, old, None), [snapshot]);
    master.handle(0, MasterEvent::SnapshotTaken { transfer: TRANSFER_1, position: position_at(7), db: None });
    assert_eq!(master.handle(1, MasterEvent::SnapshotSent { peer: PEER_1 }), [stream_action(PEER_1, 7)]);
}

#[test]
fn sync_gets_no_fullresync_line_and_rdb_only_clients_are_closed_after_the_snapshot() {
    let mut master = MasterFixture::new(MasterConfig { is_diskless: false, ..config() });
    master.join(0, PEER_1, PeerProfile { uses_sync: true, ..modern_profile() }, None);
    assert_eq!(
        master.handle(
            0,
            MasterEvent::SnapshotTaken { transfer: TRANSFER_1, position: position_at(7), db: None }
        ),
        []
    );
    assert_eq!(master.handle(1, MasterEvent::SnapshotSent { peer: PEER_1 }), [stream_action(PEER_1, 7)]);
    master.join(1, PEER_2, PeerProfile { is_rdb_only: true, ..modern_profile() }, None);
    master.handle(1, MasterEvent::SnapshotTaken { transfer: TRANSFER_2, position: position_at(8), db: None });
    let served = MasterAction::Close { peer: PEER_2, reason: CloseReason::SnapshotSent };
    assert_eq!(master.handle(2, MasterEvent::SnapshotSent { peer: PEER_2 }), [served]);
    // A replica that sent SYNC does not acknowledge, so there is no timeout.
    let silent = master.handle(1000, MasterEvent::Deadline);
    assert_eq!(silent, [MasterAction::AppendPing]);
}

#[test]
fn partial_synchronisation_streams_at_once() {
    let mut master = MasterFixture::new(config());
    let go_on =
        MasterAction::SendContinue { peer: PEER_1, id: Some(ReplId::NONE), includes_slot_states: false };
    assert_eq!(master.join(0, PEER_1, modern_profile(), Some(40)), [go_on, stream_action(PEER_1, 40)]);
    let old = MasterAction::SendContinue { peer: PEER_2, id: None, includes_slot_states: false };
    assert_eq!(master.join(0, PEER_2, PeerProfile::default(), Some(40)), [old, stream_action(PEER_2, 40)]);
    assert_eq!(master.0.acknowledged_offsets(), [ReplOffset(40); 2]);
}

#[test]
fn replica_without_acknowledgement_does_not_count_as_good() {
    let mut master = MasterFixture::new(config());
    master.join(0, PEER_1, PeerProfile::default(), None);
    master.handle(0, MasterEvent::SnapshotTaken { transfer: TRANSFER_1, position: position_at(0), db: None });
    master.handle(1, MasterEvent::SnapshotSent { peer: PEER_1 });
    assert_eq!(master.peer_states(), ["online"]);
    assert_eq!(master.0.acknowledged_offsets(), [], "it loads");
    master.acknowledge(2, PEER_1, 0);
    assert_eq!(master.0.acknowledged_offsets(), [ReplOffset(0)]);
}

#[test]
fn shutdown_waits_for_a_replica_that_loads_its_snapshot() {
    let mut master = MasterFixture::new(config());
    master.join(0, PEER_1, modern_profile(), None);
    // `repl-diskless-sync-delay` has not expired.
    master.handle(5, MasterEvent::Deadline);
    assert_eq!(master.0.replicas_awaited_at_shutdown(), 0, "it has no snapshot yet");
    master
        .handle(5, MasterEvent::SnapshotTaken { transfer: TRANSFER_1, position: position_at(70), db: None });
    master.handle(6, MasterEvent::SnapshotSent { peer: PEER_1 });
    assert_eq!((master.0.online_replicas().count(), master.0.replicas_awaited_at_shutdown()), (0, 1));
    master.acknowledge(7, PEER_1, 70);
    assert_eq!((master.0.online_replicas().count(), master.0.replicas_awaited_at_shutdown()), (1, 1));
}

#[test]
fn reconnected_replica_counts_once() {
    let node = |byte| Some(NodeId::from_random([byte; 20]));
    let mut master = MasterFixture::new(config());
    for (peer, byte) in [(PEER_1, 1), (PEER_2, 2), (PeerId(3), 1)] {
        master.join(0, peer, PeerProfile { node_id: node(byte), ..modern_profile() }, Some(10));
    }
    master.acknowledge(1, PEER_1, 50);
    master.acknowledge(1, PEER_2, 40);
    assert_eq!(master.0.acknowledged_offsets(), [ReplOffset(40), ReplOffset(10)]);
    assert_eq!(master.0.good_replica_count(Instant::from_millis(1000)), 2);
    assert_eq!(master.0.in_sync_node_ids(ReplOffset(40)), Some(vec![node(2).unwrap()]));
}

#[test]
fn lagging_replica_does_not_count_as_good_and_a_silent_one_is_closed() {
    let mut master = MasterFixture::new(config());
    master.join(0, PEER_1, modern_profile(), Some(40));
    let good = |master: &MasterFixture, second: u64| {
        master.0.good_replica_count(Instant::from_millis(second * 1000))
    };
    assert_eq!(good(&master, 10), 1);
    assert_eq!(good(&master, 11), 0);
    master.handle(20, MasterEvent::ReplicaAlive { peer: PEER_1 });
    assert_eq!(good(&master, 25), 1);
    assert!(
        !master
            .handle(79, MasterEvent::Deadline)
            .iter()
            .any(|action| matches!(action, MasterAction::Close { .. }))
    );
    let silent = MasterAction::Close { peer: PEER_1, reason: CloseReason::TimedOut };
    assert_eq!(master.handle(80, MasterEvent::Deadline), [silent]);
    assert_eq!(good(&master, 80), 0);
}

#[test]
fn only_a_master_with_replicas_logs_pings() {
    let mut master = MasterFixture::new(config());
    assert_eq!(master.handle(100, MasterEvent::Deadline), []);
    master.join(100, PEER_1, modern_profile(), Some(0));
    assert_eq!(master.0.next_deadline(), Some(Instant::from_millis(101_000)));
    assert_eq!(master.handle(109, MasterEvent::Deadline), []);
    assert_eq!(master.handle(110, MasterEvent::Deadline), [MasterAction::AppendPing]);
    master.handle(111, MasterEvent::RoleChanged { is_master: false });
    assert_eq!(master.handle(125, MasterEvent::Deadline), []);
}

#[test]
fn log_is_closed_after_the_backlog_ttl() {
    let mut master = MasterFixture::new(config());
    assert_eq!(master.0.next_deadline(), None);
    master.join(0, PEER_1, modern_profile(), Some(0));
    master.handle(10, MasterEvent::Closed { peer: PEER_1 });
    assert_eq!(master.0.next_deadline(), Some(Instant::from_millis(3_610_000)));
    assert_eq!(master.handle(3609, MasterEvent::Deadline), []);
    assert_eq!(master.handle(3610, MasterEvent::Deadline), [MasterAction::CloseLog]);
    assert_eq!(master.handle(9999, MasterEvent::Deadline), []);
}

/// A replica may continue from a backlog larger than its output limit. If the replica were closed for its pending
/// bytes, it would reconnect and be closed for ever.
#[test]
fn backlog_does_not_count_against_the_output_limit() {
    let mut master = MasterFixture::new(MasterConfig { backlog_size: 5000, ..config() });
    master.join(0, PEER_1, modern_profile(), Some(0));
    assert_eq!(master.handle(1, MasterEvent::PendingBytes { peer: PEER_1, bytes: 5000 }), []);
    let behind = MasterAction::Close { peer: PEER_1, reason: CloseReason::TooFarBehind };
    assert_eq!(master.handle(2, MasterEvent::PendingBytes { peer: PEER_1, bytes: 5001 }), [behind]);
}

#[test]
fn replica_beyond_its_output_limit_is_closed() {
    let mut master = MasterFixture::new(config());
    master.join(0, PEER_1, modern_profile(), Some(0));
    assert_eq!(master.handle(1, MasterEvent::PendingBytes { peer: PEER_1, bytes: 1000 }), []);
    let behind = MasterAction::Close { peer: PEER_1, reason: CloseReason::TooFarBehind };
    assert_eq!(master.handle(1, MasterEvent::PendingBytes { peer: PEER_1, bytes: 1001 }), [behind]);
    assert_eq!(master.handle(1, MasterEvent::Closed { peer: PEER_1 }), [], "once is enough");
}

/// A replica that was disconnected when a slot migration started missed the state of the slot.
#[test]
fn slot_migrations_are_replicated_unless_a_replica_does_not_support_them() {
    let mut master = MasterFixture::new(config());
    assert_eq!(master.0.slot_state_replica_count(), Some(0), "who comes back reads it");
    let mut reader = modern_profile();
    reader.capabilities.slot_moves = true;
    master.join(0, PEER_1, reader, Some(10));
    assert_eq!(master.0.slot_state_replica_count(), Some(1));
    master.join(0, PEER_2, modern_profile(), Some(10));
    assert_eq!(master.0.slot_state_replica_count(), None);
    master.handle(0, MasterEvent::Closed { peer: PEER_2 });
    master.handle(0, MasterEvent::Closed { peer: PEER_1 });
    assert_eq!(master.0.slot_state_replica_count(), Some(0));
}

#[test]
fn failed_or_abandoned_snapshot_is_followed_by_the_next() {
    let mut master = MasterFixture::new(MasterConfig { diskless_delay: Duration::ZERO, ..config() });
    master.join(0, PEER_1, modern_profile(), None);
    master.join(0, PEER_2, modern_profile(), None);
    let failed = MasterAction::Close { peer: PEER_1, reason: CloseReason::SnapshotFailed };
    let cancelled = MasterAction::CancelSnapshot { transfer: TRANSFER_1 };
    let next = MasterAction::TakeSnapshot {
        transfer: TRANSFER_2,
        peers: vec![PEER_2],
        uses_end_mark: true,
        format: SnapshotFormat::default(),
    };
    let actions = master.handle(1, MasterEvent::TransferFailed { transfer: TRANSFER_1 });
    assert_eq!(actions, [failed, cancelled, next]);
    let cancelled = MasterAction::CancelSnapshot { transfer: TRANSFER_2 };
    assert_eq!(master.handle(2, MasterEvent::Closed { peer: PEER_2 }), [cancelled]);
    assert_eq!(
        master.handle(
            2,
            MasterEvent::SnapshotTaken { transfer: TRANSFER_2, position: position_at(1), db: None }
        ),
        [],
        "too late"
    );
}

#[test]
fn replaced_history_closes_all_replicas() {
    let mut master = MasterFixture::new(config());
    master.join(0, PEER_1, modern_profile(), Some(0));
    master.join(0, PEER_2, modern_profile(), None);
    let gone = |peer| MasterAction::Close { peer, reason: CloseReason::HistoryReplaced };
    assert_eq!(master.handle(1, MasterEvent::HistoryReplaced), [gone(PEER_1), gone(PEER_2)]);
    assert_eq!(master.0.peers().len(), 0);
}

/// Redis and Valkey 9 each have an RDB format that the other cannot read. A replica that needs another format than the
/// waiting ones gets the next snapshot.
#[test]
fn replicas_with_different_formats_get_separate_snapshots() {
    let mut master = MasterFixture::new(config());
    let mut valkey = modern_profile();
    valkey.capabilities.valkey_format = true;
    let three = PeerId(3);
    assert_eq!(master.join(0, PEER_1, valkey.clone(), None), []);
    assert_eq!(master.join(1, PEER_2, modern_profile(), None), []);
    assert_eq!(master.join(2, three, valkey, None), []);
    let actions = master.handle(5, MasterEvent::Deadline);
    let first = MasterAction::TakeSnapshot {
        transfer: TRANSFER_1,
        peers: vec![PEER_1, three],
        uses_end_mark: true,
        format: SnapshotFormat { uses_valkey_format: true, ..SnapshotFormat::default() },
    };
    assert_eq!(actions[0], first);
    master
        .handle(5, MasterEvent::SnapshotTaken { transfer: TRANSFER_1, position: position_at(70), db: None });
    master.handle(6, MasterEvent::SnapshotSent { peer: PEER_1 });
    let second = MasterAction::TakeSnapshot {
        transfer: TRANSFER_2,
        peers: vec![PEER_2],
        uses_end_mark: true,
        format: SnapshotFormat::default(),
    };
    assert_eq!(master.handle(7, MasterEvent::SnapshotSent { peer: three }), [second]);
}

/// `redis-cli --functions-rdb` and a waiting replica do not share a snapshot.
#[test]
fn functions_only_client_gets_its_own_snapshot() {
    let mut master = MasterFixture::new(config());
    let contents = SnapshotContents { includes_data: false, includes_functions: true };
    let form = SnapshotFormat { contents, ..SnapshotFormat::default() };
    let first = MasterAction::TakeSnapshot {
        transfer: TRANSFER_1,
        peers: vec![PEER_1],
        uses_end_mark: true,
        format: form,
    };
    assert_eq!(
        master.join(0, PEER_1, PeerProfile { contents, is_rdb_only: true, ..modern_profile() }, None),
        []
    );
    assert_eq!(master.join(1, PEER_2, modern_profile(), None), []);
    assert_eq!(master.handle(5, MasterEvent::Deadline)[0], first);
    master
        .handle(5, MasterEvent::SnapshotTaken { transfer: TRANSFER_1, position: position_at(70), db: None });
    let second = MasterAction::TakeSnapshot {
        transfer: TRANSFER_2,
        peers: vec![PEER_2],
        uses_end_mark: true,
        format: SnapshotFormat::default(),
    };
    assert!(master.handle(7, MasterEvent::SnapshotSent { peer: PEER_1 }).contains(&second));
    assert!(
        modern_profile().is_servable() && !PeerProfile { contents, ..PeerProfile::default() }.is_servable()
    );
}

mod two_channels {
    use super::*;

    const RDB_PEER: PeerId = PEER_1;
    const MAIN_PEER: PeerId = PEER_2;

    /// Returns a master with a replica whose RDB channel has been waiting since second 0.
    fn fixture_with_rdb_channel() -> MasterFixture {
        let mut master = MasterFixture::new(MasterConfig { dual_channel: true, ..config() });
        assert_eq!(
            master.join(
                0,
                RDB_PEER,
                PeerProfile { is_rdb_only: true, is_rdb_channel: true, ..modern_profile() },
                None
            ),
            []
        );
        master
    }

    /// Returns the master of [`fixture_with_rdb_channel`] after the snapshot was taken at offset 70.
    fn fixture_with_snapshot_position() -> MasterFixture {
        let mut master = fixture_with_rdb_channel();
        master.handle(5, MasterEvent::Deadline);
        let end = MasterAction::SendEndOffset { peer: RDB_PEER, position: position_at(70), db: Some(3) };
        let cut = MasterEvent::SnapshotTaken { transfer: TRANSFER_1, position: position_at(70), db: Some(3) };
        assert_eq!(master.handle(5, cut), [end, MasterAction::SendSnapshot { peer: RDB_PEER }]);
        master
    }

    fn main_channel_profile() -> PeerProfile {
        let capabilities = Capabilities { dual_channel: true, ..modern_profile().capabilities };
        PeerProfile { capabilities, snapshot_connection: Some(RDB_PEER), ..modern_profile() }
    }

    fn stream_start_actions() -> [MasterAction; 3] {
        let go_on = MasterAction::SendContinue {
            peer: MAIN_PEER,
            id: Some(ReplId::NONE),
            includes_slot_states: false,
        };
        [go_on, stream_action(MAIN_PEER, 70), MasterAction::RemoveCursor { peer: RDB_PEER }]
    }

    fn close_action(peer: PeerId, reason: CloseReason) -> MasterAction {
        MasterAction::Close { peer, reason }
    }

    #[test]
    fn dual_channel_needs_the_capability_and_the_setting() {
        let capable = PeerProfile { snapshot_connection: None, ..main_channel_profile() };
        let offered = |dual_channel, diskless, profile: &PeerProfile| {
            MasterFixture::new(MasterConfig { dual_channel, is_diskless: diskless, ..config() })
                .0
                .needs_rdb_channel(profile)
        };
        assert!(offered(true, true, &capable));
        assert!(!offered(false, true, &capable));
        assert!(!offered(true, false, &capable));
        assert!(!offered(true, true, &modern_profile()));
        assert!(
            !offered(true, true, &main_channel_profile()),
            "it has fetched a snapshot, and that did not help"
        );
    }

    #[test]
    fn stream_is_sent_while_the_snapshot_is_transferred() {
        let mut master = fixture_with_rdb_channel();
        assert!(
            !master.0.awaits_main_channel(RDB_PEER),
            "there is no place yet from which to ask for the stream"
        );
        assert_eq!(master.handle(1, MasterEvent::Deadline), [MasterAction::SendEmptyLine { peer: RDB_PEER }]);

        let mut master = fixture_with_snapshot_position();
        assert!(master.0.awaits_main_channel(RDB_PEER));
        assert!(!master.0.awaits_main_channel(MAIN_PEER));
        assert_eq!(master.0.awaiting_psync_count(), 1);
        assert_eq!(master.join(6, MAIN_PEER, main_channel_profile(), Some(70)), stream_start_actions());
        assert!(!master.0.awaits_main_channel(RDB_PEER), "one is enough");
        assert_eq!(master.0.awaiting_psync_count(), 0);
        let channels: Vec<_> = master.0.peers().map(|(_, peer)| peer.channel_name()).collect();
        assert_eq!(channels, ["rdb-channel", "main-channel"]);
        assert_eq!(master.peer_states(), ["wait_bgsave", "bg_transfer"]);

        assert_eq!(
            master.handle(7, MasterEvent::SnapshotSent { peer: RDB_PEER }),
            [close_action(RDB_PEER, CloseReason::SnapshotSent)]
        );
        assert_eq!(master.0.acknowledged_offsets(), [], "it has not loaded what comes before the stream");
        assert!(
            !master
                .handle(500, MasterEvent::Deadline)
                .contains(&close_action(MAIN_PEER, CloseReason::TimedOut)),
            "it loads"
        );
        assert_eq!(master.acknowledge(501, MAIN_PEER, 90), []);
        assert_eq!(master.peer_states(), ["online"]);
        assert_eq!(master.0.peers().next().map(|(_, peer)| peer.channel_name()), Some("replica"));
        assert_eq!(master.0.acknowledged_offsets(), [ReplOffset(90)]);
    }

    #[test]
    fn sent_snapshot_waits_a_minute_for_the_main_channel() {
        let mut master = fixture_with_snapshot_position();
        assert_eq!(master.handle(6, MasterEvent::SnapshotSent { peer: RDB_PEER }), []);
        assert_eq!(master.0.awaiting_psync_count(), 1);
        let mut late = stream_start_actions().to_vec();
        late.push(close_action(RDB_PEER, CloseReason::SnapshotSent));
        assert_eq!(master.join(65, MAIN_PEER, main_channel_profile(), Some(70)), late);

        let mut master = fixture_with_snapshot_position();
        master.handle(6, MasterEvent::SnapshotSent { peer: RDB_PEER });
        assert!(
            !master
                .handle(65, MasterEvent::Deadline)
                .contains(&close_action(RDB_PEER, CloseReason::OtherChannelLost))
        );
        assert!(
            master
                .handle(66, MasterEvent::Deadline)
                .contains(&close_action(RDB_PEER, CloseReason::OtherChannelLost))
        );
        assert!(!master.0.awaits_main_channel(RDB_PEER));
    }

    #[test]
    fn losing_one_channel_before_the_snapshot_is_sent_closes_the_other() {
        let cancelled = MasterAction::CancelSnapshot { transfer: TRANSFER_1 };
        for (lost, other) in [(RDB_PEER, MAIN_PEER), (MAIN_PEER, RDB_PEER)] {
            let mut master = fixture_with_snapshot_position();
            master.join(6, MAIN_PEER, main_channel_profile(), Some(70));
            let actions = master.handle(7, MasterEvent::Closed { peer: lost });
            assert!(actions.contains(&close_action(other, CloseReason::OtherChannelLost)), "{actions:?}");
            assert!(actions.contains(&cancelled), "{actions:?}");
            assert_eq!(master.0.peers().len(), 0);
        }
        let mut master = fixture_with_snapshot_position();
        master.join(6, MAIN_PEER, main_channel_profile(), Some(70));
        master.handle(7, MasterEvent::TransferFailed { transfer: TRANSFER_1 });
        assert_eq!(master.0.peers().len(), 0);

        let mut master = fixture_with_snapshot_position();
        master.join(6, MAIN_PEER, main_channel_profile(), Some(70));
        master.handle(7, MasterEvent::SnapshotSent { peer: RDB_PEER });
        assert_eq!(master.handle(7, MasterEvent::Closed { peer: RDB_PEER }), [], "it has done its part");
        assert_eq!(master.peer_states(), ["bg_transfer"]);
    }

    #[test]
    fn main_channel_without_its_snapshot_or_backlog_position_is_closed() {
        let mut master = MasterFixture::new(MasterConfig { dual_channel: true, ..config() });
        let lost = close_action(MAIN_PEER, CloseReason::OtherChannelLost);
        assert_eq!(master.join(0, MAIN_PEER, main_channel_profile(), Some(70)), [lost]);

        let mut master = fixture_with_snapshot_position();
        let actions = master.join(6, MAIN_PEER, main_channel_profile(), None);
        assert_eq!(actions[0], close_action(MAIN_PEER, CloseReason::TooFarBehind));
        assert_eq!(master.0.peers().len(), 0, "the snapshot is of no use any more");

        // A connection that claims the RDB channel of another replica does not affect that channel.
        let mut master = fixture_with_snapshot_position();
        let three = PeerId(3);
        master.join(6, MAIN_PEER, main_channel_profile(), Some(70));
        let lost = close_action(three, CloseReason::OtherChannelLost);
        assert_eq!(master.join(7, three, main_channel_profile(), Some(70)), [lost]);
        assert_eq!(master.peer_states(), ["wait_bgsave", "bg_transfer"]);
    }

    #[test]
    fn dual_channel_replicas_share_a_snapshot_with_others() {
        let mut master = fixture_with_rdb_channel();
        master.0.set_config(MasterConfig { is_diskless: false, ..config() });
        assert_eq!(master.join(1, MAIN_PEER, modern_profile(), None), []);
        let snapshot = MasterAction::TakeSnapshot {
            transfer: TRANSFER_1,
            peers: vec![RDB_PEER, MAIN_PEER],
            uses_end_mark: true,
            format: SnapshotFormat::default(),
        };
        assert_eq!(master.handle(5, MasterEvent::Deadline)[0], snapshot, "promised when the switch was on");
    }
}

/// Regression test: after the period was increased, a PING was still sent by the old, shorter period. It advanced the
/// replicas' offsets past the end of their next master's log.
#[test]
fn changed_ping_period_applies_at_once() {
    let mut master = MasterFixture::new(MasterConfig { ping_period: Duration::from_secs(3), ..config() });
    master.join(0, PEER_1, modern_profile(), Some(50));
    let pings = |master: &mut MasterFixture, second| {
        master.handle(second, MasterEvent::Deadline).contains(&MasterAction::AppendPing)
    };
    assert!(!pings(&mut master, 2) && pings(&mut master, 3));
    master.0.set_config(MasterConfig { ping_period: Duration::from_secs(100), ..config() });
    assert!(!pings(&mut master, 6) && !pings(&mut master, 50));
    master.0.set_config(MasterConfig { ping_period: Duration::from_secs(48), ..config() });
    assert!(pings(&mut master, 51));
    master.0.set_config(MasterConfig { ping_period: Duration::from_secs(1), ..config() });
    assert!(pings(&mut master, 52));
}
