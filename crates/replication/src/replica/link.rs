//! The handshake: PING; then AUTH and the REPLCONFs in one go; then PSYNC.
//!
//! | sent | answers that let it go on |
//! | --- | --- |
//! | PING | `+PONG`; `-NOAUTH`, `-NOPERM`, `-ERR operation not permitted` (it wants AUTH first) |
//! | AUTH | `+OK` |
//! | REPLCONF, one for the port, one for the address if announced, two for what we can do | any |
//! | PSYNC | `+FULLRESYNC id offset`; `+CONTINUE`; `+CONTINUE id` |

use memchr::memchr;
use slot_routing::ReplOffset;

use super::{Config, Reason};
use crate::id::ReplId;
use crate::log::Position;

/// The version of Valkey whose snapshots are read. Without it a Valkey writes for the versions before 8, which have no
/// hashes with fields that expire, and gives up when it meets one.
const READS_AS_VALKEY: &[u8] = b"9.0.0";
/// No answer's line is longer.
const MAX_LINE: usize = 64 * 1024;

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
    /// A line whose end has not come yet.
    partial: Vec<u8>,
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
        rest: Vec<u8>,
    },
}

impl Handshake {
    pub(super) fn start(send: &mut Vec<u8>) -> Self {
        resp::encode_request(send, [&b"PING"[..]]);
        Self { waiting: Waiting::Pong, partial: Vec::new(), replconfs: 0 }
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
        while let Some(end) = memchr(b'\n', bytes) {
            self.partial.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end + 1..];
            let line = std::mem::take(&mut self.partial);
            let line = line.strip_suffix(b"\r").unwrap_or(&line);
            // An empty line is a sign of life.
            if line.is_empty() {
                continue;
            }
            match self.on_line(line, config, position, send, bytes) {
                Step::More => {}
                step => return step,
            }
        }
        self.partial.extend_from_slice(bytes);
        if self.partial.len() > MAX_LINE {
            return Step::Failed(Reason::Nonsense("a line without end".into()));
        }
        Step::More
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
            Waiting::Psync => on_psync(line, position.is_some(), rest),
        }
    }

    fn introduce(&mut self, config: &Config, send: &mut Vec<u8>) {
        self.waiting = Waiting::Replconf(0);
        if let Some(password) = &config.password {
            match &config.user {
                Some(user) => resp::encode_request(send, [&b"AUTH"[..], user, password]),
                None => resp::encode_request(send, [&b"AUTH"[..], password]),
            }
            self.waiting = Waiting::Auth;
        }
        let port = config.listening_port.to_string();
        resp::encode_request(send, [&b"REPLCONF"[..], b"listening-port", port.as_bytes()]);
        self.replconfs = 3;
        if let Some(address) = &config.announce_ip {
            resp::encode_request(send, [&b"REPLCONF"[..], b"ip-address", address.as_bytes()]);
            self.replconfs += 1;
        }
        resp::encode_request(send, [&b"REPLCONF"[..], b"capa", b"eof", b"capa", b"psync2"]);
        // Says to a Valkey which snapshots are read; others may refuse it.
        resp::encode_request(send, [&b"REPLCONF"[..], b"version", READS_AS_VALKEY]);
        if self.waiting != Waiting::Auth {
            self.waiting = Waiting::Replconf(self.replconfs);
        }
    }
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
        Some(b"+CONTINUE") if has_position => match words.next().map(ReplId::parse) {
            None => Step::Continue { id: None, rest },
            Some(Ok(id)) => Step::Continue { id: Some(id), rest },
            Some(Err(_)) => Step::Failed(nonsense(line)),
        },
        _ => Step::Failed(refused(line)),
    }
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
