//! MIGRATE, from the first key's value to the reply.
//!
//! | step | what comes of it | what then |
//! | --- | --- | --- |
//! | capture | the values of the keys that are still to go | the target is reached, if it is not, and gets them |
//! | link, send | it stands, it has left | the answers are read, one for each key |
//! | read | a key has arrived | it is released here, unless it is to stay |
//! | release | it is gone; or it has changed | the next answer; a changed one is captured again when all are read |
//!
//! A key that is written all the time would be sent for ever: after [`TRIES`] rounds writes to the slots of those that
//! are left wait until the end. A key that has gone meanwhile is deleted there. A target that does not know the form of
//! a value gets it once more in Valkey's. A link that was kept open may have been closed by the other end: if nothing
//! has come over it, nothing was done there, and another is made.
//!
//! The driver does one thing at a time, so each input has one step for an answer; the last is the reply.
//!
//! Invariants: no key is released that has not been answered for with the value that it has; after an error none that
//! was not released already.

use std::collections::BTreeSet;
use std::mem::take;

use clock::{Instant, Millis};
use persistence::Dialect;
use resp::{Value, encode_request};
use slot_routing::Slot;

use super::{CapturedKey, Order, Release};
use crate::error::CommandError;

/// How often keys are sent that have changed meanwhile before writes to their slots wait.
const TRIES: u32 = 3;
/// The answer of a target that does not know the form of a value.
const UNREADABLE: &str = "ERR Bad data format";

/// Why keys stay, as the client is told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// No link to the target in time.
    #[error("IOERR error or timeout connecting to the client")]
    Connecting,
    /// The link broke while something was sent, or nobody listens.
    #[error("IOERR error or timeout writing to target instance")]
    Writing,
    /// No answer.
    #[error("IOERR error or timeout reading from target instance")]
    Reading,
    /// The target answered with an error.
    #[error("ERR Target instance replied with error: {0}")]
    Refused(String),
    /// The keys are not this node's to move.
    #[error("{0}")]
    NotOurs(CommandError),
}

/// The one thing to be done next. Each but the last is answered by an [`Input`] of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Writes to these slots wait, until the end, and then the keys are captured: each with the form of its payload.
    Capture {
        /// Slots; those that wait already may be among them.
        hold: Vec<Slot>,
        /// Places in [`Order::keys`].
        keys: Vec<(usize, Dialect)>,
    },
    /// A link to the target is made, or one taken that was kept.
    Link {
        /// None that was kept.
        anew: bool,
    },
    /// This is sent.
    Send(Vec<u8>),
    /// The next answer is read.
    Read,
    /// This key goes from here, if it still is what was captured.
    Release {
        /// Its place in [`Order::keys`].
        key: usize,
        /// As it arrived there.
        captured: CapturedKey,
    },
    /// No pause holds any more.
    AwaitUnpause,
    /// The client gets its answer: `NOKEY`, `OK`, or why not all keys are gone. Nothing waits any more.
    Reply {
        /// The answer.
        result: Result<&'static str, Failure>,
        /// The link has done its work, and may be kept for the next keys.
        keep_link: bool,
    },
}

/// The outcome of a step.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// The keys as they are, in the order of the step; `None` for one that is not there.
    Captured(Vec<Option<CapturedKey>>),
    /// The link stands.
    Linked {
        /// It was kept.
        kept: bool,
        /// It leads back to this server: keys that are written there cannot be taken away here.
        to_self: bool,
    },
    /// It does not.
    NotLinked(Failure),
    /// All of it was sent.
    Sent,
    /// The link broke while it was.
    NotSent,
    /// The next answer.
    Answered(Value),
    /// The link broke, or brought what is no answer.
    NotAnswered,
    /// The outcome for the key.
    Released(Result<Release, CommandError>),
    /// No pause holds.
    Unpaused,
    /// The time of [`Migration::deadline`] has come instead.
    Deadline,
}

