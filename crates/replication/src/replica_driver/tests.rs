use std::time::Duration;

use super::*;
use crate::log::ReplPosition;
use crate::replica::{LOST_RETRY_DELAY, RdbChannelAction};

/// The driver of one node together with the node's log.
struct NodeFixture {
    driver: ReplicaDriver<&'static str>,
    log: Log,
    now: u64,
}

fn id(byte: u8) -> ReplId {
    ReplId::from_random([byte; 20])
}

fn config(dual_channel: bool) -> ReplicaConfig {
    ReplicaConfig {
        listening_port: 6380,
        announce_ip: None,
        node_id: None,
        user: None,
        password: None,
        timeout: Duration::from_secs(60),
        requests_takeover: false,
        dual_channel,
        buffer_limit: 0,
    }
}

impl NodeFixture {
    /// Creates a master with ten bytes in its log.
    fn new() -> Self {
        let mut log = Log::new(id(1), 1 << 20);
        log.open(id(1));
        log.append_control(b"ten bytes.");
        Self { driver: ReplicaDriver::default(), log, now: 0 }
    }

    fn follow(&mut self, master: &'static str) -> Option<StreamEpoch> {
        let now = Instant::from_millis(self.now);
        self.driver.follow(now, master, config(false), &mut self.log)
    }

    fn handle_event(
        &mut self,
        stream_epoch: StreamEpoch,
        event: ReplicaDriverEvent,
    ) -> Vec<ReplicaDriverAction> {
        let mut orders = Vec::new();
        let now = Instant::from_millis(self.now);
        self.driver.handle(now, stream_epoch, event, &mut self.log, &mut orders);
        orders
    }

    fn handle_link_event(
        &mut self,
        stream_epoch: StreamEpoch,
        input: replica::ReplicaEvent,
    ) -> Vec<ReplicaDriverAction> {
        self.handle_event(stream_epoch, ReplicaDriverEvent::LinkEvent(input))
    }

    fn receive(&mut self, stream_epoch: StreamEpoch, bytes: &str) -> Vec<ReplicaDriverAction> {
        self.handle_link_event(stream_epoch, replica::ReplicaEvent::Received(bytes.as_bytes().to_vec()))
    }

    /// Creates a node that follows a master and has sent PSYNC.
    fn with_psync_sent() -> (Self, StreamEpoch) {
        let mut node = Self::new();
        let stream = node.follow("one").unwrap();
        assert_eq!(node.handle_event(stream, ReplicaDriverEvent::WritesDrained), []);
        assert_eq!(
            node.handle_link_event(stream, replica::ReplicaEvent::Deadline),
            [ReplicaDriverAction::LinkAction(ReplicaAction::Connect)]
        );
        node.handle_link_event(stream, replica::ReplicaEvent::Connected);
        node.receive(stream, "+PONG\r\n");
        let asked = node.receive(stream, "+OK\r\n+OK\r\n+OK\r\n");
        assert!(sent_bytes(&asked).contains("PSYNC"), "{asked:?}");
        (node, stream)
    }

    fn with_transfer_started() -> (Self, StreamEpoch) {
        let (mut node, stream) = Self::with_psync_sent();
        node.receive(stream, &format!("+FULLRESYNC {} 70\r\n$6\r\nab", id(2)));
        (node, stream)
    }

    fn with_load_started() -> (Self, StreamEpoch) {
        let (mut node, stream) = Self::with_transfer_started();
        let orders = node.receive(stream, "cdef");
        let load =
            ReplicaDriverAction::LinkAction(ReplicaAction::LoadSnapshot { position: snapshot_position() });
        assert_eq!(orders[1..], [ReplicaDriverAction::HistoryReplaced, load], "before the data is replaced");
        node.log.close();
        (node, stream)
    }

    fn with_stream_started() -> (Self, StreamEpoch) {
        let (mut node, stream) = Self::with_psync_sent();
        node.receive(stream, "+CONTINUE\r\n");
        (node, stream)
    }
}

fn snapshot_position() -> ReplPosition {
    ReplPosition { id: id(2), offset: ReplOffset(70) }
}

