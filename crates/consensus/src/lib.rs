//! Raft consensus for small groups: one leader per term, and one replicated value that the leader can change.
//!
//! A [`Group`] wraps a node of the `raft` crate and adds the features that Sentinel needs:
//!
//! * **Inactive groups.** Nothing happens until [`GroupInput::Activate`]; after it a leader is elected within one or
//!   two round trips, and [`GroupInput::Deactivate`] ends the traffic. An inactive group still replies and votes.
//! * **A single value.** The state is the last committed value, so the log stays short: older entries are compacted
//!   into a snapshot that consists of that value.
//! * **External membership** ([`GroupInput::SetMembers`]), because sentinels discover each other. A member votes only
//!   for candidates that know all members known to the voter. Otherwise a new member that knows half of the group could
//!   win with a majority of that half.
//! * **Members with another protocol** (Redis sentinels), which take part as voters without a log: see
//!   [`GroupAction::RequestVote`], [`GroupInput::ForeignVote`] and [`Group::vote_for`]. Both protocols share the one
//!   vote per term.
//!
//! Invariant: a message that depends on a vote or an entry is sent only after the vote or entry is durable. Each
//! [`GroupAction`] therefore names the [`GroupAction::Persist`] that it waits for. The caller writes these records to a
//! [`journal`].
//!
//! The state machine is pure and deterministic: the time and a seed are inputs. The `raft` crate randomizes its
//! election timeouts with the thread's generator, but only leaders are ticked here, so these timeouts are never used;
//! the group has timers of its own.
//!
//! Pre-vote follows D. Ongaro, "Consensus: Bridging Theory and Practice" (2014), section 9.6.
#![forbid(unsafe_code)]

mod foreign;
mod group;
mod guard;
pub mod journal;
mod store;
mod wire;

pub use group::{Group, GroupAction, GroupInput};
pub use journal::{GroupChange, GroupRecord, LogEntry, SavedGroup};

use serde::{Deserialize, Serialize};

/// The id of a group member. Never zero, because Raft uses zero for "no member".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PeerId(u64);

impl PeerId {
    /// Returns the id with this number, or `None` for zero.
    #[must_use]
    pub const fn new(number: u64) -> Option<Self> {
        if number == 0 { None } else { Some(Self(number)) }
    }

    /// The id as a number; never zero.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// A Raft term: the number of an election. Each term has at most one leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Term(pub u64);

/// The number of a journal record that an action waits for; zero means that the action waits for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RecordNumber(pub u64);

#[cfg(test)]
mod tests;
