//! The most recent failovers as this node observed them.
//!
//! A record is opened when a node is suspected and closed when the node recovers or is replaced. Times are wall-clock
//! times, so that the records of several nodes can be compared.

use std::collections::VecDeque;

use clock::Millis;
use slot_routing::{Epoch, NodeId};

use crate::event::{CannotFailoverReason, SuspicionCause, VoteDenial};

/// Maximum number of records. The oldest record is dropped beyond this number.
const MAX_RECORDS: usize = 100;
/// Maximum number of suspicions or votes per record.
const MAX_ENTRIES_PER_RECORD: usize = 64;

/// The last hundred failures that this node observed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FailoverTimeline {
    records: VecDeque<FailoverRecord>,
}

/// The failure and failover of one node, as this node observed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailoverRecord {
    /// The node whose failure the record describes.
    pub node: NodeId,
    /// The replica to which an operator requested a failover, and the time at which this node learned about the
    /// request.
    pub request: Option<(NodeId, Millis)>,
    /// The suspicions of this node and others, in order of arrival.
    pub suspicions: Vec<Suspicion>,
    /// When a majority agreed on the failure, as far as this node knows.
    pub agreed_at: Option<Millis>,
    /// The replicas that could take over, as this node last ranked them.
    pub candidates: Vec<RankedReplica>,
    /// When the candidates were last ranked.
    pub ranked_at: Option<Millis>,
    /// The elections that this node scheduled after the failure.
    pub election_attempts: Vec<ElectionAttempt>,
    /// Why this node did not start or win an election, and when.
    pub obstacles: Vec<(CannotFailoverReason, Millis)>,
    /// This node's votes: candidate, epoch and time.
    pub votes_given: Vec<(NodeId, Epoch, Millis)>,
    /// Refused votes: candidate, epoch, reason and time.
    pub votes_refused: Vec<(NodeId, Epoch, VoteDenial, Millis)>,
    /// The node that took over the slots, its epoch, and the time.
    pub replacement: Option<(NodeId, Epoch, Millis)>,
    /// When this node, as the new master, accepted its first write.
    pub first_write_at: Option<Millis>,
    /// When the node answered again, which closes the record.
    pub recovered_at: Option<Millis>,
    /// When the failover requested by the operator timed out.
    pub request_timed_out_at: Option<Millis>,
}

/// A replica that could take over from a failed master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankedReplica {
    /// The replica that is ranked.
    pub node: NodeId,
    /// The replication offset that the replica last reported.
    pub offset: u64,
    /// Number of eligible replicas that rank before this one; `None` if this replica is not eligible.
    pub rank: Option<u32>,
    /// Why the replica cannot take over.
    pub ineligibility: Option<IneligibilityReason>,
}

/// Why a replica cannot take over, as seen by this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IneligibilityReason {
    /// The replica is PFAIL or FAIL.
    Down,
    /// The replica is configured with `cluster-replica-no-failover`.
    NoFailover,
    /// The replica is empty, and the master stepped down in favour of a replica with data.
    Empty,
}

/// A report that a node is down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Suspicion {
    /// The node that considers the failed node down: this node or a master.
    pub reporter: NodeId,
    /// When this node received the report.
    pub reported_at: Millis,
    /// The rule by which the node became suspected; known only for this node's own suspicions.
    pub cause: Option<SuspicionCause>,
}

/// One attempt of this node to be elected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElectionAttempt {
    /// Wall-clock time at which the election was scheduled.
    pub scheduled_at: Millis,
    /// Number of replicas that had more data.
    pub rank: u32,
    /// Replication offset of this replica when it scheduled the election.
    pub offset: u64,
    /// The epoch and time of the last vote request.
    pub last_request: Option<(Epoch, Millis)>,
    /// The voters and the times at which their votes arrived.
    pub votes: Vec<(NodeId, Millis)>,
}

/// An entry in the record of a node's failure or failover.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TimelineEntry {
    /// The node `reporter` suspects the failed node. The cause is known only if `reporter` is this node.
    Suspicion { reporter: NodeId, cause: Option<SuspicionCause> },
    /// A majority agrees on the failure.
    Agreement,
    /// The failed node answers again.
    Recovery,
    /// This node ranked the replicas of the failed master.
    Ranking(Vec<RankedReplica>),
    /// This node scheduled an election.
    Ballot { rank: u32, offset: u64 },
    /// This node requested the votes of all masters in `epoch`.
    VotesRequested { epoch: Epoch },
    /// The vote of `voter` for this node arrived.
    VoteReceived { voter: NodeId },
    /// This node cannot start an election or did not win it.
    Obstacle(CannotFailoverReason),
    /// This node voted for another replica.
    Vote { candidate: NodeId, epoch: Epoch },
    /// This node refused to vote for `candidate`, for the reason `why`.
    RefusedVote { candidate: NodeId, epoch: Epoch, reason: VoteDenial },
    /// An operator requested a failover to the replica `by`.
    Request { replica: NodeId },
    /// The requested failover timed out.
    RequestTimeout,
    /// The node `by` took slots of the failed node under `epoch`.
    Replacement { new_owner: NodeId, epoch: Epoch },
}

