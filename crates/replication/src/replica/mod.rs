//! Following a master.
//!
//! The machine connects, introduces itself (PING, AUTH, REPLCONF), asks to go on where it is (PSYNC),
//! takes a snapshot if it cannot, and then hands on the master's stream. It acknowledges every second
//! what has been applied, notices silence, and comes back after a break: at once where the link was
//! lost, every [`REFUSED_RETRY`] where the master's host refuses (its process is being restarted), every
//! [`FAILED_RETRY`] where it cannot be reached or says no. Full synchronisations are dear to the master: after two in a
//! row that did not lead to a link that lasts the next waits for [`FAILED_RETRY`] too, and after each that was spoiled,
//! by a snapshot or a stream that cannot be read, for twice as long as after the one before.
//!
//! What must hold: the position is that of the data. It moves with [`Input::Applied`] and nothing else;
//! it is forgotten when a snapshot begins to replace the data and known again when that is loaded.
//!
//! Bytes come in as they were read and go out as they came: the stream is not copied.

mod link;
#[cfg(test)]
mod tests;
mod transfer;

use std::time::Duration;

use clock::Instant;
use slot_routing::ReplOffset;

use crate::id::ReplId;
use crate::log::Position;
use link::{Handshake, Step};
use transfer::Transfer;

/// How soon a refused connection is tried again.
pub const REFUSED_RETRY: Duration = Duration::from_millis(100);
/// How soon anything else that failed is tried again, as Redis does.
pub const FAILED_RETRY: Duration = Duration::from_secs(1);
/// How soon a link that had worked is made again.
pub const LOST_RETRY: Duration = Duration::from_millis(20);
/// A link that has been up so long lasts.
pub const LASTING: Duration = Duration::from_secs(5);
/// How often the position is acknowledged, and life shown while loading.
const ACK_PERIOD: Duration = Duration::from_secs(1);

/// What the master is told, and for how long it may be silent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The port under which clients reach this node (`replica-announce-port` or `port`).
    pub listening_port: u16,
    /// `replica-announce-ip`.
    pub announce_ip: Option<String>,
    /// `masteruser`, `masterauth`.
    pub user: Option<Vec<u8>>,
    /// The password to sign in with.
    pub password: Option<Vec<u8>>,
    /// `repl-timeout`.
    pub timeout: Duration,
    /// The master is a replica of this node's and is asked to take its place (FAILOVER).
    pub failover: bool,
}

/// What happens to the machine. Everything but `Deadline` answers an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Time has passed.
    Deadline,
    /// The connection stands.
    Connected,
    /// The connection could not be made; `refused` if the host said that nobody listens.
    ConnectFailed {
        /// Whether the host said that nobody listens.
        refused: bool,
    },
    /// The connection is gone.
    Closed,
    /// Bytes came.
    Received(Vec<u8>),
    /// The snapshot begins to replace the data as it comes.
    Replacing,
    /// The snapshot has replaced the data.
    Loaded,
    /// It could not be read.
    LoadFailed,
    /// That many bytes of the stream have been applied.
    Applied {
        /// How many.
        bytes: u64,
    },
    /// The stream held a REPLCONF GETACK.
    AckWanted,
    /// What the master sends as its stream is none, so what this node has may not be what the master thinks.
    Garbage(String),
}

/// What the shell is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Connect to the master.
    Connect,
    /// Close the connection.
    Close(Reason),
    /// Send bytes.
    Send(Vec<u8>),
    /// The master sends a snapshot of this position. The data stays until it is there whole.
    BeginTransfer {
        /// The position it is of.
        position: Position,
        /// Its length, if the master knows it.
        len: Option<u64>,
    },
    /// The next bytes of the snapshot.
    Snapshot(Vec<u8>),
    /// The snapshot is there whole: replace the data by it, take over its position, and report. Read
    /// nothing from the master meanwhile.
    Load {
        /// The position it is of.
        position: Position,
    },
    /// The master goes on from where we are, under this identifier.
    Resume {
        /// The history's identifier.
        id: ReplId,
    },
    /// The link is up: the master's stream follows.
    Up,
    /// The next bytes of the stream. Apply its commands, append them to the own log, and report.
    Stream(Vec<u8>),
}

