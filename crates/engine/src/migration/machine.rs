//! The state machine of MIGRATE, from capturing the first key to the reply.
//!
//! | step | result | next |
//! | --- | --- | --- |
//! | capture | values of the remaining keys | connect to the target if needed, and send |
//! | link, send | connected, sent | read the replies, one per key |
//! | read | a key has arrived | release it here, unless COPY is set |
//! | release | deleted or changed | next reply; changed keys are captured again after the last one |
//!
//! A key that is written continuously would be sent forever. After [`MAX_RESEND_ROUNDS`] rounds, writes to the slots of
//! the remaining keys are therefore paused until the end. A key that was deleted here during the transfer is also
//! deleted on the target. If the target does not know a value's format, the value is sent again in Valkey's format. The
//! target may have closed a cached connection: if no reply has come over a reused connection, nothing was executed, and
//! a new connection is made.
//!
//! The driver does one thing at a time: each step has exactly one result, and the last step is the reply.
//!
//! Invariants: a key is only released after the target has confirmed its current value; after an error no further key
//! is released.

use std::collections::BTreeSet;
use std::mem::take;

use clock::{Instant, Millis};
use persistence::Dialect;
use resp::{Value, encode_request};
use slot_routing::Slot;

use super::{CapturedKey, MigrateArgs, ReleaseResult};
use crate::error::CommandError;

/// Number of rounds in which changed keys are sent again before writes are paused.
const MAX_RESEND_ROUNDS: u32 = 3;
/// Error reply of a target that does not know the value's format.
const BAD_FORMAT_REPLY: &str = "ERR Bad data format";

/// Why MIGRATE failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MigrateError {
    /// The target could not be reached within the timeout.
    #[error("IOERR error or timeout connecting to the client")]
    Connecting,
    /// The connection broke while sending, or the target refused it.
    #[error("IOERR error or timeout writing to target instance")]
    Writing,
    /// The target did not reply in time, or its reply was malformed.
    #[error("IOERR error or timeout reading from target instance")]
    Reading,
    /// The target replied with this error.
    #[error("ERR Target instance replied with error: {0}")]
    Refused(String),
    /// This node does not serve the keys.
    #[error("{0}")]
    NotServed(CommandError),
}

/// The next step of the driver. Each step except the last is answered by one [`MigrateStepResult`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MigrateStep {
    /// Pause writes to the given slots until the migration ends, then capture the keys in the given formats.
    Capture {
        /// Slots whose writes are paused first; may include slots that are paused already.
        pause_slots: Vec<Slot>,
        /// Indexes in [`MigrateArgs::keys`] with the payload format.
        keys: Vec<(usize, Dialect)>,
    },
    /// Connect to the target, or reuse a cached connection.
    Connect {
        /// Whether a new connection is required, so that a cached one must not be used.
        force_new: bool,
    },
    /// Send these bytes to the target.
    Send(Vec<u8>),
    /// Read the next reply from the target.
    Read,
    /// Delete this key if it still has the captured value.
    Release {
        /// Index in [`MigrateArgs::keys`].
        key: usize,
        /// The value that the target has confirmed.
        captured: CapturedKey,
    },
    /// Wait until no pause is active.
    AwaitUnpause,
    /// Reply to the client with `NOKEY`, `OK` or an error, and end all slot pauses.
    Reply {
        /// The reply text, or the error that is converted to one.
        result: Result<&'static str, MigrateError>,
        /// Whether the connection may be cached for reuse.
        keep_connection: bool,
    },
}

