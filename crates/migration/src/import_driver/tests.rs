use slot_routing::{NodeId, Slot};

use super::*;
use crate::{JobName, MAX_HOLD_TIME};

const TIMEOUT: Duration = Duration::from_secs(60);

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn job(resumable: bool) -> Establish {
    let slot = Slot::of_key(b"{a}");
    Establish {
        source: NodeId::from_random([1; 20]),
        name: JobName::from_random([3; 20]),
        ranges: vec![(slot, slot)],
        resumable,
    }
}

struct Process {
    driver: ImportDriver,
    out: Actions,
}

fn request(line: &str) -> Vec<u8> {
    let mut wire = Vec::new();
    resp::encode_request(&mut wire, line.split(' ').map(str::as_bytes).collect::<Vec<_>>());
    wire
}

fn message(message: Message) -> Vec<u8> {
    SyncSlots::Message(message).encoded()
}

/// Formats an action for comparison.
fn shown(action: ImportDriverAction) -> String {
    match action {
        ImportDriverAction::Send(bytes) => {
            let text = String::from_utf8(bytes).unwrap();
            let lines = text.split("\r\n").filter(|line| !line.starts_with(['*', '$']) && !line.is_empty());
            lines.collect::<Vec<_>>().join(" ").replace("CLUSTER SYNCSLOTS ", "")
        }
        ImportDriverAction::Apply(commands) => {
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

impl Process {
    fn new(resumable: bool, received: &[u8]) -> Self {
        let commands = crate::slots_of_command::of_tagged_words();
        let (driver, out) = ImportDriver::new(at(0), job(resumable), TIMEOUT, commands, received.to_vec());
        Self { driver, out }
    }

    fn shown(&mut self) -> Vec<String> {
        std::mem::take(&mut self.out).into_iter().map(shown).collect()
    }

    /// Reports an event and returns the actions.
    fn tell(&mut self, millis: u64, event: ImportDriverEvent) -> Vec<String> {
        self.driver.handle(at(millis), event, &mut self.out);
        self.shown()
    }

    fn hear(&mut self, millis: u64, bytes: &[u8]) -> Vec<String> {
        self.tell(millis, ImportDriverEvent::Received { bytes: bytes.to_vec(), more: false })
    }

    fn applied(&mut self, millis: u64) -> Vec<String> {
        self.tell(millis, ImportDriverEvent::Applied(Ok(())))
    }
}

#[test]
fn messages_count_once_the_commands_before_them_are_executed() {
    let data = [message(Message::Ack), request("SET {a} x"), message(Message::SnapshotEof)].concat();
    let split = message(Message::Ack).len() + 5;
    let mut process = Process::new(false, &data[..split]);
    assert_eq!(process.shown(), ["+OK", "apply [CLUSTER SYNCSLOTS ACK]"]);
    assert!(!process.driver.reads());
    assert_eq!(process.applied(1), [""; 0]);
    assert_eq!(process.driver.state_name(), Some("receiving-snapshot"));
    assert_eq!(process.hear(2, &data[split..]), ["apply [SET {a} x] [CLUSTER SYNCSLOTS SNAPSHOT-EOF]"]);
    assert_eq!(process.driver.state_name(), Some("receiving-snapshot"));
    assert_eq!(process.applied(3), ["REQUEST-PAUSE"], "everything is applied");
    assert_eq!(process.hear(4, &message(Message::Paused)), ["apply [CLUSTER SYNCSLOTS PAUSED]"]);
    assert_eq!(process.applied(5), ["REQUEST-FAILOVER"]);
    process.hear(6, &message(Message::FailoverGranted));
    assert_eq!(process.applied(7), ["AwaitReplicas"]);
    let conditions = ImportConditions { is_master: true, source_serves: true, flushed: false };
    assert_eq!(process.tell(8, ImportDriverEvent::ReplicasCaughtUp(conditions)), ["Claim"]);
    assert_eq!(process.tell(9, ImportDriverEvent::Claimed(Ok(()))), ["End(Ok(()))"]);
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
        let mut process = Process::new(false, b"");
        process.shown();
        let bytes = [request("PING"), request(line)].concat();
        let shown = process.hear(1, &bytes);
        assert_eq!(shown[0].starts_with("apply [PING]"), allowed, "{shown:?}");
        assert_eq!(shown[0].starts_with("End(Err("), !allowed, "{shown:?}");
    }
}

#[test]
fn failed_command_and_malformed_bytes_end_the_job() {
    let finish = "FINISH STATE FAILED NAME 0303030303030303030303030303030303030303 MESSAGE";
    let mut process = Process::new(true, &request("SET {a} x"));
    process.shown();
    let shown = process.tell(1, ImportDriverEvent::Applied(Err("OOM".to_owned())));
    assert_eq!(shown, [finish, "End(Err(\"A command of the source failed: OOM\"))"]);
    let mut process = Process::new(false, b"");
    process.shown();
    let bytes = [request("SET {a} x"), b"hello".to_vec()].concat();
    assert_eq!(process.hear(1, &bytes), ["apply [SET {a} x]"], "complete commands are executed");
    assert!(process.applied(2)[0].starts_with("End(Err("));
}

#[test]
fn new_link_continues_after_the_applied_bytes() {
    let set = request("SET {a} x");
    let mut process = Process::new(true, &[set.clone(), set[..9].to_vec()].concat());
    process.shown();
    process.applied(1);
    assert_eq!(process.tell(2, ImportDriverEvent::Closed), [""; 0]);
    let shown = process.tell(3, ImportDriverEvent::Resumed(set.clone()));
    assert_eq!(shown, [&format!(":{}", set.len()), "apply [SET {a} x]"]);
    process.applied(4);
    assert_eq!(process.tell(1004, ImportDriverEvent::Deadline), [format!("ACK {}", 2 * set.len())]);
}

#[test]
fn applied_bytes_are_acknowledged_early_enough() {
    let mut process = Process::new(true, b"");
    process.shown();
    let large = request(&format!("SET {{a}} {}", "x".repeat(ACK_BYTES as usize)));
    assert_eq!(process.hear(1, &large[..9]), [""; 0]);
    process.hear(2, &large[9..]);
    assert_eq!(process.applied(3), [format!("ACK {}", large.len())]);
}

#[test]
fn many_commands_are_executed_in_portions() {
    let mut process = Process::new(false, b"");
    process.shown();
    let ping = request("PING");
    assert_eq!(process.hear(1, &ping.repeat(MAX_COMMANDS + 1)).len(), 1);
    assert_eq!(process.applied(2), ["apply [PING]"]);
    assert!(!process.driver.reads());
    assert_eq!(process.applied(3), [""; 0]);
    assert!(process.driver.reads() && CLAIM < MAX_HOLD_TIME);
}

/// The target must claim the slots within this time, before the source accepts writes again.
const CLAIM: Duration = crate::CLAIM_TIMEOUT;
