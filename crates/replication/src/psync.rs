//! A replica's description of itself before it is one: REPLCONF and PSYNC.

use std::fmt;

use resp::{Args, parse_i64, split_words};
use slot_routing::{NodeId, ReplOffset};

use crate::master::PeerId;

/// Before the slots that are on the move, in `+CONTINUE`.
pub(crate) const SLOT_STATES: &str = "slot-states=";

/// The capabilities that a replica names by `REPLCONF capa`, and those that follow from its version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// A full synchronisation whose length is not known beforehand.
    pub eof: bool,
    /// `+CONTINUE` with another identifier.
    pub psync2: bool,
    /// A snapshot in Valkey's own format, which Valkey has since version 9.
    pub valkey_format: bool,
    /// SETSLOT in the stream, which Valkey has since version 8.
    pub slot_moves: bool,
    /// `+CONTINUE` with the slots that are on the move. Ours have it.
    pub slot_states: bool,
    /// A full synchronisation whose snapshot comes over a connection of its own (`+DUALCHANNELSYNC`).
    pub dual_channel: bool,
}

/// The parts that a snapshot is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contents {
    /// The keys.
    pub data: bool,
    /// The libraries of functions.
    pub functions: bool,
}

impl Default for Contents {
    /// Everything.
    fn default() -> Self {
        Self { data: true, functions: true }
    }
}

/// The format and the contents of a snapshot; replicas that want the same share one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SnapshotForm {
    /// In the format that Valkey has since version 9.
    pub valkey_format: bool,
    /// The parts that are in it.
    pub contents: Contents,
}

impl Contents {
    /// Reads the words of `rdb-filter-only`: what they name and nothing else.
    fn parse(words: &[u8]) -> Result<Self, ReplconfError> {
        let words = split_words(&String::from_utf8_lossy(words)).ok_or(ReplconfError::NoContents)?;
        let mut contents = Self { data: false, functions: false };
        for word in words {
            if !word.eq_ignore_ascii_case("functions") {
                return Err(ReplconfError::UnknownContents(word));
            }
            contents.functions = true;
        }
        Ok(contents)
    }
}

/// The description that a connection has given of itself by REPLCONF.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Profile {
    /// The port under which clients reach the replica.
    pub listening_port: u16,
    /// The address under which clients reach it, if not the one it connects from.
    pub ip_address: Option<String>,
    /// The node of a cluster that it is. Who says so takes its master's place when the stream names it.
    pub node: Option<NodeId>,
    /// The protocol features that it understands.
    pub capabilities: Capabilities,
    /// Wants the snapshot and nothing after it (`redis-cli --rdb`).
    pub rdb_only: bool,
    /// The parts that it wants of the snapshot (`redis-cli --functions-rdb`).
    pub contents: Contents,
    /// Is the connection for the snapshot of a replica that gets the stream over another.
    pub rdb_channel: bool,
    /// The connection over which this replica's snapshot goes, if not this one.
    pub snapshot_over: Option<PeerId>,
    /// Came by SYNC: gets no `+FULLRESYNC` line and sends no acknowledgements.
    pub sync: bool,
    /// How far its append-only file is on the disk, if it has one.
    pub synced: Option<ReplOffset>,
}

/// The task that a REPLCONF sets the server, beyond remembering what it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replconf {
    /// Answer OK.
    Ok,
    /// The replica has applied everything before this offset. No answer.
    Ack(ReplOffset),
    /// A master asks its replica to acknowledge. No answer but the acknowledgement.
    GetAck,
    /// The snapshot of the replica that says so goes over this connection, if there is one: see
    /// [`Master::awaits_main_channel`](crate::Master::awaits_main_channel).
    SnapshotOver(PeerId),
}

/// A REPLCONF that is not understood. Displays as the client's error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplconfError {
    /// A word too many or too few.
    Syntax,
    /// A number that is none.
    NotInteger,
    /// A number that is neither 0 nor 1.
    NoSwitch,
    /// There is no such connection for a snapshot, or its replica has its stream already.
    UnknownRdbClient(PeerId),
    /// An address beyond the bound.
    AddressTooLong,
    /// Words for the contents of a snapshot with a quote that is not closed.
    NoContents,
    /// Something that cannot be had alone.
    UnknownContents(String),
    /// The name of a node of the cluster is none.
    UnknownNode(Vec<u8>),
    /// An option that is not known.
    Unrecognized(Vec<u8>),
}

impl fmt::Display for ReplconfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax => f.write_str("ERR syntax error"),
            Self::NotInteger => f.write_str("ERR value is not an integer or out of range"),
            Self::NoSwitch => f.write_str("ERR value is out of range, value must between 0 and 1"),
            Self::UnknownRdbClient(PeerId(id)) => write!(f, "ERR Unrecognized RDB client id {id}"),
            Self::AddressTooLong => {
                f.write_str("ERR REPLCONF ip-address provided by replica instance is too long: ")
            }
            Self::NoContents => f.write_str("ERR Missing rdb-filter-only values"),
            Self::UnknownContents(word) => write!(f, "ERR Unsupported rdb-filter-only option: {word}"),
            Self::UnknownNode(name) => write!(f, "ERR Unknown node {}", String::from_utf8_lossy(name)),
            Self::Unrecognized(option) => {
                write!(f, "ERR Unrecognized REPLCONF option: {}", String::from_utf8_lossy(option))
            }
        }
    }
}

