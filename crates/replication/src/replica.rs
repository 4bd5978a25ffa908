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
//! Invariant: the position is that of the data. It moves with [`Input::Applied`] and nothing else;
//! it is forgotten when a snapshot begins to replace the data and known again when that is loaded.
//!
//! Bytes come in as they were read and go out as they came: the stream is not copied.

mod dual;
mod lines;
mod link;
mod stream_buffer;
#[cfg(test)]
mod tests;
mod transfer;

use std::time::Duration;

use clock::Instant;
use slot_routing::{NodeId, ReplOffset};

use crate::id::ReplId;
use crate::log::Position;
use dual::Dual;
use link::{Handshake, Step};
use stream_buffer::StreamBuffer;
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

/// The settings of a link: what the master is told, and for how long it may be silent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The port under which clients reach this node (`replica-announce-port` or `port`).
    pub listening_port: u16,
    /// `replica-announce-ip`.
    pub announce_ip: Option<String>,
    /// The node of a cluster that this one is.
    pub node: Option<NodeId>,
    /// `masteruser`, `masterauth`.
    pub user: Option<Vec<u8>>,
    /// The password to sign in with.
    pub password: Option<Vec<u8>>,
    /// `repl-timeout`.
    pub timeout: Duration,
    /// The master is a replica of this node's and is asked to take its place (FAILOVER).
    pub failover: bool,
    /// `dual-channel-replication-enabled`: a snapshot may come over a second connection, the stream at the same time.
    pub dual_channel: bool,
    /// How much of the stream may be held until the snapshot is loaded; zero is no limit. As in Valkey that is the hard
    /// limit of `client-output-buffer-limit replica`.
    pub held_limit: u64,
}

/// An event that the machine is told of. Everything but `Deadline` answers an action.
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
    /// Something happened to the second connection.
    RdbChannel(ChannelInput),
    /// The snapshot begins to replace the data as it comes.
    Replacing,
    /// The snapshot has replaced the data.
    Loaded,
    /// It could not be read, and no data is left.
    LoadFailed,
    /// It could not be read, and the data is as it was before.
    LoadRejected,
    /// That many bytes of the stream have been applied.
    Applied {
        /// How many.
        bytes: u64,
    },
    /// The stream held a REPLCONF GETACK.
    AckWanted,
    /// The bytes from the master are no stream, so the data of this node may not be what the master thinks.
    Garbage(String),
}

/// An event of the second connection. `Connected` or `Closed` answers [`ChannelAction::Connect`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChannelInput {
    /// It stands.
    Connected,
    /// It could not be made, or is gone.
    Closed,
    /// Bytes came over it.
    Received(Vec<u8>),
}

/// An action for the shell to carry out on the second connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChannelAction {
    /// Make it, to the same master.
    Connect,
    /// Send bytes over it.
    Send(Vec<u8>),
    /// Close it.
    Close,
}

/// An action for the shell to carry out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Connect to the master.
    Connect,
    /// Close the connection, and the second one if there is one.
    Close(Reason),
    /// Send bytes.
    Send(Vec<u8>),
    /// Do something with the second connection.
    RdbChannel(ChannelAction),
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
    /// from the master meanwhile what [`Replica::reads`] allows.
    Load {
        /// The position it is of.
        position: Position,
    },
    /// The master goes on from where we are, under this identifier.
    Resume {
        /// The history's identifier.
        id: ReplId,
        /// The slots that are on the move at the master, if it says so: these, and no others.
        slot_states: Option<Vec<u8>>,
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
    /// The second connection is gone, or could not be made.
    #[error("the connection for the snapshot was lost")]
    RdbChannelLost,
}

/// The state of the link, as ROLE and INFO show it.
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
    Idle {
        retry_at: Instant,
    },
    Connecting,
    Handshake(Handshake),
    Transfer(Transfer),
    Dual(Dual),
    Loading {
        position: Position,
        /// Where the data stood until now.
        before: Option<Position>,
        held: StreamBuffer,
        next_sign: Instant,
        stream: Meanwhile,
    },
    /// Held bytes are applied before anything more is read; if the link is `lost`, it is made again then.
    Streaming {
        next_ack: Instant,
        lasts_at: Instant,
        held: StreamBuffer,
        lost: bool,
    },
}

