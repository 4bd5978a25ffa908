//! CLUSTER SYNCSLOTS: messages between source and target, and from the target to its replicas.

use slot_routing::{NodeId, Slot, SlotSet};

use crate::job::JobName;
use crate::slot_move::{SlotMove, parse_ranges, parse_slot_moves, slots_of};

/// The arguments of a CLUSTER SYNCSLOTS command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SyncSlots {
    /// Queries whether the target supports resumable migrations.
    AskResumable,
    /// Announces a migration, as the first message of its first link.
    Establish(Establish),
    /// Resumes a migration on a new link. The reply is the number of applied bytes.
    Resume(JobName),
    /// Asks a source to migrate slots, under a name that the target chose. The reply is `+OK`.
    Request(JobName, SlotMove),
    /// A message of a running migration.
    Message(Message),
    /// The ACK of a target that supports resuming: the number of bytes applied since the start of the migration.
    Applied(u64),
    /// Reports that a migration has ended.
    Finish(Finish),
}

/// Why the arguments are not a CLUSTER SYNCSLOTS command. The texts are those of Redis; the caller prepends `ERR `.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MalformedSyncSlots {
    /// The subcommand of SYNCSLOTS is unknown, or its arguments are invalid.
    #[error("syntax error")]
    Syntax,
    /// The arguments of REQUEST are invalid.
    #[error("Invalid request")]
    Request,
    /// The arguments of RESUME are invalid.
    #[error("No such slot migration")]
    Resume,
}

impl SyncSlots {
    /// Parses the arguments after `CLUSTER SYNCSLOTS`.
    ///
    /// # Errors
    /// The arguments are not a valid SYNCSLOTS command.
    pub fn parse(words: &[String]) -> Result<Self, MalformedSyncSlots> {
        let [word, rest @ ..] = words else { return Err(MalformedSyncSlots::Syntax) };
        let parsed = match word.to_ascii_uppercase().as_str() {
            RESUMABLE => Some(Self::AskResumable),
            "ESTABLISH" => parse_establish(rest).map(Self::Establish),
            "FINISH" => parse_finish(rest).map(Self::Finish),
            "RESUME" => return parse_resume(rest).map(Self::Resume).ok_or(MalformedSyncSlots::Resume),
            "REQUEST" => {
                let request = parse_request(rest).ok_or(MalformedSyncSlots::Request)?;
                return Ok(Self::Request(request.0, request.1));
            }
            word => {
                Message::parse(word).map(|message| match rest.first().and_then(|count| count.parse().ok()) {
                    Some(count) if message == Message::Ack => Self::Applied(count),
                    _ => Self::Message(message),
                })
            }
        };
        parsed.ok_or(MalformedSyncSlots::Syntax)
    }

    /// Appends the command to `out` as a RESP array.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let words = match self {
            Self::AskResumable => owned(&[RESUMABLE]),
            Self::Establish(begin) => begin.words(),
            Self::Resume(name) => owned(&["RESUME", "NAME", name.as_str()]),
            Self::Request(name, order) => request_words(name, order),
            Self::Message(message) => owned(&[message.word()]),
            Self::Applied(count) => owned(&["ACK", &count.to_string()]),
            Self::Finish(end) => end.words(),
        };
        let head = ["CLUSTER", "SYNCSLOTS"].into_iter().chain(words.iter().map(String::as_str));
        resp::encode_request(out, head.map(str::as_bytes).collect::<Vec<_>>());
    }

    /// Returns the command as a RESP array.
    #[must_use]
    pub fn encoded(&self) -> Vec<u8> {
        let mut wire = Vec::new();
        self.encode(&mut wire);
        wire
    }
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Formats the first and last slot of each range as arguments.
fn range_words(ranges: &[(Slot, Slot)]) -> impl Iterator<Item = String> {
    ranges.iter().flat_map(|(first, last)| [first.number().to_string(), last.number().to_string()])
}

