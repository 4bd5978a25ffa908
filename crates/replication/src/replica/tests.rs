use super::*;

fn config() -> ReplicaConfig {
    ReplicaConfig {
        listening_port: 6380,
        announce_ip: None,
        node: None,
        user: None,
        password: None,
        timeout: Duration::from_secs(60),
        failover: false,
        dual_channel: false,
        buffer_limit: 0,
    }
}

fn id(byte: u8) -> ReplId {
    ReplId::from_random([byte; 20])
}

fn at_seconds(byte: u8, offset: u64) -> Position {
    Position { id: id(byte), offset: ReplOffset(offset) }
}

fn ms(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

/// Encodes a request as the state machine sends it.
fn request(line: &str) -> Vec<u8> {
    let mut wire = Vec::new();
    let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
    resp::encode_request(&mut wire, words);
    wire
}

fn send(lines: &[&str]) -> ReplicaAction {
    ReplicaAction::Send(lines.iter().flat_map(|line| request(line)).collect())
}

struct ReplicaFixture {
    replica: Replica,
    now: u64,
}

impl ReplicaFixture {
    fn new(config: ReplicaConfig, position: Option<Position>) -> Self {
        Self { replica: Replica::new(config, position, ms(0)), now: 0 }
    }

    fn handle_event(&mut self, input: ReplicaEvent) -> Vec<ReplicaAction> {
        let mut out = Vec::new();
        self.replica.handle(ms(self.now), input, &mut out);
        out
    }

    fn receive(&mut self, bytes: &str) -> Vec<ReplicaAction> {
        self.handle_event(ReplicaEvent::Received(bytes.as_bytes().to_vec()))
    }

    fn at(&mut self, now: u64) -> &mut Self {
        self.now = now;
        self
    }

    /// Runs the handshake until PSYNC has been sent.
    fn with_psync_sent(config: ReplicaConfig, position: Option<Position>) -> Self {
        let mut driven = Self::new(config, position);
        assert_eq!(driven.handle_event(ReplicaEvent::Deadline), [ReplicaAction::Connect]);
        driven.handle_event(ReplicaEvent::Connected);
        driven.receive("+PONG\r\n");
        driven.receive("+OK\r\n+OK\r\n-ERR what?\r\n");
        assert_eq!(driven.replica.link_state(), LinkState::Handshake);
        driven
    }

    fn streaming(position: Position) -> Self {
        let mut driven = Self::with_psync_sent(config(), Some(position));
        assert_eq!(
            driven.receive("+CONTINUE\r\n"),
            [ReplicaAction::Resume { id: position.id, slot_states: None }, ReplicaAction::LinkUp]
        );
        driven
    }
}

/// A master that has asked its replica to take over (PSYNC FAILOVER) must notice a refusal.
#[test]
fn refusal_by_the_master_is_reported() {
    let config = ReplicaConfig { failover: true, ..config() };
    let mut driven = ReplicaFixture::new(config.clone(), Some(at_seconds(1, 10)));
    driven.handle_event(ReplicaEvent::Deadline);
    driven.handle_event(ReplicaEvent::Connected);
    driven.receive("-LOADING later\r\n");
    assert!(!driven.replica.is_psync_refused(), "it has not asked yet");

    let mut driven = ReplicaFixture::with_psync_sent(config, Some(at_seconds(1, 10)));
    assert!(!driven.replica.is_psync_refused());
    let refusal = "ERR PSYNC FAILOVER replid must match my replid.";
    let closed = [ReplicaAction::Close(LinkError::Refused(refusal.to_owned()))];
    assert_eq!(driven.receive(&format!("-{refusal}\r\n")), closed);
    assert!(driven.replica.is_psync_refused());
    driven.at(1000).handle_event(ReplicaEvent::Deadline);
    driven.handle_event(ReplicaEvent::Connected);
    driven.receive("+PONG\r\n");
    driven.receive("+OK\r\n+OK\r\n+OK\r\n");
    driven.receive("+CONTINUE\r\n");
    assert!(!driven.replica.is_psync_refused(), "it has changed its mind");
}

#[test]
fn new_replica_receives_a_snapshot_with_length_and_then_the_stream() {
    let mut replica = ReplicaFixture::new(config(), None);
    assert_eq!(replica.handle_event(ReplicaEvent::Deadline), [ReplicaAction::Connect]);
    assert_eq!(replica.handle_event(ReplicaEvent::Connected), [send(&["PING"])]);
    let introduction = send(&[
        "REPLCONF listening-port 6380",
        "REPLCONF capa eof capa psync2 capa slot-states",
        "REPLCONF version 9.0.0",
    ]);
    assert_eq!(replica.receive("+PONG\r\n"), [introduction]);
    assert_eq!(replica.receive("+OK\r\n+OK\r\n-ERR what?\r\n"), [send(&["PSYNC ? -1"])]);
    let reply = format!("\n+FULLRESYNC {} 70\r\n", id(1));
    assert_eq!(replica.receive(&reply), []);
    assert_eq!(replica.receive("\n\n$5\r"), []);
    let position = at_seconds(1, 70);
    assert_eq!(
        replica.receive("\nab"),
        [ReplicaAction::BeginTransfer { position, len: Some(5) }, ReplicaAction::Snapshot(b"ab".to_vec())]
    );
    assert_eq!(replica.replica.transfer_progress(), Some((Some(5), 2)));
    assert_eq!(
        replica.receive("cde*1\r\n"),
        [ReplicaAction::Snapshot(b"cde".to_vec()), ReplicaAction::Load { position }]
    );
    assert_eq!(replica.replica.position(), None, "the data is neither old nor new");
    let expected =
        [ReplicaAction::LinkUp, ReplicaAction::Stream(b"*1\r\n".to_vec()), send(&["REPLCONF ACK 70"])];
    assert_eq!(replica.handle_event(ReplicaEvent::Loaded), expected);
    assert_eq!(replica.replica.position(), Some(position));
    assert_eq!(replica.replica.down_since(), None);
}

#[test]
fn snapshot_with_an_end_mark_may_arrive_in_any_parts() {
    let mark = "0123456789".repeat(4);
    let stream = format!("$EOF:{mark}\r\nbody 0123456789{}{mark}rest", "01234567890123");
    for cut in 0..=stream.len() {
        let mut replica = ReplicaFixture::with_psync_sent(config(), None);
        replica.receive(&format!("+FULLRESYNC {} 0\r\n", id(1)));
        let mut out = replica.receive(&stream[..cut]);
        out.extend(replica.receive(&stream[cut..]));
        let mut body = Vec::new();
        for action in &out {
            if let ReplicaAction::Snapshot(bytes) = action {
                body.extend_from_slice(bytes);
            }
        }
        assert_eq!(body, b"body 012345678901234567890123", "cut at {cut}");
        assert!(out.contains(&ReplicaAction::Load { position: at_seconds(1, 0) }));
        let mut after = replica.handle_event(ReplicaEvent::Loaded);
        after.retain(|action| matches!(action, ReplicaAction::Stream(_)));
        // The stream continues with the bytes after the end mark and those received during the load.
        assert_eq!(after, [ReplicaAction::Stream(b"rest".to_vec())], "cut at {cut}");
    }
}

#[test]
fn auth_is_sent_before_replconf() {
    let with = ReplicaConfig {
        user: Some(b"repl".to_vec()),
        password: Some(b"secret".to_vec()),
        announce_ip: Some("10.0.0.9".into()),
        node: NodeId::from_bytes(&[b'a'; 40]).ok(),
        ..config()
    };
    let mut replica = ReplicaFixture::new(with, Some(at_seconds(1, 9)));
    replica.handle_event(ReplicaEvent::Deadline);
    replica.handle_event(ReplicaEvent::Connected);
    let introduction = send(&[
        "AUTH repl secret",
        "REPLCONF listening-port 6380",
        "REPLCONF ip-address 10.0.0.9",
        "REPLCONF capa eof capa psync2 capa slot-states",
        "REPLCONF version 9.0.0",
        &format!("REPLCONF set-cluster-node-id {}", "a".repeat(40)),
    ]);
    assert_eq!(replica.receive("-NOAUTH Authentication required.\r\n"), [introduction]);
    assert_eq!(replica.receive(&"+OK\r\n".repeat(5)), []);
    let ask = format!("PSYNC {} 10", id(1));
    assert_eq!(
        replica.receive("-ERR Unrecognized REPLCONF option: set-cluster-node-id\r\n"),
        [send(&[&ask])]
    );

    let mut refused =
        ReplicaFixture::new(ReplicaConfig { password: Some(b"wrong".to_vec()), ..config() }, None);
    refused.handle_event(ReplicaEvent::Deadline);
    refused.handle_event(ReplicaEvent::Connected);
    refused.receive("+PONG\r\n");
    let reason = LinkError::Refused("WRONGPASS no".into());
    assert_eq!(refused.receive("-WRONGPASS no\r\n"), [ReplicaAction::Close(reason)]);
    assert_eq!(refused.replica.next_deadline(), Some(ms(1000)));
}

#[test]
fn partial_synchronisation_may_change_the_replication_id() {
    let mut replica = ReplicaFixture::with_psync_sent(config(), Some(at_seconds(1, 70)));
    let reply = format!("+CONTINUE {}\r\nabc", id(2));
    let expected = [
        ReplicaAction::Resume { id: id(2), slot_states: None },
        ReplicaAction::LinkUp,
        ReplicaAction::Stream(b"abc".to_vec()),
    ];
    assert_eq!(replica.receive(&reply), expected);
    assert_eq!(replica.replica.position(), Some(at_seconds(2, 70)));
    replica.handle_event(ReplicaEvent::Applied { bytes: 3 });
    assert_eq!(replica.replica.position(), Some(at_seconds(2, 73)));
    assert_eq!(replica.handle_event(ReplicaEvent::AckRequested), [send(&["REPLCONF ACK 73"])]);
}

#[test]
fn partial_synchronisation_may_carry_migrating_slots() {
    for (told, slot_states) in [("slot-states=", ""), ("slot-states=7>abc,", "7>abc,")] {
        let mut replica = ReplicaFixture::with_psync_sent(config(), Some(at_seconds(1, 70)));
        let reply = format!("+CONTINUE {} {told}\r\n", id(1));
        let slot_states = Some(slot_states.as_bytes().to_vec());
        assert_eq!(
            replica.receive(&reply),
            [ReplicaAction::Resume { id: id(1), slot_states }, ReplicaAction::LinkUp]
        );
    }
}

#[test]
fn replica_acknowledges_every_second_and_detects_a_timeout() {
    let mut replica = ReplicaFixture::streaming(at_seconds(1, 5));
    assert_eq!(replica.replica.next_deadline(), Some(ms(1000)));
    assert_eq!(replica.at(999).handle_event(ReplicaEvent::Deadline), []);
    assert_eq!(replica.at(1000).handle_event(ReplicaEvent::Deadline), [send(&["REPLCONF ACK 5"])]);
    assert_eq!(replica.at(59_000).receive("\n"), [ReplicaAction::Stream(b"\n".to_vec())]);
    assert_eq!(replica.at(118_999).handle_event(ReplicaEvent::Deadline), [send(&["REPLCONF ACK 5"])]);
    assert_eq!(
        replica.at(119_000).handle_event(ReplicaEvent::Deadline),
        [ReplicaAction::Close(LinkError::TimedOut)]
    );
    assert_eq!(replica.replica.down_since(), Some(ms(119_000)));
    assert_eq!(replica.replica.position(), Some(at_seconds(1, 5)), "the data stands where it stood");
}

#[test]
fn refused_connections_are_retried_sooner_than_other_failures() {
    let mut replica = ReplicaFixture::streaming(at_seconds(1, 5));
    replica.at(50).handle_event(ReplicaEvent::Closed);
    assert_eq!(replica.replica.next_deadline(), Some(ms(50) + LOST_RETRY));
    assert_eq!(replica.at(70).handle_event(ReplicaEvent::Deadline), [ReplicaAction::Connect]);
    replica.handle_event(ReplicaEvent::ConnectFailed { refused: true });
    assert_eq!(replica.replica.next_deadline(), Some(ms(70) + REFUSED_RETRY));
    assert_eq!(replica.at(170).handle_event(ReplicaEvent::Deadline), [ReplicaAction::Connect]);
    replica.handle_event(ReplicaEvent::ConnectFailed { refused: false });
    assert_eq!(replica.replica.next_deadline(), Some(ms(170) + FAILED_RETRY));
    assert_eq!(replica.replica.down_since(), Some(ms(50)), "since the link was lost, not since the last try");
    assert_eq!(replica.replica.link_state(), LinkState::Connect);
}

#[test]
fn broken_transfer_keeps_the_old_data_and_position() {
    let mut replica = ReplicaFixture::with_psync_sent(config(), Some(at_seconds(1, 5)));
    replica.receive(&format!("+FULLRESYNC {} 70\r\n$100\r\nsome", id(2)));
    replica.handle_event(ReplicaEvent::Closed);
    assert_eq!(replica.replica.position(), Some(at_seconds(1, 5)));
    assert_eq!(replica.replica.link_state(), LinkState::Connect);
}

#[test]
fn broken_transfer_that_replaced_data_leaves_no_position() {
    let mut replica = ReplicaFixture::with_psync_sent(config(), Some(at_seconds(1, 10)));
    replica.receive(&format!("+FULLRESYNC {} 70\r\n$5\r\nab", id(2)));
    assert_eq!(replica.handle_event(ReplicaEvent::ReplacingData), []);
    assert_eq!(replica.replica.position(), None);
    replica.handle_event(ReplicaEvent::Closed);
    assert_eq!(replica.replica.position(), None);
}

#[test]
fn failed_load_leaves_no_position() {
    let mut replica = ReplicaFixture::with_psync_sent(config(), Some(at_seconds(1, 5)));
    replica.receive(&format!("+FULLRESYNC {} 70\r\n$1\r\nx", id(2)));
    assert_eq!(replica.handle_event(ReplicaEvent::LoadFailed), [ReplicaAction::Close(LinkError::LoadFailed)]);
    assert_eq!(replica.replica.position(), None);
}

#[test]
fn rejected_snapshot_keeps_the_data_and_position() {
    // The snapshot connection breaks before and after the snapshot is complete.
    for snapshot in ["$5\r\nx", "$1\r\nx"] {
        let mut replica = ReplicaFixture::with_psync_sent(config(), Some(at_seconds(1, 5)));
        replica.receive(&format!("+FULLRESYNC {} 70\r\n{snapshot}", id(2)));
        assert_eq!(
            replica.handle_event(ReplicaEvent::LoadRejected),
            [ReplicaAction::Close(LinkError::LoadFailed)]
        );
        assert_eq!(replica.replica.position(), Some(at_seconds(1, 5)));
        assert_eq!(replica.replica.link_state(), LinkState::Connect);
        assert_eq!(replica.replica.next_deadline(), Some(ms(0) + FAILED_RETRY));
    }
}

#[test]
fn keepalives_are_sent_while_loading() {
    let mut replica = ReplicaFixture::with_psync_sent(config(), None);
    replica.receive(&format!("+FULLRESYNC {} 70\r\n$1\r\nx", id(2)));
    for second in [1000, 2000, 200_000] {
        assert_eq!(
            replica.at(second).handle_event(ReplicaEvent::Deadline),
            [ReplicaAction::Send(b"\n".to_vec())]
        );
    }
    assert!(!replica.replica.was_ever_up());
    replica.at(201_000).handle_event(ReplicaEvent::Loaded);
    assert_eq!(replica.replica.link_state(), LinkState::Connected);
    assert!(replica.replica.was_ever_up(), "however soon it is lost again");
}

#[test]
fn malformed_replies_close_the_link() {
    let good = id(1);
    let table = [
        ("-NOMASTERLINK Can't SYNC while not connected with my master\r\n".to_owned(), "refused"),
        ("-LOADING Redis is loading the dataset in memory\r\n".to_owned(), "refused"),
        ("+FULLRESYNC short 5\r\n".to_owned(), "nonsense"),
        (format!("+FULLRESYNC {good} -5\r\n"), "nonsense"),
        (format!("+FULLRESYNC {good}\r\n"), "nonsense"),
        ("+CONTINUE short\r\n".to_owned(), "nonsense"),
        ("+CONTINUE\r\n".to_owned(), "nonsense"),
        (format!("+FULLRESYNC {good} 5\r\n-ERR no\r\n"), "refused"),
        (format!("+FULLRESYNC {good} 5\r\n$x\r\n"), "nonsense"),
        (format!("+FULLRESYNC {good} 5\r\n$-1\r\n"), "nonsense"),
        (format!("+FULLRESYNC {good} 5\r\n$EOF:short\r\n"), "nonsense"),
        (format!("+FULLRESYNC {good} 5\r\n{}", "x".repeat(2000)), "nonsense"),
        ("x".repeat(2 << 20), "nonsense"),
    ];
    for (bytes, kind) in table {
        let mut replica = ReplicaFixture::with_psync_sent(config(), None);
        let reason = match replica.receive(&bytes).pop() {
            Some(ReplicaAction::Close(LinkError::Refused(_))) => "refused",
            Some(ReplicaAction::Close(LinkError::MalformedReply(_))) => "nonsense",
            other => panic!("{other:?} on {bytes:?}"),
        };
        assert_eq!(reason, kind, "{bytes:?}");
    }
}

/// A server that answers every PSYNC with a snapshot and every acknowledgement with garbage must not cause a busy loop.
#[test]
fn failing_full_synchronisations_back_off_exponentially() {
    let mut replica = ReplicaFixture::new(config(), None);
    let full_syncs_until = |replica: &mut ReplicaFixture, end: u64| {
        let mut count = 0;
        while replica.replica.next_deadline().is_some_and(|at| at <= ms(end)) {
            let at = replica.replica.next_deadline().expect("asked above");
            replica.now = replica.now.max(u64::try_from(at.since(ms(0)).as_millis()).unwrap());
            if replica.handle_event(ReplicaEvent::Deadline) != [ReplicaAction::Connect] {
                continue;
            }
            replica.handle_event(ReplicaEvent::Connected);
            replica.receive("+PONG\r\n");
            assert_eq!(replica.receive("+OK\r\n+OK\r\n+OK\r\n"), [send(&["PSYNC ? -1"])]);
            replica.receive(&format!("+FULLRESYNC {} 0\r\n$1\r\nx", id(1)));
            replica.handle_event(ReplicaEvent::Loaded);
            count += 1;
            let reason = LinkError::MalformedReply("garbage".into());
            assert_eq!(
                replica.handle_event(ReplicaEvent::InvalidStream("garbage".into())),
                [ReplicaAction::Close(reason)]
            );
            assert_eq!(replica.replica.position(), None, "it may not be where the master thinks");
        }
        count
    };
    assert_eq!(full_syncs_until(&mut replica, 5000), 3, "at once, after 1 and 2 seconds");
    assert_eq!(
        full_syncs_until(&mut replica, 63_000),
        5,
        "after 4, 8 and 16 seconds, and every 16 from then on"
    );
}

/// The master closes the link soon after each snapshot, because this replica is too slow or the master's history
/// changes.
#[test]
fn lasting_links_reconnect_at_once_and_others_after_a_second() {
    let mut replica = ReplicaFixture::with_psync_sent(config(), None);
    let table =
        [(6000, LOST_RETRY), (6000, LOST_RETRY), (10, LOST_RETRY), (10, FAILED_RETRY), (10, FAILED_RETRY)];
    for (up, retry) in table {
        replica.receive(&format!("+FULLRESYNC {} 0\r\n$1\r\nx", id(1)));
        replica.handle_event(ReplicaEvent::Loaded);
        replica.now += up;
        replica.handle_event(ReplicaEvent::Deadline);
        let lost = replica.now;
        replica.handle_event(ReplicaEvent::Closed);
        assert_eq!(replica.replica.next_deadline(), Some(ms(lost) + retry));
        replica.now += 1000;
        assert_eq!(replica.handle_event(ReplicaEvent::Deadline), [ReplicaAction::Connect]);
        replica.handle_event(ReplicaEvent::Connected);
        replica.receive("+PONG\r\n");
        replica.receive("+OK\r\n+OK\r\n+OK\r\n");
    }
}

mod two_channels {
    use super::*;

    fn config() -> ReplicaConfig {
        ReplicaConfig { dual_channel: true, buffer_limit: 100, ..super::config() }
    }

    fn on_rdb_channel(bytes: &str) -> ReplicaEvent {
        ReplicaEvent::RdbChannel(RdbChannelEvent::Received(bytes.as_bytes().to_vec()))
    }

    fn send_on_rdb_channel(lines: &[&str]) -> ReplicaAction {
        let ReplicaAction::Send(bytes) = send(lines) else { panic!("it is one") };
        ReplicaAction::RdbChannel(RdbChannelAction::Send(bytes))
    }

    const CLOSE_RDB_CHANNEL: ReplicaAction = ReplicaAction::RdbChannel(RdbChannelAction::Close);
    const END_MARK: &str = "0123456789012345678901234567890123456789";

    /// Runs a dual-channel synchronisation until the master has sent the position of the snapshot.
    fn with_snapshot_position(config: ReplicaConfig) -> ReplicaFixture {
        let mut replica = ReplicaFixture::with_psync_sent(config, None);
        let connect = ReplicaAction::RdbChannel(RdbChannelAction::Connect);
        assert_eq!(replica.receive("+DUALCHANNELSYNC\r\n"), [connect]);
        replica
    }

    fn transferring_snapshot() -> ReplicaFixture {
        let mut replica = with_snapshot_position(config());
        replica.handle_event(ReplicaEvent::RdbChannel(RdbChannelEvent::Connected));
        replica.handle_event(on_rdb_channel("+OK\r\n"));
        replica.handle_event(on_rdb_channel(&format!("\n$ENDOFF:70 {} -1 17\r\n", id(1))));
        assert_eq!(replica.replica.link_state(), LinkState::Sync);
        replica
    }

    /// Returns a replica whose stream has started while the snapshot is still being transferred.
    fn streaming() -> ReplicaFixture {
        let mut replica = transferring_snapshot();
        replica.receive("+OK\r\n");
        replica.receive(&format!("+CONTINUE {}\r\n", id(1)));
        replica
    }

    fn whole_snapshot() -> ReplicaEvent {
        on_rdb_channel(&format!("$EOF:{END_MARK}\r\nbody{END_MARK}"))
    }

    #[test]
    fn dual_channel_is_announced_only_if_enabled() {
        let mut replica = ReplicaFixture::new(config(), None);
        replica.handle_event(ReplicaEvent::Deadline);
        replica.handle_event(ReplicaEvent::Connected);
        let introduction = send(&[
            "REPLCONF listening-port 6380",
            "REPLCONF capa eof capa psync2 capa slot-states capa dual-channel",
            "REPLCONF version 9.0.0",
        ]);
        assert_eq!(replica.receive("+PONG\r\n"), [introduction]);

        let mut replica = ReplicaFixture::with_psync_sent(super::config(), None);
        let reason = LinkError::MalformedReply("+DUALCHANNELSYNC".into());
        assert_eq!(replica.receive("+DUALCHANNELSYNC\r\n"), [ReplicaAction::Close(reason)]);
    }

    #[test]
    fn snapshot_and_stream_are_received_concurrently() {
        let mut replica = with_snapshot_position(config());
        replica.replica.set_config(ReplicaConfig { announce_ip: Some("10.0.0.1".into()), ..config() });
        assert_eq!(replica.replica.link_state(), LinkState::Handshake);
        let introduction = "REPLCONF capa eof rdb-only 1 rdb-channel 1 listening-port 6380 version 9.0.0 \
                            ip-address 10.0.0.1";
        let connected = ReplicaEvent::RdbChannel(RdbChannelEvent::Connected);
        assert_eq!(replica.handle_event(connected), [send_on_rdb_channel(&[introduction])]);
        assert_eq!(replica.handle_event(on_rdb_channel("+OK\r\n")), [send_on_rdb_channel(&["SYNC"])]);
        assert_eq!(replica.handle_event(on_rdb_channel("\n\n")), []);
        let end = format!("$ENDOFF:70 {} -1 17\r\n", id(1));
        assert_eq!(replica.handle_event(on_rdb_channel(&end[..9])), []);
        assert_eq!(
            replica.handle_event(on_rdb_channel(&end[9..])),
            [send(&["REPLCONF set-rdb-client-id 17"])]
        );
        let position = at_seconds(1, 70);
        let begun =
            [ReplicaAction::BeginTransfer { position, len: None }, ReplicaAction::Snapshot(b"bo".to_vec())];
        let ask = send(&[&format!("PSYNC {} 71", id(1))]);
        assert_eq!(replica.receive("+OK\r\n"), [ask]);
        assert_eq!(replica.handle_event(on_rdb_channel(&format!("$EOF:{END_MARK}\r\n"))), begun[..1]);
        assert_eq!(replica.receive(&format!("+CONTINUE {}\r\n*1\r\n", id(1))), []);
        assert_eq!(replica.receive("held"), []);
        assert_eq!(replica.replica.buffered_bytes(), 8);
        assert_eq!(replica.replica.position(), None);

        let load =
            [ReplicaAction::Snapshot(b"body".to_vec()), CLOSE_RDB_CHANNEL, ReplicaAction::Load { position }];
        assert_eq!(replica.handle_event(on_rdb_channel(&format!("body{END_MARK}"))), load);
        assert_eq!(
            replica.handle_event(ReplicaEvent::RdbChannel(RdbChannelEvent::Closed)),
            [],
            "the master closed it, too"
        );
        assert_eq!(replica.receive(" more"), [], "it goes on while the snapshot is loaded");
        let up = [
            ReplicaAction::LinkUp,
            ReplicaAction::Stream(b"*1\r\nheld more".to_vec()),
            send(&["REPLCONF ACK 70"]),
        ];
        assert_eq!(replica.handle_event(ReplicaEvent::Loaded), up);
        assert_eq!(replica.handle_event(ReplicaEvent::Applied { bytes: 13 }), []);
        assert_eq!(replica.replica.position(), Some(at_seconds(1, 83)));
        assert_eq!(replica.receive("next"), [ReplicaAction::Stream(b"next".to_vec())]);
    }

    #[test]
    fn both_connections_authenticate() {
        let mut replica =
            ReplicaFixture::new(ReplicaConfig { password: Some(b"pw".to_vec()), ..config() }, None);
        replica.handle_event(ReplicaEvent::Deadline);
        replica.handle_event(ReplicaEvent::Connected);
        replica.receive("-NOAUTH\r\n");
        replica.receive("+OK\r\n+OK\r\n+OK\r\n+OK\r\n");
        replica.receive("+DUALCHANNELSYNC\r\n");
        let introduction = "REPLCONF capa eof rdb-only 1 rdb-channel 1 listening-port 6380 version 9.0.0";
        let connected = ReplicaEvent::RdbChannel(RdbChannelEvent::Connected);
        assert_eq!(replica.handle_event(connected), [send_on_rdb_channel(&["AUTH pw", introduction])]);
        assert_eq!(replica.handle_event(on_rdb_channel("+OK\r\n")), []);
        assert_eq!(replica.handle_event(on_rdb_channel("+OK\r\n")), [send_on_rdb_channel(&["SYNC"])]);
    }

    #[test]
    fn snapshot_may_be_complete_before_the_stream_starts() {
        let mut replica = transferring_snapshot();
        let actions = replica.handle_event(whole_snapshot());
        assert!(
            !actions.contains(&ReplicaAction::Load { position: at_seconds(1, 70) }),
            "there may be no stream to follow it"
        );
        replica.receive("+OK\r\n");
        let load = [ReplicaAction::Load { position: at_seconds(1, 70) }];
        assert_eq!(replica.receive(&format!("+CONTINUE {}\r\n", id(1))), load);
    }

    #[test]
    fn main_channel_is_not_read_while_the_buffer_is_full() {
        let mut replica = streaming();
        replica.receive(&"x".repeat(99));
        assert!(replica.replica.should_read());
        replica.receive("xx");
        assert!(!replica.replica.should_read());
        replica.handle_event(whole_snapshot());
        assert!(!replica.replica.should_read(), "nor while it is loaded");
        replica.handle_event(ReplicaEvent::Loaded);
        assert!(replica.replica.should_read());
    }

    #[test]
    fn buffered_stream_is_applied_and_acknowledged_in_parts() {
        let mut replica = ReplicaFixture { replica: streaming().replica, now: 0 };
        replica.receive(&"x".repeat(150_000));
        replica.handle_event(whole_snapshot());
        let mut pieces = Vec::new();
        let mut next = replica.handle_event(ReplicaEvent::Loaded);
        while let Some(ReplicaAction::Stream(piece)) =
            next.iter().find(|action| matches!(action, ReplicaAction::Stream(_)))
        {
            pieces.push(piece.len());
            let bytes = piece.len() as u64;
            replica.now += 600;
            next = replica.handle_event(ReplicaEvent::Applied { bytes });
        }
        assert_eq!(pieces, [65_536, 65_536, 18_928]);
        assert_eq!(replica.replica.buffered_bytes(), 0);
        assert_eq!(replica.replica.position(), Some(at_seconds(1, 150_070)));
    }

    #[test]
    fn losing_either_connection_before_the_snapshot_is_complete_restarts_both() {
        let lost = || ReplicaAction::Close(LinkError::RdbChannelLost);
        let closed = || ReplicaEvent::RdbChannel(RdbChannelEvent::Closed);
        for mut replica in [with_snapshot_position(config()), transferring_snapshot(), streaming()] {
            assert_eq!(replica.handle_event(closed()), [lost()]);
            assert_eq!(replica.replica.link_state(), LinkState::Connect);
            assert_eq!(replica.replica.buffered_bytes(), 0);
            assert_eq!(replica.at(1000).handle_event(ReplicaEvent::Deadline), [ReplicaAction::Connect]);
        }
        for mut replica in [with_snapshot_position(config()), transferring_snapshot(), streaming()] {
            assert_eq!(replica.handle_event(ReplicaEvent::Closed), [CLOSE_RDB_CHANNEL]);
            assert_eq!(replica.handle_event(whole_snapshot()), [], "what was on its way is too late");
            assert_eq!(replica.at(1000).handle_event(ReplicaEvent::Deadline), [ReplicaAction::Connect]);
        }
    }

    #[test]
    fn link_lost_during_a_load_continues_from_the_end_of_the_buffered_stream() {
        let mut replica = streaming();
        replica.receive("twelve bytes");
        replica.handle_event(whole_snapshot());
        assert_eq!(replica.handle_event(ReplicaEvent::Closed), []);
        assert!(!replica.replica.should_read());
        let up = [
            ReplicaAction::LinkUp,
            ReplicaAction::Stream(b"twelve bytes".to_vec()),
            send(&["REPLCONF ACK 70"]),
        ];
        assert_eq!(replica.handle_event(ReplicaEvent::Loaded), up);
        assert_eq!(replica.handle_event(ReplicaEvent::Applied { bytes: 12 }), []);
        assert_eq!(replica.replica.link_state(), LinkState::Connect);
        assert_eq!(replica.at(20).handle_event(ReplicaEvent::Deadline), [ReplicaAction::Connect]);
        replica.handle_event(ReplicaEvent::Connected);
        replica.receive("+PONG\r\n");
        let ask = send(&[&format!("PSYNC {} 83", id(1))]);
        assert_eq!(replica.receive("+OK\r\n+OK\r\n+OK\r\n"), [ask]);
    }

    #[test]
    fn malformed_replies_close_both_connections() {
        let history = id(1);
        let over_rdb = [
            "-ERR unknown command\r\n".to_owned(),
            "+OK\r\n-LOADING\r\n".to_owned(),
            "+OK\r\n$ENDOFF:x y z\r\n".to_owned(),
            format!("+OK\r\n$ENDOFF:-1 {history} 0 1\r\n"),
            format!("+OK\r\n$ENDOFF:1 {history} 0\r\n"),
            format!("+OK\r\n$ENDOFF:1 {history} 0 1 2\r\n"),
            format!("+OK\r\n$ENDOFF:1 {history} 0 x\r\n"),
            format!("+OK\r\n$ENDOFF:1 {history} 0 1\r\n$x\r\n"),
            "x".repeat(2 << 20),
        ];
        for bytes in over_rdb {
            let mut replica = with_snapshot_position(config());
            replica.handle_event(ReplicaEvent::RdbChannel(RdbChannelEvent::Connected));
            let last = replica.handle_event(on_rdb_channel(&bytes)).pop();
            assert!(matches!(last, Some(ReplicaAction::Close(_))), "{last:?} on {bytes:?}");
        }
        for bytes in ["-ERR Unrecognized RDB client id 17\r\n", "+OK\r\n+FULLRESYNC\r\n", "+OK\r\n-ERR\r\n"] {
            let last = transferring_snapshot().receive(bytes).pop();
            assert!(matches!(last, Some(ReplicaAction::Close(_))), "{last:?} on {bytes:?}");
        }
        assert!(matches!(
            with_snapshot_position(config()).receive("+OK\r\n").pop(),
            Some(ReplicaAction::Close(_))
        ));
    }

    #[test]
    fn timeout_closes_both_connections() {
        let mut replica = transferring_snapshot();
        assert_eq!(replica.at(59_999).handle_event(on_rdb_channel("\n")), []);
        assert_eq!(replica.at(60_001).handle_event(ReplicaEvent::Deadline), []);
        assert_eq!(
            replica.at(120_000).handle_event(ReplicaEvent::Deadline),
            [ReplicaAction::Close(LinkError::TimedOut)]
        );
    }
}
