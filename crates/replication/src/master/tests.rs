use super::*;
use crate::psync::{Capabilities, Contents};

fn config() -> Config {
    Config {
        ping_period: Duration::from_secs(10),
        timeout: Duration::from_secs(60),
        diskless: true,
        diskless_delay: Duration::from_secs(5),
        diskless_max_replicas: 0,
        dual_channel: false,
        backlog_ttl: Duration::from_secs(3600),
        max_lag: Duration::from_secs(10),
        output_limit: OutputLimit { hard: 1000, soft: 0, soft_for: Duration::ZERO },
        backlog: 0,
    }
}

fn modern() -> Profile {
    Profile {
        capabilities: Capabilities { eof: true, psync2: true, ..Capabilities::default() },
        ..Profile::default()
    }
}

fn at(offset: u64) -> Position {
    Position { id: ReplId::NONE, offset: ReplOffset(offset) }
}

const ONE: PeerId = PeerId(1);
const TWO: PeerId = PeerId(2);
const FIRST: TransferId = TransferId(1);
const SECOND: TransferId = TransferId(2);

struct Driven(Master);

impl Driven {
    fn new(config: Config) -> Self {
        Self(Master::new(config, true, Instant::ORIGIN))
    }

    fn give(&mut self, second: u64, input: Input) -> Vec<Action> {
        let mut out = Vec::new();
        self.0.handle(Instant::from_millis(second * 1000), input, &mut out);
        out
    }

    fn join(&mut self, second: u64, peer: PeerId, profile: Profile, resume: Option<u64>) -> Vec<Action> {
        self.give(second, Input::Joined { peer, profile, resume: resume.map(at) })
    }

    fn acknowledge(&mut self, second: u64, peer: PeerId, offset: u64) -> Vec<Action> {
        self.give(second, Input::Acknowledged { peer, offset: ReplOffset(offset), synced: None })
    }

    fn states(&self) -> Vec<&'static str> {
        self.0.peers().map(|(_, peer)| peer.state().name()).collect()
    }
}

fn stream(peer: PeerId, from: u64) -> Action {
    Action::Stream { peer, from: ReplOffset(from) }
}

#[test]
fn replicas_that_come_together_share_a_snapshot_and_stream_from_its_cut() {
    let mut master = Driven::new(config());
    assert_eq!(master.join(0, ONE, modern(), None), []);
    assert_eq!(master.join(3, TWO, modern(), None), []);
    assert_eq!(master.states(), ["wait_bgsave"; 2]);
    let life = |peer| Action::ShowLife { peer };
    assert_eq!(master.give(4, Input::Deadline), [life(ONE), life(TWO)]);
    let snapshot =
        Action::Snapshot { transfer: FIRST, peers: vec![ONE, TWO], eof: true, form: SnapshotForm::default() };
    let actions = master.give(5, Input::Deadline);
    assert_eq!(actions, [snapshot, life(ONE), life(TWO)]);

    let full = |peer| Action::FullResync { peer, position: at(70) };
    let cut = Input::Cut { transfer: FIRST, position: at(70), db: None };
    let sent = |peer| Action::SendSnapshot { peer };
    assert_eq!(master.give(5, cut), [full(ONE), sent(ONE), full(TWO), sent(TWO)]);
    assert_eq!(master.states(), ["wait_bgsave"; 2]);
    assert_eq!(master.give(6, Input::Sent { peer: ONE }), []);
    assert_eq!(master.acknowledge(7, ONE, 70), [stream(ONE, 70)]);
    assert_eq!(master.states(), ["online", "wait_bgsave"]);
    assert_eq!(master.give(8, Input::Sent { peer: TWO }), []);
    assert_eq!(master.acknowledge(8, TWO, 70), [stream(TWO, 70)]);
    assert_eq!(master.acknowledge(9, TWO, 90), []);
    assert_eq!(master.0.acknowledged(), [ReplOffset(70), ReplOffset(90)]);
}