/// A message of a running migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// A keepalive, which both sides send once per second.
    Ack,
    /// The source has sent the whole snapshot; changes follow.
    SnapshotEof,
    /// The target asks the source to pause clients' writes.
    RequestPause,
    /// The source has paused clients' writes and sent everything that was written before.
    Paused,
    /// The target asks for ownership of the slots.
    RequestFailover,
    /// The source allows the target to claim the slots.
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
    /// Returns the message with this name, which must be in upper case.
    fn parse(word: &str) -> Option<Self> {
        MESSAGE_WORDS.iter().find(|(_, name)| *name == word).map(|(message, _)| *message)
    }

    /// Returns the argument that follows `CLUSTER SYNCSLOTS`.
    #[must_use]
    pub fn word(self) -> &'static str {
        MESSAGE_WORDS.iter().find(|(message, _)| *message == self).map_or("ACK", |(_, word)| word)
    }
}

/// The first message of a migration, from source to target and from the target to its replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Establish {
    /// The node that owns the slots until the target claims them.
    pub source: NodeId,
    /// The name by which both nodes refer to the migration.
    pub name: JobName,
    /// The migrating slots as ranges; both ends are inclusive.
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

    /// Returns the arguments that follow `CLUSTER SYNCSLOTS`.
    fn words(&self) -> Vec<String> {
        let head =
            ["ESTABLISH", "SOURCE", &self.source.to_string(), "NAME", self.name.as_str(), "SLOTSRANGE"];
        let resumable = self.resumable.then(|| RESUMABLE.to_owned());
        owned(&head).into_iter().chain(range_words(&self.ranges)).chain(resumable).collect()
    }

    /// Returns a copy for replicas, which need not know whether the migration can be resumed.
    #[must_use]
    pub fn without_link(&self) -> Self {
        Self { resumable: false, ..self.clone() }
    }
}

/// The argument by which a source announces that the migration can be resumed on another link.
const RESUMABLE: &str = "RESUMABLE";

/// Parses the arguments after `CLUSTER SYNCSLOTS RESUME`.
fn parse_resume(words: &[String]) -> Option<JobName> {
    let [name, job] = words else { return None };
    name.eq_ignore_ascii_case("name").then(|| JobName::from_bytes(job.as_bytes())).flatten()
}

fn request_words(name: &JobName, order: &SlotMove) -> Vec<String> {
    let head = owned(&["REQUEST", "NAME", name.as_str(), "SLOTSRANGE"]);
    let target = ["NODE".to_owned(), order.target.to_string()];
    head.into_iter().chain(range_words(&order.ranges)).chain(target).collect()
}

/// Parses the arguments after `CLUSTER SYNCSLOTS REQUEST`.
fn parse_request(words: &[String]) -> Option<(JobName, SlotMove)> {
    let [name, job, order @ ..] = words else { return None };
    let job = name.eq_ignore_ascii_case("name").then(|| JobName::from_bytes(job.as_bytes())).flatten()?;
    let mut orders = parse_slot_moves(order, &|_| Ok(())).ok()?;
    (orders.len() == 1).then(|| orders.pop()).flatten().map(|order| (job, order))
}

/// Parses the arguments after `CLUSTER SYNCSLOTS ESTABLISH`.
fn parse_establish(words: &[String]) -> Option<Establish> {
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

/// Reports the end of a migration. A node that gives up sends it to the other node, and the target sends it to its
/// replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finish {
    /// The name of the migration that has ended.
    pub name: JobName,
    /// Whether the shard of the sender now owns the slots.
    pub is_success: bool,
    /// The reason of a failure; empty after success.
    pub message: String,
}

impl Finish {
    /// Creates the message for a failed migration whose reason the receiver need not know.
    #[must_use]
    pub fn failed(name: JobName) -> Self {
        Self { name, is_success: false, message: String::new() }
    }

