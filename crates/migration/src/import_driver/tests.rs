use slot_routing::{NodeId, Slot};

use super::*;
use crate::{JobName, MAX_WRITE_PAUSE};

const IMPORT_TIMEOUT: Duration = Duration::from_secs(60);

fn at_millis(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn example_job(resumable: bool) -> EstablishMessage {
    let slot = Slot::of_key(b"{a}");
    EstablishMessage {
        source: NodeId::from_random([1; 20]),
        name: JobName::from_random([3; 20]),
        ranges: vec![(slot, slot)],
        is_resumable: resumable,
    }
}

struct ImportProcess {
    driver: ImportDriver,
    actions: Actions,
}

fn encode_request(line: &str) -> Vec<u8> {
    let mut wire = Vec::new();
    resp::encode_request(&mut wire, line.split(' ').map(str::as_bytes).collect::<Vec<_>>());
    wire
}

fn encode_message(message: MigrationMessage) -> Vec<u8> {
    SyncSlotsCommand::Message(message).to_resp()
}

/// Formats an action for comparison.
fn format_action(action: ImportDriverAction) -> String {
    match action {
        ImportDriverAction::Send(bytes) => {
            let text = String::from_utf8(bytes).unwrap();
            let lines = text.split("\r\n").filter(|line| !line.starts_with(['*', '$']) && !line.is_empty());
            lines.collect::<Vec<_>>().join(" ").replace("CLUSTER SYNCSLOTS ", "")
        }
        ImportDriverAction::ApplyCommands(commands) => {
            let mut names = commands.batch.requests(0..commands.batch.len(), &commands.bytes);
            let mut text = "apply".to_owned();
            names.by_ref().for_each(|args| {
                let words: Vec<_> = args.iter().take(3).map(String::from_utf8_lossy).collect();
                text += &format!(" [{}]", words.join(" "));
            });
            text
        }
        other => format!("{other:?}"),
    }
}

impl ImportProcess {
    fn new(is_resumable: bool, received: &[u8]) -> Self {
        let commands = crate::logged_command::tagged_argument_decoder();
        let (driver, out) = ImportDriver::new(
            at_millis(0),
            example_job(is_resumable),
            IMPORT_TIMEOUT,
            commands,
            received.to_vec(),
        );
        Self { driver, actions: out }
    }

    fn take_formatted_actions(&mut self) -> Vec<String> {
        std::mem::take(&mut self.actions).into_iter().map(format_action).collect()
    }

    /// Reports an event and returns the actions.
    fn handle_event(&mut self, millis: u64, event: ImportDriverEvent) -> Vec<String> {
        self.driver.handle(at_millis(millis), event, &mut self.actions);
        self.take_formatted_actions()
    }

    fn receive(&mut self, millis: u64, bytes: &[u8]) -> Vec<String> {
        self.handle_event(millis, ImportDriverEvent::Received { bytes: bytes.to_vec(), has_more: false })
    }

    fn report_applied(&mut self, millis: u64) -> Vec<String> {
        self.handle_event(millis, ImportDriverEvent::CommandsApplied(Ok(())))
    }
}

#[test]
fn messages_are_handled_once_the_commands_before_them_are_executed() {
    let data = [
        encode_message(MigrationMessage::Ack),
        encode_request("SET {a} x"),
        encode_message(MigrationMessage::SnapshotEof),
    ]
    .concat();
    let split = encode_message(MigrationMessage::Ack).len() + 5;
    let mut process = ImportProcess::new(false, &data[..split]);
    assert_eq!(process.take_formatted_actions(), ["+OK", "apply [CLUSTER SYNCSLOTS ACK]"]);
    assert!(!process.driver.can_read());
    assert_eq!(process.report_applied(1), [""; 0]);
    assert_eq!(process.driver.state_name(), Some("receiving-snapshot"));
    assert_eq!(process.receive(2, &data[split..]), ["apply [SET {a} x] [CLUSTER SYNCSLOTS SNAPSHOT-EOF]"]);
    assert_eq!(process.driver.state_name(), Some("receiving-snapshot"));
    assert_eq!(process.report_applied(3), ["REQUEST-PAUSE"], "everything is applied");
    assert_eq!(
        process.receive(4, &encode_message(MigrationMessage::Paused)),
        ["apply [CLUSTER SYNCSLOTS PAUSED]"]
    );
    assert_eq!(process.report_applied(5), ["REQUEST-FAILOVER"]);
    process.receive(6, &encode_message(MigrationMessage::FailoverGranted));
    assert_eq!(process.report_applied(7), ["AwaitReplicas"]);
    let conditions = ImportConditions { is_master: true, source_owns_slots: true, was_flushed: false };
    assert_eq!(process.handle_event(8, ImportDriverEvent::ReplicasCaughtUp(conditions)), ["ClaimSlots"]);
    assert_eq!(process.handle_event(9, ImportDriverEvent::ClaimResult(Ok(()))), ["End(Ok(()))"]);
    assert_eq!((process.driver.state_name(), process.driver.next_deadline()), (None, None));
}

#[test]
fn commands_about_other_slots_are_refused() {
    for (line, allowed) in [
        ("DEL {a}1 {a}2", true),
        ("DEL {a}1 {b}2", false),
        ("SET {b}1 x", false),
        ("FLUSHALL", false),
        ("SELECT 5", true),
        ("multi", true),
        ("exec", true),
        ("CLUSTER FLUSHSLOT 7", true),
        ("CLUSTER SYNCSLOTS NOSUCH", false),
    ] {
        let mut process = ImportProcess::new(false, b"");
        process.take_formatted_actions();
        let bytes = [encode_request("PING"), encode_request(line)].concat();
        let shown = process.receive(1, &bytes);
        assert_eq!(shown[0].starts_with("apply [PING]"), allowed, "{shown:?}");
        assert_eq!(shown[0].starts_with("End(Err("), !allowed, "{shown:?}");
    }
}

#[test]
fn failed_command_and_malformed_bytes_end_the_job() {
    let finish = "FINISH STATE FAILED NAME 0303030303030303030303030303030303030303 MESSAGE";
    let mut process = ImportProcess::new(true, &encode_request("SET {a} x"));
    process.take_formatted_actions();
    let shown = process.handle_event(1, ImportDriverEvent::CommandsApplied(Err("OOM".to_owned())));
    assert_eq!(shown, [finish, "End(Err(\"A command of the source failed: OOM\"))"]);
    let mut process = ImportProcess::new(false, b"");
    process.take_formatted_actions();
    let bytes = [encode_request("SET {a} x"), b"hello".to_vec()].concat();
    assert_eq!(process.receive(1, &bytes), ["apply [SET {a} x]"], "complete commands are executed");
    assert!(process.report_applied(2)[0].starts_with("End(Err("));
}

#[test]
fn import_resumes_on_a_new_link_after_the_applied_bytes() {
    let set = encode_request("SET {a} x");
    let mut process = ImportProcess::new(true, &[set.clone(), set[..9].to_vec()].concat());
    process.take_formatted_actions();
    process.report_applied(1);
    assert_eq!(process.handle_event(2, ImportDriverEvent::Closed), [""; 0]);
    let shown = process.handle_event(3, ImportDriverEvent::Resumed(set.clone()));
    assert_eq!(shown, [&format!(":{}", set.len()), "apply [SET {a} x]"]);
    process.report_applied(4);
    assert_eq!(process.handle_event(1004, ImportDriverEvent::Deadline), [format!("ACK {}", 2 * set.len())]);
}

#[test]
fn applied_bytes_are_acknowledged_before_the_window_fills() {
    let mut process = ImportProcess::new(true, b"");
    process.take_formatted_actions();
    let large = encode_request(&format!("SET {{a}} {}", "x".repeat(ACK_INTERVAL_BYTES as usize)));
    assert_eq!(process.receive(1, &large[..9]), [""; 0]);
    process.receive(2, &large[9..]);
    assert_eq!(process.report_applied(3), [format!("ACK {}", large.len())]);
}

#[test]
fn many_commands_are_executed_in_batches() {
    let mut process = ImportProcess::new(false, b"");
    process.take_formatted_actions();
    let ping = encode_request("PING");
    assert_eq!(process.receive(1, &ping.repeat(MAX_COMMANDS_PER_BATCH + 1)).len(), 1);
    assert_eq!(process.report_applied(2), ["apply [PING]"]);
    assert!(!process.driver.can_read());
    assert_eq!(process.report_applied(3), [""; 0]);
    assert!(process.driver.can_read() && CLAIM_TIMEOUT < MAX_WRITE_PAUSE);
}

/// The target must claim the slots within this time, before the source accepts writes again.
const CLAIM_TIMEOUT: Duration = crate::CLAIM_TIMEOUT;
