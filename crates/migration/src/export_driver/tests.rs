use slot_routing::Slot;

use super::*;
use crate::{JobName, SlotMove};

const CONFIG: ExportConfig = ExportConfig {
    connect_timeout: Duration::from_secs(3),
    timeout: Duration::from_secs(60),
    authenticate: false,
    max_remaining: u64::MAX,
};

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn job() -> ExportJob {
    let slot = Slot::of_key(b"{a}");
    let order = SlotMove { ranges: vec![(slot, slot)], target: NodeId::from_random([2; 20]) };
    let name = JobName::from_random([3; 20]);
    let source = NodeId::from_random([1; 20]);
    ExportJob {
        establish: Establish { source, name, ranges: order.ranges, resumable: false },
        target: order.target,
    }
}

struct Process {
    driver: ExportDriver,
    out: Actions,
}

impl Process {
    fn new(config: ExportConfig) -> Self {
        let (driver, out) =
            ExportDriver::new(at(0), job(), config, crate::slots_of_command::of_tagged_words());
        assert_eq!(out, [ExportDriverAction::Connect(config.connect_timeout)]);
        Self { driver, out: Vec::new() }
    }

    /// Reports an event and returns the actions.
    fn tell(&mut self, millis: u64, event: ExportDriverEvent) -> Actions {
        self.driver.handle(at(millis), event, &mut self.out);
        std::mem::take(&mut self.out)
    }

    fn hear(&mut self, millis: u64, bytes: &[u8]) -> Actions {
        self.tell(millis, ExportDriverEvent::Received(bytes.to_vec()))
    }

    /// Returns a resumable migration in the phase that sends the log.
    fn replicating() -> Self {
        let mut process = Self::new(CONFIG);
        process.tell(1, ExportDriverEvent::Connected);
        process.hear(2, b"+OK\r\n");
        let actions = process.hear(3, b"+OK\r\n");
        assert_eq!(actions, [sends(SyncSlots::Message(Message::Ack)), ExportDriverAction::TakeSnapshot]);
        process.tell(4, ExportDriverEvent::SnapshotTaken);
        assert!(!process.driver.reads_log());
        assert_eq!(
            process.tell(5, ExportDriverEvent::SnapshotEnd),
            [sends(SyncSlots::Message(Message::SnapshotEof))]
        );
        assert!(process.driver.reads_log() && process.driver.accepts_data());
        process
    }
}

#[expect(clippy::needless_pass_by_value, reason = "shorter calls")]
fn sends(command: SyncSlots) -> ExportDriverAction {
    ExportDriverAction::Send(command.encoded())
}

fn request(words: &[&str]) -> Vec<u8> {
    let mut wire = Vec::new();
    resp::encode_request(&mut wire, words.iter().map(|word| word.as_bytes()));
    wire
}

#[test]
fn credentials_are_sent_first_on_every_link() {
    let mut process = Process::new(ExportConfig { authenticate: true, ..CONFIG });
    assert_eq!(process.tell(1, ExportDriverEvent::Connected), [ExportDriverAction::SendCredentials]);
    assert_eq!(process.hear(2, b"+OK\r\n"), [sends(SyncSlots::AskResumable)]);
    let establish = Establish { resumable: true, ..job().establish };
    assert_eq!(process.hear(3, b"+OK\r\n"), [sends(SyncSlots::Establish(establish.clone()))]);
    process.hear(4, b"+OK\r\n");
    assert_eq!(process.tell(5, ExportDriverEvent::Closed), [ExportDriverAction::Connect(RECONNECT_TIMEOUT)]);
    assert!(!process.driver.accepts_data());
    let actions = process.tell(6, ExportDriverEvent::Connected);
    assert_eq!(actions, [ExportDriverAction::SendCredentials, sends(SyncSlots::Resume(establish.name))]);
    let ack = sends(SyncSlots::Message(Message::Ack));
    let actions = process.hear(7, b"+OK\r\n:0\r\n");
    assert_eq!(actions, [ExportDriverAction::LogResumed, ack], "the bytes that were not applied");
    assert!(process.driver.accepts_data());
}

#[test]
fn only_commands_of_the_slots_are_sent_and_repeated_on_a_new_link() {
    let mut process = Process::replicating();
    let sent = process.driver.sent_bytes();
    let (mine, other) = (request(&["SET", "{a}1", "x"]), request(&["SET", "{b}1", "x"]));
    let selected = [request(&["SELECT", "0"]), mine.clone()].concat();
    let actions = process.tell(6, ExportDriverEvent::LogRead([other.clone(), mine].concat()));
    assert_eq!(actions, [ExportDriverAction::Send(selected.clone())]);
    assert_eq!(process.tell(7, ExportDriverEvent::LogRead(other)), []);
    assert_eq!(process.driver.sent_bytes(), sent + selected.len() as u64);
    process.tell(8, ExportDriverEvent::Closed);
    process.tell(9, ExportDriverEvent::Connected);
    // The target has applied all bytes but the last three. The ESTABLISH message is not counted.
    let handshake = SyncSlots::Message(Message::Ack).encoded().len()
        + SyncSlots::Message(Message::SnapshotEof).encoded().len();
    let applied = handshake + selected.len() - 3;
    let actions = process.hear(10, format!(":{applied}\r\n").as_bytes());
    let rest = selected[selected.len() - 3..].to_vec();
    assert_eq!(actions, [ExportDriverAction::LogResumed, ExportDriverAction::Send(rest)]);
}

