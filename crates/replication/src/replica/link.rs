//! The handshake: PING, then AUTH and all REPLCONFs in one batch, then PSYNC.
//!
//! | sent | replies that are accepted |
//! | --- | --- |
//! | PING | `+PONG`; `-NOAUTH`, `-NOPERM`, `-ERR operation not permitted` (authentication comes next) |
//! | AUTH | `+OK` |
//! | REPLCONF: port, announced address, capabilities, version, node id | any |
//! | PSYNC | `+FULLRESYNC id offset`; `+CONTINUE`; `+CONTINUE id`; `+DUALCHANNELSYNC` if announced as a capability |

use slot_routing::ReplOffset;

use super::lines::Lines;
use super::{LinkError, ReplicaConfig};
use crate::id::ReplId;
use crate::log::Position;
use crate::psync::SLOT_STATES;

/// The Valkey version announced to the master. Without one, Valkey writes RDB for versions before 8, which cannot hold
/// hashes with field expiry, and fails on the first of them.
pub(super) const ANNOUNCED_VALKEY_VERSION: &[u8] = b"9.0.0";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiting {
    Pong,
    Auth,
    /// The number of outstanding REPLCONF replies.
    Replconf(u8),
    Psync,
}

#[derive(Debug)]
pub(super) struct Handshake {
    waiting: Waiting,
    lines: Lines,
    replconfs: u8,
}

/// Progress of the handshake.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    More,
    Failed(LinkError),
    /// A snapshot follows; `rest` contains bytes read beyond the handshake.
    Full {
        position: Position,
        rest: Vec<u8>,
    },
    /// The stream follows.
    Continue {
        id: Option<ReplId>,
        slot_states: Option<Vec<u8>>,
        rest: Vec<u8>,
    },
    /// The snapshot must be fetched over a second connection.
    TwoChannels,
}

impl Handshake {
    pub(super) fn start(send: &mut Vec<u8>) -> Self {
        resp::encode_request(send, [&b"PING"[..]]);
        Self { waiting: Waiting::Pong, lines: Lines::default(), replconfs: 0 }
    }

    /// Returns whether PSYNC has been sent.
    pub(super) fn has_asked(&self) -> bool {
        self.waiting == Waiting::Psync
    }

    /// Handles bytes from the master and appends the next requests to `send`.
    pub(super) fn advance(
        &mut self,
        bytes: &[u8],
        config: &ReplicaConfig,
        position: Option<Position>,
        send: &mut Vec<u8>,
    ) -> Step {
        let mut bytes = bytes;
        loop {
            let line = match self.lines.next(&mut bytes) {
                Ok(Some(line)) => line,
                Ok(None) => return Step::More,
                Err(reason) => return Step::Failed(reason),
            };
            match self.on_line(&line, config, position, send, bytes) {
                Step::More => {}
                step => return step,
            }
        }
    }

    fn on_line(
        &mut self,
        line: &[u8],
        config: &ReplicaConfig,
        position: Option<Position>,
        send: &mut Vec<u8>,
        rest: &[u8],
    ) -> Step {
        match self.waiting {
            Waiting::Pong if pong(line) => {
                self.introduce(config, send);
                Step::More
            }
            Waiting::Auth if line.first() == Some(&b'+') => {
                self.waiting = Waiting::Replconf(self.replconfs);
                Step::More
            }
            Waiting::Pong | Waiting::Auth => Step::Failed(refused(line)),
            // Old masters do not know every option and work without it.
            Waiting::Replconf(missing) if missing > 1 => {
                self.waiting = Waiting::Replconf(missing - 1);
                Step::More
            }
            Waiting::Replconf(_) => {
                self.waiting = Waiting::Psync;
                ask(config, position, send);
                Step::More
            }
            Waiting::Psync if config.dual_channel && line == b"+DUALCHANNELSYNC" => Step::TwoChannels,
            Waiting::Psync => on_psync(line, position.is_some(), rest),
        }
    }

