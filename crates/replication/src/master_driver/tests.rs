use super::*;
use crate::ReplId;
use crate::master::OutputLimit;

const ONE: PeerId = PeerId(1);
const TWO: PeerId = PeerId(2);

fn id(byte: u8) -> ReplId {
    ReplId::from_random([byte; 20])
}

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

/// The driver with its log, and the actions since they were last take_actions.
struct Server {
    serving: MasterDriver,
    log: Log,
    orders: Vec<MasterDriverAction>,
}

impl Server {
    fn new() -> Self {
        let config = MasterConfig {
            ping_period: Duration::from_secs(10),
            timeout: Duration::from_secs(60),
            diskless: true,
            diskless_delay: Duration::ZERO,
            diskless_max_replicas: 0,
            dual_channel: true,
            backlog_ttl: Duration::from_secs(3600),
            max_lag: Duration::from_secs(10),
            output_limit: OutputLimit { hard: 1000, soft: 0, soft_for: Duration::ZERO },
            backlog: 0,
        };
        let serving = MasterDriver::new(config, at(0));
        Self { serving, log: Log::new(id(0), 1 << 20), orders: Vec::new() }
    }

    fn give(&mut self, millis: u64, input: MasterDriverEvent) {
        self.serving.handle(at(millis), input, &mut self.log, &mut self.orders);
    }

    fn receive_psync(&mut self, millis: u64, peer: PeerId, (history, first_byte): (&str, i64)) {
        let request = PsyncRequest { id: history.as_bytes().to_vec(), first_byte, failover: false };
        let mut profile = PeerProfile::default();
        (profile.capabilities.eof, profile.capabilities.psync2) = (true, true);
        self.give(millis, MasterDriverEvent::Asked { peer, profile, request: Some(request) });
    }

    fn take_actions(&mut self) -> Vec<MasterDriverAction> {
        std::mem::take(&mut self.orders)
    }

    /// Takes the requested snapshot, sends it and acknowledges that it is loaded.
    fn synchronise(&mut self, millis: u64, transfer: u64, peer: PeerId) -> SnapshotPosition {
        self.log.open(id(0));
        let cut = SnapshotPosition::record(&mut self.log, TransferId(transfer), &[peer], None);
        self.give(millis, MasterDriverEvent::SnapshotTaken(cut.clone()));
        self.give(millis, MasterDriverEvent::Sent(peer));
        let offset = cut.position.offset;
        self.give(millis, MasterDriverEvent::Acknowledged { peer, offset, synced: None });
        cut
    }
}

#[test]
fn full_synchronisation_returns_the_actions_in_order() {
    let mut server = Server::new();
    server.receive_psync(1, ONE, ("?", -1));
    let form = SnapshotFormat::default();
    let expected = [
        MasterDriverAction::Answered(ONE, PsyncAnswer::Full(Some(FullSyncReason::NothingAsked))),
        MasterDriverAction::Snapshot { transfer: TransferId(1), peers: vec![ONE], eof: true, form },
    ];
    assert_eq!(server.take_actions(), expected);
    let SnapshotPosition { position, cursors, .. } = server.synchronise(2, 1, ONE);
    let line = format!("+FULLRESYNC {} {}\r\n", position.id, position.offset);
    let expected = [
        MasterDriverAction::Send(ONE, line.into_bytes()),
        MasterDriverAction::SendSnapshot(ONE),
        MasterDriverAction::Stream(ONE, cursors[0].1),
    ];
    assert_eq!(server.take_actions(), expected);
}

#[test]
fn reconnecting_replica_has_its_cursor_from_the_psync_on() {
    let mut server = Server::new();
    server.receive_psync(1, ONE, ("?", -1));
    server.synchronise(2, 1, ONE);
    server.give(3, MasterDriverEvent::Closed(ONE));
    server.log.append(0, b"*1\r\n$4\r\nPING\r\n");
    server.take_actions();
    let end = server.log.position().offset;
    server.receive_psync(4, TWO, (id(0).as_str(), 1));
    let orders = server.take_actions();
    let Some(MasterDriverAction::Stream(TWO, cursor)) = orders.last() else { panic!("{orders:?}") };
    assert_eq!(server.log.position_of(*cursor), Some(ReplOffset(0)));
    let expected = [
        MasterDriverAction::Answered(TWO, PsyncAnswer::Partial { from: ReplOffset(0), missing: end.0 }),
        MasterDriverAction::Send(TWO, format!("+CONTINUE {}\r\n", id(0)).into_bytes()),
        MasterDriverAction::Stream(TWO, *cursor),
    ];
    assert_eq!(orders, expected);
}