/// Returns the bytes sent by these actions, as text.
fn sent_bytes(actions: &[ReplicaDriverAction]) -> String {
    let sent = actions.iter().filter_map(|order| match order {
        ReplicaDriverAction::LinkAction(ReplicaAction::Send(bytes)) => {
            Some(String::from_utf8_lossy(bytes).into_owned())
        }
        _ => None,
    });
    sent.collect()
}

/// A replica that moved to another shard may have a larger offset than that shard's replicas, but must not win an
/// election against them.
#[test]
fn data_of_another_history_has_offset_zero_until_the_master_has_sent_its_own() {
    let mut node = NodeFixture::new();
    let reach = |node: &NodeFixture| node.driver.failover_offset(&node.log).0;
    node.follow("one").unwrap();
    assert_eq!(reach(&node), 10, "a master that was replaced has its successor's data");
    let stream = node.follow("of another shard").unwrap();
    node.driver.mark_data_foreign();
    assert_eq!(reach(&node), 0);
    node.handle_event(stream, ReplicaDriverEvent::WritesDrained);
    assert_eq!(reach(&node), 0);
    let stream = node.follow("its successor").unwrap();
    assert_eq!(reach(&node), 0, "nothing has come of that shard's history");
    node.handle_event(stream, ReplicaDriverEvent::WritesDrained);
    node.handle_link_event(stream, replica::ReplicaEvent::Deadline);
    node.handle_link_event(stream, replica::ReplicaEvent::Connected);
    node.receive(stream, "+PONG\r\n");
    node.receive(stream, "+OK\r\n+OK\r\n+OK\r\n");
    node.receive(stream, "+CONTINUE\r\n");
    assert_eq!(reach(&node), 10, "the master has the same history, so it goes on");
    node.handle_link_event(stream, replica::ReplicaEvent::Closed);
    node.follow("the next").unwrap();
    assert_eq!(reach(&node), 10, "and it is that shard's from now on");
    node.follow("of another shard").unwrap();
    node.driver.mark_data_foreign();
    assert!(node.driver.promote(id(9), &mut node.log));
    assert_eq!(reach(&node), 10, "a master's data is its own");
}

#[test]
fn psync_requests_the_end_of_the_log_once_running_writes_have_finished() {
    let mut node = NodeFixture::new();
    let stream = node.follow("one").unwrap();
    assert_eq!(node.follow("one"), None, "it is followed already");
    assert!(!node.log.authority().accepts_writes());
    assert_eq!(node.driver.next_deadline(stream), None, "it is not known yet from where to go on");
    node.log.append_control(b"was under way");
    assert_eq!(node.handle_event(stream, ReplicaDriverEvent::WritesDrained), []);
    assert_eq!(node.driver.next_deadline(stream), Some(Instant::from_millis(0)));
    assert_eq!(node.driver.replica().unwrap().position(), Some(node.log.position()));
    assert!(!node.driver.is_in_sync());
}

#[test]
fn late_events_of_an_earlier_master_change_nothing() {
    let (mut node, first) = NodeFixture::with_psync_sent();
    let second = node.follow("two").unwrap();
    for input in
        [ReplicaDriverEvent::WritesDrained, ReplicaDriverEvent::LinkEvent(replica::ReplicaEvent::Connected)]
    {
        assert_eq!(node.handle_event(first, input), [ReplicaDriverAction::StreamSuperseded]);
    }
    assert_eq!(node.receive(first, "+CONTINUE\r\n"), [ReplicaDriverAction::StreamSuperseded]);
    assert!(!node.driver.should_read(first));
    assert_eq!(node.handle_event(second, ReplicaDriverEvent::WritesDrained), []);
    assert_eq!(
        node.handle_link_event(second, replica::ReplicaEvent::Deadline),
        [ReplicaDriverAction::LinkAction(ReplicaAction::Connect)]
    );
    assert_eq!(node.driver.master(), Some(&"two"));
}

