//! Messages between source and target, and from the target to its replicas (CLUSTER SYNCSLOTS).

use slot_routing::{NodeId, Slot, SlotSet};

use crate::job::JobName;
use crate::slot_move::{SlotMove, parse_ranges, parse_slot_moves, slots_of};

/// A message of a running migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// Keepalive.
    Ack,
    /// The snapshot is complete.
    SnapshotEof,
    /// The target asks the source to hold writes.
    RequestPause,
    /// Writes are held, and everything before that has been sent.
    Paused,
    /// The target asks for ownership of the slots.
    RequestFailover,
    /// The target may claim the slots.
    FailoverGranted,
}

const MESSAGE_WORDS: [(Message, &str); 6] = [
    (Message::Ack, "ACK"),
    (Message::SnapshotEof, "SNAPSHOT-EOF"),
    (Message::RequestPause, "REQUEST-PAUSE"),
    (Message::Paused, "PAUSED"),
    (Message::RequestFailover, "REQUEST-FAILOVER"),
    (Message::FailoverGranted, "FAILOVER-GRANTED"),
];

impl Message {
    /// Parses the word after `CLUSTER SYNCSLOTS`.
    #[must_use]
    pub fn parse(word: &[u8]) -> Option<Self> {
        let known = |(_, name): &&(Self, &str)| word.eq_ignore_ascii_case(name.as_bytes());
        MESSAGE_WORDS.iter().find(known).map(|(message, _)| *message)
    }

    /// The word after `CLUSTER SYNCSLOTS`.
    #[must_use]
    pub fn word(self) -> &'static str {
        MESSAGE_WORDS.iter().find(|(message, _)| *message == self).map_or("ACK", |(_, word)| word)
    }

    /// Appends the message as a RESP command.
    pub fn encode(self, out: &mut Vec<u8>) {
        resp::encode_request(out, ["CLUSTER", "SYNCSLOTS", self.word()].map(str::as_bytes));
    }
}

/// The first message of a migration, from source to target and from the target to its replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Establish {
    /// The node that owns the slots.
    pub source: NodeId,
    /// The migration's name.
    pub name: JobName,
    /// The migrating slots.
    pub ranges: Vec<(Slot, Slot)>,
    /// Whether the migration can be resumed on another link.
    pub resumable: bool,
}

impl Establish {
    /// The migrating slots as a set.
    #[must_use]
    pub fn slots(&self) -> SlotSet {
        slots_of(&self.ranges)
    }

    /// Appends the message as a RESP command.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let head = ["CLUSTER", "SYNCSLOTS", "ESTABLISH", "SOURCE", &self.source.to_string(), "NAME"];
        let mut words: Vec<String> = head.iter().map(|word| (*word).to_owned()).collect();
        words.push(self.name.to_string());
        words.push("SLOTSRANGE".to_owned());
        words.extend(
            self.ranges
                .iter()
                .flat_map(|(first, last)| [first.number().to_string(), last.number().to_string()]),
        );
        words.extend(self.resumable.then(|| RESUMABLE.to_owned()));
        resp::encode_request(out, words.iter().map(String::as_bytes));
    }

    /// The form sent to replicas, which are not concerned with links.
    #[must_use]
    pub fn without_link(&self) -> Self {
        Self { resumable: false, ..self.clone() }
    }
}

/// Marks a migration that can be resumed on another link.
pub const RESUMABLE: &str = "RESUMABLE";

/// Appends the command that asks whether the target supports resumable migrations.
pub fn encode_resumable_query(out: &mut Vec<u8>) {
    resp::encode_request(out, ["CLUSTER", "SYNCSLOTS", RESUMABLE].map(str::as_bytes));
}

/// Appends the first command on a new link. The reply is the number of applied bytes.
pub fn encode_resume(name: &JobName, out: &mut Vec<u8>) {
    resp::encode_request(out, ["CLUSTER", "SYNCSLOTS", "RESUME", "NAME", name.as_str()].map(str::as_bytes));
}

/// Parses the words after `CLUSTER SYNCSLOTS RESUME`.
#[must_use]
pub fn parse_resume(words: &[String]) -> Option<JobName> {
    let [name, job] = words else { return None };
    name.eq_ignore_ascii_case("name").then(|| JobName::from_bytes(job.as_bytes())).flatten()
}

/// Appends the command of a target that requests slots under a migration name of its own. The reply is +OK.
pub fn encode_pull_request(name: &JobName, order: &SlotMove, out: &mut Vec<u8>) {
    let target = order.target.to_string();
    let head = ["CLUSTER", "SYNCSLOTS", "REQUEST", "NAME", name.as_str()].map(str::to_owned);
    let slots = order.ranges.iter().flat_map(|(first, last)| [first.to_string(), last.to_string()]);
    let words =
        head.into_iter().chain(["SLOTSRANGE".to_owned()]).chain(slots).chain(["NODE".to_owned(), target]);
    let words: Vec<String> = words.collect();
    resp::encode_request(out, words.iter().map(String::as_bytes));
}

