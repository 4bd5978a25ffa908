//! The handshake of a replica as its master sees it: REPLCONF options and PSYNC requests.

use std::fmt;

use resp::{Args, parse_i64, split_words};
use slot_routing::{NodeId, ReplOffset};

/// Prefix of the list of migrating slots in a `+CONTINUE` reply.
pub(crate) const SLOT_STATES_PREFIX: &str = "slot-states=";

/// Identifies the connection of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u64);

/// The capabilities of a replica: announced by `REPLCONF capa`, or implied by its version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// The replica accepts a snapshot of unknown length that ends with a mark.
    pub end_mark: bool,
    /// The replica accepts a `+CONTINUE` that changes the replication id.
    pub psync2: bool,
    /// The replica can load the RDB format of Valkey 9 and later.
    pub valkey_format: bool,
    /// The replica accepts CLUSTER SETSLOT in the stream, as Valkey 8 and later do.
    pub slot_moves: bool,
    /// The replica accepts the list of migrating slots in `+CONTINUE`. Only Redoubt announces this capability.
    pub slot_states: bool,
    /// The replica accepts the snapshot over a second connection (`+DUALCHANNELSYNC`).
    pub dual_channel: bool,
}

/// The parts of a snapshot that a replica requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotContents {
    /// Whether the snapshot contains the keys of all databases.
    pub includes_data: bool,
    /// Whether the snapshot contains the function libraries.
    pub includes_functions: bool,
}

impl Default for SnapshotContents {
    /// Requests both keys and function libraries.
    fn default() -> Self {
        Self { includes_data: true, includes_functions: true }
    }
}

/// The format and contents of a snapshot. Replicas with equal requirements share one snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SnapshotFormat {
    /// Whether to use the RDB format of Valkey 9 instead of that of Redis.
    pub uses_valkey_format: bool,
    /// Whether to include the active times of stream consumers in the RDB format of Redis. Redis 7.0 cannot load them,
    /// and Redis does not announce its version; Valkey 8 can load them.
    pub includes_active_times: bool,
    /// The parts that the replica requested.
    pub contents: SnapshotContents,
}

impl SnapshotContents {
    /// Parses the value of `rdb-filter-only`: the list of parts to include, separated by spaces.
    fn parse(value: &[u8]) -> Result<Self, ReplconfError> {
        let words = split_words(&String::from_utf8_lossy(value)).ok_or(ReplconfError::UnbalancedQuotes)?;
        let mut contents = Self { includes_data: false, includes_functions: false };
        for word in words {
            if !word.eq_ignore_ascii_case("functions") {
                return Err(ReplconfError::UnknownContents(word));
            }
            contents.includes_functions = true;
        }
        Ok(contents)
    }
}

/// The properties that a connection has announced by REPLCONF.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PeerProfile {
    /// The replica's port for clients; 0 if it was not announced.
    pub listening_port: u16,
    /// The replica's address for clients, if it differs from the address from which the replica connects.
    pub ip_address: Option<String>,
    /// The replica's cluster node id. A replica that announces its id takes over when the stream names it as successor.
    pub node_id: Option<NodeId>,
    /// The protocol features that the replica supports.
    pub capabilities: Capabilities,
    /// Whether the client only wants the snapshot and no stream (`redis-cli --rdb`).
    pub is_rdb_only: bool,
    /// The parts of the snapshot that the client wants (`redis-cli --functions-rdb`).
    pub contents: SnapshotContents,
    /// Whether this is the snapshot connection of a replica that receives the stream over another connection.
    pub is_rdb_channel: bool,
    /// The connection that transfers the snapshot, if it is not this one.
    pub snapshot_connection: Option<PeerId>,
    /// Whether the replica sent SYNC: it expects no `+FULLRESYNC` line and sends no acknowledgements.
    pub uses_sync: bool,
    /// The offset up to which the replica's append-only file is on disk; `None` if the replica has no such file.
    pub fsynced_offset: Option<ReplOffset>,
}

/// How the server must react to a REPLCONF command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplconfAction {
    /// Reply `+OK`; the option was stored or ignored.
    Ok,
    /// Record that the replica has applied the stream up to this offset. Send no reply.
    Ack(ReplOffset),
    /// Send an acknowledgement, because the master requested one. Send no other reply.
    GetAck,
    /// The snapshot of this replica is sent over the given connection, if that exists: see
    /// [`Master::awaits_main_channel`](crate::Master::awaits_main_channel).
    UseSnapshotConnection(PeerId),
}

