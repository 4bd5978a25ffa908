//! The handshake: PING, then AUTH and all REPLCONFs in one batch, then PSYNC.
//!
//! | sent | replies that are accepted |
//! | --- | --- |
//! | PING | `+PONG`; `-NOAUTH`, `-NOPERM`, `-ERR operation not permitted` (authentication comes next) |
//! | AUTH | `+OK` |
//! | REPLCONF: port, announced address, capabilities, version, node id | any |
//! | PSYNC | `+FULLRESYNC id offset`; `+CONTINUE`; `+CONTINUE id`; `+DUALCHANNELSYNC` if announced as a capability |

use slot_routing::ReplOffset;

use super::lines::LineSplitter;
use super::{LinkError, ReplicaConfig};
use crate::id::ReplId;
use crate::log::ReplPosition;
use crate::psync::SLOT_STATES_PREFIX;

/// The Valkey version announced to the master. A Valkey master to which no version is announced writes an RDB format
/// from before version 8, which cannot represent hashes with field expiry; the transfer fails at the first such hash.
pub(super) const ANNOUNCED_VALKEY_VERSION: &[u8] = b"9.0.0";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AwaitedReply {
    Pong,
    Auth,
    /// The number of outstanding REPLCONF replies.
    Replconf(u8),
    Psync,
}

#[derive(Debug)]
pub(super) struct Handshake {
    awaited_reply: AwaitedReply,
    lines: LineSplitter,
    replconf_count: u8,
}

/// The progress of the handshake after some bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HandshakeStep {
    Incomplete,
    Failed(LinkError),
    /// The master sends a snapshot next; `rest` contains the bytes received after the handshake.
    FullResync {
        position: ReplPosition,
        remaining: Vec<u8>,
    },
    /// The master accepts a partial resynchronization: the stream follows without a snapshot.
    Continue {
        id: Option<ReplId>,
        slot_states: Option<Vec<u8>>,
        remaining: Vec<u8>,
    },
    /// The snapshot must be requested over a second connection.
    DualChannel,
}

impl Handshake {
    pub(super) fn start(requests: &mut Vec<u8>) -> Self {
        resp::encode_request(requests, [&b"PING"[..]]);
        Self { awaited_reply: AwaitedReply::Pong, lines: LineSplitter::default(), replconf_count: 0 }
    }

    pub(super) fn has_sent_psync(&self) -> bool {
        self.awaited_reply == AwaitedReply::Psync
    }

    /// Handles bytes from the master and appends the next commands to `requests`.
    pub(super) fn advance(
        &mut self,
        bytes: &[u8],
        config: &ReplicaConfig,
        position: Option<ReplPosition>,
        requests: &mut Vec<u8>,
    ) -> HandshakeStep {
        let mut bytes = bytes;
        loop {
            let line = match self.lines.next_line(&mut bytes) {
                Ok(Some(line)) => line,
                Ok(None) => return HandshakeStep::Incomplete,
                Err(reason) => return HandshakeStep::Failed(reason),
            };
            match self.on_line(&line, config, position, requests, bytes) {
                HandshakeStep::Incomplete => {}
                step => return step,
            }
        }
    }

    fn on_line(
        &mut self,
        line: &[u8],
        config: &ReplicaConfig,
        position: Option<ReplPosition>,
        requests: &mut Vec<u8>,
        remaining: &[u8],
    ) -> HandshakeStep {
        match self.awaited_reply {
            AwaitedReply::Pong if is_pong_accepted(line) => {
                self.append_replconf(config, requests);
                HandshakeStep::Incomplete
            }
            AwaitedReply::Auth if line.first() == Some(&b'+') => {
                self.awaited_reply = AwaitedReply::Replconf(self.replconf_count);
                HandshakeStep::Incomplete
            }
            AwaitedReply::Pong | AwaitedReply::Auth => HandshakeStep::Failed(refusal_error(line)),
            // Old masters reject unknown options, but replicate without them.
            AwaitedReply::Replconf(missing) if missing > 1 => {
                self.awaited_reply = AwaitedReply::Replconf(missing - 1);
                HandshakeStep::Incomplete
            }
            AwaitedReply::Replconf(_) => {
                self.awaited_reply = AwaitedReply::Psync;
                append_psync(config, position, requests);
                HandshakeStep::Incomplete
            }
            AwaitedReply::Psync if config.dual_channel && line == b"+DUALCHANNELSYNC" => {
                HandshakeStep::DualChannel
            }
            AwaitedReply::Psync => on_psync_reply(line, position.is_some(), remaining),
        }
    }