/// A key on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Parcel {
    key: usize,
    dialect: Dialect,
    /// `None`: it has gone from here since it was restored there.
    captured: Option<CapturedKey>,
}

/// The link to the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    None,
    Up {
        /// Others have used it before, and nothing has come over it since.
        untried: bool,
    },
}

/// A MIGRATE that is under way.
#[derive(Debug)]
pub struct Migration {
    order: Order,
    asking: bool,
    deadline: Instant,
    link: Link,
    round: u32,
    /// The keys of this round, in the order in which they are answered for.
    parcels: Vec<Parcel>,
    /// The one that is answered for next.
    next: usize,
    /// The next answer is to ASKING, before a DEL.
    answers_asking: bool,
    /// Those that are sent again.
    again: Vec<Parcel>,
    failure: Option<Failure>,
    /// The step that was asked for, by what a deadline means there.
    at_deadline: Failure,
}

impl Migration {
    /// Begins one. In cluster mode (`asking`) the keys' slot is on its way to the target, and not yet the target's.
    #[must_use]
    pub fn new(now: Instant, order: Order, asking: bool) -> (Self, Step) {
        let parcel = |key| Parcel { key, dialect: Dialect::Redis, captured: None };
        let mut migration = Self {
            deadline: now + order.timeout,
            link: Link::None,
            round: 0,
            parcels: Vec::new(),
            next: 0,
            answers_asking: false,
            again: (0..order.keys.len()).map(parcel).collect(),
            failure: None,
            at_deadline: Failure::Reading,
            order,
            asking,
        };
        let first = migration.begin_round();
        (migration, first)
    }

    /// When to give up a step that is not done.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Takes the outcome of the last step, and says the next. `wall` is the time of day, by which keys expire.
    ///
    /// # Panics
    ///
    /// If it is not an outcome of that step.
    pub fn handle(&mut self, wall: Millis, outcome: Input) -> Step {
        match outcome {
            Input::Captured(captured) => self.on_captured(wall, captured),
            Input::Linked { to_self: true, .. } => reply(Err(Failure::Reading)),
            Input::Linked { kept, to_self: false } => {
                self.link = Link::Up { untried: kept };
                self.send(wall)
            }
            Input::NotLinked(failure) => reply(Err(failure)),
            Input::Sent => self.read(),
            Input::NotSent => self.on_link_lost(Failure::Writing),
            Input::Answered(answer) => {
                self.link = Link::Up { untried: false };
                self.on_answer(answer)
            }
            Input::NotAnswered => self.on_link_lost(Failure::Reading),
            Input::Released(outcome) => self.on_released(outcome),
            Input::Unpaused => self.release(),
            // Late is not gone: what was sent may still be done.
            Input::Deadline => reply(Err(self.at_deadline.clone())),
        }
    }

    fn begin_round(&mut self) -> Step {
        self.round += 1;
        (self.parcels, self.next) = (take(&mut self.again), 0);
        let slots: BTreeSet<Slot> = match self.round > TRIES {
            true => self.parcels.iter().map(|parcel| Slot::of_key(&self.order.keys[parcel.key])).collect(),
            false => BTreeSet::new(),
        };
        let keys = self.parcels.iter().map(|parcel| (parcel.key, parcel.dialect)).collect();
        Step::Capture { hold: slots.into_iter().collect(), keys }
    }

    fn on_captured(&mut self, wall: Millis, captured: Vec<Option<CapturedKey>>) -> Step {
        assert_eq!(captured.len(), self.parcels.len(), "each key is looked for");
        for (parcel, captured) in self.parcels.iter_mut().zip(captured) {
            parcel.captured = captured;
        }
        if self.round == 1 {
            self.parcels.retain(|parcel| parcel.captured.is_some());
        }
        match self.link {
            _ if self.parcels.is_empty() => reply(Ok("NOKEY")),
            Link::None => self.reach(false),
            Link::Up { .. } => self.send(wall),
        }
    }