/// The result of a step.
#[derive(Debug, Clone, PartialEq)]
pub enum MigrateStepResult {
    /// The captured keys in the order of the step; `None` for keys that do not exist.
    Captured(Vec<Option<CapturedKey>>),
    /// A connection to the target is ready.
    Connected {
        /// Whether a cached connection was reused.
        is_reused: bool,
        /// Whether the target is this server itself: its keys must not be deleted after restoring them.
        is_own_server: bool,
    },
    /// No connection could be made.
    ConnectFailed(MigrateError),
    /// All bytes of the step were sent.
    Sent,
    /// The connection broke while sending.
    SendFailed,
    /// The target sent this reply.
    Replied(Value),
    /// The connection broke or sent malformed data.
    ReadFailed,
    /// The result of releasing the key.
    Released(Result<ReleaseResult, CommandError>),
    /// No pause is active any more.
    Unpaused,
    /// The step did not complete before [`Migration::deadline`], so MIGRATE fails.
    Deadline,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct KeyTransfer {
    key: usize,
    dialect: Dialect,
    /// The value sent to the target; `None` if the key was deleted here after it was restored on the target.
    captured: Option<CapturedKey>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TargetLink {
    None,
    Connected {
        /// Whether the connection was cached and the target has not replied over it since.
        is_untried: bool,
    },
}

/// The state of a running MIGRATE.
#[derive(Debug)]
pub struct Migration {
    args: MigrateArgs,
    sends_asking: bool,
    deadline: Instant,
    link: TargetLink,
    round: u32,
    /// The keys of this round, in the order of their replies.
    transfers: Vec<KeyTransfer>,
    /// Index of the key whose reply is next.
    next_reply: usize,
    /// Whether the next reply is that of ASKING before a DEL.
    expects_asking_reply: bool,
    /// Keys of the running round that must be sent again in the next round.
    transfers_to_resend: Vec<KeyTransfer>,
    failure: Option<MigrateError>,
    /// The error to reply if the deadline passes during the current step.
    timeout_error: MigrateError,
}

impl Migration {
    /// Starts a migration and returns its first step. In cluster mode (`sends_asking`) the target is importing the slot
    /// and does not own it yet.
    #[must_use]
    pub fn new(now: Instant, args: MigrateArgs, sends_asking: bool) -> (Self, MigrateStep) {
        let parcel = |key| KeyTransfer { key, dialect: Dialect::Redis, captured: None };
        let mut migration = Self {
            deadline: now + args.timeout,
            link: TargetLink::None,
            round: 0,
            transfers: Vec::new(),
            next_reply: 0,
            expects_asking_reply: false,
            transfers_to_resend: (0..args.keys.len()).map(parcel).collect(),
            failure: None,
            timeout_error: MigrateError::Reading,
            args,
            sends_asking,
        };
        let first = migration.begin_round();
        (migration, first)
    }

    /// Returns when the current step, and with it the migration, times out.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Processes the result of the last step and returns the next step. `wall` is the wall clock, by which keys expire.
    ///
    /// # Panics
    ///
    /// If the result does not belong to the last step.
    pub fn handle(&mut self, wall: Millis, result: MigrateStepResult) -> MigrateStep {
        match result {
            MigrateStepResult::Captured(captured) => self.on_captured(wall, captured),
            MigrateStepResult::Connected { is_own_server: true, .. } => reply(Err(MigrateError::Reading)),
            MigrateStepResult::Connected { is_reused: kept, is_own_server: false } => {
                self.link = TargetLink::Connected { is_untried: kept };
                self.send(wall)
            }
            MigrateStepResult::ConnectFailed(failure) => reply(Err(failure)),
            MigrateStepResult::Sent => self.read(),
            MigrateStepResult::SendFailed => self.on_connection_lost(MigrateError::Writing),
            MigrateStepResult::Replied(answer) => {
                self.link = TargetLink::Connected { is_untried: false };
                self.on_reply(answer)
            }
            MigrateStepResult::ReadFailed => self.on_connection_lost(MigrateError::Reading),
            MigrateStepResult::Released(outcome) => self.on_released(outcome),
            MigrateStepResult::Unpaused => self.release(),
            // After a timeout the keys may still arrive: the target may execute requests that were already sent.
            MigrateStepResult::Deadline => reply(Err(self.timeout_error.clone())),
        }
    }

    fn begin_round(&mut self) -> MigrateStep {
        self.round += 1;
        (self.transfers, self.next_reply) = (take(&mut self.transfers_to_resend), 0);
        let slots: BTreeSet<Slot> = match self.round > MAX_RESEND_ROUNDS {
            true => self.transfers.iter().map(|parcel| Slot::of_key(&self.args.keys[parcel.key])).collect(),
            false => BTreeSet::new(),
        };
        let keys = self.transfers.iter().map(|parcel| (parcel.key, parcel.dialect)).collect();
        MigrateStep::Capture { pause_slots: slots.into_iter().collect(), keys }
    }

    fn on_captured(&mut self, wall: Millis, captured: Vec<Option<CapturedKey>>) -> MigrateStep {
        assert_eq!(captured.len(), self.transfers.len(), "each key is looked for");
        for (parcel, captured) in self.transfers.iter_mut().zip(captured) {
            parcel.captured = captured;
        }
        if self.round == 1 {
            self.transfers.retain(|parcel| parcel.captured.is_some());
        }
        match self.link {
            _ if self.transfers.is_empty() => reply(Ok("NOKEY")),
            TargetLink::None => self.connect(false),
            TargetLink::Connected { .. } => self.send(wall),
        }
    }

    fn connect(&mut self, force_new: bool) -> MigrateStep {
        (self.link, self.timeout_error) = (TargetLink::None, MigrateError::Connecting);
        MigrateStep::Connect { force_new }
    }

    fn send(&mut self, wall: Millis) -> MigrateStep {
        self.timeout_error = MigrateError::Writing;
        // Keys that are sent again replace their earlier values.
        let replace = self.args.replace || self.round > 1;
        let mut wire = Vec::new();
        for parcel in &self.transfers {
            let key = &self.args.keys[parcel.key];
            match &parcel.captured {
                Some(captured) => {
                    encode_restore(&mut wire, key, captured, self.sends_asking, replace, wall);
                }
                None => {
                    if self.sends_asking {
                        encode_request(&mut wire, [&b"ASKING"[..]]);
                    }
                    encode_request(&mut wire, [&b"DEL"[..], key]);
                }
            }
        }
        MigrateStep::Send(wire)
    }

    /// Waits for the next key's reply, or ends the round.
    fn read(&mut self) -> MigrateStep {
        self.timeout_error = MigrateError::Reading;
        match self.transfers.get(self.next_reply) {
            Some(parcel) => {
                self.expects_asking_reply = parcel.captured.is_none() && self.sends_asking;
                MigrateStep::Read
            }
            None => match self.failure.take() {
                Some(failure) => reply(Err(failure)),
                None if self.transfers_to_resend.is_empty() => {
                    MigrateStep::Reply { result: Ok("OK"), keep_connection: true }
                }
                None => self.begin_round(),
            },
        }
    }

    fn read_next(&mut self) -> MigrateStep {
        self.next_reply += 1;
        self.read()
    }

    fn on_reply(&mut self, value: Value) -> MigrateStep {
        if take(&mut self.expects_asking_reply) {
            return MigrateStep::Read;
        }
        let parcel = &self.transfers[self.next_reply];
        match value {
            Value::Error(text) if text == BAD_FORMAT_REPLY && parcel.dialect == Dialect::Redis => {
                self.transfers_to_resend.push(KeyTransfer { dialect: Dialect::Valkey, ..parcel.clone() });
                self.read_next()
            }
            Value::Error(text) => self.record_failure(MigrateError::Refused(text)),
            _ if self.args.copy => self.read_next(),
            _ => self.release(),
        }
    }

    fn release(&mut self) -> MigrateStep {
        let parcel = &self.transfers[self.next_reply];
        match &parcel.captured {
            Some(captured) => MigrateStep::Release { key: parcel.key, captured: captured.clone() },
            None => self.read_next(),
        }
    }

    fn on_released(&mut self, result: Result<ReleaseResult, CommandError>) -> MigrateStep {
        match result {
            Ok(ReleaseResult::Deleted(_)) => self.read_next(),
            Ok(ReleaseResult::Changed) => {
                self.transfers_to_resend.push(self.transfers[self.next_reply].clone());
                self.read_next()
            }
            Ok(ReleaseResult::Paused) => MigrateStep::AwaitUnpause,
            Err(error) => self.record_failure(MigrateError::NotServed(error)),
        }
    }

    /// Records the first error, which is returned once all replies have been read.
    fn record_failure(&mut self, failure: MigrateError) -> MigrateStep {
        self.failure.get_or_insert(failure);
        self.read_next()
    }

    fn on_connection_lost(&mut self, failure: MigrateError) -> MigrateStep {
        match self.link {
            TargetLink::Connected { is_untried: true } => self.connect(true),
            TargetLink::Connected { is_untried: false } | TargetLink::None => reply(Err(failure)),
        }
    }
}

fn reply(result: Result<&'static str, MigrateError>) -> MigrateStep {
    MigrateStep::Reply { result, keep_connection: false }
}

fn encode_restore(
    wire: &mut Vec<u8>,
    key: &[u8],
    captured: &CapturedKey,
    asking: bool,
    replace: bool,
    Millis(now): Millis,
) {
    let name: &[u8] = if asking { b"RESTORE-ASKING" } else { b"RESTORE" };
    // A TTL of 0 would mean that the key never expires.
    let ttl = captured.expiry.map_or(0, |at| (at.0 - now).max(1)).to_string();
    let mut request = vec![name, key, ttl.as_bytes(), &captured.payload];
    if replace {
        request.push(b"REPLACE");
    }
    encode_request(wire, request);
}

#[cfg(test)]
mod tests;