/// An invalid REPLCONF. Its `Display` text is the error reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplconfError {
    /// An option has no value.
    Syntax,
    /// A value is not a number in range.
    NotInteger,
    /// A value is neither 0 nor 1.
    NotBoolean,
    /// No snapshot connection has this id, or its replica already receives the stream.
    UnknownRdbClient(PeerId),
    /// `ip-address` is longer than 255 bytes.
    AddressTooLong,
    /// The value of `rdb-filter-only` has unbalanced quotes.
    UnbalancedQuotes,
    /// The value of `rdb-filter-only` names an unsupported part.
    UnknownContents(String),
    /// `set-cluster-node-id` is not a node id.
    InvalidNodeId(Vec<u8>),
    /// The option is unknown.
    Unrecognized(Vec<u8>),
}

impl fmt::Display for ReplconfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax => f.write_str("ERR syntax error"),
            Self::NotInteger => f.write_str("ERR value is not an integer or out of range"),
            Self::NotBoolean => f.write_str("ERR value is out of range, value must between 0 and 1"),
            Self::UnknownRdbClient(PeerId(id)) => write!(f, "ERR Unrecognized RDB client id {id}"),
            Self::AddressTooLong => {
                f.write_str("ERR REPLCONF ip-address provided by replica instance is too long: ")
            }
            Self::UnbalancedQuotes => f.write_str("ERR Missing rdb-filter-only values"),
            Self::UnknownContents(word) => write!(f, "ERR Unsupported rdb-filter-only option: {word}"),
            Self::InvalidNodeId(name) => write!(f, "ERR Unknown node {}", String::from_utf8_lossy(name)),
            Self::Unrecognized(option) => {
                write!(f, "ERR Unrecognized REPLCONF option: {}", String::from_utf8_lossy(option))
            }
        }
    }
}

impl std::error::Error for ReplconfError {}

/// The first major version of Valkey with its own RDB format.
const FIRST_VALKEY_VERSION_WITH_OWN_RDB_FORMAT: i64 = 9;
/// The first major version of Valkey that replicates the state of migrating slots.
const FIRST_VALKEY_VERSION_WITH_SLOT_STATE_REPLICATION: i64 = 8;
/// The maximum length of a host name (RFC 1035).
const MAX_ADDRESS_LEN: usize = 255;

impl PeerProfile {
    /// Applies a REPLCONF command. `args` starts with the command name.
    ///
    /// # Errors
    /// An option or its value is invalid. The options before it have been applied.
    pub fn apply_replconf(&mut self, args: Args<'_>) -> Result<ReplconfAction, ReplconfError> {
        if args.len().is_multiple_of(2) {
            return Err(ReplconfError::Syntax);
        }
        let mut asked = ReplconfAction::Ok;
        for pair in (1..args.len()).step_by(2) {
            let (option, value) = (&args[pair], &args[pair + 1]);
            match option.to_ascii_lowercase().as_slice() {
                b"listening-port" => self.listening_port = parse_number(value)?,
                b"ip-address" if value.len() > MAX_ADDRESS_LEN => return Err(ReplconfError::AddressTooLong),
                b"ip-address" => self.ip_address = Some(String::from_utf8_lossy(value).into_owned()),
                b"set-cluster-node-id" => match NodeId::from_bytes(value) {
                    Ok(id) => self.node_id = Some(id),
                    Err(_) => return Err(ReplconfError::InvalidNodeId(value.to_vec())),
                },
                b"capa" => self.add_capability(value),
                b"ack" => {
                    let synced = args.get(3).filter(|word| word.eq_ignore_ascii_case(b"fack"));
                    if synced.is_some() {
                        self.fsynced_offset =
                            Some(ReplOffset(parse_number(args.get(4).ok_or(ReplconfError::Syntax)?)?));
                    }
                    return parse_number(value).map(|offset| ReplconfAction::Ack(ReplOffset(offset)));
                }
                b"getack" => return Ok(ReplconfAction::GetAck),
                b"rdb-only" => self.is_rdb_only = parse_bool(value)?,
                b"rdb-filter-only" => self.contents = SnapshotContents::parse(value)?,
                b"rdb-channel" => self.is_rdb_channel = parse_bool(value)?,
                b"set-rdb-client-id" => {
                    asked = ReplconfAction::UseSnapshotConnection(PeerId(parse_number(value)?));
                }
                // Valkey and Redoubt send this option; Redis does not.
                b"version" => {
                    let major = value.split(|byte| *byte == b'.').next().and_then(parse_i64);
                    self.capabilities.valkey_format =
                        major.is_some_and(|major| major >= FIRST_VALKEY_VERSION_WITH_OWN_RDB_FORMAT);
                    self.capabilities.slot_moves =
                        major.is_some_and(|major| major >= FIRST_VALKEY_VERSION_WITH_SLOT_STATE_REPLICATION);
                }
                _ => return Err(ReplconfError::Unrecognized(option.to_vec())),
            }
        }
        Ok(asked)
    }

