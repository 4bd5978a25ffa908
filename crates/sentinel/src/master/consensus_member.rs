//! This sentinel as a member of a master's consensus group: the votes, the leader and the committed switch.

use std::collections::VecDeque;

use clock::Instant;
use consensus::{Group, GroupAction, GroupInput, PeerId, RecordNumber, SavedGroup, Term};

use crate::addr::{Addr, RunId};
use crate::master::switch_record::Switch;
use crate::writes::Condition;

/// Number of journal positions that are remembered. The group's actions wait for one of its last two records.
const MAX_REMEMBERED_POSITIONS: usize = 8;

/// The position of one of the group's records in the journal that all groups share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct JournalPosition {
    in_group: RecordNumber,
    in_journal: u64,
}

/// The vote of this member in its current term.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CurrentVote {
    /// The record that must be on disk before the vote is reported.
    pub(crate) record: RecordNumber,
    pub(crate) term: Term,
    /// `None` if this member has not voted in the term.
    pub(crate) candidate: Option<PeerId>,
}

pub(crate) struct ConsensusMember {
    group: Group,
    /// The latest records of the group, oldest first.
    positions: VecDeque<JournalPosition>,
    /// The last announced term and vote of this member.
    ballot: (Term, u64),
    /// The candidate of this sentinel's last vote, if its run id is known.
    voted_for: Option<RunId>,
    voted_epoch: u64,
}

impl ConsensusMember {
    /// Restores member `id` of a master's group. `saved` is from the journal, `voted_epoch` from the configuration
    /// file.
    pub(crate) fn new(name: &str, id: PeerId, saved: SavedGroup, voted_epoch: u64, seed: u64) -> Self {
        let ballot = (saved.term, saved.voted_for);
        let group = Group::new(name, id, saved, seed);
        Self { group, positions: VecDeque::new(), ballot, voted_for: None, voted_epoch }
    }

    /// Passes an event to the group. Returns the resulting actions.
    #[must_use]
    pub(crate) fn handle(&mut self, now: Instant, input: GroupInput<'_>) -> Vec<GroupAction> {
        let mut actions = Vec::new();
        self.group.handle(now, input, &mut actions);
        actions
    }

    /// Handles a vote request in the protocol of Redis. Returns the resulting actions and the vote after it.
    #[must_use]
    pub(crate) fn on_redis_vote_request(
        &mut self,
        now: Instant,
        candidate: PeerId,
        term: Term,
    ) -> (Vec<GroupAction>, CurrentVote) {
        let mut actions = Vec::new();
        let (record, term, candidate) = self.group.vote_for(now, candidate, term, &mut actions);
        (actions, CurrentVote { record, term, candidate })
    }

    /// Records the position of a record that was added to the journal.
    pub(crate) fn on_journaled(&mut self, in_group: RecordNumber, in_journal: u64) {
        self.positions.push_back(JournalPosition { in_group, in_journal });
        if self.positions.len() > MAX_REMEMBERED_POSITIONS {
            self.positions.pop_front();
        }
    }

    /// The condition for actions that wait for this record of the group.
    pub(crate) fn condition(&self, record: RecordNumber) -> Condition {
        let known = self.positions.iter().rev().find(|position| position.in_group <= record);
        Condition::Record(known.map_or(0, |position| position.in_journal))
    }

    /// Whether all records of the group are on disk. `durable_record` is the number of the journal's newest record on
    /// disk.
    pub(crate) fn is_saved(&self, durable_record: u64) -> bool {
        self.positions.back().is_none_or(|position| position.in_journal <= durable_record)
    }

    /// Records the member's term and vote, where 0 means no vote. Returns whether it is a new vote.
    pub(crate) fn set_ballot(&mut self, term: Term, vote: u64) -> bool {
        let before = std::mem::replace(&mut self.ballot, (term, vote));
        before != (term, vote) && vote != 0
    }

    /// Records the candidate and the epoch of this sentinel's vote. A run id of `None` means that the candidate is
    /// unknown.
    pub(crate) fn set_voted_for(&mut self, run_id: Option<RunId>, epoch: u64) {
        self.voted_for = run_id;
        self.voted_epoch = epoch;
    }

    /// The candidate of this sentinel's last vote. `None` if it is unknown, or if another server has become the master
    /// since.
    pub(crate) fn voted_for(&self) -> Option<&RunId> {
        self.voted_for.as_ref()
    }

    /// The epoch of this sentinel's last vote.
    pub(crate) fn voted_epoch(&self) -> u64 {
        self.voted_epoch
    }