impl FailoverTimeline {
    /// Adds an entry at the time `at` to the record of `node`.
    pub(crate) fn record_entry(&mut self, node: NodeId, entry: TimelineEntry, at: Millis) {
        match entry {
            TimelineEntry::Suspicion { reporter: by, cause } => {
                self.record_suspicion(node, Suspicion { reporter: by, reported_at: at, cause });
            }
            TimelineEntry::Agreement => {
                self.open_record(node).agreed_at.get_or_insert(at);
            }
            TimelineEntry::Recovery => self.record_recovery(node, at),
            TimelineEntry::Ranking(candidates) => {
                let record = self.open_record(node);
                (record.candidates, record.ranked_at) = (candidates, Some(at));
            }
            TimelineEntry::Ballot { rank, offset } => {
                let ballots = &mut self.open_record(node).election_attempts;
                if ballots.len() < MAX_ENTRIES_PER_RECORD {
                    ballots.push(ElectionAttempt {
                        scheduled_at: at,
                        rank,
                        offset,
                        last_request: None,
                        votes: Vec::new(),
                    });
                }
            }
            TimelineEntry::VotesRequested { epoch } => self.update_ballot(node, |ballot| {
                (ballot.last_request, ballot.votes) = (Some((epoch, at)), Vec::new());
            }),
            TimelineEntry::VoteReceived { voter } => {
                self.update_ballot(node, |ballot| ballot.votes.push((voter, at)));
            }
            TimelineEntry::Obstacle(why) => {
                let obstacles = &mut self.open_record(node).obstacles;
                if obstacles.len() < MAX_ENTRIES_PER_RECORD {
                    obstacles.push((why, at));
                }
            }
            TimelineEntry::Vote { candidate, epoch } => {
                let votes = &mut self.open_record(node).votes_given;
                if votes.len() < MAX_ENTRIES_PER_RECORD {
                    votes.push((candidate, epoch, at));
                }
            }
            TimelineEntry::RefusedVote { candidate, epoch, reason: why } => {
                self.record_refused_vote(node, candidate, epoch, why, at);
            }
            TimelineEntry::Request { replica: by } => self.open_record(node).request = Some((by, at)),
            TimelineEntry::RequestTimeout => self.record_request_timeout(node, at),
            TimelineEntry::Replacement { new_owner: by, epoch } => {
                self.record_replacement(node, by, epoch, at);
            }
        }
    }

    /// All records, oldest first.
    pub fn records(&self) -> impl DoubleEndedIterator<Item = &FailoverRecord> {
        self.records.iter()
    }

    /// Returns the open record about `node`, or creates one.
    fn open_record(&mut self, node: NodeId) -> &mut FailoverRecord {
        let open = self.records.iter().rposition(|record| record.node == node && record.is_open());
        let place = open.unwrap_or_else(|| {
            if self.records.len() == MAX_RECORDS {
                self.records.pop_front();
            }
            self.records.push_back(FailoverRecord::new(node));
            self.records.len() - 1
        });
        &mut self.records[place]
    }

    fn record_suspicion(&mut self, node: NodeId, suspicion: Suspicion) {
        let record = self.open_record(node);
        let known = record.suspicions.iter().any(|other| other.reporter == suspicion.reporter);
        if !known && record.suspicions.len() < MAX_ENTRIES_PER_RECORD {
            record.suspicions.push(suspicion);
        }
    }

    fn record_refused_vote(
        &mut self,
        master: NodeId,
        candidate: NodeId,
        epoch: Epoch,
        reason: VoteDenial,
        at: Millis,
    ) {
        // Refusing a vote does not open a record.
        let Some(record) = self.last_record_of(master).filter(|record| record.is_open()) else { return };
        let known = record
            .votes_refused
            .iter()
            .any(|(other, in_epoch, ..)| (*other, *in_epoch) == (candidate, epoch));
        if !known && record.votes_refused.len() < MAX_ENTRIES_PER_RECORD {
            record.votes_refused.push((candidate, epoch, reason, at));
        }
    }

    /// Records that the requested failover timed out.
    fn record_request_timeout(&mut self, master: NodeId, at: Millis) {
        let asked = |record: &&mut FailoverRecord| record.is_open() && record.request.is_some();
        if let Some(record) = self.last_record_of(master).filter(asked) {
            record.request_timed_out_at = Some(at);
        }
    }

    /// Records when this node accepted its first write after its last takeover.
    pub(crate) fn record_first_write(&mut self, my_id: NodeId, at: Millis) {
        let ours = |record: &&mut FailoverRecord| record.replacement.is_some_and(|(by, ..)| by == my_id);
        if let Some(record) = self.records.iter_mut().rev().find(ours) {
            record.first_write_at.get_or_insert(at);
        }
    }

    fn record_recovery(&mut self, node: NodeId, at: Millis) {
        if let Some(record) = self.last_record_of(node).filter(|record| record.request_timed_out_at.is_none())
        {
            record.recovered_at.get_or_insert(at);
        }
    }

    /// Records that `new_owner` took slots of `node`; ignored unless a failure is being recorded.
    fn record_replacement(&mut self, node: NodeId, new_owner: NodeId, epoch: Epoch, at: Millis) {
        if let Some(record) = self.last_record_of(node).filter(|record| record.is_open()) {
            record.replacement = Some((new_owner, epoch, at));
        }
    }

    fn update_ballot(&mut self, node: NodeId, change: impl FnOnce(&mut ElectionAttempt)) {
        if let Some(ballot) = self.open_record(node).election_attempts.last_mut() {
            change(ballot);
        }
    }

    fn last_record_of(&mut self, node: NodeId) -> Option<&mut FailoverRecord> {
        self.records.iter_mut().rev().find(|record| record.node == node)
    }
}

impl FailoverRecord {
    fn new(node: NodeId) -> Self {
        Self {
            node,
            request: None,
            suspicions: Vec::new(),
            agreed_at: None,
            candidates: Vec::new(),
            ranked_at: None,
            election_attempts: Vec::new(),
            obstacles: Vec::new(),
            votes_given: Vec::new(),
            votes_refused: Vec::new(),
            replacement: None,
            first_write_at: None,
            recovered_at: None,
            request_timed_out_at: None,
        }
    }

    fn is_open(&self) -> bool {
        self.replacement.is_none() && self.recovered_at.is_none() && self.request_timed_out_at.is_none()
    }
}