#[test]
fn who_comes_during_a_snapshot_waits_for_the_next() {
    let mut master = Driven::new(Config { diskless_delay: Duration::ZERO, ..config() });
    let first =
        Action::Snapshot { transfer: FIRST, peers: vec![ONE], eof: true, form: SnapshotForm::default() };
    assert_eq!(master.join(0, ONE, modern(), None), [first]);
    assert_eq!(master.join(0, TWO, modern(), None), []);
    assert_eq!(master.0.awaited_snapshot(TWO), Some(AwaitedSnapshot::BehindStreamed));
    master.give(0, Input::Cut { transfer: FIRST, position: at(7), db: None });
    let second =
        Action::Snapshot { transfer: SECOND, peers: vec![TWO], eof: true, form: SnapshotForm::default() };
    assert_eq!(master.give(1, Input::Sent { peer: ONE }), [second]);
}

/// A snapshot in a file is sent once it is whole, and until then others can have it too.
#[test]
fn replica_joins_a_snapshot_that_is_being_written_to_a_file() {
    let mut master = Driven::new(Config { diskless: false, ..config() });
    let form = SnapshotForm::default();
    let first = Action::Snapshot { transfer: FIRST, peers: vec![ONE], eof: false, form };
    assert_eq!(master.join(0, ONE, modern(), None), [first]);
    assert_eq!(master.join(0, TWO, modern(), None), [], "it is not cut yet");
    let awaited = |master: &Driven, peer| master.0.awaited_snapshot(peer);
    assert_eq!(awaited(&master, TWO), Some(AwaitedSnapshot::BehindFile));
    let full = |peer| Action::FullResync { peer, position: at(7) };
    let keep = |peer| Action::KeepLog { peer, from: ReplOffset(7) };
    let cut = Input::Cut { transfer: FIRST, position: at(7), db: None };
    assert_eq!(master.give(0, cut), [full(ONE), keep(TWO), full(TWO)]);
    let three = PeerId(3);
    assert_eq!(master.join(1, three, modern(), None), [keep(three), full(three)]);
    assert_eq!(awaited(&master, three), Some(AwaitedSnapshot::Joined));
    let other = Profile { rdb_only: true, contents: Contents { data: false, functions: true }, ..modern() };
    assert_eq!(master.join(1, PeerId(4), other, None), [], "it wants other contents");
    assert_eq!(master.states(), ["wait_bgsave"; 4]);
    let lives = master.give(2, Input::Deadline);
    assert_eq!(lives.len(), 4, "writing may take longer than repl-timeout: {lives:?}");
    master.give(2, Input::Closed { peer: TWO });
    let sends = Action::SendFile { transfer: FIRST, peers: vec![ONE, three] };
    assert_eq!(master.give(3, Input::Written { transfer: FIRST }), [sends]);
    assert_eq!(master.states(), ["send_bulk", "send_bulk", "wait_bgsave"]);
    assert_eq!(master.join(3, TWO, modern(), None), [], "too late");
    assert_eq!(master.give(4, Input::Sent { peer: ONE }), [stream(ONE, 7)]);
    let next = master.give(4, Input::Sent { peer: three });
    assert!(
        matches!(next[..], [Action::Stream { .. }, Action::Snapshot { transfer: SECOND, .. }]),
        "{next:?}"
    );
}

#[test]
fn enough_waiting_replicas_start_the_snapshot_early() {
    let mut master = Driven::new(Config { diskless_max_replicas: 2, ..config() });
    assert_eq!(master.join(0, ONE, modern(), None), []);
    let snapshot =
        Action::Snapshot { transfer: FIRST, peers: vec![ONE, TWO], eof: true, form: SnapshotForm::default() };
    assert_eq!(master.join(0, TWO, modern(), None), [snapshot]);
}

#[test]
fn a_replica_that_cannot_find_an_end_mark_gets_the_length_and_streams_at_once() {
    let mut master = Driven::new(config());
    let old = Profile::default();
    let snapshot =
        Action::Snapshot { transfer: FIRST, peers: vec![ONE], eof: false, form: SnapshotForm::default() };
    assert_eq!(master.join(0, ONE, old, None), [snapshot]);
    master.give(0, Input::Cut { transfer: FIRST, position: at(7), db: None });
    assert_eq!(master.give(1, Input::Sent { peer: ONE }), [stream(ONE, 7)]);
}

