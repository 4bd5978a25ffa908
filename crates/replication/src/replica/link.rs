//! The handshake: PING; then AUTH and the REPLCONFs in one go; then PSYNC.
//!
//! | sent | answers that let it go on |
//! | --- | --- |
//! | PING | `+PONG`; `-NOAUTH`, `-NOPERM`, `-ERR operation not permitted` (it wants AUTH first) |
//! | AUTH | `+OK` |
//! | REPLCONF, one for the port, one for the address if announced, two for what we can do | any |
//! | PSYNC | `+FULLRESYNC id offset`; `+CONTINUE`; `+CONTINUE id`; `+DUALCHANNELSYNC` to who said that it can do that |

use slot_routing::ReplOffset;

use super::lines::Lines;
use super::{Config, Reason};
use crate::id::ReplId;
use crate::log::Position;
use crate::psync::SLOT_STATES;

/// The version of Valkey whose snapshots are read. Without it a Valkey writes for the versions before 8, which have no
/// hashes with fields that expire, and gives up when it meets one.
pub(super) const READS_AS_VALKEY: &[u8] = b"9.0.0";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiting {
    Pong,
    Auth,
    /// For the answers to that many REPLCONFs.
    Replconf(u8),
    Psync,
}

#[derive(Debug)]
pub(super) struct Handshake {
    waiting: Waiting,
    lines: Lines,
    replconfs: u8,
}

/// Where the handshake stands.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    More,
    Failed(Reason),
    /// A snapshot follows; `rest` is what was read beyond the handshake.
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
    /// The snapshot is to be fetched over a second connection.
    TwoChannels,
}

impl Handshake {
    pub(super) fn start(send: &mut Vec<u8>) -> Self {
        resp::encode_request(send, [&b"PING"[..]]);
        Self { waiting: Waiting::Pong, lines: Lines::default(), replconfs: 0 }
    }

    /// Whether PSYNC has been sent.
    pub(super) fn has_asked(&self) -> bool {
        self.waiting == Waiting::Psync
    }

    /// Takes in what the master sent; appends to `send` what to send next.
    pub(super) fn advance(
        &mut self,
        bytes: &[u8],
        config: &Config,
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
        config: &Config,
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
            // A master that does not know one of them is an old one, and can do without.
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

    fn introduce(&mut self, config: &Config, send: &mut Vec<u8>) {
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
        // Says to a Valkey which snapshots are read; others may refuse it.
        resp::encode_request(send, [&b"REPLCONF"[..], b"version", READS_AS_VALKEY]);
        // So does this: a Valkey of version 9 names its successor by it.
        if let Some(node) = &config.node {
            resp::encode_request(send, [&b"REPLCONF"[..], b"set-cluster-node-id", node.as_bytes()]);
            self.replconfs += 1;
        }
        if self.waiting != Waiting::Auth {
            self.waiting = Waiting::Replconf(self.replconfs);
        }
    }
}

/// Signs in, if there is a password to do it with; says whether that is answered.
pub(super) fn authenticate(config: &Config, send: &mut Vec<u8>) -> bool {
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

/// Asks for the first byte that is not here yet.
fn ask(config: &Config, position: Option<Position>, send: &mut Vec<u8>) {
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

/// Whether the master goes on from where it was asked to.
pub(super) enum Resumed {
    Yes {
        /// The name of the history from now on, if it is told.
        id: Option<ReplId>,
        /// The slots that are on the move, if they are told.
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

pub(super) fn refused(line: &[u8]) -> Reason {
    match line.strip_prefix(b"-") {
        Some(error) => Reason::Refused(String::from_utf8_lossy(error).into_owned()),
        None => nonsense(line),
    }
}

pub(super) fn nonsense(line: &[u8]) -> Reason {
    Reason::Nonsense(String::from_utf8_lossy(&line[..line.len().min(100)]).into_owned())
}
