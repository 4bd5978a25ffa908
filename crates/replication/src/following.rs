//! Following a master as a whole, and being one: the role, the machine that follows ([`Replica`]), and its steps in
//! the log. A node and the simulator drive the same.
//!
//! The machine says what a master is told and what becomes of its answers; here that is joined to the log and to the
//! changes of the role. The process has connections, threads that apply and load, and a clock, and does what [`Order`]
//! says, in order:
//!
//! | | the process | the driver |
//! | --- | --- | --- |
//! | 1 | a master is named: [`Following::follow`] | begins a stream in the log: no write begins any more |
//! | 2 | publishes the role; once what was under way has ended: [`Input::Drained`] | notes where the data stands |
//! | 3 | [`Input::Link`]: what becomes of the connections, the snapshot, the stream | says what is next: [`Order::Act`] |
//! | 4 | it is to lead: [`Following::lead`] | renames the history; what the stream still brings is dropped |
//!
//! Invariants: one master is followed at a time, and what comes of an earlier one (a piece that was applied, a snapshot
//! that was loaded, a link that broke) changes nothing; while a piece of the stream is in hand, nothing else is read and
//! no time passes for the machine.

#[cfg(test)]
mod tests;

use clock::Instant;
use slot_routing::ReplOffset;

use crate::authority::Generation;
use crate::id::ReplId;
use crate::log::{Log, StreamOver};
use crate::replica::{self, Action, Config, LinkState, Replica};
use crate::serving::LogTurns;

/// An event that the driver is told of, of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Every write that was admitted before the stream was begun is in the log, and nothing is being loaded.
    Drained,
    /// Something happened to the link.
    Link(replica::Input),
}

/// An order for the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// The stream is over: let go of its master.
    Over,
    /// This node's history was replaced: its replicas must ask again.
    HistoryReplaced,
    /// Do this with the link.
    Act(Action),
}

/// The driver.
#[derive(Debug)]
pub struct Following<M> {
    /// The master; `None` for a master.
    upstream: Option<Upstream<M>>,
}

#[derive(Debug)]
struct Upstream<M> {
    master: M,
    stream: Generation,
    replica: Replica,
    hand: Hand,
    /// The data is of another history than the master's, which had sent none when this stream began.
    foreign: bool,
}

/// The thing that the process has in hand for the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hand {
    /// Writes that began while this node was a master, or an earlier master's snapshot.
    Earlier,
    Nothing,
    /// A piece of the stream.
    Piece,
}

impl<M> Default for Following<M> {
    /// A master.
    fn default() -> Self {
        Self { upstream: None }
    }
}

impl<M: PartialEq> Following<M> {
    /// Returns the master, if this is a replica.
    #[must_use]
    pub fn master(&self) -> Option<&M> {
        self.upstream.as_ref().map(|upstream| &upstream.master)
    }

    /// Returns the machine, to ask it about the link, if this is a replica.
    #[must_use]
    pub fn replica(&self) -> Option<&Replica> {
        self.upstream.as_ref().map(|upstream| &upstream.replica)
    }

    /// Returns both, if this is a replica.
    #[must_use]
    pub fn upstream(&self) -> Option<(&M, &Replica)> {
        self.upstream.as_ref().map(|upstream| (&upstream.master, &upstream.replica))
    }

    /// Returns the stream that is, or is to be, applied.
    #[must_use]
    pub fn stream(&self) -> Option<Generation> {
        self.upstream.as_ref().map(|upstream| upstream.stream)
    }

    /// Whether this node has its master's data and hears of each change; a master has its own.
    #[must_use]
    pub fn is_in_sync(&self) -> bool {
        self.replica().is_none_or(|replica| replica.link() == LinkState::Connected)
    }

    /// Whether the data is a state of this master's, however old. It is not while a snapshot replaces it, nor when that
    /// could not be loaded: then there is none.
    #[must_use]
    pub fn has_data(&self, log: &Log) -> bool {
        log.is_open() && self.replica().is_some_and(Replica::was_up)
    }

    /// How far the data reaches, as it is told to whoever chooses among replicas: a replica whose data belongs to no
    /// history, or to another one than its master's, has nothing, however far its log had come.
    #[must_use]
    pub fn reach(&self, log: &Log) -> ReplOffset {
        let has_none = self.upstream.as_ref().is_some_and(|upstream| !log.is_open() || upstream.is_foreign());
        if has_none { ReplOffset(0) } else { log.position().offset }
    }

    /// The data that is here when this master is named is of another history (a replica that goes to another shard). It
    /// counts as none until the master has sent its own: with a higher offset it would be preferred to that. As in Valkey,
    /// a restart forgets it.
    pub fn note_foreign(&mut self) {
        if let Some(upstream) = &mut self.upstream {
            upstream.foreign = true;
        }
    }

