//! Agreement in small groups: one leader per term, and one value that the leader may change.
//!
//! A [`Group`] wraps a node of the `raft` crate and adds what the sentinel needs of it:
//!
//! - **It sleeps.** Nothing moves until [`Input::Wake`]; then somebody is elected within a round trip
//!   or two, and [`Input::Sleep`] ends the traffic. A sleeping group still answers and still votes.
//! - **Its state is one value**, the last committed one. So the log stays short: what is older than the
//!   last committed value is folded into a snapshot that *is* that value.
//! - **Membership comes from outside** ([`Input::Members`]), because sentinels discover each other. A
//!   vote is given only to a candidate that counts all members that the voter counts, so that a
//!   newcomer that knows half of the group cannot win with a majority of that half.
//! - **Members that speak another protocol** (Redis's sentinels) take part as voters without a log:
//!   see [`Action::AskVote`], [`Input::Vote`] and [`Group::vote_for`]. They share the one vote per term.
//!
//! Invariant: a message that depends on a vote or an entry leaves only after that is on disk.
//! Every [`Action`] therefore names the [`Action::Persist`] it waits for. The shell writes those to a
//! [`journal`].
//!
//! The machine is pure and deterministic: time and a seed come in. The `raft` crate draws its election
//! timeouts from the thread's generator; here it is never ticked as a follower, so that draw decides
//! nothing, and the timers are the group's own.
//!
//! From: D. Ongaro, "Consensus: Bridging Theory and Practice" (2014), 9.6 for pre-vote.
#![forbid(unsafe_code)]

mod foreign;
mod group;
mod guard;
pub mod journal;
mod store;
mod wire;

pub use group::{Action, Group, Input};
pub use journal::{Change, LogEntry, Record, Saved};

use serde::{Deserialize, Serialize};

/// A member of a group; never zero, which Raft reads as "nobody".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PeerId(u64);

impl PeerId {
    /// The member with this number. Zero is nobody.
    #[must_use]
    pub const fn new(number: u64) -> Option<Self> {
        if number == 0 { None } else { Some(Self(number)) }
    }

    /// The number; never zero.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// A logical clock: at most one leader each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Term(pub u64);

/// Which record of a group's journal an action waits for; zero waits for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RecordNumber(pub u64);

#[cfg(test)]
mod tests;