#[test]
fn attempts_to_reconnect_are_limited_in_time_and_repeated() {
    let mut process = Process::replicating();
    process.tell(10, ExportDriverEvent::Closed);
    assert_eq!(process.driver.next_deadline(), Some(at(1010)));
    process.tell(500, ExportDriverEvent::Connected);
    assert_eq!(process.driver.next_deadline(), Some(at(1500)), "the reply to RESUME has its own time");
    assert_eq!(process.tell(1500, ExportDriverEvent::Deadline), [ExportDriverAction::Close]);
    assert_eq!(process.hear(1550, b":0\r\n"), [], "too late");
    let actions = process.tell(1600, ExportDriverEvent::Deadline);
    assert_eq!(actions, [ExportDriverAction::Connect(RECONNECT_TIMEOUT)]);
    assert_eq!(process.tell(1700, ExportDriverEvent::NotConnected("refused".to_owned())), []);
    let actions = process.tell(5010, ExportDriverEvent::Deadline);
    assert!(matches!(actions[..], [ExportDriverAction::End(ExportOutcome::Failed(_))]), "{actions:?}");
    assert_eq!((process.driver.next_deadline(), process.driver.state_name()), (None, None));
}

#[test]
fn target_that_forgot_the_job_ends_it() {
    let mut process = Process::replicating();
    process.tell(10, ExportDriverEvent::Closed);
    process.tell(11, ExportDriverEvent::Connected);
    let actions = process.hear(12, b"-ERR No such slot migration\r\n");
    assert_eq!(actions[0], ExportDriverAction::Close);
    assert!(matches!(actions[1..], [ExportDriverAction::End(ExportOutcome::Failed(_))]), "{actions:?}");
}

#[test]
fn slots_are_reported_as_drained_once_the_rest_of_the_log_was_read() {
    let mut process = Process::replicating();
    process.hear(6, &SyncSlots::Message(Message::RequestPause).encoded());
    assert_eq!(process.tell(7, ExportDriverEvent::Remaining(200)), [ExportDriverAction::HoldWrites]);
    let log = request(&["SET", "{b}1", "x"]);
    let unread = 2 * log.len() as u64;
    assert_eq!(process.tell(8, ExportDriverEvent::WritesHeld { unread }), []);
    assert_eq!(process.tell(9, ExportDriverEvent::LogRead(log.clone())), []);
    let paused = sends(SyncSlots::Message(Message::Paused));
    assert_eq!(process.tell(10, ExportDriverEvent::LogRead(log)), [paused]);
    let granted = sends(SyncSlots::Message(Message::FailoverGranted));
    assert_eq!(process.hear(11, &SyncSlots::Message(Message::RequestFailover).encoded()), [granted]);
}

#[test]
fn failure_is_told_to_a_target_that_waits_for_a_new_link() {
    let finish = sends(SyncSlots::Finish(Finish::failed(job().establish.name)));
    let mut process = Process::replicating();
    let end = ExportDriverAction::End(ExportOutcome::Cancelled);
    assert_eq!(process.tell(6, ExportDriverEvent::Cancel), [finish.clone(), end]);
    let mut process = Process::replicating();
    let end = ExportDriverAction::End(ExportOutcome::Failed("Data was flushed".to_owned()));
    assert_eq!(process.tell(6, ExportDriverEvent::LogRead(request(&["FLUSHALL"]))), [finish.clone(), end]);
    let mut process = Process::replicating();
    let actions = process.hear(6, &SyncSlots::Applied(1 << 40).encoded());
    let end = ExportOutcome::Failed("Target node has applied more than was sent".to_owned());
    assert_eq!(actions, [finish, ExportDriverAction::End(end)]);
    let mut valkey = Process::new(CONFIG);
    valkey.tell(1, ExportDriverEvent::Connected);
    valkey.hear(2, b"-ERR unknown\r\n+OK\r\n");
    assert_eq!(
        valkey.tell(3, ExportDriverEvent::Cancel),
        [ExportDriverAction::End(ExportOutcome::Cancelled)]
    );
}

#[test]
fn data_waits_while_too_much_is_not_acknowledged() {
    let mut process = Process::replicating();
    let part = vec![b'x'; ResendWindow::SIZE];
    process.tell(6, ExportDriverEvent::SnapshotPart(part));
    assert!(!process.driver.accepts_data());
    process.hear(7, &SyncSlots::Applied(1000).encoded());
    assert!(process.driver.accepts_data());
}