impl std::error::Error for ReplconfError {}

/// The first major version of Valkey with a snapshot format of its own.
const FIRST_WITH_FORMAT: i64 = 9;
/// The first whose replicas hear of slots that are on the move.
const FIRST_WITH_SLOT_MOVES: i64 = 8;
/// The longest host name, as everywhere.
const MAX_ADDRESS: usize = 255;

impl Profile {
    /// Takes in a REPLCONF; `args` starts with the command's name.
    ///
    /// # Errors
    /// The error in its words.
    pub fn replconf(&mut self, args: Args<'_>) -> Result<Replconf, ReplconfError> {
        if args.len().is_multiple_of(2) {
            return Err(ReplconfError::Syntax);
        }
        let mut asked = Replconf::Ok;
        for pair in (1..args.len()).step_by(2) {
            let (option, value) = (&args[pair], &args[pair + 1]);
            match option.to_ascii_lowercase().as_slice() {
                b"listening-port" => self.listening_port = number(value)?,
                b"ip-address" if value.len() > MAX_ADDRESS => return Err(ReplconfError::AddressTooLong),
                b"ip-address" => self.ip_address = Some(String::from_utf8_lossy(value).into_owned()),
                b"set-cluster-node-id" => match NodeId::from_bytes(value) {
                    Ok(id) => self.node = Some(id),
                    Err(_) => return Err(ReplconfError::UnknownNode(value.to_vec())),
                },
                b"capa" => self.capability(value),
                b"ack" => {
                    let synced = args.get(3).filter(|word| word.eq_ignore_ascii_case(b"fack"));
                    if synced.is_some() {
                        self.synced = Some(ReplOffset(number(args.get(4).ok_or(ReplconfError::Syntax)?)?));
                    }
                    return number(value).map(|offset| Replconf::Ack(ReplOffset(offset)));
                }
                b"getack" => return Ok(Replconf::GetAck),
                b"rdb-only" => self.rdb_only = switch(value)?,
                b"rdb-filter-only" => self.contents = Contents::parse(value)?,
                b"rdb-channel" => self.rdb_channel = switch(value)?,
                b"set-rdb-client-id" => asked = Replconf::SnapshotOver(PeerId(number(value)?)),
                // Only Valkey's replicas say so, and ours.
                b"version" => {
                    let major = value.split(|byte| *byte == b'.').next().and_then(parse_i64);
                    self.capabilities.valkey_format = major.is_some_and(|major| major >= FIRST_WITH_FORMAT);
                    self.capabilities.slot_moves = major.is_some_and(|major| major >= FIRST_WITH_SLOT_MOVES);
                }
                _ => return Err(ReplconfError::Unrecognized(option.to_vec())),
            }
        }
        Ok(asked)
    }

    /// Whether it may have the snapshot that it wants: without an end mark it could not tell a part from all.
    #[must_use]
    pub fn can_be_served(&self) -> bool {
        self.contents == Contents::default() || self.capabilities.eof
    }

    /// Returns the form of the snapshot for it.
    pub(crate) fn snapshot_form(&self) -> SnapshotForm {
        SnapshotForm { valkey_format: self.capabilities.valkey_format, contents: self.contents }
    }

    /// Capabilities that are not known are those of a later version: passed over.
    fn capability(&mut self, name: &[u8]) {
        if name.eq_ignore_ascii_case(b"eof") {
            self.capabilities.eof = true;
        } else if name.eq_ignore_ascii_case(b"psync2") {
            self.capabilities.psync2 = true;
        } else if name.eq_ignore_ascii_case(b"dual-channel") {
            self.capabilities.dual_channel = true;
        } else if name.eq_ignore_ascii_case(b"slot-states") {
            self.capabilities.slot_states = true;
        }
    }
}

fn switch(text: &[u8]) -> Result<bool, ReplconfError> {
    match number::<i64>(text)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(ReplconfError::NoSwitch),
    }
}

fn number<N: TryFrom<i64>>(text: &[u8]) -> Result<N, ReplconfError> {
    parse_i64(text).and_then(|value| N::try_from(value).ok()).ok_or(ReplconfError::NotInteger)
}

/// A PSYNC: the history that the replica has, and the number of the first byte that it wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PsyncRequest {
    /// The history that it has a part of; `?` is none.
    pub id: Vec<u8>,
    /// The first byte that it lacks; -1 is none.
    pub first_byte: i64,
    /// A master asks its replica to take its place.
    pub failover: bool,
}

impl PsyncRequest {
    /// Whether the replica has something of a history.
    #[must_use]
    pub fn has_data(&self) -> bool {
        self.first_byte > 1
    }

