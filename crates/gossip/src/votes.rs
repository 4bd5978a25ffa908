//! Records this node's votes: at most one per epoch.
//!
//! Candidates of masters that fail together use different epochs and request votes at different times. A vote in an
//! epoch therefore stays available until it is given, even if this node has voted in newer epochs; electing at most one
//! node per epoch does not require any order of the epochs. `nodes.conf` has only the newest epoch with a vote, so
//! after a restart no votes are given in that epoch and older ones.

use std::collections::BTreeMap;

use slot_routing::{Epoch, NodeId};

/// Maximum number of remembered votes; older epochs are closed.
const MAX_REMEMBERED: usize = 4096;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Votes {
    /// No vote is given in this epoch and older ones.
    closed_epoch: Epoch,
    given: BTreeMap<Epoch, NodeId>,
}

impl Votes {
    /// Restores the state after a restart. The candidate of the vote in `newest` is unknown, and there may be votes in
    /// older epochs.
    pub(crate) fn restored(newest: Epoch) -> Self {
        Self { closed_epoch: newest, given: BTreeMap::new() }
    }

    /// The newest epoch with a vote.
    pub(crate) fn newest(&self) -> Epoch {
        self.given.last_key_value().map_or(self.closed_epoch, |(epoch, _)| *epoch)
    }

    /// Whether the vote of `epoch` is available or already belongs to `candidate`.
    pub(crate) fn can_give(&self, epoch: Epoch, candidate: NodeId) -> bool {
        self.given.get(&epoch).map_or(epoch > self.closed_epoch, |given| *given == candidate)
    }

    pub(crate) fn is_given(&self, epoch: Epoch) -> bool {
        self.given.contains_key(&epoch)
    }

    /// Whether `epoch` is older than the closed epoch.
    pub(crate) fn is_before_start(&self, epoch: Epoch) -> bool {
        epoch < self.closed_epoch
    }

    /// The newest epoch with a vote from before the start, whose candidate is unknown.
    pub(crate) fn last_before_start(&self) -> Epoch {
        self.closed_epoch
    }

    pub(crate) fn record(&mut self, epoch: Epoch, candidate: NodeId) {
        self.given.insert(epoch, candidate);
        if self.given.len() > MAX_REMEMBERED
            && let Some((oldest, _)) = self.given.pop_first()
        {
            self.closed_epoch = self.closed_epoch.max(oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_epoch_has_one_vote_in_any_order_and_none_from_before_a_restart() {
        let (one, other) = (NodeId::from_random([1; 20]), NodeId::from_random([2; 20]));
        let mut votes = Votes::restored(Epoch(5));
        assert!(!votes.can_give(Epoch(5), one) && !votes.can_give(Epoch(4), one));
        votes.record(Epoch(9), one);
        votes.record(Epoch(7), other);
        assert_eq!(votes.newest(), Epoch(9));
        assert!(votes.can_give(Epoch(9), one) && !votes.can_give(Epoch(9), other));
        assert!(votes.can_give(Epoch(7), other) && !votes.can_give(Epoch(7), one));
        assert!(votes.can_give(Epoch(8), one) && votes.can_give(Epoch(6), other));
        let votes = Votes::restored(votes.newest());
        assert!((6..=9).all(|epoch| !votes.can_give(Epoch(epoch), one)));
    }

    #[test]
    fn forgotten_votes_are_not_given_again() {
        let (one, other) = (NodeId::from_random([1; 20]), NodeId::from_random([2; 20]));
        let mut votes = Votes::default();
        (1..=MAX_REMEMBERED as u64 + 2).for_each(|epoch| votes.record(Epoch(epoch), one));
        assert!(!votes.can_give(Epoch(1), other) && !votes.can_give(Epoch(2), other));
        assert!(!votes.can_give(Epoch(3), other) && votes.can_give(Epoch(3), one));
    }
}