#[test]
fn cursor_is_removed_with_its_replica() {
    type End = fn(&mut Server);
    let ends: [(&str, End); 4] = [
        ("it leaves", |server| server.give(9, MasterDriverEvent::Closed(ONE))),
        ("the history is another", |server| server.give(9, MasterDriverEvent::HistoryReplaced)),
        ("a promotion", |server| server.give(9, MasterDriverEvent::Promoted)),
        ("it is silent", |server| server.give(100_000, MasterDriverEvent::Deadline)),
    ];
    for (name, end) in ends {
        let mut server = Server::new();
        server.receive_psync(1, ONE, ("?", -1));
        let cursor = server.synchronise(2, 1, ONE).cursors[0].1;
        assert!(server.log.position_of(cursor).is_some());
        end(&mut server);
        assert_eq!(server.log.position_of(cursor), None, "{name}");
        assert_eq!(server.serving.master().peers().len(), 0, "{name}");
    }
}

#[test]
fn replica_that_left_before_the_snapshot_has_no_cursor() {
    let mut server = Server::new();
    server.receive_psync(1, ONE, ("?", -1));
    server.give(2, MasterDriverEvent::Closed(ONE));
    assert!(server.take_actions().contains(&MasterDriverAction::CancelSnapshot(TransferId(1))));
    server.log.open(id(0));
    let cut = SnapshotPosition::record(&mut server.log, TransferId(1), &[ONE], None);
    let cursor = cut.cursors[0].1;
    server.give(3, MasterDriverEvent::SnapshotTaken(cut));
    assert_eq!(server.log.position_of(cursor), None);
    assert_eq!(server.take_actions(), []);
}

/// A replica whose RDB channel closed after it had received the snapshot. Returns its cursor.
fn fetched(server: &mut Server) -> CursorId {
    let mut profile = PeerProfile { rdb_channel: true, rdb_only: true, ..PeerProfile::default() };
    profile.capabilities.eof = true;
    server.give(1, MasterDriverEvent::Asked { peer: ONE, profile, request: None });
    server.log.open(id(0));
    let cut = SnapshotPosition::record(&mut server.log, TransferId(1), &[ONE], None);
    let cursor = cut.cursors[0].1;
    server.give(2, MasterDriverEvent::SnapshotTaken(cut));
    server.give(3, MasterDriverEvent::Sent(ONE));
    server.give(4, MasterDriverEvent::Closed(ONE));
    server.take_actions();
    cursor
}

#[test]
fn log_is_kept_for_a_replica_whose_main_channel_is_still_to_come() {
    let mut server = Server::new();
    let cursor = fetched(&mut server);
    assert!(server.log.position_of(cursor).is_some());
    let mut profile = PeerProfile::default();
    assert_eq!(server.serving.link_channels(&mut profile, ONE), Ok(()));
    let request = PsyncRequest { id: id(0).as_str().as_bytes().to_vec(), first_byte: 1, failover: false };
    server.give(5, MasterDriverEvent::Asked { peer: TWO, profile, request: Some(request) });
    assert!(server.take_actions().contains(&MasterDriverAction::Close(ONE, CloseReason::Served)));
    assert_eq!(server.log.position_of(cursor), None);
    let unknown = Err(ReplconfError::UnknownRdbClient(ONE));
    assert_eq!(server.serving.link_channels(&mut PeerProfile::default(), ONE), unknown);
}

#[test]
fn log_is_released_if_the_main_channel_never_comes() {
    let mut server = Server::new();
    let cursor = fetched(&mut server);
    server.give(59_000, MasterDriverEvent::Deadline);
    assert!(server.log.position_of(cursor).is_some());
    server.give(64_000, MasterDriverEvent::Deadline);
    assert_eq!(server.log.position_of(cursor), None);
}

#[test]
fn pending_bytes_are_checked_while_a_replica_is_behind_or_the_log_grows() {
    let mut server = Server::new();
    assert_eq!(server.serving.next_pending_check(), None);
    server.receive_psync(1, ONE, ("?", -1));
    let cursor = server.synchronise(2, 1, ONE).cursors[0].1;
    server.serving.check_pending(at(3), &mut server.log, &mut server.orders);
    let end = server.log.position().offset;
    assert_eq!(server.serving.next_pending_check(), Some(NextPendingCheck { past: Some(end), at: at(103) }));
    server.log.append_control(&[b'x'; 600]);
    server.serving.check_pending(at(200), &mut server.log, &mut server.orders);
    assert_eq!(
        server.serving.next_pending_check(),
        Some(NextPendingCheck { past: None, at: at(300) }),
        "it is behind"
    );
    server.log.read(cursor, 1000, &mut Vec::new()).unwrap();
    server.serving.check_pending(at(300), &mut server.log, &mut server.orders);
    assert!(server.serving.next_pending_check().is_some_and(|look| look.past.is_some()), "it has all");
    server.take_actions();
    server.log.append_control(&[b'x'; 1001]);
    server.serving.check_pending(at(400), &mut server.log, &mut server.orders);
    assert_eq!(server.take_actions(), [MasterDriverAction::Close(ONE, CloseReason::TooFarBehind)]);
    assert_eq!(server.serving.next_pending_check(), None);
}