    /// Changes what the next handshake says and how long silence may last.
    pub fn set_config(&mut self, config: Config) {
        if let Some(upstream) = &mut self.upstream {
            upstream.replica.set_config(config);
        }
    }

    /// Says how far the append-only file is on the disk: the next acknowledgement tells.
    pub fn note_synced(&mut self, synced: Option<ReplOffset>) {
        if let Some(upstream) = &mut self.upstream {
            upstream.replica.note_synced(synced);
        }
    }

    /// Whether the first connection of this stream is to be read now. What is not read waits at the master.
    #[must_use]
    pub fn reads(&self, stream: Generation) -> bool {
        self.free(stream).is_some_and(|upstream| upstream.replica.reads())
    }

    /// Whether the second one is.
    #[must_use]
    pub fn reads_rdb(&self, stream: Generation) -> bool {
        self.free(stream).is_some()
    }

    /// When to say of this stream that time has passed; never, while something else is in hand.
    #[must_use]
    pub fn next_deadline(&self, stream: Generation) -> Option<Instant> {
        self.free(stream)?.replica.next_deadline()
    }

    fn free(&self, stream: Generation) -> Option<&Upstream<M>> {
        self.upstream.as_ref().filter(|upstream| upstream.stream == stream && upstream.hand == Hand::Nothing)
    }

    /// Follows this master from now on. Returns the stream that is to come: publish the role, and say when what was under
    /// way has ended. `None` if it is followed already.
    pub fn follow(
        &mut self,
        now: Instant,
        master: M,
        config: Config,
        log: &mut impl LogTurns,
    ) -> Option<Generation> {
        if self.master() == Some(&master) {
            return None;
        }
        let stream = log.turn(Log::demote);
        let replica = Replica::new(config, None, now);
        let foreign = self.upstream.as_ref().is_some_and(Upstream::is_foreign);
        self.upstream = Some(Upstream { master, stream, replica, hand: Hand::Earlier, foreign });
        Some(stream)
    }

    /// Takes writes from now on; the history goes on under this name. No piece of a stream may be in hand. Says whether
    /// that changes anything.
    pub fn lead(&mut self, name: ReplId, log: &mut impl LogTurns) -> bool {
        let was_replica = self.upstream.take().is_some();
        if was_replica {
            log.turn(|log| log.promote(name));
        }
        was_replica
    }

    /// Takes in `input` of `stream` at `now` and appends what follows from it to `out`.
    pub fn handle(
        &mut self,
        now: Instant,
        (stream, input): (Generation, Input),
        log: &mut impl LogTurns,
        out: &mut Vec<Order>,
    ) {
        let current = self.upstream.as_mut().filter(|upstream| upstream.stream == stream);
        match (current, input) {
            (None, _) => out.push(Order::Over),
            (Some(upstream), Input::Drained) => upstream.begin(log, out),
            (Some(upstream), Input::Link(input)) => upstream.on_link(now, input, log, out),
        }
    }
}

impl<M> Upstream<M> {
    fn is_foreign(&self) -> bool {
        self.foreign && !self.replica.was_up()
    }

    /// Notes where the data stands: the master is asked to go on from there.
    fn begin(&mut self, log: &mut impl LogTurns, out: &mut Vec<Order>) {
        match log.turn(|log| log.follow(self.stream)) {
            Ok(position) => {
                self.replica.start_from(position);
                self.hand = Hand::Nothing;
            }
            Err(StreamOver) => out.push(Order::Over),
        }
    }

    fn on_link(
        &mut self,
        now: Instant,
        input: replica::Input,
        log: &mut impl LogTurns,
        out: &mut Vec<Order>,
    ) {
        match &input {
            replica::Input::Applied { .. } | replica::Input::Garbage(_) | replica::Input::Closed => {
                self.hand = Hand::Nothing;
            }
            replica::Input::Replacing => out.push(Order::HistoryReplaced),
            _ => {}
        }
        let mut actions = Vec::new();
        self.replica.handle(now, input, &mut actions);
        for action in actions {
            match &action {
                Action::Stream(_) => self.hand = Hand::Piece,
                Action::Load { .. } => out.push(Order::HistoryReplaced),
                Action::Resume { id, .. } => {
                    let renamed = log.turn(|log| {
                        let renamed = log.position().id != *id;
                        if renamed {
                            log.rename(*id);
                        }
                        renamed
                    });
                    out.extend(renamed.then_some(Order::HistoryReplaced));
                }
                _ => {}
            }
            out.push(Order::Act(action));
        }
    }
}