    fn append_replconf(&mut self, config: &ReplicaConfig, requests: &mut Vec<u8>) {
        self.awaited_reply = AwaitedReply::Replconf(0);
        if append_auth(config, requests) {
            self.awaited_reply = AwaitedReply::Auth;
        }
        let port = config.listening_port.to_string();
        resp::encode_request(requests, [&b"REPLCONF"[..], b"listening-port", port.as_bytes()]);
        self.replconf_count = 3;
        if let Some(address) = &config.announce_ip {
            resp::encode_request(requests, [&b"REPLCONF"[..], b"ip-address", address.as_bytes()]);
            self.replconf_count += 1;
        }
        let mut words = vec![&b"REPLCONF"[..], b"capa", b"eof", b"capa", b"psync2", b"capa", b"slot-states"];
        if config.dual_channel {
            words.extend([&b"capa"[..], b"dual-channel"]);
        }
        resp::encode_request(requests, words);
        // Valkey chooses the RDB version by this option. Other masters may reject it.
        resp::encode_request(requests, [&b"REPLCONF"[..], b"version", ANNOUNCED_VALKEY_VERSION]);
        // Valkey 9 uses this node id when it names its successor.
        if let Some(node) = &config.node_id {
            resp::encode_request(requests, [&b"REPLCONF"[..], b"set-cluster-node-id", node.as_bytes()]);
            self.replconf_count += 1;
        }
        if self.awaited_reply != AwaitedReply::Auth {
            self.awaited_reply = AwaitedReply::Replconf(self.replconf_count);
        }
    }
}

/// Appends AUTH if a password is configured. Returns whether a reply is expected.
pub(super) fn append_auth(config: &ReplicaConfig, requests: &mut Vec<u8>) -> bool {
    let Some(password) = &config.password else { return false };
    match &config.user {
        Some(user) => resp::encode_request(requests, [&b"AUTH"[..], user, password]),
        None => resp::encode_request(requests, [&b"AUTH"[..], password]),
    }
    true
}

fn is_pong_accepted(line: &[u8]) -> bool {
    let wants_auth: [&[u8]; 3] = [b"-NOAUTH", b"-NOPERM", b"-ERR operation not permitted"];
    line.first() == Some(&b'+') || wants_auth.iter().any(|start| line.starts_with(start))
}

/// Appends a PSYNC that requests the first missing byte.
fn append_psync(config: &ReplicaConfig, position: Option<ReplPosition>, requests: &mut Vec<u8>) {
    match position {
        Some(ReplPosition { id, offset }) => {
            let first_byte = (offset.0 + 1).to_string();
            let words = [&b"PSYNC"[..], id.as_str().as_bytes(), first_byte.as_bytes(), b"FAILOVER"];
            let count = if config.requests_takeover { words.len() } else { words.len() - 1 };
            resp::encode_request(requests, words[..count].iter().copied());
        }
        None => resp::encode_request(requests, [&b"PSYNC"[..], b"?", b"-1"]),
    }
}

fn on_psync_reply(line: &[u8], has_position: bool, remaining: &[u8]) -> HandshakeStep {
    let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    let rest = remaining.to_vec();
    match words.next() {
        Some(b"+FULLRESYNC") => {
            let id = words.next().and_then(|id| ReplId::parse(id).ok());
            let offset = words.next().and_then(resp::parse_i64).and_then(|offset| u64::try_from(offset).ok());
            match (id, offset) {
                (Some(id), Some(offset)) => HandshakeStep::FullResync {
                    position: ReplPosition { id, offset: ReplOffset(offset) },
                    remaining: rest,
                },
                _ => HandshakeStep::Failed(malformed_reply(line)),
            }
        }
        _ if !has_position => HandshakeStep::Failed(refusal_error(line)),
        _ => match parse_continue(line) {
            ContinueReply::Accepted { id, slot_states } => {
                HandshakeStep::Continue { id, slot_states, remaining: rest }
            }
            ContinueReply::Malformed => HandshakeStep::Failed(malformed_reply(line)),
            ContinueReply::FullResyncNeeded => HandshakeStep::Failed(refusal_error(line)),
        },
    }
}

/// What changes when the master accepts a partial synchronisation.
pub(super) enum ContinueReply {
    Accepted {
        /// The new replication id; `None` if the id has not changed.
        id: Option<ReplId>,
        /// The list of migrating slots; `None` if the master did not send it.
        slot_states: Option<Vec<u8>>,
    },
    FullResyncNeeded,
    Malformed,
}

pub(super) fn parse_continue(line: &[u8]) -> ContinueReply {
    let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    if words.next() != Some(b"+CONTINUE") {
        return ContinueReply::FullResyncNeeded;
    }
    let id = match words.next().map(ReplId::parse) {
        None => None,
        Some(Ok(id)) => Some(id),
        Some(Err(_)) => return ContinueReply::Malformed,
    };
    let slot_states =
        words.find_map(|word| word.strip_prefix(SLOT_STATES_PREFIX.as_bytes())).map(<[u8]>::to_vec);
    ContinueReply::Accepted { id, slot_states }
}

pub(super) fn refusal_error(line: &[u8]) -> LinkError {
    match line.strip_prefix(b"-") {
        Some(error) => LinkError::Refused(String::from_utf8_lossy(error).into_owned()),
        None => malformed_reply(line),
    }
}

pub(super) fn malformed_reply(line: &[u8]) -> LinkError {
    LinkError::MalformedReply(String::from_utf8_lossy(&line[..line.len().min(100)]).into_owned())
}
