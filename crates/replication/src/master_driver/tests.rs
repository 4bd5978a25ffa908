use super::*;
use crate::ReplId;
use crate::master::OutputLimit;

const PEER_1: PeerId = PeerId(1);
const PEER_2: PeerId = PeerId(2);

fn id(byte: u8) -> ReplId {
    ReplId::from_random([byte; 20])
}

fn at_millis(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

/// A driver with its log, and its actions since the last call of `take_actions`.
struct MasterFixture {
    driver: MasterDriver,
    log: Log,
    actions: Vec<MasterDriverAction>,
}

impl MasterFixture {
    fn new() -> Self {
        let config = MasterConfig {
            ping_period: Duration::from_secs(10),
            timeout: Duration::from_secs(60),
            is_diskless: true,
            diskless_delay: Duration::ZERO,
            diskless_max_replicas: 0,
            dual_channel: true,
            backlog_ttl: Duration::from_secs(3600),
            max_lag: Duration::from_secs(10),
            output_limit: OutputLimit { hard_bytes: 1000, soft_bytes: 0, soft_duration: Duration::ZERO },
            backlog_size: 0,
        };
        let serving = MasterDriver::new(config, at_millis(0));
        Self { driver: serving, log: Log::new(id(0), 1 << 20), actions: Vec::new() }
    }

    fn handle_event(&mut self, millis: u64, event: MasterDriverEvent) {
        self.driver.handle(at_millis(millis), event, &mut self.log, &mut self.actions);
    }

    fn receive_psync(&mut self, millis: u64, peer: PeerId, (history, first_byte): (&str, i64)) {
        let request = PsyncRequest { repl_id: history.as_bytes().to_vec(), first_byte, is_failover: false };
        let mut profile = PeerProfile::default();
        (profile.capabilities.end_mark, profile.capabilities.psync2) = (true, true);
        self.handle_event(millis, MasterDriverEvent::PsyncReceived { peer, profile, request: Some(request) });
    }

    fn take_actions(&mut self) -> Vec<MasterDriverAction> {
        std::mem::take(&mut self.actions)
    }

    /// Takes and sends the requested snapshot, and acknowledges it on behalf of the replica.
    fn synchronise(&mut self, millis: u64, transfer: u64, peer: PeerId) -> SnapshotPosition {
        self.log.open(id(0));
        let cut = SnapshotPosition::record(&mut self.log, TransferId(transfer), &[peer], None);
        self.handle_event(millis, MasterDriverEvent::SnapshotTaken(cut.clone()));
        self.handle_event(millis, MasterDriverEvent::SnapshotSent(peer));
        let offset = cut.position.offset;
        self.handle_event(millis, MasterDriverEvent::Acknowledged { peer, offset, synced_offset: None });
        cut
    }
}

#[test]
fn full_synchronisation_returns_the_actions_in_order() {
    let mut server = MasterFixture::new();
    server.receive_psync(1, PEER_1, ("?", -1));
    let form = SnapshotFormat::default();
    let expected = [
        MasterDriverAction::CountPsyncAnswer(PEER_1, PsyncAnswer::Full(Some(FullSyncReason::Requested))),
        MasterDriverAction::TakeSnapshot {
            transfer: TransferId(1),
            peers: vec![PEER_1],
            uses_end_mark: true,
            format: form,
        },
    ];
    assert_eq!(server.take_actions(), expected);
    let SnapshotPosition { position, cursors, .. } = server.synchronise(2, 1, PEER_1);
    let line = format!("+FULLRESYNC {} {}\r\n", position.id, position.offset);
    let expected = [
        MasterDriverAction::Send(PEER_1, line.into_bytes()),
        MasterDriverAction::SendSnapshot(PEER_1),
        MasterDriverAction::SendStream(PEER_1, cursors[0].1),
    ];
    assert_eq!(server.take_actions(), expected);
}

#[test]
fn reconnecting_replica_gets_its_cursor_at_psync() {
    let mut server = MasterFixture::new();
    server.receive_psync(1, PEER_1, ("?", -1));
    server.synchronise(2, 1, PEER_1);
    server.handle_event(3, MasterDriverEvent::Closed(PEER_1));
    server.log.append(0, b"*1\r\n$4\r\nPING\r\n");
    server.take_actions();
    let end = server.log.position().offset;
    server.receive_psync(4, PEER_2, (id(0).as_str(), 1));
    let orders = server.take_actions();
    let Some(MasterDriverAction::SendStream(PEER_2, cursor)) = orders.last() else { panic!("{orders:?}") };
    assert_eq!(server.log.cursor_offset(*cursor), Some(ReplOffset(0)));
    let expected = [
        MasterDriverAction::CountPsyncAnswer(
            PEER_2,
            PsyncAnswer::Partial { from: ReplOffset(0), missing_bytes: end.0 },
        ),
        MasterDriverAction::Send(PEER_2, format!("+CONTINUE {}\r\n", id(0)).into_bytes()),
        MasterDriverAction::SendStream(PEER_2, *cursor),
    ];
    assert_eq!(orders, expected);
}

#[test]
fn cursor_is_removed_with_its_replica() {
    type ReplicaRemoval = fn(&mut MasterFixture);
    let ends: [(&str, ReplicaRemoval); 4] = [
        ("it leaves", |server| server.handle_event(9, MasterDriverEvent::Closed(PEER_1))),
        ("the history is another", |server| server.handle_event(9, MasterDriverEvent::HistoryReplaced)),
        ("a promotion", |server| server.handle_event(9, MasterDriverEvent::Promoted)),
        ("it is silent", |server| server.handle_event(100_000, MasterDriverEvent::Deadline)),
    ];
    for (name, end) in ends {
        let mut server = MasterFixture::new();
        server.receive_psync(1, PEER_1, ("?", -1));
        let cursor = server.synchronise(2, 1, PEER_1).cursors[0].1;
        assert!(server.log.cursor_offset(cursor).is_some());
        end(&mut server);
        assert_eq!(server.log.cursor_offset(cursor), None, "{name}");
        assert_eq!(server.driver.master().peers().len(), 0, "{name}");
    }
}

#[test]
fn replica_that_left_before_the_snapshot_has_no_cursor() {
    let mut server = MasterFixture::new();
    server.receive_psync(1, PEER_1, ("?", -1));
    server.handle_event(2, MasterDriverEvent::Closed(PEER_1));
    assert!(server.take_actions().contains(&MasterDriverAction::CancelSnapshot(TransferId(1))));
    server.log.open(id(0));
    let cut = SnapshotPosition::record(&mut server.log, TransferId(1), &[PEER_1], None);
    let cursor = cut.cursors[0].1;
    server.handle_event(3, MasterDriverEvent::SnapshotTaken(cut));
    assert_eq!(server.log.cursor_offset(cursor), None);
    assert_eq!(server.take_actions(), []);
}

/// Delivers a snapshot to a replica and closes the replica's RDB channel. Returns the channel's cursor.
fn deliver_snapshot(server: &mut MasterFixture) -> CursorId {
    let mut profile = PeerProfile { is_rdb_channel: true, is_rdb_only: true, ..PeerProfile::default() };
    profile.capabilities.end_mark = true;
    server.handle_event(1, MasterDriverEvent::PsyncReceived { peer: PEER_1, profile, request: None });
    server.log.open(id(0));
    let cut = SnapshotPosition::record(&mut server.log, TransferId(1), &[PEER_1], None);
    let cursor = cut.cursors[0].1;
    server.handle_event(2, MasterDriverEvent::SnapshotTaken(cut));
    server.handle_event(3, MasterDriverEvent::SnapshotSent(PEER_1));
    server.handle_event(4, MasterDriverEvent::Closed(PEER_1));
    server.take_actions();
    cursor
}

#[test]
fn log_is_retained_until_the_main_channel_connects() {
    let mut server = MasterFixture::new();
    let cursor = deliver_snapshot(&mut server);
    assert!(server.log.cursor_offset(cursor).is_some());
    let mut profile = PeerProfile::default();
    assert_eq!(server.driver.link_channels(&mut profile, PEER_1), Ok(()));
    let request =
        PsyncRequest { repl_id: id(0).as_str().as_bytes().to_vec(), first_byte: 1, is_failover: false };
    server
        .handle_event(5, MasterDriverEvent::PsyncReceived { peer: PEER_2, profile, request: Some(request) });
    assert!(server.take_actions().contains(&MasterDriverAction::Close(PEER_1, CloseReason::SnapshotSent)));
    assert_eq!(server.log.cursor_offset(cursor), None);
    let unknown = Err(ReplconfError::UnknownRdbClient(PEER_1));
    assert_eq!(server.driver.link_channels(&mut PeerProfile::default(), PEER_1), unknown);
}

#[test]
fn log_is_released_if_the_main_channel_never_connects() {
    let mut server = MasterFixture::new();
    let cursor = deliver_snapshot(&mut server);
    server.handle_event(59_000, MasterDriverEvent::Deadline);
    assert!(server.log.cursor_offset(cursor).is_some());
    server.handle_event(64_000, MasterDriverEvent::Deadline);
    assert_eq!(server.log.cursor_offset(cursor), None);
}

#[test]
fn pending_bytes_are_checked_while_a_replica_is_behind_or_the_log_grows() {
    let mut server = MasterFixture::new();
    assert_eq!(server.driver.next_pending_check(), None);
    server.receive_psync(1, PEER_1, ("?", -1));
    let cursor = server.synchronise(2, 1, PEER_1).cursors[0].1;
    server.driver.check_pending(at_millis(3), &mut server.log, &mut server.actions);
    let end = server.log.position().offset;
    assert_eq!(
        server.driver.next_pending_check(),
        Some(NextPendingCheck { log_end: Some(end), earliest_check_at: at_millis(103) })
    );
    server.log.append_control(&[b'x'; 600]);
    server.driver.check_pending(at_millis(200), &mut server.log, &mut server.actions);
    assert_eq!(
        server.driver.next_pending_check(),
        Some(NextPendingCheck { log_end: None, earliest_check_at: at_millis(300) }),
        "it is behind"
    );
    server.log.read(cursor, 1000, &mut Vec::new()).unwrap();
    server.driver.check_pending(at_millis(300), &mut server.log, &mut server.actions);
    assert!(server.driver.next_pending_check().is_some_and(|look| look.log_end.is_some()), "it has all");
    server.take_actions();
    server.log.append_control(&[b'x'; 1001]);
    server.driver.check_pending(at_millis(400), &mut server.log, &mut server.actions);
    assert_eq!(server.take_actions(), [MasterDriverAction::Close(PEER_1, CloseReason::TooFarBehind)]);
    assert_eq!(server.driver.next_pending_check(), None);
}
