//! The messages between source and target, and to the target's replicas: CLUSTER SYNCSLOTS and its words.

use slot_routing::{NodeId, Slot, SlotSet};

use crate::job::JobName;
use crate::order::{Order, parse_orders, parse_ranges, slots_of};

/// A message of a running job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// The sender is there.
    Ack,
    /// The snapshot is whole.
    SnapshotEof,
    /// The target asks the source to hold writes.
    RequestPause,
    /// They are held, and everything was sent.
    Paused,
    /// The target asks for the slots.
    RequestFailover,
    /// It may claim them.
    FailoverGranted,
}

const WORDS: [(Message, &str); 6] = [
    (Message::Ack, "ACK"),
    (Message::SnapshotEof, "SNAPSHOT-EOF"),
    (Message::RequestPause, "REQUEST-PAUSE"),
    (Message::Paused, "PAUSED"),
    (Message::RequestFailover, "REQUEST-FAILOVER"),
    (Message::FailoverGranted, "FAILOVER-GRANTED"),
];

impl Message {
    /// The message that the word behind `CLUSTER SYNCSLOTS` stands for.
    #[must_use]
    pub fn parse(word: &[u8]) -> Option<Self> {
        let known = |(_, name): &&(Self, &str)| word.eq_ignore_ascii_case(name.as_bytes());
        WORDS.iter().find(known).map(|(message, _)| *message)
    }

    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        WORDS.iter().find(|(message, _)| *message == self).map_or("ACK", |(_, word)| word)
    }

    /// Appends it in wire form.
    pub fn encode(self, out: &mut Vec<u8>) {
        resp::encode_request(out, ["CLUSTER", "SYNCSLOTS", self.word()].map(str::as_bytes));
    }
}

/// The message that begins a job: the source's to the target, and the target's to its replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Establish {
    /// The node that serves the slots.
    pub source: NodeId,
    /// The job's name.
    pub name: JobName,
    /// The slots.
    pub ranges: Vec<(Slot, Slot)>,
    /// The job goes on with another link when this one breaks.
    pub resumable: bool,
}

impl Establish {
    /// The slots.
    #[must_use]
    pub fn slots(&self) -> SlotSet {
        slots_of(&self.ranges)
    }

    /// Appends it in wire form.
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

    /// The same as the target tells it to its replicas: it is none of theirs over which links.
    #[must_use]
    pub fn without_link(&self) -> Self {
        Self { resumable: false, ..self.clone() }
    }
}

/// The word for a job that goes on with another link.
pub const RESUMABLE: &str = "RESUMABLE";

/// Appends the question whether the target knows such jobs.
pub fn ask_resumable(out: &mut Vec<u8>) {
    resp::encode_request(out, ["CLUSTER", "SYNCSLOTS", RESUMABLE].map(str::as_bytes));
}

/// Appends the source's first words on another link. The answer is how many bytes were applied.
pub fn resume(name: &JobName, out: &mut Vec<u8>) {
    resp::encode_request(out, ["CLUSTER", "SYNCSLOTS", "RESUME", "NAME", name.as_str()].map(str::as_bytes));
}

/// Reads the words behind `CLUSTER SYNCSLOTS RESUME`.
#[must_use]
pub fn parse_resume(words: &[String]) -> Option<JobName> {
    let [name, job] = words else { return None };
    name.eq_ignore_ascii_case("name").then(|| JobName::from_bytes(job.as_bytes())).flatten()
}

/// Appends the words of a node that asks for slots, and names the job by itself. The answer is +OK.
pub fn request(name: &JobName, order: &Order, out: &mut Vec<u8>) {
    let target = order.target.to_string();
    let head = ["CLUSTER", "SYNCSLOTS", "REQUEST", "NAME", name.as_str()].map(str::to_owned);
    let slots = order.ranges.iter().flat_map(|(first, last)| [first.to_string(), last.to_string()]);
    let words =
        head.into_iter().chain(["SLOTSRANGE".to_owned()]).chain(slots).chain(["NODE".to_owned(), target]);
    let words: Vec<String> = words.collect();
    resp::encode_request(out, words.iter().map(String::as_bytes));
}

/// Reads the words behind `CLUSTER SYNCSLOTS REQUEST`.
#[must_use]
pub fn parse_request(words: &[String]) -> Option<(JobName, Order)> {
    let [name, job, order @ ..] = words else { return None };
    let job = name.eq_ignore_ascii_case("name").then(|| JobName::from_bytes(job.as_bytes())).flatten()?;
    let mut orders = parse_orders(order, &|_| Ok(())).ok()?;
    (orders.len() == 1).then(|| orders.pop()).flatten().map(|order| (job, order))
}

/// Appends an ACK of the target's that says how many bytes it has applied.
pub fn ack_applied(count: u64, out: &mut Vec<u8>) {
    resp::encode_request(out, ["CLUSTER", "SYNCSLOTS", "ACK", &count.to_string()].map(str::as_bytes));
}

/// Reads the words behind `CLUSTER SYNCSLOTS ESTABLISH`.
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

/// The end of an import, as the target tells its replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finish {
    /// The job's name.
    pub name: JobName,
    /// The slots are the shard's now.
    pub is_success: bool,
    /// Why not.
    pub message: String,
}

/// Appends the end of an import in wire form.
pub fn finish(end: &Finish, out: &mut Vec<u8>) {
    let state = if end.is_success { "SUCCESS" } else { "FAILED" };
    let name = end.name.to_string();
    let words =
        ["CLUSTER", "SYNCSLOTS", "FINISH", "STATE", state, "NAME", name.as_str(), "MESSAGE", &end.message];
    resp::encode_request(out, words.map(str::as_bytes));
}

/// Reads the words behind `CLUSTER SYNCSLOTS FINISH`.
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
    fn each_message_is_read_as_it_was_written() {
        for (message, _) in WORDS {
            let mut wire = Vec::new();
            message.encode(&mut wire);
            assert_eq!(Message::parse(words(&wire)[2].as_bytes()), Some(message));
        }
        assert_eq!(Message::parse(b"nosuch"), None);
    }

    #[test]
    fn a_job_is_named_with_its_source_and_slots() {
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
        finish(&end, &mut wire);
        let words = self::words(&wire);
        assert_eq!(parse_finish(&words[3..]), Some(end));
        let mut wire = Vec::new();
        resume(&begin.name, &mut wire);
        let mut words = self::words(&wire);
        words.pop();
        assert_eq!(parse_resume(&words[3..]), Some(begin.name));
        assert_eq!(parse_resume(&words[3..4]), None);
    }
}
