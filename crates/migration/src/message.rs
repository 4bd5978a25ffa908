//! CLUSTER SYNCSLOTS: messages between source and target, and from the target to its replicas.

use slot_routing::{NodeId, Slot, SlotSet};

use crate::job::JobName;
use crate::slot_move::{SlotMove, parse_ranges, parse_slot_moves, slots_in_ranges};

/// The arguments of a CLUSTER SYNCSLOTS command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SyncSlotsCommand {
    /// Queries whether the target supports resumable migrations.
    QueryResumable,
    /// Announces a migration, as the first message of its first link.
    Establish(EstablishMessage),
    /// Resumes a migration on a new link. The reply is the number of applied bytes.
    Resume(JobName),
    /// Asks a source to migrate slots, under a name that the target chose. The reply is `+OK`.
    Request(JobName, SlotMove),
    /// A message of a running migration.
    Message(MigrationMessage),
    /// The ACK of a target that supports resuming: the number of bytes applied since the start of the migration.
    AppliedBytes(u64),
    /// Reports that a migration has ended.
    Finish(FinishMessage),
}

/// Why the arguments are not a CLUSTER SYNCSLOTS command. The texts are those of Redis; the caller prepends `ERR `.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SyncSlotsError {
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

impl SyncSlotsCommand {
    /// Parses the arguments after `CLUSTER SYNCSLOTS`.
    ///
    /// # Errors
    /// The arguments are not a valid SYNCSLOTS command.
    pub fn parse(arguments: &[String]) -> Result<Self, SyncSlotsError> {
        let [word, rest @ ..] = arguments else { return Err(SyncSlotsError::Syntax) };
        let parsed = match word.to_ascii_uppercase().as_str() {
            RESUMABLE_KEYWORD => Some(Self::QueryResumable),
            "ESTABLISH" => parse_establish(rest).map(Self::Establish),
            "FINISH" => parse_finish(rest).map(Self::Finish),
            "RESUME" => return parse_resume(rest).map(Self::Resume).ok_or(SyncSlotsError::Resume),
            "REQUEST" => {
                let request = parse_request(rest).ok_or(SyncSlotsError::Request)?;
                return Ok(Self::Request(request.0, request.1));
            }
            word => MigrationMessage::parse(word).map(|message| {
                match rest.first().and_then(|count| count.parse().ok()) {
                    Some(count) if message == MigrationMessage::Ack => Self::AppliedBytes(count),
                    _ => Self::Message(message),
                }
            }),
        };
        parsed.ok_or(SyncSlotsError::Syntax)
    }

    /// Appends the command to `out` as a RESP array.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let words = match self {
            Self::QueryResumable => to_strings(&[RESUMABLE_KEYWORD]),
            Self::Establish(begin) => begin.arguments(),
            Self::Resume(name) => to_strings(&["RESUME", "NAME", name.as_str()]),
            Self::Request(name, order) => request_arguments(name, order),
            Self::Message(message) => to_strings(&[message.wire_name()]),
            Self::AppliedBytes(count) => to_strings(&["ACK", &count.to_string()]),
            Self::Finish(end) => end.arguments(),
        };
        let head = ["CLUSTER", "SYNCSLOTS"].into_iter().chain(words.iter().map(String::as_str));
        resp::encode_request(out, head.map(str::as_bytes).collect::<Vec<_>>());
    }

    /// Returns the command as a RESP array.
    #[must_use]
    pub fn to_resp(&self) -> Vec<u8> {
        let mut wire = Vec::new();
        self.encode(&mut wire);
        wire
    }
}

fn to_strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Formats the first and last slot of each range as arguments.
fn range_arguments(ranges: &[(Slot, Slot)]) -> impl Iterator<Item = String> {
    ranges.iter().flat_map(|(first, last)| [first.number().to_string(), last.number().to_string()])
}

/// A message of a running migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MigrationMessage {
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

const MESSAGE_NAMES: [(MigrationMessage, &str); 6] = [
    (MigrationMessage::Ack, "ACK"),
    (MigrationMessage::SnapshotEof, "SNAPSHOT-EOF"),
    (MigrationMessage::RequestPause, "REQUEST-PAUSE"),
    (MigrationMessage::Paused, "PAUSED"),
    (MigrationMessage::RequestFailover, "REQUEST-FAILOVER"),
    (MigrationMessage::FailoverGranted, "FAILOVER-GRANTED"),
];

impl MigrationMessage {
    /// Returns the message with this name, which must be in upper case.
    fn parse(word: &str) -> Option<Self> {
        MESSAGE_NAMES.iter().find(|(_, name)| *name == word).map(|(message, _)| *message)
    }