    fn introduce(&mut self, config: &ReplicaConfig, send: &mut Vec<u8>) {
        self.waiting = Waiting::Replconf(0);
        if authenticate(config, send) {
            self.waiting = Waiting::Auth;
        }
        let port = config.listening_port.to_string();
        resp::encode_request(send, [&b"REPLCONF"[..], b"listening-port", port.as_bytes()]);
        self.replconfs = 3;
        if let Some(address) = &config.announce_ip {
            resp::encode_request(send, [&b"REPLCONF"[..], b"ip-address", address.as_bytes()]);
            self.replconfs += 1;
        }
        let mut words = vec![&b"REPLCONF"[..], b"capa", b"eof", b"capa", b"psync2", b"capa", b"slot-states"];
        if config.dual_channel {
            words.extend([&b"capa"[..], b"dual-channel"]);
        }
        resp::encode_request(send, words);
        // Valkey uses this to choose the RDB version. Other masters may refuse it.
        resp::encode_request(send, [&b"REPLCONF"[..], b"version", ANNOUNCED_VALKEY_VERSION]);
        // Valkey 9 names its successor by this node id.
        if let Some(node) = &config.node {
            resp::encode_request(send, [&b"REPLCONF"[..], b"set-cluster-node-id", node.as_bytes()]);
            self.replconfs += 1;
        }
        if self.waiting != Waiting::Auth {
            self.waiting = Waiting::Replconf(self.replconfs);
        }
    }
}

/// Appends AUTH if a password is configured. Returns whether a reply is expected.
pub(super) fn authenticate(config: &ReplicaConfig, send: &mut Vec<u8>) -> bool {
    let Some(password) = &config.password else { return false };
    match &config.user {
        Some(user) => resp::encode_request(send, [&b"AUTH"[..], user, password]),
        None => resp::encode_request(send, [&b"AUTH"[..], password]),
    }
    true
}

fn pong(line: &[u8]) -> bool {
    let wants_auth: [&[u8]; 3] = [b"-NOAUTH", b"-NOPERM", b"-ERR operation not permitted"];
    line.first() == Some(&b'+') || wants_auth.iter().any(|start| line.starts_with(start))
}

/// Requests the first byte that is missing.
fn ask(config: &ReplicaConfig, position: Option<Position>, send: &mut Vec<u8>) {
    match position {
        Some(Position { id, offset }) => {
            let first_byte = (offset.0 + 1).to_string();
            let words = [&b"PSYNC"[..], id.as_str().as_bytes(), first_byte.as_bytes(), b"FAILOVER"];
            let count = if config.failover { words.len() } else { words.len() - 1 };
            resp::encode_request(send, words[..count].iter().copied());
        }
        None => resp::encode_request(send, [&b"PSYNC"[..], b"?", b"-1"]),
    }
}

fn on_psync(line: &[u8], has_position: bool, rest: &[u8]) -> Step {
    let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    let rest = rest.to_vec();
    match words.next() {
        Some(b"+FULLRESYNC") => {
            let id = words.next().and_then(|id| ReplId::parse(id).ok());
            let offset = words.next().and_then(resp::parse_i64).and_then(|offset| u64::try_from(offset).ok());
            match (id, offset) {
                (Some(id), Some(offset)) => {
                    Step::Full { position: Position { id, offset: ReplOffset(offset) }, rest }
                }
                _ => Step::Failed(nonsense(line)),
            }
        }
        _ if !has_position => Step::Failed(refused(line)),
        _ => match resumed(line) {
            Resumed::Yes { id, slot_states } => Step::Continue { id, slot_states, rest },
            Resumed::Nonsense => Step::Failed(nonsense(line)),
            Resumed::No => Step::Failed(refused(line)),
        },
    }
}

/// Whether the master accepted a partial synchronisation.
pub(super) enum Resumed {
    Yes {
        /// The new replication id, if it changed.
        id: Option<ReplId>,
        /// The migrating slots, if the master sent them.
        slot_states: Option<Vec<u8>>,
    },
    No,
    Nonsense,
}

pub(super) fn resumed(line: &[u8]) -> Resumed {
    let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    if words.next() != Some(b"+CONTINUE") {
        return Resumed::No;
    }
    let id = match words.next().map(ReplId::parse) {
        None => None,
        Some(Ok(id)) => Some(id),
        Some(Err(_)) => return Resumed::Nonsense,
    };
    let slot_states = words.find_map(|word| word.strip_prefix(SLOT_STATES.as_bytes())).map(<[u8]>::to_vec);
    Resumed::Yes { id, slot_states }
}

pub(super) fn refused(line: &[u8]) -> LinkError {
    match line.strip_prefix(b"-") {
        Some(error) => LinkError::Refused(String::from_utf8_lossy(error).into_owned()),
        None => nonsense(line),
    }
}

pub(super) fn nonsense(line: &[u8]) -> LinkError {
    LinkError::Nonsense(String::from_utf8_lossy(&line[..line.len().min(100)]).into_owned())
}