#[test]
fn sync_gets_no_line_and_a_dump_is_closed_after_its_snapshot() {
    let mut master = Driven::new(Config { diskless: false, ..config() });
    master.join(0, ONE, Profile { sync: true, ..modern() }, None);
    assert_eq!(master.give(0, Input::Cut { transfer: FIRST, position: at(7), db: None }), []);
    assert_eq!(master.give(1, Input::Sent { peer: ONE }), [stream(ONE, 7)]);
    master.join(1, TWO, Profile { rdb_only: true, ..modern() }, None);
    master.give(1, Input::Cut { transfer: SECOND, position: at(8), db: None });
    let served = Action::Close { peer: TWO, reason: CloseReason::Served };
    assert_eq!(master.give(2, Input::Sent { peer: TWO }), [served]);
    // SYNC sends no acknowledgements, so its silence means nothing.
    let silent = master.give(1000, Input::Deadline);
    assert_eq!(silent, [Action::Ping]);
}

#[test]
fn a_replica_that_can_go_on_streams_at_once() {
    let mut master = Driven::new(config());
    let go_on = Action::Continue { peer: ONE, id: Some(ReplId::NONE), with_slot_states: false };
    assert_eq!(master.join(0, ONE, modern(), Some(40)), [go_on, stream(ONE, 40)]);
    let old = Action::Continue { peer: TWO, id: None, with_slot_states: false };
    assert_eq!(master.join(0, TWO, Profile::default(), Some(40)), [old, stream(TWO, 40)]);
    assert_eq!(master.0.acknowledged(), [ReplOffset(40); 2]);
}

#[test]
fn who_has_not_said_what_it_has_does_not_count() {
    let mut master = Driven::new(config());
    master.join(0, ONE, Profile::default(), None);
    master.give(0, Input::Cut { transfer: FIRST, position: at(0), db: None });
    master.give(1, Input::Sent { peer: ONE });
    assert_eq!(master.states(), ["online"]);
    assert_eq!(master.0.acknowledged(), [], "it loads");
    master.acknowledge(2, ONE, 0);
    assert_eq!(master.0.acknowledged(), [ReplOffset(0)]);
}

#[test]
fn stop_waits_for_a_replica_that_loads_its_snapshot() {
    let mut master = Driven::new(config());
    master.join(0, ONE, modern(), None);
    // The delay within which others may join its snapshot.
    master.give(5, Input::Deadline);
    assert_eq!(master.0.awaited_at_stop(), 0, "it has no snapshot yet");
    master.give(5, Input::Cut { transfer: FIRST, position: at(70), db: None });
    master.give(6, Input::Sent { peer: ONE });
    assert_eq!((master.0.online().count(), master.0.awaited_at_stop()), (0, 1));
    master.acknowledge(7, ONE, 70);
    assert_eq!((master.0.online().count(), master.0.awaited_at_stop()), (1, 1));
}

#[test]
fn a_node_that_has_come_again_counts_once() {
    let node = |byte| Some(NodeId::from_random([byte; 20]));
    let mut master = Driven::new(config());
    for (peer, byte) in [(ONE, 1), (TWO, 2), (PeerId(3), 1)] {
        master.join(0, peer, Profile { node: node(byte), ..modern() }, Some(10));
    }
    master.acknowledge(1, ONE, 50);
    master.acknowledge(1, TWO, 40);
    assert_eq!(master.0.acknowledged(), [ReplOffset(40), ReplOffset(10)]);
    assert_eq!(master.0.good_replicas(Instant::from_millis(1000)), 2);
    assert_eq!(master.0.successors(ReplOffset(40)), Some(vec![node(2).unwrap()]));
}

