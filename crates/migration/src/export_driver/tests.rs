use slot_routing::Slot;

use super::*;
use crate::{JobName, SlotMove};

const EXPORT_CONFIG: ExportConfig = ExportConfig {
    connect_timeout: Duration::from_secs(3),
    timeout: Duration::from_secs(60),
    requires_authentication: false,
    max_remaining_bytes: u64::MAX,
};

fn at_millis(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn example_job() -> ExportJob {
    let slot = Slot::of_key(b"{a}");
    let order = SlotMove { ranges: vec![(slot, slot)], target: NodeId::from_random([2; 20]) };
    let name = JobName::from_random([3; 20]);
    let source = NodeId::from_random([1; 20]);
    ExportJob {
        establish_message: EstablishMessage { source, name, ranges: order.ranges, is_resumable: false },
        target: order.target,
    }
}

struct ExportProcess {
    driver: ExportDriver,
    actions: Actions,
}

impl ExportProcess {
    fn new(config: ExportConfig) -> Self {
        let (driver, out) = ExportDriver::new(
            at_millis(0),
            example_job(),
            config,
            crate::logged_command::tagged_argument_decoder(),
        );
        assert_eq!(out, [ExportDriverAction::Connect(config.connect_timeout)]);
        Self { driver, actions: Vec::new() }
    }

    /// Reports an event and returns the actions.
    fn handle_event(&mut self, millis: u64, event: ExportDriverEvent) -> Actions {
        self.driver.handle(at_millis(millis), event, &mut self.actions);
        std::mem::take(&mut self.actions)
    }

    fn receive(&mut self, millis: u64, bytes: &[u8]) -> Actions {
        self.handle_event(millis, ExportDriverEvent::Received(bytes.to_vec()))
    }

    /// Returns a resumable migration in the phase that sends the log.
    fn with_log_started() -> Self {
        let mut process = Self::new(EXPORT_CONFIG);
        process.handle_event(1, ExportDriverEvent::Connected);
        process.receive(2, b"+OK\r\n");
        let actions = process.receive(3, b"+OK\r\n");
        assert_eq!(
            actions,
            [send_action(SyncSlotsCommand::Message(MigrationMessage::Ack)), ExportDriverAction::TakeSnapshot]
        );
        process.handle_event(4, ExportDriverEvent::SnapshotTaken);
        assert!(!process.driver.is_sending_log());
        assert_eq!(
            process.handle_event(5, ExportDriverEvent::SnapshotEnd),
            [send_action(SyncSlotsCommand::Message(MigrationMessage::SnapshotEof))]
        );
        assert!(process.driver.is_sending_log() && process.driver.accepts_data());
        process
    }
}

#[expect(clippy::needless_pass_by_value, reason = "shorter calls")]
fn send_action(command: SyncSlotsCommand) -> ExportDriverAction {
    ExportDriverAction::Send(command.to_resp())
}

fn encode_request(words: &[&str]) -> Vec<u8> {
    let mut wire = Vec::new();
    resp::encode_request(&mut wire, words.iter().map(|word| word.as_bytes()));
    wire
}

#[test]
fn credentials_are_sent_first_on_every_link() {
    let mut process = ExportProcess::new(ExportConfig { requires_authentication: true, ..EXPORT_CONFIG });
    assert_eq!(process.handle_event(1, ExportDriverEvent::Connected), [ExportDriverAction::SendCredentials]);
    assert_eq!(process.receive(2, b"+OK\r\n"), [send_action(SyncSlotsCommand::QueryResumable)]);
    let establish = EstablishMessage { is_resumable: true, ..example_job().establish_message };
    assert_eq!(process.receive(3, b"+OK\r\n"), [send_action(SyncSlotsCommand::Establish(establish.clone()))]);
    process.receive(4, b"+OK\r\n");
    assert_eq!(
        process.handle_event(5, ExportDriverEvent::Closed),
        [ExportDriverAction::Connect(RECONNECT_TIMEOUT)]
    );
    assert!(!process.driver.accepts_data());
    let actions = process.handle_event(6, ExportDriverEvent::Connected);
    assert_eq!(
        actions,
        [ExportDriverAction::SendCredentials, send_action(SyncSlotsCommand::Resume(establish.name))]
    );
    let ack = send_action(SyncSlotsCommand::Message(MigrationMessage::Ack));
    let actions = process.receive(7, b"+OK\r\n:0\r\n");
    assert_eq!(actions, [ExportDriverAction::ReportResumed, ack], "the bytes that were not applied");
    assert!(process.driver.accepts_data());
}

#[test]
fn only_commands_of_the_slots_are_sent_and_repeated_on_a_new_link() {
    let mut process = ExportProcess::with_log_started();
    let sent = process.driver.sent_bytes();
    let (mine, other) = (encode_request(&["SET", "{a}1", "x"]), encode_request(&["SET", "{b}1", "x"]));
    let selected = [encode_request(&["SELECT", "0"]), mine.clone()].concat();
    let actions = process.handle_event(6, ExportDriverEvent::LogChunk([other.clone(), mine].concat()));
    assert_eq!(actions, [ExportDriverAction::Send(selected.clone())]);
    assert_eq!(process.handle_event(7, ExportDriverEvent::LogChunk(other)), []);
    assert_eq!(process.driver.sent_bytes(), sent + selected.len() as u64);
    process.handle_event(8, ExportDriverEvent::Closed);
    process.handle_event(9, ExportDriverEvent::Connected);
    // The target has applied all bytes but the last three. The ESTABLISH message is not counted.
    let handshake = SyncSlotsCommand::Message(MigrationMessage::Ack).to_resp().len()
        + SyncSlotsCommand::Message(MigrationMessage::SnapshotEof).to_resp().len();
    let applied = handshake + selected.len() - 3;
    let actions = process.receive(10, format!(":{applied}\r\n").as_bytes());
    let rest = selected[selected.len() - 3..].to_vec();
    assert_eq!(actions, [ExportDriverAction::ReportResumed, ExportDriverAction::Send(rest)]);
}

#[test]
fn attempts_to_reconnect_are_limited_in_time_and_repeated() {
    let mut process = ExportProcess::with_log_started();
    process.handle_event(10, ExportDriverEvent::Closed);
    assert_eq!(process.driver.next_deadline(), Some(at_millis(1010)));
    process.handle_event(500, ExportDriverEvent::Connected);
    assert_eq!(process.driver.next_deadline(), Some(at_millis(1500)), "the reply to RESUME has its own time");
    assert_eq!(process.handle_event(1500, ExportDriverEvent::Deadline), [ExportDriverAction::Close]);
    assert_eq!(process.receive(1550, b":0\r\n"), [], "too late");
    let actions = process.handle_event(1600, ExportDriverEvent::Deadline);
    assert_eq!(actions, [ExportDriverAction::Connect(RECONNECT_TIMEOUT)]);
    assert_eq!(process.handle_event(1700, ExportDriverEvent::ConnectFailed("refused".to_owned())), []);
    let actions = process.handle_event(5010, ExportDriverEvent::Deadline);
    assert!(matches!(actions[..], [ExportDriverAction::End(ExportOutcome::Failed(_))]), "{actions:?}");
    assert_eq!((process.driver.next_deadline(), process.driver.state_name()), (None, None));
}

#[test]
fn target_that_forgot_the_job_ends_it() {
    let mut process = ExportProcess::with_log_started();
    process.handle_event(10, ExportDriverEvent::Closed);
    process.handle_event(11, ExportDriverEvent::Connected);
    let actions = process.receive(12, b"-ERR No such slot migration\r\n");
    assert_eq!(actions[0], ExportDriverAction::Close);
    assert!(matches!(actions[1..], [ExportDriverAction::End(ExportOutcome::Failed(_))]), "{actions:?}");
}

#[test]
fn slots_are_reported_as_drained_once_the_rest_of_the_log_was_read() {
    let mut process = ExportProcess::with_log_started();
    process.receive(6, &SyncSlotsCommand::Message(MigrationMessage::RequestPause).to_resp());
    assert_eq!(
        process.handle_event(7, ExportDriverEvent::UnreadLogBytes(200)),
        [ExportDriverAction::PauseWrites]
    );
    let log = encode_request(&["SET", "{b}1", "x"]);
    let unread = 2 * log.len() as u64;
    assert_eq!(process.handle_event(8, ExportDriverEvent::WritesPaused { unread_bytes: unread }), []);
    assert_eq!(process.handle_event(9, ExportDriverEvent::LogChunk(log.clone())), []);
    let paused = send_action(SyncSlotsCommand::Message(MigrationMessage::Paused));
    assert_eq!(process.handle_event(10, ExportDriverEvent::LogChunk(log)), [paused]);
    let granted = send_action(SyncSlotsCommand::Message(MigrationMessage::FailoverGranted));
    assert_eq!(
        process.receive(11, &SyncSlotsCommand::Message(MigrationMessage::RequestFailover).to_resp()),
        [granted]
    );
}

#[test]
fn failure_is_reported_to_a_target_that_waits_for_a_new_link() {
    let finish =
        send_action(SyncSlotsCommand::Finish(FinishMessage::failed(example_job().establish_message.name)));
    let mut process = ExportProcess::with_log_started();
    let end = ExportDriverAction::End(ExportOutcome::Cancelled);
    assert_eq!(process.handle_event(6, ExportDriverEvent::Cancel), [finish.clone(), end]);
    let mut process = ExportProcess::with_log_started();
    let end = ExportDriverAction::End(ExportOutcome::Failed("Data was flushed".to_owned()));
    assert_eq!(
        process.handle_event(6, ExportDriverEvent::LogChunk(encode_request(&["FLUSHALL"]))),
        [finish.clone(), end]
    );
    let mut process = ExportProcess::with_log_started();
    let actions = process.receive(6, &SyncSlotsCommand::AppliedBytes(1 << 40).to_resp());
    let end = ExportOutcome::Failed("Target node has applied more than was sent".to_owned());
    assert_eq!(actions, [finish, ExportDriverAction::End(end)]);
    let mut valkey = ExportProcess::new(EXPORT_CONFIG);
    valkey.handle_event(1, ExportDriverEvent::Connected);
    valkey.receive(2, b"-ERR unknown\r\n+OK\r\n");
    assert_eq!(
        valkey.handle_event(3, ExportDriverEvent::Cancel),
        [ExportDriverAction::End(ExportOutcome::Cancelled)]
    );
}

#[test]
fn no_data_is_accepted_while_too_many_bytes_are_unacknowledged() {
    let mut process = ExportProcess::with_log_started();
    let part = vec![b'x'; ResendWindow::MAX_WINDOW_BYTES];
    process.handle_event(6, ExportDriverEvent::SnapshotChunk(part));
    assert!(!process.driver.accepts_data());
    process.receive(7, &SyncSlotsCommand::AppliedBytes(1000).to_resp());
    assert!(process.driver.accepts_data());
}