/// Why a link was given up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// Nothing came for `repl-timeout`.
    #[error("the master has been silent for too long")]
    Silent,
    /// The master refused, with these words.
    #[error("the master answered: {0}")]
    Refused(String),
    /// An answer that is none.
    #[error("the master's answer makes no sense: {0}")]
    Nonsense(String),
    /// The snapshot could not be loaded.
    #[error("the snapshot could not be loaded")]
    LoadFailed,
}

/// What ROLE and INFO show of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// Not connected; will try.
    Connect,
    /// The connection is being made.
    Connecting,
    /// Each says what it is and has.
    Handshake,
    /// A snapshot comes or is being loaded.
    Sync,
    /// The stream flows.
    Connected,
}

impl LinkState {
    /// The word that ROLE uses.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Connecting => "connecting",
            Self::Handshake => "handshake",
            Self::Sync => "sync",
            Self::Connected => "connected",
        }
    }
}

#[derive(Debug)]
enum State {
    Idle { retry_at: Instant },
    Connecting,
    Handshake(Handshake),
    Transfer(Transfer),
    Loading { position: Position, rest: Vec<u8>, next_sign: Instant },
    Streaming { next_ack: Instant, lasts_at: Instant },
}

/// The machine. One follows one master; another master gets another machine, with this one's position.
#[derive(Debug)]
pub struct Replica {
    config: Config,
    state: State,
    /// Where the data stands; `None` if it belongs to no history.
    position: Option<Position>,
    /// How far the append-only file is on the disk, if there is one.
    synced: Option<ReplOffset>,
    last_heard: Instant,
    /// Since when the link has been down.
    down_since: Option<Instant>,
    /// Whether the link has been up at any time.
    was_up: bool,
    /// What the current or last snapshot has brought.
    received: u64,
    /// Full synchronisations since a link last lasted, and how many of them were spoiled.
    full_in_a_row: u32,
    spoiled: u32,
}

impl Replica {
    /// A machine that connects with the first deadline. `position` is where the data stands.
    #[must_use]
    pub fn new(config: Config, position: Option<Position>, now: Instant) -> Self {
        Self {
            config,
            state: State::Idle { retry_at: now },
            position,
            synced: None,
            last_heard: now,
            down_since: Some(now),
            was_up: false,
            received: 0,
            full_in_a_row: 0,
            spoiled: 0,
        }
    }

    /// Says where the data stands, before the first connection.
    pub fn start_from(&mut self, position: Option<Position>) {
        assert!(matches!(self.state, State::Idle { .. }), "the data is told before it is asked for");
        self.position = position;
    }

    /// Says how far the append-only file is on the disk: the next acknowledgement tells.
    pub fn note_synced(&mut self, synced: Option<ReplOffset>) {
        self.synced = synced;
    }

    /// Where the data stands.
    #[must_use]
    pub fn position(&self) -> Option<Position> {
        self.position
    }

    /// How the link stands.
    #[must_use]
    pub fn link(&self) -> LinkState {
        match &self.state {
            State::Idle { .. } => LinkState::Connect,
            State::Connecting => LinkState::Connecting,
            State::Handshake(_) => LinkState::Handshake,
            State::Transfer(_) | State::Loading { .. } => LinkState::Sync,
            State::Streaming { .. } => LinkState::Connected,
        }
    }

    /// Since when the link has been down, if it is.
    #[must_use]
    pub fn down_since(&self) -> Option<Instant> {
        self.down_since
    }

    /// Whether this node has had this master's data, however long ago and for however short a time.
    #[must_use]
    pub fn was_up(&self) -> bool {
        self.was_up
    }

    /// When the master was last heard.
    #[must_use]
    pub fn last_heard(&self) -> Instant {
        self.last_heard
    }

    /// Of the snapshot that is coming: its length, if known, and how much of it is here.
    #[must_use]
    pub fn transfer(&self) -> Option<(Option<u64>, u64)> {
        match &self.state {
            State::Transfer(transfer) => Some((transfer.len(), self.received)),
            State::Loading { .. } => Some((Some(self.received), self.received)),
            _ => None,
        }
    }