#[test]
fn silence_closes_and_lag_makes_a_replica_bad_before() {
    let mut master = Driven::new(config());
    master.join(0, ONE, modern(), Some(40));
    let good = |master: &Driven, second: u64| master.0.good_replicas(Instant::from_millis(second * 1000));
    assert_eq!(good(&master, 10), 1);
    assert_eq!(good(&master, 11), 0);
    master.give(20, Input::Heard { peer: ONE });
    assert_eq!(good(&master, 25), 1);
    assert!(!master.give(79, Input::Deadline).iter().any(|action| matches!(action, Action::Close { .. })));
    let silent = Action::Close { peer: ONE, reason: CloseReason::Silent };
    assert_eq!(master.give(80, Input::Deadline), [silent]);
    assert_eq!(good(&master, 80), 0);
}

#[test]
fn pings_go_to_the_log_while_there_are_replicas_and_this_node_is_a_master() {
    let mut master = Driven::new(config());
    assert_eq!(master.give(100, Input::Deadline), []);
    master.join(100, ONE, modern(), Some(0));
    assert_eq!(master.0.next_deadline(), Some(Instant::from_millis(101_000)));
    assert_eq!(master.give(109, Input::Deadline), []);
    assert_eq!(master.give(110, Input::Deadline), [Action::Ping]);
    master.give(111, Input::Role { master: false });
    assert_eq!(master.give(125, Input::Deadline), []);
}

#[test]
fn the_log_is_closed_when_nobody_has_read_it_for_long() {
    let mut master = Driven::new(config());
    assert_eq!(master.0.next_deadline(), None);
    master.join(0, ONE, modern(), Some(0));
    master.give(10, Input::Closed { peer: ONE });
    assert_eq!(master.0.next_deadline(), Some(Instant::from_millis(3_610_000)));
    assert_eq!(master.give(3609, Input::Deadline), []);
    assert_eq!(master.give(3610, Input::Deadline), [Action::CloseLog]);
    assert_eq!(master.give(9999, Input::Deadline), []);
}

/// A replica comes back and is let go on from a backlog that is larger than what may wait for one. It lacks more than
/// that at once: given up for it, it would come back to the same, for ever.
#[test]
fn one_that_goes_on_from_the_backlog_is_not_given_up_for_what_that_holds() {
    let mut master = Driven::new(Config { backlog: 5000, ..config() });
    master.join(0, ONE, modern(), Some(0));
    assert_eq!(master.give(1, Input::Pending { peer: ONE, bytes: 5000 }), []);
    let behind = Action::Close { peer: ONE, reason: CloseReason::TooFarBehind };
    assert_eq!(master.give(2, Input::Pending { peer: ONE, bytes: 5001 }), [behind]);
}

#[test]
fn a_replica_too_far_behind_is_closed() {
    let mut master = Driven::new(config());
    master.join(0, ONE, modern(), Some(0));
    assert_eq!(master.give(1, Input::Pending { peer: ONE, bytes: 1000 }), []);
    let behind = Action::Close { peer: ONE, reason: CloseReason::TooFarBehind };
    assert_eq!(master.give(1, Input::Pending { peer: ONE, bytes: 1001 }), [behind]);
    assert_eq!(master.give(1, Input::Closed { peer: ONE }), [], "once is enough");
}

/// A replica that was cut off when a slot began to move read on afterwards, and had never heard of it.
#[test]
fn slot_moves_are_said_unless_somebody_takes_them_for_a_mistake() {
    let mut master = Driven::new(config());
    assert_eq!(master.0.readers_of_slot_moves(), Some(0), "who comes back reads it");
    let mut reader = modern();
    reader.capabilities.slot_moves = true;
    master.join(0, ONE, reader, Some(10));
    assert_eq!(master.0.readers_of_slot_moves(), Some(1));
    master.join(0, TWO, modern(), Some(10));
    assert_eq!(master.0.readers_of_slot_moves(), None);
    master.give(0, Input::Closed { peer: TWO });
    master.give(0, Input::Closed { peer: ONE });
    assert_eq!(master.0.readers_of_slot_moves(), Some(0));
}