    /// Returns whether the replica can receive the requested snapshot. A partial snapshot requires support for the end
    /// mark, because an old client would take a partial snapshot for a complete one.
    #[must_use]
    pub fn is_servable(&self) -> bool {
        self.contents == SnapshotContents::default() || self.capabilities.end_mark
    }

    /// Returns the format and contents of a snapshot for this replica.
    pub(crate) fn snapshot_format(&self) -> SnapshotFormat {
        let Capabilities { valkey_format, slot_moves: is_valkey_8, .. } = self.capabilities;
        SnapshotFormat {
            uses_valkey_format: valkey_format,
            includes_active_times: is_valkey_8 && !valkey_format,
            contents: self.contents,
        }
    }

    /// Records a capability. Unknown capabilities belong to later versions and are ignored.
    fn add_capability(&mut self, name: &[u8]) {
        if name.eq_ignore_ascii_case(b"eof") {
            self.capabilities.end_mark = true;
        } else if name.eq_ignore_ascii_case(b"psync2") {
            self.capabilities.psync2 = true;
        } else if name.eq_ignore_ascii_case(b"dual-channel") {
            self.capabilities.dual_channel = true;
        } else if name.eq_ignore_ascii_case(b"slot-states") {
            self.capabilities.slot_states = true;
        }
    }
}

fn parse_bool(text: &[u8]) -> Result<bool, ReplconfError> {
    match parse_number::<i64>(text)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(ReplconfError::NotBoolean),
    }
}

fn parse_number<N: TryFrom<i64>>(text: &[u8]) -> Result<N, ReplconfError> {
    parse_i64(text).and_then(|value| N::try_from(value).ok()).ok_or(ReplconfError::NotInteger)
}

/// The arguments of a PSYNC command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PsyncRequest {
    /// The replication id of the replica's data; `?` if it has none.
    pub repl_id: Vec<u8>,
    /// The first missing byte of the stream, counted from one; -1 if the replica has no data.
    pub first_byte: i64,
    /// Whether the sender is a master that asks its replica to take over (PSYNC FAILOVER).
    pub is_failover: bool,
}

impl PsyncRequest {
    /// Returns whether the replica already has data of some history.
    #[must_use]
    pub fn has_data(&self) -> bool {
        self.first_byte > 1
    }

    /// Parses a PSYNC command. `args` starts with the command name.
    ///
    /// # Errors
    /// An argument is missing, or the offset is not a number.
    pub fn parse(args: Args<'_>) -> Result<Self, ReplconfError> {
        let (Some(id), Some(offset)) = (args.get(1), args.get(2)) else { return Err(ReplconfError::Syntax) };
        let failover = args.get(3).is_some_and(|word| word.eq_ignore_ascii_case(b"failover"));
        Ok(Self { repl_id: id.to_vec(), first_byte: parse_number(offset)?, is_failover: failover })
    }
}

#[cfg(test)]
mod tests {
    use resp::Request;

    use super::*;

    fn apply_replconf(line: &str) -> (Result<ReplconfAction, ReplconfError>, PeerProfile) {
        let request: Request = line.split(' ').collect();
        let mut profile = PeerProfile::default();
        (profile.apply_replconf(request.args()), profile)
    }