#[test]
fn promoted_node_accepts_writes_and_drops_the_stream_in_every_state() {
    let states = [
        NodeFixture::with_psync_sent,
        NodeFixture::with_transfer_started,
        NodeFixture::with_load_started,
        NodeFixture::with_stream_started,
    ];
    for (state, (mut node, stream)) in states.map(|state| state()).into_iter().enumerate() {
        let offset = node.log.position().offset;
        assert!(node.driver.promote(id(9), &mut node.log));
        assert!(!node.driver.promote(id(8), &mut node.log), "it is a master");
        assert!(node.log.authority().accepts_writes() && node.driver.is_in_sync(), "{state}");
        let late = [
            replica::ReplicaEvent::Deadline,
            replica::ReplicaEvent::Received(b"cdef".to_vec()),
            replica::ReplicaEvent::Loaded,
            replica::ReplicaEvent::Applied { bytes: 5 },
            replica::ReplicaEvent::Closed,
        ];
        for input in late {
            assert_eq!(
                node.handle_link_event(stream, input),
                [ReplicaDriverAction::StreamSuperseded],
                "{state}"
            );
        }
        assert_eq!(node.log.position().offset, offset);
        if node.log.is_open() {
            assert_eq!(node.log.position().id, id(9), "{state}");
        }
        // The node follows the same master again.
        let again = node.follow("one").unwrap();
        assert_eq!(node.handle_event(again, ReplicaDriverEvent::WritesDrained), []);
    }
}

#[test]
fn role_change_before_draining_ends_the_stream() {
    let mut node = NodeFixture::new();
    let first = node.follow("one").unwrap();
    assert!(node.driver.promote(id(9), &mut node.log));
    assert_eq!(
        node.handle_event(first, ReplicaDriverEvent::WritesDrained),
        [ReplicaDriverAction::StreamSuperseded]
    );
    let second = node.follow("one").unwrap();
    let third = node.follow("two").unwrap();
    assert_eq!(
        node.handle_event(second, ReplicaDriverEvent::WritesDrained),
        [ReplicaDriverAction::StreamSuperseded]
    );
    assert_eq!(node.handle_event(third, ReplicaDriverEvent::WritesDrained), []);
}

#[test]
fn link_broken_during_a_load_continues_from_the_snapshot() {
    let (mut node, stream) = NodeFixture::with_load_started();
    assert!(!node.driver.should_read(stream));
    assert_eq!(node.handle_link_event(stream, replica::ReplicaEvent::Closed), []);
    node.log.adopt_loaded_history(snapshot_position(), id(7));
    node.now = 5000;
    assert_eq!(
        node.handle_link_event(stream, replica::ReplicaEvent::Loaded),
        [ReplicaDriverAction::LinkAction(ReplicaAction::LinkUp)]
    );
    assert!(!node.driver.is_in_sync(), "there is no link");
    assert_eq!(node.driver.next_deadline(stream), Some(Instant::from_millis(5000) + LOST_RETRY_DELAY));
    node.now = 5020;
    assert_eq!(
        node.handle_link_event(stream, replica::ReplicaEvent::Deadline),
        [ReplicaDriverAction::LinkAction(ReplicaAction::Connect)]
    );
    node.handle_link_event(stream, replica::ReplicaEvent::Connected);
    node.receive(stream, "+PONG\r\n");
    let asked = sent_bytes(&node.receive(stream, "+OK\r\n+OK\r\n+OK\r\n"));
    assert!(asked.contains(&id(2).to_string()) && asked.contains("71"), "{asked}");
}

#[test]
fn nothing_is_read_and_no_deadline_exists_while_a_batch_is_applied() {
    let (mut node, stream) = NodeFixture::with_stream_started();
    assert!(node.driver.should_read(stream) && node.driver.is_in_sync());
    let piece = ReplicaDriverAction::LinkAction(ReplicaAction::StreamBytes(b"PING\r\n".to_vec()));
    assert_eq!(node.receive(stream, "PING\r\n"), [piece]);
    assert!(!node.driver.should_read(stream) && !node.driver.should_read_rdb_channel(stream));
    assert_eq!(node.driver.next_deadline(stream), None);
    assert_eq!(node.handle_link_event(stream, replica::ReplicaEvent::Applied { bytes: 6 }), []);
    assert!(node.driver.should_read(stream) && node.driver.next_deadline(stream).is_some());
}