    /// Changes what the next handshake says and how long silence may last.
    pub fn set_config(&mut self, config: Config) {
        self.config = config;
    }

    /// When to call with [`Input::Deadline`].
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let silence = self.last_heard + self.config.timeout;
        Some(match &self.state {
            State::Idle { retry_at } => *retry_at,
            State::Connecting | State::Handshake(_) | State::Transfer(_) => silence,
            // Nothing is read while loading, so nothing can be heard.
            State::Loading { next_sign, .. } => *next_sign,
            State::Streaming { next_ack, .. } => (*next_ack).min(silence),
        })
    }

    /// Takes in `input` at `now` and appends what follows from it to `out`.
    pub fn handle(&mut self, now: Instant, input: Input, out: &mut Vec<Action>) {
        match input {
            Input::Deadline => self.on_deadline(now, out),
            Input::Connected => self.on_connected(now, out),
            Input::ConnectFailed { refused } => {
                self.lose(now, if refused { REFUSED_RETRY } else { FAILED_RETRY });
            }
            Input::Closed => self.on_closed(now),
            Input::Received(bytes) => {
                self.last_heard = now;
                self.on_received(now, bytes, out);
            }
            Input::Replacing => self.position = None,
            Input::Loaded => self.on_loaded(now, out),
            Input::LoadFailed => {
                self.position = None;
                self.spoiled += 1;
                self.give_up(now, Reason::LoadFailed, out);
            }
            Input::Applied { bytes } => {
                let position = self.position.as_mut().expect("only a stream is applied, and it has a place");
                position.offset.0 += bytes;
            }
            Input::AckWanted => self.acknowledge(out),
            Input::Garbage(what) => {
                self.position = None;
                self.spoiled += 1;
                self.give_up(now, Reason::Nonsense(what), out);
            }
        }
    }

    fn on_deadline(&mut self, now: Instant, out: &mut Vec<Action>) {
        let silent = now >= self.last_heard + self.config.timeout;
        match &mut self.state {
            State::Idle { retry_at } => {
                if now >= *retry_at {
                    self.state = State::Connecting;
                    self.last_heard = now;
                    out.push(Action::Connect);
                }
            }
            State::Loading { next_sign, .. } => {
                if now >= *next_sign {
                    *next_sign = now + ACK_PERIOD;
                    self.last_heard = now;
                    // An empty line, so that the master sees life.
                    out.push(Action::Send(b"\n".to_vec()));
                }
            }
            _ if silent => self.give_up(now, Reason::Silent, out),
            State::Streaming { next_ack, lasts_at } => {
                if now >= *lasts_at {
                    (self.full_in_a_row, self.spoiled) = (0, 0);
                }
                if now >= *next_ack {
                    *next_ack = now + ACK_PERIOD;
                    self.acknowledge(out);
                }
            }
            State::Connecting | State::Handshake(_) | State::Transfer(_) => {}
        }
    }

    fn on_connected(&mut self, now: Instant, out: &mut Vec<Action>) {
        self.last_heard = now;
        let mut hello = Vec::new();
        self.state = State::Handshake(Handshake::start(&mut hello));
        out.push(Action::Send(hello));
    }

    fn on_closed(&mut self, now: Instant) {
        let worked = matches!(self.state, State::Streaming { .. } | State::Loading { .. });
        self.lose(now, if worked { LOST_RETRY } else { FAILED_RETRY });
    }

    fn on_received(&mut self, now: Instant, bytes: Vec<u8>, out: &mut Vec<Action>) {
        match &mut self.state {
            // What a closed connection still had.
            State::Idle { .. } | State::Connecting => {}
            State::Handshake(_) => self.on_handshake(now, &bytes, out),
            State::Transfer(_) => self.on_transfer(now, bytes, out),
            State::Loading { rest, .. } => rest.extend_from_slice(&bytes),
            State::Streaming { .. } => out.push(Action::Stream(bytes)),
        }
    }

    fn on_handshake(&mut self, now: Instant, bytes: &[u8], out: &mut Vec<Action>) {
        let State::Handshake(handshake) = &mut self.state else { return };
        let mut send = Vec::new();
        let step = handshake.advance(bytes, &self.config, self.position, &mut send);
        if !send.is_empty() {
            out.push(Action::Send(send));
        }
        match step {
            Step::More => {}
            Step::Failed(reason) => self.give_up(now, reason, out),
            Step::Full { position, rest } => {
                self.received = 0;
                self.full_in_a_row += 1;
                self.state = State::Transfer(Transfer::new(position));
                if !rest.is_empty() {
                    self.on_transfer(now, rest, out);
                }
            }
            Step::Continue { id, rest } => {
                let position = self.position.as_mut().expect("only who has a position asks to go on");
                position.id = id.unwrap_or(position.id);
                out.push(Action::Resume { id: position.id });
                self.stream(now, rest, out);
            }
        }
    }

    fn on_transfer(&mut self, now: Instant, bytes: Vec<u8>, out: &mut Vec<Action>) {
        let State::Transfer(transfer) = &mut self.state else { return };
        let before = out.len();
        let outcome = transfer.advance(bytes, out);
        for action in &out[before..] {
            if let Action::Snapshot(bytes) = action {
                self.received += bytes.len() as u64;
            }
        }
        match outcome {
            Ok(None) => {}
            Ok(Some(rest)) => {
                let position = transfer.position();
                // From here on the data is neither the old nor yet the new.
                self.position = None;
                self.state = State::Loading { position, rest, next_sign: now + ACK_PERIOD };
                out.push(Action::Load { position });
            }
            Err(reason) => self.give_up(now, reason, out),
        }
    }

    fn on_loaded(&mut self, now: Instant, out: &mut Vec<Action>) {
        self.last_heard = now;
        match &mut self.state {
            State::Loading { position, rest, .. } => {
                self.position = Some(*position);
                let rest = std::mem::take(rest);
                self.stream(now, rest, out);
                // The master sends the stream when it hears that the snapshot is loaded.
                self.acknowledge(out);
            }
            state => panic!("a snapshot was loaded that nobody asked for, in {state:?}"),
        }
    }

    fn stream(&mut self, now: Instant, rest: Vec<u8>, out: &mut Vec<Action>) {
        self.state = State::Streaming { next_ack: now + ACK_PERIOD, lasts_at: now + LASTING };
        self.was_up = true;
        self.down_since = None;
        out.push(Action::Up);
        if !rest.is_empty() {
            out.push(Action::Stream(rest));
        }
    }

    fn acknowledge(&self, out: &mut Vec<Action>) {
        if let (State::Streaming { .. }, Some(position)) = (&self.state, self.position) {
            let ReplOffset(offset) = position.offset;
            let mut ack = Vec::new();
            let offset = offset.to_string();
            match self.synced.map(|synced| synced.to_string()) {
                None => resp::encode_request(&mut ack, [&b"REPLCONF"[..], b"ACK", offset.as_bytes()]),
                Some(synced) => {
                    let words = [&b"REPLCONF"[..], b"ACK", offset.as_bytes(), b"FACK", synced.as_bytes()];
                    resp::encode_request(&mut ack, words);
                }
            }
            out.push(Action::Send(ack));
        }
    }

    fn give_up(&mut self, now: Instant, reason: Reason, out: &mut Vec<Action>) {
        let retry = if reason == Reason::Silent { LOST_RETRY } else { FAILED_RETRY };
        out.push(Action::Close(reason));
        self.lose(now, retry);
    }

    fn lose(&mut self, now: Instant, retry: Duration) {
        let least = match (self.full_in_a_row, self.spoiled) {
            (0 | 1, 0) => Duration::ZERO,
            (_, spoiled) => FAILED_RETRY * (1 << spoiled.saturating_sub(1).min(4)),
        };
        self.state = State::Idle { retry_at: now + retry.max(least) };
        self.down_since.get_or_insert(now);
    }
}