#[test]
fn a_snapshot_that_fails_or_that_nobody_waits_for_makes_room_for_the_next() {
    let mut master = Driven::new(Config { diskless_delay: Duration::ZERO, ..config() });
    master.join(0, ONE, modern(), None);
    master.join(0, TWO, modern(), None);
    let failed = Action::Close { peer: ONE, reason: CloseReason::SnapshotFailed };
    let cancelled = Action::CancelSnapshot { transfer: FIRST };
    let next =
        Action::Snapshot { transfer: SECOND, peers: vec![TWO], eof: true, form: SnapshotForm::default() };
    let actions = master.give(1, Input::TransferFailed { transfer: FIRST });
    assert_eq!(actions, [failed, cancelled, next]);
    let cancelled = Action::CancelSnapshot { transfer: SECOND };
    assert_eq!(master.give(2, Input::Closed { peer: TWO }), [cancelled]);
    assert_eq!(master.give(2, Input::Cut { transfer: SECOND, position: at(1), db: None }), [], "too late");
}

#[test]
fn a_replaced_history_sends_everybody_away() {
    let mut master = Driven::new(config());
    master.join(0, ONE, modern(), Some(0));
    master.join(0, TWO, modern(), None);
    let gone = |peer| Action::Close { peer, reason: CloseReason::HistoryReplaced };
    assert_eq!(master.give(1, Input::HistoryReplaced), [gone(ONE), gone(TWO)]);
    assert_eq!(master.0.peers().len(), 0);
}

/// Redis and Valkey 9 each have a format that the other cannot read: a replica that waits with others for a format that
/// they do not read gets the next snapshot.
#[test]
fn replicas_of_two_formats_get_a_snapshot_each() {
    let mut master = Driven::new(config());
    let mut valkey = modern();
    valkey.capabilities.valkey_format = true;
    let three = PeerId(3);
    assert_eq!(master.join(0, ONE, valkey.clone(), None), []);
    assert_eq!(master.join(1, TWO, modern(), None), []);
    assert_eq!(master.join(2, three, valkey, None), []);
    let actions = master.give(5, Input::Deadline);
    let first = Action::Snapshot {
        transfer: FIRST,
        peers: vec![ONE, three],
        eof: true,
        form: SnapshotForm { valkey_format: true, ..SnapshotForm::default() },
    };
    assert_eq!(actions[0], first);
    master.give(5, Input::Cut { transfer: FIRST, position: at(70), db: None });
    master.give(6, Input::Sent { peer: ONE });
    let second =
        Action::Snapshot { transfer: SECOND, peers: vec![TWO], eof: true, form: SnapshotForm::default() };
    assert_eq!(master.give(7, Input::Sent { peer: three }), [second]);
}

/// `redis-cli --functions-rdb` comes while a replica waits: neither gets the other's snapshot.
#[test]
fn who_wants_the_functions_alone_gets_a_snapshot_of_them() {
    let mut master = Driven::new(config());
    let contents = Contents { data: false, functions: true };
    let form = SnapshotForm { contents, valkey_format: false };
    let first = Action::Snapshot { transfer: FIRST, peers: vec![ONE], eof: true, form };
    assert_eq!(master.join(0, ONE, Profile { contents, rdb_only: true, ..modern() }, None), []);
    assert_eq!(master.join(1, TWO, modern(), None), []);
    assert_eq!(master.give(5, Input::Deadline)[0], first);
    master.give(5, Input::Cut { transfer: FIRST, position: at(70), db: None });
    let second =
        Action::Snapshot { transfer: SECOND, peers: vec![TWO], eof: true, form: SnapshotForm::default() };
    assert!(master.give(7, Input::Sent { peer: ONE }).contains(&second));
    assert!(modern().can_be_served() && !Profile { contents, ..Profile::default() }.can_be_served());
}

mod two_channels {
    use super::*;

    const RDB: PeerId = ONE;
    const MAIN: PeerId = TWO;