    #[test]
    fn replconf_options_are_recorded_and_invalid_ones_refused() {
        let (reply, profile) =
            apply_replconf("REPLCONF listening-port 6380 ip-address 10.0.0.1 capa eof capa psync2");
        assert_eq!(reply, Ok(ReplconfAction::Ok));
        let expected = PeerProfile {
            listening_port: 6380,
            ip_address: Some("10.0.0.1".into()),
            capabilities: Capabilities { end_mark: true, psync2: true, ..Capabilities::default() },
            ..PeerProfile::default()
        };
        assert_eq!(profile, expected);
        let id = "a".repeat(40);
        let (reply, profile) = apply_replconf(&format!("REPLCONF set-cluster-node-id {id}"));
        assert_eq!(
            (reply, profile.node_id),
            (Ok(ReplconfAction::Ok), NodeId::from_bytes(id.as_bytes()).ok())
        );

        let table = [
            ("REPLCONF ACK 17", Ok(ReplconfAction::Ack(ReplOffset(17)))),
            ("REPLCONF ACK 17 FACK 3", Ok(ReplconfAction::Ack(ReplOffset(17)))),
            ("REPLCONF GETACK *", Ok(ReplconfAction::GetAck)),
            ("REPLCONF capa dual-channel version 9.1.0", Ok(ReplconfAction::Ok)),
            ("REPLCONF rdb-only 1", Ok(ReplconfAction::Ok)),
            ("REPLCONF rdb-filter-only functions", Ok(ReplconfAction::Ok)),
            ("REPLCONF rdb-filter-only data", Err(ReplconfError::UnknownContents("data".to_owned()))),
            ("REPLCONF rdb-filter-only \"functions", Err(ReplconfError::UnbalancedQuotes)),
            ("REPLCONF rdb-only 2", Err(ReplconfError::NotBoolean)),
            ("REPLCONF rdb-channel x", Err(ReplconfError::NotInteger)),
            ("REPLCONF set-rdb-client-id 7", Ok(ReplconfAction::UseSnapshotConnection(PeerId(7)))),
            ("REPLCONF set-rdb-client-id x", Err(ReplconfError::NotInteger)),
            ("REPLCONF capa", Err(ReplconfError::Syntax)),
            ("REPLCONF listening-port 70000", Err(ReplconfError::NotInteger)),
            ("REPLCONF ACK -3", Err(ReplconfError::NotInteger)),
            ("REPLCONF set-cluster-node-id abc", Err(ReplconfError::InvalidNodeId(b"abc".to_vec()))),
            ("REPLCONF what 1", Err(ReplconfError::Unrecognized(b"what".to_vec()))),
        ];
        for (line, expected) in table {
            assert_eq!(apply_replconf(line).0, expected, "{line}");
        }
    }

    #[test]
    fn dual_channel_replica_announces_itself_on_both_connections() {
        let (_, main) = apply_replconf("REPLCONF capa eof capa psync2 capa dual-channel");
        assert!(main.capabilities.dual_channel && !main.is_rdb_channel);
        let (_, rdb) =
            apply_replconf("REPLCONF capa eof rdb-only 1 rdb-channel 1 listening-port 6380 version 9.1.2");
        assert!(rdb.is_rdb_channel && rdb.is_rdb_only && rdb.capabilities.valkey_format);
        let unknown = ReplconfError::UnknownRdbClient(PeerId(999));
        assert_eq!(unknown.to_string(), "ERR Unrecognized RDB client id 999");
    }

    #[test]
    fn valkey_9_and_later_get_the_valkey_format() {
        let table = [("9.1.2", true), ("10.0.0", true), ("8.1.4", false), ("", false), ("x.9", false)];
        for (version, expected) in table {
            let (reply, profile) = apply_replconf(&format!("REPLCONF version {version}"));
            assert_eq!(
                (reply, profile.snapshot_format().uses_valkey_format),
                (Ok(ReplconfAction::Ok), expected),
                "{version}"
            );
        }
    }

    #[test]
    fn active_times_of_consumers_are_sent_only_to_replicas_that_can_load_them() {
        let format = |line: &str| apply_replconf(line).1.snapshot_format();
        let redis = format("REPLCONF capa eof capa psync2");
        assert_eq!((redis.uses_valkey_format, redis.includes_active_times), (false, false));
        let valkey_8 = format("REPLCONF version 8.1.4");
        assert_eq!((valkey_8.uses_valkey_format, valkey_8.includes_active_times), (false, true));
        // The RDB format of Valkey always includes the active times of consumers.
        let valkey_9 = format("REPLCONF version 9.1.2");
        assert_eq!((valkey_9.uses_valkey_format, valkey_9.includes_active_times), (true, false));
    }

    #[test]
    fn psync_arguments_are_parsed() {
        let parse = |line: &str| PsyncRequest::parse(line.split(' ').collect::<Request>().args());
        assert_eq!(
            parse("PSYNC ? -1"),
            Ok(PsyncRequest { repl_id: b"?".to_vec(), first_byte: -1, is_failover: false })
        );
        assert_eq!(parse("PSYNC abc x"), Err(ReplconfError::NotInteger));
        assert_eq!(parse("PSYNC abc"), Err(ReplconfError::Syntax));
    }
}