    fn reach(&mut self, anew: bool) -> Step {
        (self.link, self.at_deadline) = (Link::None, Failure::Connecting);
        Step::Link { anew }
    }

    fn send(&mut self, wall: Millis) -> Step {
        self.at_deadline = Failure::Writing;
        // Keys that are sent again replace those that were sent before.
        let replace = self.order.replace || self.round > 1;
        let mut wire = Vec::new();
        for parcel in &self.parcels {
            let key = &self.order.keys[parcel.key];
            match &parcel.captured {
                Some(captured) => restore(&mut wire, key, captured, (self.asking, replace), wall),
                None => {
                    if self.asking {
                        encode_request(&mut wire, [&b"ASKING"[..]]);
                    }
                    encode_request(&mut wire, [&b"DEL"[..], key]);
                }
            }
        }
        Step::Send(wire)
    }

    /// The answer for the next key is waited for, or the round is over.
    fn read(&mut self) -> Step {
        self.at_deadline = Failure::Reading;
        match self.parcels.get(self.next) {
            Some(parcel) => {
                self.answers_asking = parcel.captured.is_none() && self.asking;
                Step::Read
            }
            None => match self.failure.take() {
                Some(failure) => reply(Err(failure)),
                None if self.again.is_empty() => Step::Reply { result: Ok("OK"), keep_link: true },
                None => self.begin_round(),
            },
        }
    }

    fn read_next(&mut self) -> Step {
        self.next += 1;
        self.read()
    }

    fn on_answer(&mut self, answer: Value) -> Step {
        if take(&mut self.answers_asking) {
            return Step::Read;
        }
        let parcel = &self.parcels[self.next];
        match answer {
            Value::Error(text) if text == UNREADABLE && parcel.dialect == Dialect::Redis => {
                self.again.push(Parcel { dialect: Dialect::Valkey, ..parcel.clone() });
                self.read_next()
            }
            Value::Error(text) => self.fail(Failure::Refused(text)),
            _ if self.order.copy => self.read_next(),
            _ => self.release(),
        }
    }

    fn release(&mut self) -> Step {
        let parcel = &self.parcels[self.next];
        match &parcel.captured {
            Some(captured) => Step::Release { key: parcel.key, captured: captured.clone() },
            None => self.read_next(),
        }
    }

    fn on_released(&mut self, outcome: Result<Release, CommandError>) -> Step {
        match outcome {
            Ok(Release::Gone(_)) => self.read_next(),
            Ok(Release::Changed) => {
                self.again.push(self.parcels[self.next].clone());
                self.read_next()
            }
            Ok(Release::Paused) => Step::AwaitUnpause,
            Err(error) => self.fail(Failure::NotOurs(error)),
        }
    }

    /// The first is told when the others are answered for.
    fn fail(&mut self, failure: Failure) -> Step {
        self.failure.get_or_insert(failure);
        self.read_next()
    }

    fn on_link_lost(&mut self, failure: Failure) -> Step {
        match self.link {
            Link::Up { untried: true } => self.reach(true),
            Link::Up { untried: false } | Link::None => reply(Err(failure)),
        }
    }
}

fn reply(result: Result<&'static str, Failure>) -> Step {
    Step::Reply { result, keep_link: false }
}

fn restore(
    wire: &mut Vec<u8>,
    key: &[u8],
    captured: &CapturedKey,
    (asking, replace): (bool, bool),
    Millis(now): Millis,
) {
    let name: &[u8] = if asking { b"RESTORE-ASKING" } else { b"RESTORE" };
    // 0 would mean that it stays.
    let ttl = captured.expiry.map_or(0, |at| (at.0 - now).max(1)).to_string();
    let mut request = vec![name, key, ttl.as_bytes(), &captured.payload];
    if replace {
        request.push(b"REPLACE");
    }
    encode_request(wire, request);
}

#[cfg(test)]
mod tests;
