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
    serving: Serving,
    log: Log,
    orders: Vec<Order>,
}

impl Server {
    fn new() -> Self {
        let config = Config {
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
        let serving = Serving::new(config, at(0));
        Self { serving, log: Log::new(id(0), 1 << 20), orders: Vec::new() }
    }

    fn give(&mut self, millis: u64, input: Input) {
        self.serving.handle(at(millis), input, &mut self.log, &mut self.orders);
    }

    fn receive_psync(&mut self, millis: u64, peer: PeerId, (history, first_byte): (&str, i64)) {
        let request = PsyncRequest { id: history.as_bytes().to_vec(), first_byte, failover: false };
        let mut profile = Profile::default();
        (profile.capabilities.eof, profile.capabilities.psync2) = (true, true);
        self.give(millis, Input::Asked { peer, profile, request: Some(request) });
    }

    fn take_actions(&mut self) -> Vec<Order> {
        std::mem::take(&mut self.orders)
    }

    /// Takes the requested snapshot, sends it and acknowledges that it is loaded.
    fn synchronise(&mut self, millis: u64, transfer: u64, peer: PeerId) -> Cut {
        self.log.open(id(0));
        let cut = Cut::note(&mut self.log, TransferId(transfer), &[peer], None);
        self.give(millis, Input::Cut(cut.clone()));
        self.give(millis, Input::Sent(peer));
        let offset = cut.position.offset;
        self.give(millis, Input::Acknowledged { peer, offset, synced: None });
        cut
    }
}

#[test]
fn full_synchronisation_returns_the_actions_in_order() {
    let mut server = Server::new();
    server.receive_psync(1, ONE, ("?", -1));
    let form = SnapshotForm::default();
    let expected = [
        Order::Answered(ONE, Answer::Full(Some(Refusal::NothingAsked))),
        Order::Snapshot { transfer: TransferId(1), peers: vec![ONE], eof: true, form },
    ];
    assert_eq!(server.take_actions(), expected);
    let Cut { position, cursors, .. } = server.synchronise(2, 1, ONE);
    let line = format!("+FULLRESYNC {} {}\r\n", position.id, position.offset);
    let expected =
        [Order::Send(ONE, line.into_bytes()), Order::SendSnapshot(ONE), Order::Stream(ONE, cursors[0].1)];
    assert_eq!(server.take_actions(), expected);
}

#[test]
fn reconnecting_replica_has_its_cursor_from_the_psync_on() {
    let mut server = Server::new();
    server.receive_psync(1, ONE, ("?", -1));
    server.synchronise(2, 1, ONE);
    server.give(3, Input::Closed(ONE));
    server.log.append(0, b"*1\r\n$4\r\nPING\r\n");
    server.take_actions();
    let end = server.log.position().offset;
    server.receive_psync(4, TWO, (id(0).as_str(), 1));
    let orders = server.take_actions();
    let Some(Order::Stream(TWO, cursor)) = orders.last() else { panic!("{orders:?}") };
    assert_eq!(server.log.position_of(*cursor), Some(ReplOffset(0)));
    let expected = [
        Order::Answered(TWO, Answer::Partial { from: ReplOffset(0), missing: end.0 }),
        Order::Send(TWO, format!("+CONTINUE {}\r\n", id(0)).into_bytes()),
        Order::Stream(TWO, *cursor),
    ];
    assert_eq!(orders, expected);
}

#[test]
fn cursor_is_removed_with_its_replica() {
    type End = fn(&mut Server);
    let ends: [(&str, End); 4] = [
        ("it leaves", |server| server.give(9, Input::Closed(ONE))),
        ("the history is another", |server| server.give(9, Input::HistoryReplaced)),
        ("a promotion", |server| server.give(9, Input::Promoted)),
        ("it is silent", |server| server.give(100_000, Input::Deadline)),
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
    server.give(2, Input::Closed(ONE));
    assert!(server.take_actions().contains(&Order::CancelSnapshot(TransferId(1))));
    server.log.open(id(0));
    let cut = Cut::note(&mut server.log, TransferId(1), &[ONE], None);
    let cursor = cut.cursors[0].1;
    server.give(3, Input::Cut(cut));
    assert_eq!(server.log.position_of(cursor), None);
    assert_eq!(server.take_actions(), []);
}

/// A replica whose RDB channel closed after it had received the snapshot. Returns its cursor.
fn fetched(server: &mut Server) -> CursorId {
    let mut profile = Profile { rdb_channel: true, rdb_only: true, ..Profile::default() };
    profile.capabilities.eof = true;
    server.give(1, Input::Asked { peer: ONE, profile, request: None });
    server.log.open(id(0));
    let cut = Cut::note(&mut server.log, TransferId(1), &[ONE], None);
    let cursor = cut.cursors[0].1;
    server.give(2, Input::Cut(cut));
    server.give(3, Input::Sent(ONE));
    server.give(4, Input::Closed(ONE));
    server.take_actions();
    cursor
}

#[test]
fn log_is_kept_for_a_replica_whose_main_channel_is_still_to_come() {
    let mut server = Server::new();
    let cursor = fetched(&mut server);
    assert!(server.log.position_of(cursor).is_some());
    let mut profile = Profile::default();
    assert_eq!(server.serving.link_channels(&mut profile, ONE), Ok(()));
    let request = PsyncRequest { id: id(0).as_str().as_bytes().to_vec(), first_byte: 1, failover: false };
    server.give(5, Input::Asked { peer: TWO, profile, request: Some(request) });
    assert!(server.take_actions().contains(&Order::Close(ONE, CloseReason::Served)));
    assert_eq!(server.log.position_of(cursor), None);
    let unknown = Err(ReplconfError::UnknownRdbClient(ONE));
    assert_eq!(server.serving.link_channels(&mut Profile::default(), ONE), unknown);
}

#[test]
fn log_is_released_if_the_main_channel_never_comes() {
    let mut server = Server::new();
    let cursor = fetched(&mut server);
    server.give(59_000, Input::Deadline);
    assert!(server.log.position_of(cursor).is_some());
    server.give(64_000, Input::Deadline);
    assert_eq!(server.log.position_of(cursor), None);
}

#[test]
fn pending_bytes_are_checked_while_a_replica_is_behind_or_the_log_grows() {
    let mut server = Server::new();
    assert_eq!(server.serving.next_look(), None);
    server.receive_psync(1, ONE, ("?", -1));
    let cursor = server.synchronise(2, 1, ONE).cursors[0].1;
    server.serving.look(at(3), &mut server.log, &mut server.orders);
    let end = server.log.position().offset;
    assert_eq!(server.serving.next_look(), Some(NextLook { past: Some(end), at: at(103) }));
    server.log.append_control(&[b'x'; 600]);
    server.serving.look(at(200), &mut server.log, &mut server.orders);
    assert_eq!(server.serving.next_look(), Some(NextLook { past: None, at: at(300) }), "it is behind");
    server.log.read(cursor, 1000, &mut Vec::new()).unwrap();
    server.serving.look(at(300), &mut server.log, &mut server.orders);
    assert!(server.serving.next_look().is_some_and(|look| look.past.is_some()), "it has all");
    server.take_actions();
    server.log.append_control(&[b'x'; 1001]);
    server.serving.look(at(400), &mut server.log, &mut server.orders);
    assert_eq!(server.take_actions(), [Order::Close(ONE, CloseReason::TooFarBehind)]);
    assert_eq!(server.serving.next_look(), None);
}