#[test]
fn new_id_of_the_master_resynchronises_sub_replicas() {
    let (mut node, stream) = NodeFixture::with_psync_sent();
    let resumed = [
        ReplicaDriverAction::HistoryReplaced,
        ReplicaDriverAction::LinkAction(ReplicaAction::Resume { id: id(4), slot_states: None }),
        ReplicaDriverAction::LinkAction(ReplicaAction::LinkUp),
    ];
    assert_eq!(node.receive(stream, &format!("+CONTINUE {}\r\n", id(4))), resumed);
    assert_eq!(node.log.position(), ReplPosition { id: id(4), offset: ReplOffset(10) });
    assert_eq!(node.log.second_history(), Some(ReplPosition { id: id(1), offset: ReplOffset(10) }));
}

#[test]
fn dropped_data_belongs_to_no_history_if_the_link_breaks() {
    let (mut node, stream) = NodeFixture::with_transfer_started();
    assert_eq!(
        node.handle_link_event(stream, replica::ReplicaEvent::ReplacingData),
        [ReplicaDriverAction::HistoryReplaced]
    );
    node.log.close();
    assert_eq!(node.handle_link_event(stream, replica::ReplicaEvent::Closed), []);
    assert_eq!(node.driver.replica().unwrap().position(), None);
}

#[test]
fn snapshot_connection_closes_with_the_main_connection() {
    let mut node = NodeFixture::new();
    let stream = node.driver.follow(Instant::from_millis(0), "one", config(true), &mut node.log).unwrap();
    node.handle_event(stream, ReplicaDriverEvent::WritesDrained);
    node.handle_link_event(stream, replica::ReplicaEvent::Deadline);
    node.handle_link_event(stream, replica::ReplicaEvent::Connected);
    node.receive(stream, "+PONG\r\n");
    node.receive(stream, "+OK\r\n+OK\r\n+OK\r\n");
    let connect = ReplicaDriverAction::LinkAction(ReplicaAction::RdbChannel(RdbChannelAction::Connect));
    assert_eq!(node.receive(stream, "+DUALCHANNELSYNC\r\n"), [connect]);
    assert!(node.driver.should_read_rdb_channel(stream));
    let close = ReplicaDriverAction::LinkAction(ReplicaAction::RdbChannel(RdbChannelAction::Close));
    assert_eq!(node.handle_link_event(stream, replica::ReplicaEvent::Closed), [close]);
}

/// Regression test: a replica whose snapshot could not be loaded started an election with the offset of its previous
/// data, which was gone.
#[test]
fn replica_without_data_after_a_failed_load_has_offset_zero() {
    let (mut node, stream) = NodeFixture::with_stream_started();
    let stands =
        |node: &NodeFixture| (node.driver.has_data(&node.log), node.driver.failover_offset(&node.log).0);
    assert_eq!(stands(&node), (true, 10));
    node.handle_link_event(stream, replica::ReplicaEvent::Closed);
    assert_eq!(stands(&node), (true, 10), "it is old");
    node.now = 5000;
    node.handle_link_event(stream, replica::ReplicaEvent::Deadline);
    node.handle_link_event(stream, replica::ReplicaEvent::Connected);
    node.receive(stream, "+PONG\r\n");
    node.receive(stream, "+OK\r\n+OK\r\n+OK\r\n");
    node.receive(stream, &format!("+FULLRESYNC {} 70\r\n$6\r\nabc", id(2)));
    assert_eq!(stands(&node), (true, 10), "it stays until the other is here whole");
    node.receive(stream, "def");
    node.log.close();
    assert_eq!(stands(&node), (false, 0));
    node.handle_link_event(stream, replica::ReplicaEvent::LoadFailed);
    assert_eq!(stands(&node), (false, 0));
    assert!(node.driver.promote(id(9), &mut node.log));
    assert_eq!(stands(&node), (false, 10), "a master counts on from where it was");
}
