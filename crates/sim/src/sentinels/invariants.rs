//! The invariants of sentinels, one file each.

use sentinel::{MasterStatus, Sentinel};

use crate::InvariantName;
use crate::invariant::Invariant;

pub(super) mod agreement;
mod authority;
mod epochs;
mod freshness;
mod one_promotion;
mod one_vote;

/// The events that the invariants of sentinels check.
#[derive(Debug)]
pub(super) enum SentinelObservation<'a> {
    /// A sentinel's vote for a term is being written to disk.
    Ballot { voter: &'a str, term: u64, vote: u64 },
    /// A vote is on disk, so it counts. A vote that was lost in a crash before was never sent.
    VoteGiven { voter: &'a str, term: u64, vote: u64 },
    /// A sentinel orders a server to become master.
    Promotion { leader: &'a Sentinel, server: String },
    /// A sentinel starts with the files on its disk.
    Start { sentinel: &'a str },
    /// A sentinel announces its configuration epoch in a hello message.
    Announcement { sentinel: &'a str, config_epoch: u64 },
    /// A sentinel has processed an input.
    Step { sentinel: &'a Sentinel, status: MasterStatus },
}

/// An event invariant, with the name under which violations are reported.
pub(super) type NamedInvariant = (InvariantName, Box<dyn for<'a> Invariant<SentinelObservation<'a>>>);

/// Returns all invariants that check events. `quorum` is the number of sentinels that must consider a master down. The
/// invariants `agreement` and `freshness` check states.
pub(super) fn event_invariants(quorum: usize) -> Vec<NamedInvariant> {
    vec![
        (InvariantName::OneVote, Box::new(one_vote::OneVote::default())),
        (InvariantName::OnePromotion, Box::new(one_promotion::OnePromotion::default())),
        (InvariantName::Authority, Box::new(authority::Authority::new(quorum))),
        (InvariantName::Epochs, Box::new(epochs::Epochs::default())),
    ]
}