/// The state of the stream while a snapshot is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meanwhile {
    /// The master sends nothing before it hears that the snapshot is loaded.
    NotRead,
    Held,
    /// The link broke. What came before counts.
    Lost,
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
    /// The last PSYNC was answered with neither a snapshot nor a stream.
    turned_away: bool,
    /// The bytes that the current or last snapshot has brought.
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
            turned_away: false,
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
            State::Dual(dual) if !dual.has_begun() => LinkState::Handshake,
            State::Dual(_) | State::Transfer(_) | State::Loading { .. } => LinkState::Sync,
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

    /// Whether the master said no when it was last asked for its stream.
    #[must_use]
    pub fn was_turned_away(&self) -> bool {
        self.turned_away
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
            State::Dual(dual) if dual.has_begun() => {
                Some((dual.transfer().and_then(Transfer::len), self.received))
            }
            State::Loading { .. } => Some((Some(self.received), self.received)),
            _ => None,
        }
    }

    /// How many bytes of the stream wait for a snapshot to be loaded.
    #[must_use]
    pub fn held(&self) -> u64 {
        match &self.state {
            State::Dual(dual) => dual.held(),
            State::Loading { held, .. } | State::Streaming { held, .. } => held.bytes(),
            State::Idle { .. } | State::Connecting | State::Handshake(_) | State::Transfer(_) => 0,
        }
    }

    /// Whether the connection to the master is to be read now. What is not read waits at the master.
    #[must_use]
    pub fn reads(&self) -> bool {
        let limit = self.config.held_limit;
        match &self.state {
            State::Dual(_) | State::Loading { stream: Meanwhile::Held, .. } => {
                limit == 0 || self.held() < limit
            }
            State::Loading { .. } => false,
            State::Idle { .. }
            | State::Connecting
            | State::Handshake(_)
            | State::Transfer(_)
            | State::Streaming { .. } => true,
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
            State::Connecting | State::Handshake(_) | State::Transfer(_) | State::Dual(_) => silence,
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
            Input::Closed => self.on_closed(now, out),
            Input::RdbChannel(input) => self.on_rdb_channel(now, input, out),
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
                self.apply_held(now, out);
            }
            Input::LoadRejected => {
                if let State::Loading { before, .. } = self.state {
                    self.position = before;
                }
                self.spoiled += 1;
                self.give_up(now, Reason::LoadFailed, out);
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
            State::Streaming { next_ack, lasts_at, .. } => {
                if now >= *lasts_at {
                    (self.full_in_a_row, self.spoiled) = (0, 0);
                }
                if now >= *next_ack {
                    *next_ack = now + ACK_PERIOD;
                    self.acknowledge(out);
                }
            }
            State::Connecting | State::Handshake(_) | State::Transfer(_) | State::Dual(_) => {}
        }
    }

    fn on_connected(&mut self, now: Instant, out: &mut Vec<Action>) {
        self.last_heard = now;
        let mut hello = Vec::new();
        self.state = State::Handshake(Handshake::start(&mut hello));
        out.push(Action::Send(hello));
    }

    fn on_closed(&mut self, now: Instant, out: &mut Vec<Action>) {
        if let State::Loading { stream, .. } = &mut self.state {
            // All that is needed up to here has come: the link is made again once it is loaded.
            *stream = Meanwhile::Lost;
            return;
        }
        if matches!(self.state, State::Dual(_)) {
            out.push(Action::RdbChannel(ChannelAction::Close));
        }
        let worked = matches!(self.state, State::Streaming { .. });
        self.lose(now, if worked { LOST_RETRY } else { FAILED_RETRY });
    }

    fn on_received(&mut self, now: Instant, bytes: Vec<u8>, out: &mut Vec<Action>) {
        match &mut self.state {
            // The rest that a closed connection had is dropped.
            State::Idle { .. } | State::Connecting => {}
            State::Handshake(_) => self.on_handshake(now, &bytes, out),
            State::Transfer(_) => self.on_transfer(now, bytes, out),
            State::Loading { held, .. } => held.push(&bytes),
            State::Dual(dual) => {
                let outcome = dual.on_main_received(&bytes, out);
                self.go_on_with_two(now, outcome, out);
            }
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
        self.turned_away = handshake.has_asked() && matches!(step, Step::Failed(_));
        match step {
            Step::More => {}
            Step::Failed(reason) => self.give_up(now, reason, out),
            Step::TwoChannels => self.state = State::Dual(Dual::start(out)),
            Step::Full { position, rest } => {
                self.received = 0;
                self.full_in_a_row += 1;
                self.state = State::Transfer(Transfer::new(position));
                if !rest.is_empty() {
                    self.on_transfer(now, rest, out);
                }
            }
            Step::Continue { id, slot_states, rest } => {
                let position = self.position.as_mut().expect("only who has a position asks to go on");
                position.id = id.unwrap_or(position.id);
                out.push(Action::Resume { id: position.id, slot_states });
                let mut held = StreamBuffer::default();
                held.push(&rest);
                self.stream(now, held, false, out);
            }
        }
    }

    fn on_transfer(&mut self, now: Instant, bytes: Vec<u8>, out: &mut Vec<Action>) {
        let State::Transfer(transfer) = &mut self.state else { return };
        let before = out.len();
        let outcome = transfer.advance(bytes, out);
        self.received += snapshot_bytes(&out[before..]);
        match outcome {
            Ok(None) => {}
            Ok(Some(rest)) => {
                let position = transfer.position();
                let mut held = StreamBuffer::default();
                held.push(&rest);
                self.load(now, position, held, Meanwhile::NotRead, out);
            }
            Err(reason) => self.give_up(now, reason, out),
        }
    }

    fn load(
        &mut self,
        now: Instant,
        position: Position,
        held: StreamBuffer,
        stream: Meanwhile,
        out: &mut Vec<Action>,
    ) {
        // From here on the data is neither the old nor yet the new.
        let before = self.position.take();
        self.state = State::Loading { position, before, held, next_sign: now + ACK_PERIOD, stream };
        out.push(Action::Load { position });
    }

    fn on_rdb_channel(&mut self, now: Instant, input: ChannelInput, out: &mut Vec<Action>) {
        // The rest that a closed connection had is dropped.
        let State::Dual(dual) = &mut self.state else { return };
        let outcome = match input {
            ChannelInput::Connected => {
                dual.on_rdb_connected(&self.config, out);
                Ok(())
            }
            ChannelInput::Closed if dual.needs_rdb() => Err(Reason::RdbChannelLost),
            ChannelInput::Closed => Ok(()),
            ChannelInput::Received(bytes) => {
                let (had_begun, before) = (dual.has_begun(), out.len());
                let outcome = dual.on_rdb_received(bytes, out);
                if !had_begun && dual.has_begun() {
                    self.received = 0;
                    self.full_in_a_row += 1;
                }
                self.received += snapshot_bytes(&out[before..]);
                outcome
            }
        };
        self.last_heard = now;
        self.go_on_with_two(now, outcome, out);
    }

    fn go_on_with_two(&mut self, now: Instant, outcome: Result<(), Reason>, out: &mut Vec<Action>) {
        let State::Dual(dual) = &mut self.state else { return };
        match outcome {
            Err(reason) => self.give_up(now, reason, out),
            Ok(()) => {
                if let Some((position, held)) = dual.whole() {
                    self.load(now, position, held, Meanwhile::Held, out);
                }
            }
        }
    }

    fn on_loaded(&mut self, now: Instant, out: &mut Vec<Action>) {
        self.last_heard = now;
        match &mut self.state {
            State::Loading { position, held, stream, .. } => {
                self.position = Some(*position);
                let (held, lost) = (std::mem::take(held), *stream == Meanwhile::Lost);
                self.stream(now, held, lost, out);
                // The master sends the stream when it hears that the snapshot is loaded.
                self.acknowledge(out);
            }
            state => panic!("a snapshot was loaded that nobody asked for, in {state:?}"),
        }
    }

    fn stream(&mut self, now: Instant, held: StreamBuffer, lost: bool, out: &mut Vec<Action>) {
        let (next_ack, lasts_at) = (now + ACK_PERIOD, now + LASTING);
        self.state = State::Streaming { next_ack, lasts_at, held, lost };
        self.was_up = true;
        self.down_since = None;
        out.push(Action::Up);
        self.apply_held(now, out);
    }

    /// Hands on the next piece of what is held: the one before has been applied. Meanwhile no deadline comes.
    fn apply_held(&mut self, now: Instant, out: &mut Vec<Action>) {
        let State::Streaming { next_ack, held, lost, .. } = &mut self.state else { return };
        let lost = *lost;
        match held.pop() {
            Some(piece) => {
                out.push(Action::Stream(piece));
                if now >= *next_ack {
                    *next_ack = now + ACK_PERIOD;
                    self.acknowledge(out);
                }
            }
            None if lost => self.lose(now, LOST_RETRY),
            None => {}
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

/// How much of a snapshot these hand on.
fn snapshot_bytes(actions: &[Action]) -> u64 {
    let len = |action: &Action| if let Action::Snapshot(bytes) = action { bytes.len() as u64 } else { 0 };
    actions.iter().map(len).sum()
}