    /// Returns the argument that follows `CLUSTER SYNCSLOTS`.
    #[must_use]
    pub fn wire_name(self) -> &'static str {
        MESSAGE_NAMES.iter().find(|(message, _)| *message == self).map_or("ACK", |(_, word)| word)
    }
}

/// The first message of a migration, from source to target and from the target to its replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EstablishMessage {
    /// The node that owns the slots until the target claims them.
    pub source: NodeId,
    /// The name by which both nodes refer to the migration.
    pub name: JobName,
    /// The migrating slots as ranges; both ends are inclusive.
    pub ranges: Vec<(Slot, Slot)>,
    /// Whether the migration can be resumed on another link.
    pub is_resumable: bool,
}

impl EstablishMessage {
    /// The migrating slots as a set.
    #[must_use]
    pub fn slots(&self) -> SlotSet {
        slots_in_ranges(&self.ranges)
    }

    /// Returns the arguments that follow `CLUSTER SYNCSLOTS`.
    fn arguments(&self) -> Vec<String> {
        let head =
            ["ESTABLISH", "SOURCE", &self.source.to_string(), "NAME", self.name.as_str(), "SLOTSRANGE"];
        let resumable = self.is_resumable.then(|| RESUMABLE_KEYWORD.to_owned());
        to_strings(&head).into_iter().chain(range_arguments(&self.ranges)).chain(resumable).collect()
    }

    /// Returns a copy for replicas, which need not know whether the migration can be resumed.
    #[must_use]
    pub fn to_message_for_replicas(&self) -> Self {
        Self { is_resumable: false, ..self.clone() }
    }
}

/// The argument by which a source announces that the migration can be resumed on another link.
const RESUMABLE_KEYWORD: &str = "RESUMABLE";

/// Parses the arguments after `CLUSTER SYNCSLOTS RESUME`.
fn parse_resume(arguments: &[String]) -> Option<JobName> {
    let [name, job] = arguments else { return None };
    name.eq_ignore_ascii_case("name").then(|| JobName::from_bytes(job.as_bytes())).flatten()
}

fn request_arguments(name: &JobName, slot_move: &SlotMove) -> Vec<String> {
    let head = to_strings(&["REQUEST", "NAME", name.as_str(), "SLOTSRANGE"]);
    let target = ["NODE".to_owned(), slot_move.target.to_string()];
    head.into_iter().chain(range_arguments(&slot_move.ranges)).chain(target).collect()
}

/// Parses the arguments after `CLUSTER SYNCSLOTS REQUEST`.
fn parse_request(arguments: &[String]) -> Option<(JobName, SlotMove)> {
    let [name, job, order @ ..] = arguments else { return None };
    let job = name.eq_ignore_ascii_case("name").then(|| JobName::from_bytes(job.as_bytes())).flatten()?;
    let mut orders = parse_slot_moves(order, &|_| Ok(())).ok()?;
    (orders.len() == 1).then(|| orders.pop()).flatten().map(|order| (job, order))
}

/// Parses the arguments after `CLUSTER SYNCSLOTS ESTABLISH`.
fn parse_establish(arguments: &[String]) -> Option<EstablishMessage> {
    let [source, id, name, job, ranges @ ..] = arguments else { return None };
    if !source.eq_ignore_ascii_case("source") || !name.eq_ignore_ascii_case("name") {
        return None;
    }
    let (ranges, rest) = parse_ranges(ranges).ok()?;
    let resumable = match rest {
        [] => false,
        [word] if word.eq_ignore_ascii_case(RESUMABLE_KEYWORD) => true,
        _ => return None,
    };
    let (source, name) = (id.parse().ok()?, JobName::from_bytes(job.as_bytes())?);
    Some(EstablishMessage { source, name, ranges, is_resumable: resumable })
}

/// Reports the end of a migration. A node that gives up sends it to the other node, and the target sends it to its
/// replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinishMessage {
    /// The name of the migration that has ended.
    pub name: JobName,
    /// Whether the shard of the sender now owns the slots.
    pub is_success: bool,
    /// The reason of a failure; empty after success.
    pub error: String,
}

impl FinishMessage {
    /// Creates the message for a failed migration whose reason the receiver need not know.
    #[must_use]
    pub fn failed(name: JobName) -> Self {
        Self { name, is_success: false, error: String::new() }
    }

    /// Returns the arguments that follow `CLUSTER SYNCSLOTS`.
    fn arguments(&self) -> Vec<String> {
        let state = if self.is_success { "SUCCESS" } else { "FAILED" };
        to_strings(&["FINISH", "STATE", state, "NAME", self.name.as_str(), "MESSAGE", &self.error])
    }
}