    /// Returns the arguments that follow `CLUSTER SYNCSLOTS`.
    fn words(&self) -> Vec<String> {
        let state = if self.is_success { "SUCCESS" } else { "FAILED" };
        owned(&["FINISH", "STATE", state, "NAME", self.name.as_str(), "MESSAGE", &self.message])
    }
}

/// Parses the arguments after `CLUSTER SYNCSLOTS FINISH`.
fn parse_finish(words: &[String]) -> Option<Finish> {
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

    fn slot(number: u16) -> Slot {
        Slot::new(number).unwrap()
    }

    fn name(byte: u8) -> JobName {
        JobName::from_bytes(&[byte; 40]).unwrap()
    }

    fn establish(resumable: bool) -> Establish {
        let ranges = vec![(slot(0), slot(10)), (slot(20), slot(22))];
        Establish { source: "a".repeat(40).parse().unwrap(), name: name(b'b'), ranges, resumable }
    }

    fn words(wire: &[u8]) -> Vec<String> {
        match resp::parse_value(wire).unwrap().unwrap().0 {
            resp::Value::Array(words) => words
                .iter()
                .map(|word| String::from_utf8(word.as_bytes().unwrap().to_vec()).unwrap())
                .collect(),
            other => panic!("{other:?}"),
        }
    }

    fn parsed(line: &str) -> Result<SyncSlots, MalformedSyncSlots> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        SyncSlots::parse(&words)
    }

    #[test]
    fn commands_round_trip() {
        let order = SlotMove { ranges: vec![(slot(3), slot(4))], target: "c".repeat(40).parse().unwrap() };
        let end = Finish { name: name(b'b'), is_success: false, message: "lost its way".to_owned() };
        let mut all: Vec<SyncSlots> =
            MESSAGE_WORDS.iter().map(|(message, _)| SyncSlots::Message(*message)).collect();
        all.extend([
            SyncSlots::AskResumable,
            SyncSlots::Establish(establish(false)),
            SyncSlots::Establish(establish(true)),
            SyncSlots::Resume(name(b'b')),
            SyncSlots::Request(name(b'd'), order),
            SyncSlots::Applied(u64::MAX),
            SyncSlots::Finish(Finish { is_success: true, message: String::new(), ..end.clone() }),
            SyncSlots::Finish(end),
        ]);
        for command in all {
            let words = words(&command.encoded());
            assert_eq!(words[..2], ["CLUSTER", "SYNCSLOTS"]);
            assert_eq!(SyncSlots::parse(&words[2..]).as_ref(), Ok(&command));
            let lower: Vec<String> = words[2..].iter().map(|word| word.to_ascii_lowercase()).collect();
            assert_eq!(SyncSlots::parse(&lower), Ok(command));
        }
        let wire = SyncSlots::Establish(establish(false)).encoded();
        assert!(wire.starts_with(b"*12\r\n$7\r\nCLUSTER\r\n$9\r\nSYNCSLOTS\r\n$9\r\nESTABLISH\r\n"));
        assert_eq!(establish(true).without_link(), establish(false));
    }

    #[test]
    fn malformed_commands_are_refused() {
        let (id, name) = ("a".repeat(40), name(b'b'));
        for (line, error) in [
            (String::new(), MalformedSyncSlots::Syntax),
            ("NOSUCH".to_owned(), MalformedSyncSlots::Syntax),
            (format!("ESTABLISH SOURCE {id} NAME {name} SLOTSRANGE 0"), MalformedSyncSlots::Syntax),
            (format!("ESTABLISH SOURCE {id} NAME {name} SLOTSRANGE 0 1 NEW"), MalformedSyncSlots::Syntax),
            ("FINISH STATE FAILED".to_owned(), MalformedSyncSlots::Syntax),
            ("RESUME NAME".to_owned(), MalformedSyncSlots::Resume),
            (format!("REQUEST NAME {name}"), MalformedSyncSlots::Request),
        ] {
            assert_eq!(parsed(&line), Err(error), "{line}");
        }
    }
}