/// Parses the words after `CLUSTER SYNCSLOTS REQUEST`.
#[must_use]
pub fn parse_request(words: &[String]) -> Option<(JobName, SlotMove)> {
    let [name, job, order @ ..] = words else { return None };
    let job = name.eq_ignore_ascii_case("name").then(|| JobName::from_bytes(job.as_bytes())).flatten()?;
    let mut orders = parse_slot_moves(order, &|_| Ok(())).ok()?;
    (orders.len() == 1).then(|| orders.pop()).flatten().map(|order| (job, order))
}

/// Appends the target's ACK with the number of applied bytes.
pub fn encode_ack(count: u64, out: &mut Vec<u8>) {
    resp::encode_request(out, ["CLUSTER", "SYNCSLOTS", "ACK", &count.to_string()].map(str::as_bytes));
}

/// Parses the words after `CLUSTER SYNCSLOTS ESTABLISH`.
#[must_use]
pub fn parse_establish(words: &[String]) -> Option<Establish> {
    let [source, id, name, job, ranges @ ..] = words else { return None };
    if !source.eq_ignore_ascii_case("source") || !name.eq_ignore_ascii_case("name") {
        return None;
    }
    let (ranges, rest) = parse_ranges(ranges).ok()?;
    let resumable = match rest {
        [] => false,
        [word] if word.eq_ignore_ascii_case(RESUMABLE) => true,
        _ => return None,
    };
    let (source, name) = (id.parse().ok()?, JobName::from_bytes(job.as_bytes())?);
    Some(Establish { source, name, ranges, resumable })
}

/// The end of an import, as sent to the target's replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finish {
    /// The migration's name.
    pub name: JobName,
    /// Whether the shard now owns the slots.
    pub is_success: bool,
    /// The reason of a failure.
    pub message: String,
}

/// Appends the message as a RESP command.
pub fn encode_finish(end: &Finish, out: &mut Vec<u8>) {
    let state = if end.is_success { "SUCCESS" } else { "FAILED" };
    let name = end.name.to_string();
    let words =
        ["CLUSTER", "SYNCSLOTS", "FINISH", "STATE", state, "NAME", name.as_str(), "MESSAGE", &end.message];
    resp::encode_request(out, words.map(str::as_bytes));
}

/// Parses the words after `CLUSTER SYNCSLOTS FINISH`.
#[must_use]
pub fn parse_finish(words: &[String]) -> Option<Finish> {
    let value = |name: &str| {
        words.chunks(2).find(|pair| pair[0].eq_ignore_ascii_case(name)).and_then(|pair| pair.get(1))
    };
    Some(Finish {
        name: JobName::from_bytes(value("name")?.as_bytes())?,
        is_success: value("state")?.eq_ignore_ascii_case("success"),
        message: value("message").cloned().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(wire: &[u8]) -> Vec<String> {
        let text = String::from_utf8(wire.to_vec()).unwrap();
        text.split("\r\n").filter(|line| !line.starts_with(['*', '$'])).map(str::to_owned).collect()
    }

    #[test]
    fn messages_round_trip() {
        for (message, _) in MESSAGE_WORDS {
            let mut wire = Vec::new();
            message.encode(&mut wire);
            assert_eq!(Message::parse(words(&wire)[2].as_bytes()), Some(message));
        }
        assert_eq!(Message::parse(b"nosuch"), None);
    }

    #[test]
    fn establish_finish_and_resume_round_trip() {
        let slot = |number| Slot::new(number).unwrap();
        let begin = Establish {
            source: "a".repeat(40).parse().unwrap(),
            name: JobName::from_bytes(&[b'b'; 40]).unwrap(),
            ranges: vec![(slot(0), slot(10)), (slot(20), slot(22))],
            resumable: false,
        };
        let mut wire = Vec::new();
        begin.encode(&mut wire);
        assert!(wire.starts_with(b"*12\r\n$7\r\nCLUSTER\r\n$9\r\nSYNCSLOTS\r\n$9\r\nESTABLISH\r\n"));
        let mut words = words(&wire);
        words.pop();
        assert_eq!(parse_establish(&words[3..]), Some(begin.clone()));
        assert_eq!(parse_establish(&words[3..words.len() - 1]), None, "half a range");
        let with_another_link = Establish { resumable: true, ..begin.clone() };
        words.push("resumable".to_owned());
        assert_eq!(parse_establish(&words[3..]), Some(with_another_link.clone()));
        assert_eq!(with_another_link.without_link(), begin);
        let end = Finish { name: begin.name, is_success: false, message: "lost".to_owned() };
        let mut wire = Vec::new();
        encode_finish(&end, &mut wire);
        let words = self::words(&wire);
        assert_eq!(parse_finish(&words[3..]), Some(end));
        let mut wire = Vec::new();
        encode_resume(&begin.name, &mut wire);
        let mut words = self::words(&wire);
        words.pop();
        assert_eq!(parse_resume(&words[3..]), Some(begin.name));
        assert_eq!(parse_resume(&words[3..4]), None);
    }
}