/// Parses the arguments after `CLUSTER SYNCSLOTS FINISH`.
fn parse_finish(arguments: &[String]) -> Option<FinishMessage> {
    let value = |name: &str| {
        arguments.chunks(2).find(|pair| pair[0].eq_ignore_ascii_case(name)).and_then(|pair| pair.get(1))
    };
    Some(FinishMessage {
        name: JobName::from_bytes(value("name")?.as_bytes())?,
        is_success: value("state")?.eq_ignore_ascii_case("success"),
        error: value("message").cloned().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot_number(number: u16) -> Slot {
        Slot::new(number).unwrap()
    }

    fn job_name(byte: u8) -> JobName {
        JobName::from_bytes(&[byte; 40]).unwrap()
    }

    fn example_establish(is_resumable: bool) -> EstablishMessage {
        let ranges = vec![(slot_number(0), slot_number(10)), (slot_number(20), slot_number(22))];
        EstablishMessage {
            source: "a".repeat(40).parse().unwrap(),
            name: job_name(b'b'),
            ranges,
            is_resumable,
        }
    }

    fn decode_words(wire: &[u8]) -> Vec<String> {
        match resp::parse_value(wire).unwrap().unwrap().0 {
            resp::Value::Array(words) => words
                .iter()
                .map(|word| String::from_utf8(word.as_bytes().unwrap().to_vec()).unwrap())
                .collect(),
            other => panic!("{other:?}"),
        }
    }

    fn parse_line(line: &str) -> Result<SyncSlotsCommand, SyncSlotsError> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        SyncSlotsCommand::parse(&words)
    }

    #[test]
    fn commands_round_trip() {
        let order = SlotMove {
            ranges: vec![(slot_number(3), slot_number(4))],
            target: "c".repeat(40).parse().unwrap(),
        };
        let end = FinishMessage { name: job_name(b'b'), is_success: false, error: "lost its way".to_owned() };
        let mut all: Vec<SyncSlotsCommand> =
            MESSAGE_NAMES.iter().map(|(message, _)| SyncSlotsCommand::Message(*message)).collect();
        all.extend([
            SyncSlotsCommand::QueryResumable,
            SyncSlotsCommand::Establish(example_establish(false)),
            SyncSlotsCommand::Establish(example_establish(true)),
            SyncSlotsCommand::Resume(job_name(b'b')),
            SyncSlotsCommand::Request(job_name(b'd'), order),
            SyncSlotsCommand::AppliedBytes(u64::MAX),
            SyncSlotsCommand::Finish(FinishMessage { is_success: true, error: String::new(), ..end.clone() }),
            SyncSlotsCommand::Finish(end),
        ]);
        for command in all {
            let words = decode_words(&command.to_resp());
            assert_eq!(words[..2], ["CLUSTER", "SYNCSLOTS"]);
            assert_eq!(SyncSlotsCommand::parse(&words[2..]).as_ref(), Ok(&command));
            let lower: Vec<String> = words[2..].iter().map(|word| word.to_ascii_lowercase()).collect();
            assert_eq!(SyncSlotsCommand::parse(&lower), Ok(command));
        }
        let wire = SyncSlotsCommand::Establish(example_establish(false)).to_resp();
        assert!(wire.starts_with(b"*12\r\n$7\r\nCLUSTER\r\n$9\r\nSYNCSLOTS\r\n$9\r\nESTABLISH\r\n"));
        assert_eq!(example_establish(true).to_message_for_replicas(), example_establish(false));
    }

    #[test]
    fn malformed_commands_are_refused() {
        let (id, name) = ("a".repeat(40), job_name(b'b'));
        for (line, error) in [
            (String::new(), SyncSlotsError::Syntax),
            ("NOSUCH".to_owned(), SyncSlotsError::Syntax),
            (format!("ESTABLISH SOURCE {id} NAME {name} SLOTSRANGE 0"), SyncSlotsError::Syntax),
            (format!("ESTABLISH SOURCE {id} NAME {name} SLOTSRANGE 0 1 NEW"), SyncSlotsError::Syntax),
            ("FINISH STATE FAILED".to_owned(), SyncSlotsError::Syntax),
            ("RESUME NAME".to_owned(), SyncSlotsError::Resume),
            (format!("REQUEST NAME {name}"), SyncSlotsError::Request),
        ] {
            assert_eq!(parse_line(&line), Err(error), "{line}");
        }
    }
}