    /// Master with a replica whose RDB channel waits since second 0.
    fn with_rdb_channel() -> Driven {
        let mut master = Driven::new(Config { dual_channel: true, ..config() });
        assert_eq!(master.join(0, RDB, Profile { rdb_only: true, rdb_channel: true, ..modern() }, None), []);
        master
    }

    /// The same, once the snapshot has been cut at 70.
    fn with_cut() -> Driven {
        let mut master = with_rdb_channel();
        master.give(5, Input::Deadline);
        let end = Action::EndOffset { peer: RDB, position: at(70), db: Some(3) };
        let cut = Input::Cut { transfer: FIRST, position: at(70), db: Some(3) };
        assert_eq!(master.give(5, cut), [end, Action::SendSnapshot { peer: RDB }]);
        master
    }

    fn main_channel() -> Profile {
        let capabilities = Capabilities { dual_channel: true, ..modern().capabilities };
        Profile { capabilities, snapshot_over: Some(RDB), ..modern() }
    }

    fn streams() -> [Action; 3] {
        let go_on = Action::Continue { peer: MAIN, id: Some(ReplId::NONE), with_slot_states: false };
        [go_on, stream(MAIN, 70), Action::Release { peer: RDB }]
    }

    fn close(peer: PeerId, reason: CloseReason) -> Action {
        Action::Close { peer, reason }
    }

    #[test]
    fn are_offered_to_who_knows_them_if_both_switches_are_on() {
        let capable = Profile { snapshot_over: None, ..main_channel() };
        let offered = |dual_channel, diskless, profile: &Profile| {
            Driven::new(Config { dual_channel, diskless, ..config() }).0.sends_apart(profile)
        };
        assert!(offered(true, true, &capable));
        assert!(!offered(false, true, &capable));
        assert!(!offered(true, false, &capable));
        assert!(!offered(true, true, &modern()));
        assert!(!offered(true, true, &main_channel()), "it has fetched a snapshot, and that did not help");
    }

    #[test]
    fn bring_the_stream_while_the_snapshot_is_on_its_way() {
        let mut master = with_rdb_channel();
        assert!(!master.0.awaits_main_channel(RDB), "there is no place yet from which to ask for the stream");
        assert_eq!(master.give(1, Input::Deadline), [Action::ShowLife { peer: RDB }]);

        let mut master = with_cut();
        assert!(master.0.awaits_main_channel(RDB));
        assert!(!master.0.awaits_main_channel(MAIN));
        assert_eq!(master.0.waiting_for_psync(), 1);
        assert_eq!(master.join(6, MAIN, main_channel(), Some(70)), streams());
        assert!(!master.0.awaits_main_channel(RDB), "one is enough");
        assert_eq!(master.0.waiting_for_psync(), 0);
        let channels: Vec<_> = master.0.peers().map(|(_, peer)| peer.channel()).collect();
        assert_eq!(channels, ["rdb-channel", "main-channel"]);
        assert_eq!(master.states(), ["wait_bgsave", "bg_transfer"]);

        assert_eq!(master.give(7, Input::Sent { peer: RDB }), [close(RDB, CloseReason::Served)]);
        assert_eq!(master.0.acknowledged(), [], "it has not loaded what comes before the stream");
        assert!(!master.give(500, Input::Deadline).contains(&close(MAIN, CloseReason::Silent)), "it loads");
        assert_eq!(master.acknowledge(501, MAIN, 90), []);
        assert_eq!(master.states(), ["online"]);
        assert_eq!(master.0.peers().next().map(|(_, peer)| peer.channel()), Some("replica"));
        assert_eq!(master.0.acknowledged(), [ReplOffset(90)]);
    }

    #[test]
    fn a_snapshot_that_was_sent_waits_for_the_main_channel_for_a_minute() {
        let mut master = with_cut();
        assert_eq!(master.give(6, Input::Sent { peer: RDB }), []);
        assert_eq!(master.0.waiting_for_psync(), 1);
        let mut late = streams().to_vec();
        late.push(close(RDB, CloseReason::Served));
        assert_eq!(master.join(65, MAIN, main_channel(), Some(70)), late);

        let mut master = with_cut();
        master.give(6, Input::Sent { peer: RDB });
        assert!(!master.give(65, Input::Deadline).contains(&close(RDB, CloseReason::OtherChannelLost)));
        assert!(master.give(66, Input::Deadline).contains(&close(RDB, CloseReason::OtherChannelLost)));
        assert!(!master.0.awaits_main_channel(RDB));
    }

