use super::*;

fn config() -> ReplicaConfig {
    ReplicaConfig {
        listening_port: 6380,
        announce_ip: None,
        node_id: None,
        user: None,
        password: None,
        timeout: Duration::from_secs(60),
        requests_takeover: false,
        dual_channel: false,
        buffer_limit: 0,
    }
}

fn id(byte: u8) -> ReplId {
    ReplId::from_random([byte; 20])
}

fn position_in(byte: u8, offset: u64) -> ReplPosition {
    ReplPosition { id: id(byte), offset: ReplOffset(offset) }
}

fn at_millis(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

/// Encodes a request as the state machine sends it.
fn encode_request(line: &str) -> Vec<u8> {
    let mut wire = Vec::new();
    let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
    resp::encode_request(&mut wire, words);
    wire
}

fn send_action(lines: &[&str]) -> ReplicaAction {
    ReplicaAction::Send(lines.iter().flat_map(|line| encode_request(line)).collect())
}

struct ReplicaFixture {
    replica: Replica,
    now: u64,
}

impl ReplicaFixture {
    fn new(config: ReplicaConfig, position: Option<ReplPosition>) -> Self {
        Self { replica: Replica::new(config, position, at_millis(0)), now: 0 }
    }

    fn handle_event(&mut self, event: ReplicaEvent) -> Vec<ReplicaAction> {
        let mut out = Vec::new();
        self.replica.handle(at_millis(self.now), event, &mut out);
        out
    }

    fn receive(&mut self, bytes: &str) -> Vec<ReplicaAction> {
        self.handle_event(ReplicaEvent::Received(bytes.as_bytes().to_vec()))
    }

    fn advance_to(&mut self, now: u64) -> &mut Self {
        self.now = now;
        self
    }

    /// Runs the handshake until PSYNC has been sent.
    fn with_psync_sent(config: ReplicaConfig, position: Option<ReplPosition>) -> Self {
        let mut driven = Self::new(config, position);
        assert_eq!(driven.handle_event(ReplicaEvent::Deadline), [ReplicaAction::Connect]);
        driven.handle_event(ReplicaEvent::Connected);
        driven.receive("+PONG\r\n");
        driven.receive("+OK\r\n+OK\r\n-ERR what?\r\n");
        assert_eq!(driven.replica.link_state(), LinkState::Handshake);
        driven
    }

    fn with_stream_started(position: ReplPosition) -> Self {
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
    let config = ReplicaConfig { requests_takeover: true, ..config() };
    let mut driven = ReplicaFixture::new(config.clone(), Some(position_in(1, 10)));
    driven.handle_event(ReplicaEvent::Deadline);
    driven.handle_event(ReplicaEvent::Connected);
    driven.receive("-LOADING later\r\n");
    assert!(!driven.replica.is_psync_refused(), "it has not asked yet");

    let mut driven = ReplicaFixture::with_psync_sent(config, Some(position_in(1, 10)));
    assert!(!driven.replica.is_psync_refused());
    let refusal = "ERR PSYNC FAILOVER replid must match my replid.";
    let closed = [ReplicaAction::Close(LinkError::Refused(refusal.to_owned()))];
    assert_eq!(driven.receive(&format!("-{refusal}\r\n")), closed);
    assert!(driven.replica.is_psync_refused());
    driven.advance_to(1000).handle_event(ReplicaEvent::Deadline);
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
    assert_eq!(replica.handle_event(ReplicaEvent::Connected), [send_action(&["PING"])]);
    let introduction = send_action(&[
        "REPLCONF listening-port 6380",
        "REPLCONF capa eof capa psync2 capa slot-states",
        "REPLCONF version 9.0.0",
    ]);
    assert_eq!(replica.receive("+PONG\r\n"), [introduction]);
    assert_eq!(replica.receive("+OK\r\n+OK\r\n-ERR what?\r\n"), [send_action(&["PSYNC ? -1"])]);
    let reply = format!("\n+FULLRESYNC {} 70\r\n", id(1));
    assert_eq!(replica.receive(&reply), []);
    assert_eq!(replica.receive("\n\n$5\r"), []);
    let position = position_in(1, 70);
    assert_eq!(
        replica.receive("\nab"),
        [
            ReplicaAction::BeginTransfer { position, len: Some(5) },
            ReplicaAction::SnapshotBytes(b"ab".to_vec())
        ]
    );
    assert_eq!(replica.replica.transfer_progress(), Some((Some(5), 2)));
    assert_eq!(
        replica.receive("cde*1\r\n"),
        [ReplicaAction::SnapshotBytes(b"cde".to_vec()), ReplicaAction::LoadSnapshot { position }]
    );
    assert_eq!(replica.replica.position(), None, "the data is neither old nor new");
    let expected = [
        ReplicaAction::LinkUp,
        ReplicaAction::StreamBytes(b"*1\r\n".to_vec()),
        send_action(&["REPLCONF ACK 70"]),
    ];
    assert_eq!(replica.handle_event(ReplicaEvent::Loaded), expected);
    assert_eq!(replica.replica.position(), Some(position));
    assert_eq!(replica.replica.down_since(), None);
}

#[test]
fn snapshot_with_an_end_mark_may_arrive_in_any_chunks() {
    let mark = "0123456789".repeat(4);
    let stream = format!("$EOF:{mark}\r\nbody 0123456789{}{mark}rest", "01234567890123");
    for cut in 0..=stream.len() {
        let mut replica = ReplicaFixture::with_psync_sent(config(), None);
        replica.receive(&format!("+FULLRESYNC {} 0\r\n", id(1)));
        let mut out = replica.receive(&stream[..cut]);
        out.extend(replica.receive(&stream[cut..]));
        let mut body = Vec::new();
        for action in &out {
            if let ReplicaAction::SnapshotBytes(bytes) = action {
                body.extend_from_slice(bytes);
            }
        }
        assert_eq!(body, b"body 012345678901234567890123", "cut at {cut}");
        assert!(out.contains(&ReplicaAction::LoadSnapshot { position: position_in(1, 0) }));
        let mut after = replica.handle_event(ReplicaEvent::Loaded);
        after.retain(|action| matches!(action, ReplicaAction::StreamBytes(_)));
        // The stream continues with the bytes after the end mark and those received during the load.
        assert_eq!(after, [ReplicaAction::StreamBytes(b"rest".to_vec())], "cut at {cut}");
    }
}

#[test]
fn auth_is_sent_before_replconf() {
    let with = ReplicaConfig {
        user: Some(b"repl".to_vec()),
        password: Some(b"secret".to_vec()),
        announce_ip: Some("10.0.0.9".into()),
        node_id: NodeId::from_bytes(&[b'a'; 40]).ok(),
        ..config()
    };
    let mut replica = ReplicaFixture::new(with, Some(position_in(1, 9)));
    replica.handle_event(ReplicaEvent::Deadline);
    replica.handle_event(ReplicaEvent::Connected);
    let introduction = send_action(&[
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
        [send_action(&[&ask])]
    );

    let mut refused =
        ReplicaFixture::new(ReplicaConfig { password: Some(b"wrong".to_vec()), ..config() }, None);
    refused.handle_event(ReplicaEvent::Deadline);
    refused.handle_event(ReplicaEvent::Connected);
    refused.receive("+PONG\r\n");
    let reason = LinkError::Refused("WRONGPASS no".into());
    assert_eq!(refused.receive("-WRONGPASS no\r\n"), [ReplicaAction::Close(reason)]);
    assert_eq!(refused.replica.next_deadline(), Some(at_millis(1000)));
}

#[test]
fn partial_synchronisation_may_change_the_replication_id() {
    let mut replica = ReplicaFixture::with_psync_sent(config(), Some(position_in(1, 70)));
    let reply = format!("+CONTINUE {}\r\nabc", id(2));
    let expected = [
        ReplicaAction::Resume { id: id(2), slot_states: None },
        ReplicaAction::LinkUp,
        ReplicaAction::StreamBytes(b"abc".to_vec()),
    ];
    assert_eq!(replica.receive(&reply), expected);
    assert_eq!(replica.replica.position(), Some(position_in(2, 70)));
    replica.handle_event(ReplicaEvent::Applied { bytes: 3 });
    assert_eq!(replica.replica.position(), Some(position_in(2, 73)));
    assert_eq!(replica.handle_event(ReplicaEvent::AckRequested), [send_action(&["REPLCONF ACK 73"])]);
}

#[test]
fn partial_synchronisation_may_carry_migrating_slots() {
    for (told, slot_states) in [("slot-states=", ""), ("slot-states=7>abc,", "7>abc,")] {
        let mut replica = ReplicaFixture::with_psync_sent(config(), Some(position_in(1, 70)));
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
    let mut replica = ReplicaFixture::with_stream_started(position_in(1, 5));
    assert_eq!(replica.replica.next_deadline(), Some(at_millis(1000)));
    assert_eq!(replica.advance_to(999).handle_event(ReplicaEvent::Deadline), []);
    assert_eq!(
        replica.advance_to(1000).handle_event(ReplicaEvent::Deadline),
        [send_action(&["REPLCONF ACK 5"])]
    );
    assert_eq!(replica.advance_to(59_000).receive("\n"), [ReplicaAction::StreamBytes(b"\n".to_vec())]);
    assert_eq!(
        replica.advance_to(118_999).handle_event(ReplicaEvent::Deadline),
        [send_action(&["REPLCONF ACK 5"])]
    );
    assert_eq!(
        replica.advance_to(119_000).handle_event(ReplicaEvent::Deadline),
        [ReplicaAction::Close(LinkError::TimedOut)]
    );
    assert_eq!(replica.replica.down_since(), Some(at_millis(119_000)));
    assert_eq!(replica.replica.position(), Some(position_in(1, 5)), "the data stands where it stood");
}

#[test]
fn refused_connections_are_retried_sooner_than_other_failures() {
    let mut replica = ReplicaFixture::with_stream_started(position_in(1, 5));
    replica.advance_to(50).handle_event(ReplicaEvent::Closed);
    assert_eq!(replica.replica.next_deadline(), Some(at_millis(50) + LOST_RETRY_DELAY));
    assert_eq!(replica.advance_to(70).handle_event(ReplicaEvent::Deadline), [ReplicaAction::Connect]);
    replica.handle_event(ReplicaEvent::ConnectFailed { is_refused: true });
    assert_eq!(replica.replica.next_deadline(), Some(at_millis(70) + REFUSED_RETRY_DELAY));
    assert_eq!(replica.advance_to(170).handle_event(ReplicaEvent::Deadline), [ReplicaAction::Connect]);
    replica.handle_event(ReplicaEvent::ConnectFailed { is_refused: false });
    assert_eq!(replica.replica.next_deadline(), Some(at_millis(170) + FAILED_RETRY_DELAY));
    assert_eq!(
        replica.replica.down_since(),
        Some(at_millis(50)),
        "since the link was lost, not since the last try"
    );
    assert_eq!(replica.replica.link_state(), LinkState::Connect);
}

#[test]
fn broken_transfer_keeps_the_old_data_and_position() {
    let mut replica = ReplicaFixture::with_psync_sent(config(), Some(position_in(1, 5)));
    replica.receive(&format!("+FULLRESYNC {} 70\r\n$100\r\nsome", id(2)));
    replica.handle_event(ReplicaEvent::Closed);
    assert_eq!(replica.replica.position(), Some(position_in(1, 5)));
    assert_eq!(replica.replica.link_state(), LinkState::Connect);
}

#[test]
fn broken_transfer_that_replaced_data_leaves_no_position() {
    let mut replica = ReplicaFixture::with_psync_sent(config(), Some(position_in(1, 10)));
    replica.receive(&format!("+FULLRESYNC {} 70\r\n$5\r\nab", id(2)));
    assert_eq!(replica.handle_event(ReplicaEvent::ReplacingData), []);
    assert_eq!(replica.replica.position(), None);
    replica.handle_event(ReplicaEvent::Closed);
    assert_eq!(replica.replica.position(), None);
}

#[test]
fn failed_load_leaves_no_position() {
    let mut replica = ReplicaFixture::with_psync_sent(config(), Some(position_in(1, 5)));
    replica.receive(&format!("+FULLRESYNC {} 70\r\n$1\r\nx", id(2)));
    assert_eq!(replica.handle_event(ReplicaEvent::LoadFailed), [ReplicaAction::Close(LinkError::LoadFailed)]);
    assert_eq!(replica.replica.position(), None);
}

#[test]
fn rejected_snapshot_keeps_the_data_and_position() {
    // The snapshot connection breaks before and after the snapshot is complete.
    for snapshot in ["$5\r\nx", "$1\r\nx"] {
        let mut replica = ReplicaFixture::with_psync_sent(config(), Some(position_in(1, 5)));
        replica.receive(&format!("+FULLRESYNC {} 70\r\n{snapshot}", id(2)));
        assert_eq!(
            replica.handle_event(ReplicaEvent::LoadRejected),
            [ReplicaAction::Close(LinkError::LoadFailed)]
        );
        assert_eq!(replica.replica.position(), Some(position_in(1, 5)));
        assert_eq!(replica.replica.link_state(), LinkState::Connect);
        assert_eq!(replica.replica.next_deadline(), Some(at_millis(0) + FAILED_RETRY_DELAY));
    }
}

#[test]
fn keepalives_are_sent_while_loading() {
    let mut replica = ReplicaFixture::with_psync_sent(config(), None);
    replica.receive(&format!("+FULLRESYNC {} 70\r\n$1\r\nx", id(2)));
    for second in [1000, 2000, 200_000] {
        assert_eq!(
            replica.advance_to(second).handle_event(ReplicaEvent::Deadline),
            [ReplicaAction::Send(b"\n".to_vec())]
        );
    }
    assert!(!replica.replica.was_ever_up());
    replica.advance_to(201_000).handle_event(ReplicaEvent::Loaded);
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
        while replica.replica.next_deadline().is_some_and(|at| at <= at_millis(end)) {
            let at = replica.replica.next_deadline().expect("asked above");
            replica.now = replica.now.max(u64::try_from(at.since(at_millis(0)).as_millis()).unwrap());
            if replica.handle_event(ReplicaEvent::Deadline) != [ReplicaAction::Connect] {
                continue;
            }
            replica.handle_event(ReplicaEvent::Connected);
            replica.receive("+PONG\r\n");
            assert_eq!(replica.receive("+OK\r\n+OK\r\n+OK\r\n"), [send_action(&["PSYNC ? -1"])]);
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
fn stable_links_reconnect_at_once_and_others_after_a_second() {
    let mut replica = ReplicaFixture::with_psync_sent(config(), None);
    let table = [
        (6000, LOST_RETRY_DELAY),
        (6000, LOST_RETRY_DELAY),
        (10, LOST_RETRY_DELAY),
        (10, FAILED_RETRY_DELAY),
        (10, FAILED_RETRY_DELAY),
    ];
    for (up, retry) in table {
        replica.receive(&format!("+FULLRESYNC {} 0\r\n$1\r\nx", id(1)));
        replica.handle_event(ReplicaEvent::Loaded);
        replica.now += up;
        replica.handle_event(ReplicaEvent::Deadline);
        let lost = replica.now;
        replica.handle_event(ReplicaEvent::Closed);
        assert_eq!(replica.replica.next_deadline(), Some(at_millis(lost) + retry));
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

    fn rdb_channel_received(bytes: &str) -> ReplicaEvent {
        ReplicaEvent::RdbChannel(RdbChannelEvent::Received(bytes.as_bytes().to_vec()))
    }

    fn send_on_rdb_channel(lines: &[&str]) -> ReplicaAction {
        let ReplicaAction::Send(bytes) = send_action(lines) else { panic!("it is one") };
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

    fn replica_during_transfer() -> ReplicaFixture {
        let mut replica = with_snapshot_position(config());
        replica.handle_event(ReplicaEvent::RdbChannel(RdbChannelEvent::Connected));
        replica.handle_event(rdb_channel_received("+OK\r\n"));
        replica.handle_event(rdb_channel_received(&format!("\n$ENDOFF:70 {} -1 17\r\n", id(1))));
        assert_eq!(replica.replica.link_state(), LinkState::Sync);
        replica
    }

    /// Returns a replica whose stream has started while the snapshot is still being transferred.
    fn streaming_replica() -> ReplicaFixture {
        let mut replica = replica_during_transfer();
        replica.receive("+OK\r\n");
        replica.receive(&format!("+CONTINUE {}\r\n", id(1)));
        replica
    }

    fn complete_snapshot_event() -> ReplicaEvent {
        rdb_channel_received(&format!("$EOF:{END_MARK}\r\nbody{END_MARK}"))
    }

    #[test]
    fn dual_channel_is_announced_only_if_enabled() {
        let mut replica = ReplicaFixture::new(config(), None);
        replica.handle_event(ReplicaEvent::Deadline);
        replica.handle_event(ReplicaEvent::Connected);
        let introduction = send_action(&[
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
        assert_eq!(replica.handle_event(rdb_channel_received("+OK\r\n")), [send_on_rdb_channel(&["SYNC"])]);
        assert_eq!(replica.handle_event(rdb_channel_received("\n\n")), []);
        let end = format!("$ENDOFF:70 {} -1 17\r\n", id(1));
        assert_eq!(replica.handle_event(rdb_channel_received(&end[..9])), []);
        assert_eq!(
            replica.handle_event(rdb_channel_received(&end[9..])),
            [send_action(&["REPLCONF set-rdb-client-id 17"])]
        );
        let position = position_in(1, 70);
        let begun = [
            ReplicaAction::BeginTransfer { position, len: None },
            ReplicaAction::SnapshotBytes(b"bo".to_vec()),
        ];
        let ask = send_action(&[&format!("PSYNC {} 71", id(1))]);
        assert_eq!(replica.receive("+OK\r\n"), [ask]);
        assert_eq!(replica.handle_event(rdb_channel_received(&format!("$EOF:{END_MARK}\r\n"))), begun[..1]);
        assert_eq!(replica.receive(&format!("+CONTINUE {}\r\n*1\r\n", id(1))), []);
        assert_eq!(replica.receive("held"), []);
        assert_eq!(replica.replica.buffered_bytes(), 8);
        assert_eq!(replica.replica.position(), None);

        let load = [
            ReplicaAction::SnapshotBytes(b"body".to_vec()),
            CLOSE_RDB_CHANNEL,
            ReplicaAction::LoadSnapshot { position },
        ];
        assert_eq!(replica.handle_event(rdb_channel_received(&format!("body{END_MARK}"))), load);
        assert_eq!(
            replica.handle_event(ReplicaEvent::RdbChannel(RdbChannelEvent::Closed)),
            [],
            "the master closed it, too"
        );
        assert_eq!(replica.receive(" more"), [], "it goes on while the snapshot is loaded");
        let up = [
            ReplicaAction::LinkUp,
            ReplicaAction::StreamBytes(b"*1\r\nheld more".to_vec()),
            send_action(&["REPLCONF ACK 70"]),
        ];
        assert_eq!(replica.handle_event(ReplicaEvent::Loaded), up);
        assert_eq!(replica.handle_event(ReplicaEvent::Applied { bytes: 13 }), []);
        assert_eq!(replica.replica.position(), Some(position_in(1, 83)));
        assert_eq!(replica.receive("next"), [ReplicaAction::StreamBytes(b"next".to_vec())]);
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
        assert_eq!(replica.handle_event(rdb_channel_received("+OK\r\n")), []);
        assert_eq!(replica.handle_event(rdb_channel_received("+OK\r\n")), [send_on_rdb_channel(&["SYNC"])]);
    }

    #[test]
    fn snapshot_may_be_complete_before_the_stream_starts() {
        let mut replica = replica_during_transfer();
        let actions = replica.handle_event(complete_snapshot_event());
        assert!(
            !actions.contains(&ReplicaAction::LoadSnapshot { position: position_in(1, 70) }),
            "there may be no stream to follow it"
        );
        replica.receive("+OK\r\n");
        let load = [ReplicaAction::LoadSnapshot { position: position_in(1, 70) }];
        assert_eq!(replica.receive(&format!("+CONTINUE {}\r\n", id(1))), load);
    }

    #[test]
    fn main_channel_is_not_read_while_the_buffer_is_full() {
        let mut replica = streaming_replica();
        replica.receive(&"x".repeat(99));
        assert!(replica.replica.should_read());
        replica.receive("xx");
        assert!(!replica.replica.should_read());
        replica.handle_event(complete_snapshot_event());
        assert!(!replica.replica.should_read(), "nor while it is loaded");
        replica.handle_event(ReplicaEvent::Loaded);
        assert!(replica.replica.should_read());
    }

    #[test]
    fn buffered_stream_is_applied_and_acknowledged_in_chunks() {
        let mut replica = ReplicaFixture { replica: streaming_replica().replica, now: 0 };
        replica.receive(&"x".repeat(150_000));
        replica.handle_event(complete_snapshot_event());
        let mut pieces = Vec::new();
        let mut next = replica.handle_event(ReplicaEvent::Loaded);
        while let Some(ReplicaAction::StreamBytes(piece)) =
            next.iter().find(|action| matches!(action, ReplicaAction::StreamBytes(_)))
        {
            pieces.push(piece.len());
            let bytes = piece.len() as u64;
            replica.now += 600;
            next = replica.handle_event(ReplicaEvent::Applied { bytes });
        }
        assert_eq!(pieces, [65_536, 65_536, 18_928]);
        assert_eq!(replica.replica.buffered_bytes(), 0);
        assert_eq!(replica.replica.position(), Some(position_in(1, 150_070)));
    }

    #[test]
    fn losing_either_connection_before_the_snapshot_is_complete_restarts_both() {
        let lost = || ReplicaAction::Close(LinkError::RdbChannelLost);
        let closed = || ReplicaEvent::RdbChannel(RdbChannelEvent::Closed);
        for mut replica in [with_snapshot_position(config()), replica_during_transfer(), streaming_replica()]
        {
            assert_eq!(replica.handle_event(closed()), [lost()]);
            assert_eq!(replica.replica.link_state(), LinkState::Connect);
            assert_eq!(replica.replica.buffered_bytes(), 0);
            assert_eq!(
                replica.advance_to(1000).handle_event(ReplicaEvent::Deadline),
                [ReplicaAction::Connect]
            );
        }
        for mut replica in [with_snapshot_position(config()), replica_during_transfer(), streaming_replica()]
        {
            assert_eq!(replica.handle_event(ReplicaEvent::Closed), [CLOSE_RDB_CHANNEL]);
            assert_eq!(
                replica.handle_event(complete_snapshot_event()),
                [],
                "what was on its way is too late"
            );
            assert_eq!(
                replica.advance_to(1000).handle_event(ReplicaEvent::Deadline),
                [ReplicaAction::Connect]
            );
        }
    }

    #[test]
    fn link_lost_during_a_load_continues_from_the_end_of_the_buffered_stream() {
        let mut replica = streaming_replica();
        replica.receive("twelve bytes");
        replica.handle_event(complete_snapshot_event());
        assert_eq!(replica.handle_event(ReplicaEvent::Closed), []);
        assert!(!replica.replica.should_read());
        let up = [
            ReplicaAction::LinkUp,
            ReplicaAction::StreamBytes(b"twelve bytes".to_vec()),
            send_action(&["REPLCONF ACK 70"]),
        ];
        assert_eq!(replica.handle_event(ReplicaEvent::Loaded), up);
        assert_eq!(replica.handle_event(ReplicaEvent::Applied { bytes: 12 }), []);
        assert_eq!(replica.replica.link_state(), LinkState::Connect);
        assert_eq!(replica.advance_to(20).handle_event(ReplicaEvent::Deadline), [ReplicaAction::Connect]);
        replica.handle_event(ReplicaEvent::Connected);
        replica.receive("+PONG\r\n");
        let ask = send_action(&[&format!("PSYNC {} 83", id(1))]);
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
            let last = replica.handle_event(rdb_channel_received(&bytes)).pop();
            assert!(matches!(last, Some(ReplicaAction::Close(_))), "{last:?} on {bytes:?}");
        }
        for bytes in ["-ERR Unrecognized RDB client id 17\r\n", "+OK\r\n+FULLRESYNC\r\n", "+OK\r\n-ERR\r\n"] {
            let last = replica_during_transfer().receive(bytes).pop();
            assert!(matches!(last, Some(ReplicaAction::Close(_))), "{last:?} on {bytes:?}");
        }
        assert!(matches!(
            with_snapshot_position(config()).receive("+OK\r\n").pop(),
            Some(ReplicaAction::Close(_))
        ));
    }

    #[test]
    fn timeout_closes_both_connections() {
        let mut replica = replica_during_transfer();
        assert_eq!(replica.advance_to(59_999).handle_event(rdb_channel_received("\n")), []);
        assert_eq!(replica.advance_to(60_001).handle_event(ReplicaEvent::Deadline), []);
        assert_eq!(
            replica.advance_to(120_000).handle_event(ReplicaEvent::Deadline),
            [ReplicaAction::Close(LinkError::TimedOut)]
        );
    }
}
