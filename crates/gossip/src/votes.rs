//! Records this node's votes: at most one per epoch.
//!
//! Candidates of masters that fail together use different epochs and request votes at different times. A vote in an
//! epoch therefore stays available until it is given, even if this node has voted in newer epochs; electing at most one
//! node per epoch does not require any order of the epochs. `nodes.conf` has only the newest epoch with a vote, so
//! after a restart no votes are given in that epoch and older ones.

use std::collections::BTreeMap;

use slot_routing::{Epoch, NodeId};

/// Maximum number of remembered votes; older epochs are closed.
const KEPT: usize = 4096;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Votes {
    /// No vote is given in this epoch and older ones.
    closed: Epoch,
    given: BTreeMap<Epoch, NodeId>,
}

impl Votes {
    /// Restores the state after a restart. The candidate of the vote in `newest` is unknown, and there may be votes in
    /// older epochs.
    pub(crate) fn restored(newest: Epoch) -> Self {
        Self { closed: newest, given: BTreeMap::new() }
    }

    /// The newest epoch with a vote.
    pub(crate) fn newest(&self) -> Epoch {
        self.given.last_key_value().map_or(self.closed, |(epoch, _)| *epoch)
    }

    /// Whether the vote of `epoch` is available or already belongs to `candidate`.
    pub(crate) fn may_give(&self, epoch: Epoch, candidate: NodeId) -> bool {
        self.given.get(&epoch).map_or(epoch > self.closed, |given| *given == candidate)
    }

    pub(crate) fn is_given(&self, epoch: Epoch) -> bool {
        self.given.contains_key(&epoch)
    }

    /// Whether `epoch` is older than the closed epoch.
    pub(crate) fn is_before_start(&self, epoch: Epoch) -> bool {
        epoch < self.closed
    }

    /// The newest epoch with a vote from before the start, whose candidate is unknown.
    pub(crate) fn last_before_start(&self) -> Epoch {
        self.closed
    }

    pub(crate) fn give(&mut self, epoch: Epoch, candidate: NodeId) {
        self.given.insert(epoch, candidate);
        if self.given.len() > KEPT
            && let Some((oldest, _)) = self.given.pop_first()
        {
            self.closed = self.closed.max(oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_has_one_vote_in_whichever_order_and_none_from_before_a_restart() {
        let (one, other) = (NodeId::from_random([1; 20]), NodeId::from_random([2; 20]));
        let mut votes = Votes::restored(Epoch(5));
        assert!(!votes.may_give(Epoch(5), one) && !votes.may_give(Epoch(4), one));
        votes.give(Epoch(9), one);
        votes.give(Epoch(7), other);
        assert_eq!(votes.newest(), Epoch(9));
        assert!(votes.may_give(Epoch(9), one) && !votes.may_give(Epoch(9), other));
        assert!(votes.may_give(Epoch(7), other) && !votes.may_give(Epoch(7), one));
        assert!(votes.may_give(Epoch(8), one) && votes.may_give(Epoch(6), other));
        let votes = Votes::restored(votes.newest());
        assert!((6..=9).all(|epoch| !votes.may_give(Epoch(epoch), one)));
    }

    #[test]
    fn votes_that_are_forgotten_are_given_to_nobody_else() {
        let (one, other) = (NodeId::from_random([1; 20]), NodeId::from_random([2; 20]));
        let mut votes = Votes::default();
        (1..=KEPT as u64 + 2).for_each(|epoch| votes.give(Epoch(epoch), one));
        assert!(!votes.may_give(Epoch(1), other) && !votes.may_give(Epoch(2), other));
        assert!(!votes.may_give(Epoch(3), other) && votes.may_give(Epoch(3), one));
    }
}
