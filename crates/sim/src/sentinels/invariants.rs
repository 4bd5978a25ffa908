//! The invariants of sentinels, one file each.

use sentinel::{Sentinel, Status};

use crate::Rule;
use crate::invariant::Invariant;

pub(super) mod agreement;
mod authority;
mod epochs;
mod freshness;
mod one_promotion;
mod one_vote;

/// The steps that the invariants look at.
#[derive(Debug)]
pub(super) enum Seen<'a> {
    /// A sentinel's ballot for a term, with its vote, is on its way to the disk.
    Ballot { voter: &'a str, term: u64, vote: u64 },
    /// A ballot is on disk, so that it counts: what was lost with a crash before has told nobody.
    Given { voter: &'a str, term: u64, vote: u64 },
    /// A sentinel tells a server to be a master.
    Promotion { leader: &'a Sentinel, server: String },
    /// A sentinel has taken in an input.
    Step { sentinel: &'a Sentinel, status: Status },
}

/// One that looks at steps.
pub(super) type Named = (Rule, Box<dyn for<'a> Invariant<Seen<'a>>>);

/// All of them that look at steps; `quorum` sentinels must hold a master for down. `agreement` and
/// `freshness` look at states.
pub(super) fn all(quorum: usize) -> Vec<Named> {
    vec![
        (Rule::OneVote, Box::new(one_vote::OneVote::default())),
        (Rule::OnePromotion, Box::new(one_promotion::OnePromotion::default())),
        (Rule::Authority, Box::new(authority::Authority::new(quorum))),
        (Rule::Epochs, Box::new(epochs::Epochs::default())),
    ]
}