    pub(crate) fn forget_candidate(&mut self) {
        self.voted_for = None;
    }

    /// The last switch that the group committed, complete or not; `None` if there is none.
    pub(crate) fn committed_switch(&self) -> Option<Switch> {
        Switch::decode(self.group.value())
    }

    /// Whether a leader has committed the promotion of this replica in an epoch after `config_epoch`.
    pub(crate) fn is_promoting(&self, replica: &Addr, config_epoch: u64) -> bool {
        self.committed_switch().is_some_and(|switch| {
            let is_target = switch.to.0 == replica.host && switch.to.1 == replica.port;
            is_target && !switch.done && switch.epoch > config_epoch
        })
    }

    pub(crate) fn has_committed(&self, switch: &Switch) -> bool {
        self.group.value() == switch.encode()
    }

    /// Number of members, including this one, that have stored the entry with this index.
    pub(crate) fn acknowledged(&self, index: u64) -> usize {
        self.group.count_acknowledged(index)
    }

    /// The index of the last entry of the log.
    pub(crate) fn last_index(&self) -> u64 {
        self.group.last_index()
    }

    /// Whether an election is running or the leader sends messages.
    pub(crate) fn is_active(&self) -> bool {
        self.group.is_active()
    }

    /// Whether this sentinel is the leader and has committed an entry of its term, so that it knows the last committed
    /// value.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.group.is_confirmed()
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.group.next_deadline()
    }

    /// The state of the group, which is saved when the journal is replaced.
    pub(crate) fn saved_state(&self) -> &SavedGroup {
        self.group.saved_state()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_millis(1000);

    fn member() -> ConsensusMember {
        let id = PeerId::new(1).unwrap();
        ConsensusMember::new("mymaster", id, SavedGroup::default(), 3, 1)
    }

    #[test]
    fn actions_wait_for_the_journal_record_that_contains_their_group_record() {
        let mut member = member();
        assert_eq!(member.condition(RecordNumber(1)), Condition::Record(0));
        member.on_journaled(RecordNumber(1), 10);
        member.on_journaled(RecordNumber(3), 12);
        assert_eq!(member.condition(RecordNumber(1)), Condition::Record(10));
        assert_eq!(member.condition(RecordNumber(2)), Condition::Record(10));
        assert_eq!(member.condition(RecordNumber(3)), Condition::Record(12));
    }

    #[test]
    fn member_is_saved_once_its_last_record_is_on_disk() {
        let mut member = member();
        assert!(member.is_saved(0));
        member.on_journaled(RecordNumber(1), 10);
        assert!(!member.is_saved(9));
        assert!(member.is_saved(10));
    }

    #[test]
    fn each_vote_is_new_once() {
        let mut member = member();
        assert!(!member.set_ballot(Term(4), 0), "a new term without a vote");
        assert!(member.set_ballot(Term(4), 7));
        assert!(!member.set_ballot(Term(4), 7));
        assert!(member.set_ballot(Term(5), 7));
    }

    #[test]
    fn vote_for_a_redis_sentinel_is_recorded_before_it_is_sent() {
        let mut member = member();
        let candidate = PeerId::new(2).unwrap();
        let (actions, vote) = member.on_redis_vote_request(NOW, candidate, Term(5));
        assert!(
            matches!(actions[0], GroupAction::Persist { number, .. } if number == vote.record),
            "{actions:?}"
        );
        assert_eq!((vote.term, vote.candidate), (Term(5), Some(candidate)));
    }

    #[test]
    fn single_member_commits_its_switch() {
        let mut member = member();
        let switch = Switch { epoch: 4, from: ("a".into(), 1), to: ("b".into(), 2), done: true };
        assert_eq!(member.committed_switch(), None);
        let _ = member.handle(NOW, GroupInput::Activate { last_forbidden_term: Term(3) });
        assert!(member.is_active());
        let _ = member.handle(NOW, GroupInput::Propose(switch.encode()));
        assert_eq!(member.committed_switch().as_ref(), Some(&switch));
        assert!(member.has_committed(&switch));
        let target = Addr::new("b", 2);
        assert!(!member.is_promoting(&target, 3), "it is complete");
        let promotion = Switch { epoch: 5, done: false, ..switch };
        let _ = member.handle(NOW, GroupInput::Propose(promotion.encode()));
        assert!(member.is_promoting(&target, 4));
        assert!(!member.is_promoting(&target, 5), "a later switch is known");
        assert_eq!(member.acknowledged(member.last_index()), 1);
    }
}