    #[test]
    fn need_each_other_until_the_snapshot_has_been_sent() {
        let cancelled = Action::CancelSnapshot { transfer: FIRST };
        for (lost, other) in [(RDB, MAIN), (MAIN, RDB)] {
            let mut master = with_cut();
            master.join(6, MAIN, main_channel(), Some(70));
            let actions = master.give(7, Input::Closed { peer: lost });
            assert!(actions.contains(&close(other, CloseReason::OtherChannelLost)), "{actions:?}");
            assert!(actions.contains(&cancelled), "{actions:?}");
            assert_eq!(master.0.peers().len(), 0);
        }
        let mut master = with_cut();
        master.join(6, MAIN, main_channel(), Some(70));
        master.give(7, Input::TransferFailed { transfer: FIRST });
        assert_eq!(master.0.peers().len(), 0);

        let mut master = with_cut();
        master.join(6, MAIN, main_channel(), Some(70));
        master.give(7, Input::Sent { peer: RDB });
        assert_eq!(master.give(7, Input::Closed { peer: RDB }), [], "it has done its part");
        assert_eq!(master.states(), ["bg_transfer"]);
    }

    #[test]
    fn a_main_channel_without_its_snapshot_or_its_place_in_the_log_is_closed() {
        let mut master = Driven::new(Config { dual_channel: true, ..config() });
        let lost = close(MAIN, CloseReason::OtherChannelLost);
        assert_eq!(master.join(0, MAIN, main_channel(), Some(70)), [lost]);

        let mut master = with_cut();
        let actions = master.join(6, MAIN, main_channel(), None);
        assert_eq!(actions[0], close(MAIN, CloseReason::TooFarBehind));
        assert_eq!(master.0.peers().len(), 0, "the snapshot is of no use any more");

        // One that names what belongs to another harms nobody.
        let mut master = with_cut();
        let three = PeerId(3);
        master.join(6, MAIN, main_channel(), Some(70));
        let lost = close(three, CloseReason::OtherChannelLost);
        assert_eq!(master.join(7, three, main_channel(), Some(70)), [lost]);
        assert_eq!(master.states(), ["wait_bgsave", "bg_transfer"]);
    }

    #[test]
    fn share_a_snapshot_with_replicas_of_one() {
        let mut master = with_rdb_channel();
        master.0.set_config(Config { diskless: false, ..config() });
        assert_eq!(master.join(1, MAIN, modern(), None), []);
        let snapshot = Action::Snapshot {
            transfer: FIRST,
            peers: vec![RDB, MAIN],
            eof: true,
            form: SnapshotForm::default(),
        };
        assert_eq!(master.give(5, Input::Deadline)[0], snapshot, "promised when the switch was on");
    }
}

/// The story: with a period that was made longer, a ping of the old one still went out, and put the replicas past the
/// end of what their next master had.
#[test]
fn period_of_pings_that_is_changed_counts_at_once() {
    let mut master = Driven::new(Config { ping_period: Duration::from_secs(3), ..config() });
    master.join(0, ONE, modern(), Some(50));
    let pings = |master: &mut Driven, second| master.give(second, Input::Deadline).contains(&Action::Ping);
    assert!(!pings(&mut master, 2) && pings(&mut master, 3));
    master.0.set_config(Config { ping_period: Duration::from_secs(100), ..config() });
    assert!(!pings(&mut master, 6) && !pings(&mut master, 50));
    master.0.set_config(Config { ping_period: Duration::from_secs(48), ..config() });
    assert!(pings(&mut master, 51));
    master.0.set_config(Config { ping_period: Duration::from_secs(1), ..config() });
    assert!(pings(&mut master, 52));
}