    /// Reads a PSYNC; `args` starts with the command's name.
    ///
    /// # Errors
    /// The error in its words.
    pub fn parse(args: Args<'_>) -> Result<Self, ReplconfError> {
        let (Some(id), Some(offset)) = (args.get(1), args.get(2)) else { return Err(ReplconfError::Syntax) };
        let failover = args.get(3).is_some_and(|word| word.eq_ignore_ascii_case(b"failover"));
        Ok(Self { id: id.to_vec(), first_byte: number(offset)?, failover })
    }
}

#[cfg(test)]
mod tests {
    use resp::Request;

    use super::*;

    fn said(line: &str) -> (Result<Replconf, ReplconfError>, Profile) {
        let request: Request = line.split(' ').collect();
        let mut profile = Profile::default();
        (profile.replconf(request.args()), profile)
    }

    #[test]
    fn what_replicas_say_of_themselves() {
        let (reply, profile) = said("REPLCONF listening-port 6380 ip-address 10.0.0.1 capa eof capa psync2");
        assert_eq!(reply, Ok(Replconf::Ok));
        let expected = Profile {
            listening_port: 6380,
            ip_address: Some("10.0.0.1".into()),
            capabilities: Capabilities { eof: true, psync2: true, ..Capabilities::default() },
            ..Profile::default()
        };
        assert_eq!(profile, expected);
        let id = "a".repeat(40);
        let (reply, profile) = said(&format!("REPLCONF set-cluster-node-id {id}"));
        assert_eq!((reply, profile.node), (Ok(Replconf::Ok), NodeId::from_bytes(id.as_bytes()).ok()));

        let table = [
            ("REPLCONF ACK 17", Ok(Replconf::Ack(ReplOffset(17)))),
            ("REPLCONF ACK 17 FACK 3", Ok(Replconf::Ack(ReplOffset(17)))),
            ("REPLCONF GETACK *", Ok(Replconf::GetAck)),
            ("REPLCONF capa dual-channel version 9.1.0", Ok(Replconf::Ok)),
            ("REPLCONF rdb-only 1", Ok(Replconf::Ok)),
            ("REPLCONF rdb-filter-only functions", Ok(Replconf::Ok)),
            ("REPLCONF rdb-filter-only data", Err(ReplconfError::UnknownContents("data".to_owned()))),
            ("REPLCONF rdb-filter-only \"functions", Err(ReplconfError::NoContents)),
            ("REPLCONF rdb-only 2", Err(ReplconfError::NoSwitch)),
            ("REPLCONF rdb-channel x", Err(ReplconfError::NotInteger)),
            ("REPLCONF set-rdb-client-id 7", Ok(Replconf::SnapshotOver(PeerId(7)))),
            ("REPLCONF set-rdb-client-id x", Err(ReplconfError::NotInteger)),
            ("REPLCONF capa", Err(ReplconfError::Syntax)),
            ("REPLCONF listening-port 70000", Err(ReplconfError::NotInteger)),
            ("REPLCONF ACK -3", Err(ReplconfError::NotInteger)),
            ("REPLCONF set-cluster-node-id abc", Err(ReplconfError::UnknownNode(b"abc".to_vec()))),
            ("REPLCONF what 1", Err(ReplconfError::Unrecognized(b"what".to_vec()))),
        ];
        for (line, expected) in table {
            assert_eq!(said(line).0, expected, "{line}");
        }
    }

    #[test]
    fn a_replica_of_two_channels_says_so_on_each() {
        let (_, main) = said("REPLCONF capa eof capa psync2 capa dual-channel");
        assert!(main.capabilities.dual_channel && !main.rdb_channel);
        let (_, rdb) = said("REPLCONF capa eof rdb-only 1 rdb-channel 1 listening-port 6380 version 9.1.2");
        assert!(rdb.rdb_channel && rdb.rdb_only && rdb.capabilities.valkey_format);
        let unknown = ReplconfError::UnknownRdbClient(PeerId(999));
        assert_eq!(unknown.to_string(), "ERR Unrecognized RDB client id 999");
    }

    #[test]
    fn a_valkey_since_9_reads_its_own_format() {
        let table = [("9.1.2", true), ("10.0.0", true), ("8.1.4", false), ("", false), ("x.9", false)];
        for (version, expected) in table {
            let (reply, profile) = said(&format!("REPLCONF version {version}"));
            assert_eq!(
                (reply, profile.capabilities.valkey_format),
                (Ok(Replconf::Ok), expected),
                "{version}"
            );
        }
    }

    #[test]
    fn psync_names_a_history_and_a_byte() {
        let parse = |line: &str| PsyncRequest::parse(line.split(' ').collect::<Request>().args());
        assert_eq!(
            parse("PSYNC ? -1"),
            Ok(PsyncRequest { id: b"?".to_vec(), first_byte: -1, failover: false })
        );
        assert_eq!(parse("PSYNC abc x"), Err(ReplconfError::NotInteger));
        assert_eq!(parse("PSYNC abc"), Err(ReplconfError::Syntax));
    }
}
