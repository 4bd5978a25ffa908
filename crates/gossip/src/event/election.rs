//! Log events about elections and votes.

use std::fmt;
use std::time::Duration;

use slot_routing::{Epoch, NodeId, Slot};

use super::ClusterEvent;

/// A change in an election or a vote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ElectionEvent {
    /// This replica scheduled an election because its master failed.
    Scheduled {
        /// Time until the election starts. The log shows milliseconds.
        delay: Duration,
        /// Number of replicas with more data.
        rank: u32,
        /// Number of failed masters with slots whose id is lower than that of this replica's master.
        primary_rank: usize,
        /// Replication offset of this replica, by which the replicas are ranked.
        offset: u64,
    },
    /// The rank of this replica changed because other replicas reported their offsets.
    RankChanged {
        /// Number of replicas with more data, after the change.
        rank: u32,
        /// Delay added to the election, so that better replicas can request votes first.
        added_delay: Duration,
    },
    /// No other replica can have more data, so the election starts at once.
    BestReplica,
    /// Reports that arrived during the delay show that no other replica has more data.
    BecameBestReplica,
    /// This replica requested votes in this new epoch.
    Started(Epoch),
    /// The election in this epoch was abandoned in favour of a new epoch.
    Reset {
        /// The epoch in which the votes had been requested.
        epoch: Epoch,
        /// Why that epoch could no longer be won.
        reason: ElectionResetReason,
    },
    /// A majority voted for this replica in this epoch, so it takes over.
    Won(Epoch),
    /// The election in this epoch timed out without a majority.
    Expired(Epoch),
    /// This replica of a failed master cannot start an election or did not win it, for this reason.
    CannotFailover(CannotFailoverReason),
    /// This node gave its vote to a candidate.
    VoteGranted {
        /// The replica that got the vote.
        candidate: NodeId,
        /// The epoch in which the vote was given.
        epoch: Epoch,
    },
    /// This node refused to vote for a candidate.
    VoteDenied {
        /// The replica that requested the vote.
        candidate: NodeId,
        /// The epoch for which the vote was requested.
        epoch: Epoch,
        /// The rule that forbids the vote.
        reason: VoteDenial,
    },
}

/// Why an election was restarted in a new epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElectionResetReason {
    /// An operator requested a manual failover.
    ManualFailover,
    /// Another node claims slots under the same or a newer epoch.
    NewerClaim {
        /// The claiming node, usually the new master.
        claimant: NodeId,
        /// The epoch under which that node claims its slots.
        epoch: Epoch,
    },
}

/// Why a replica of a failed master has not taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CannotFailoverReason {
    /// The data is older than `cluster-replica-validity-factor` allows.
    DataTooOld {
        /// Time since the last contact with the master; `None` if the replica was never in sync since its start.
        age: Option<Duration>,
    },
    /// This replica's last election did not get a majority.
    NotConfirmed {
        /// Number of votes received in the newest epoch.
        received_votes: usize,
        /// Number of votes that make a majority.
        needed_votes: usize,
    },
}

/// Why a vote was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VoteDenial {
    /// The epoch of the request is over.
    OldEpoch {
        /// The current epoch of this node, which is higher.
        current_epoch: Epoch,
    },
    /// This node has already voted in the epoch of the request.
    AlreadyVoted,
    /// The candidate is a master, so it cannot replace one.
    NotAReplica,
    /// This node does not know the candidate's master.
    MasterUnknown,
    /// The candidate's master is not FAIL.
    MasterIsUp,
    /// This node recently voted for another replica of the same master.
    VotedForMasterRecently {
        /// Remaining time until this node may vote for another replica of the same master.
        remaining_time: Duration,
    },
    /// This node was started or paused, and no majority has confirmed yet that no other node replaced it.
    MayBeReplaced,
    /// The candidate claims a slot under an older epoch than the owner's.
    StaleSlot {
        /// One of the slots with a newer claim, for the log.
        slot: Slot,
    },
}

impl From<ElectionEvent> for ClusterEvent {
    fn from(event: ElectionEvent) -> Self {
        Self::Election(event)
    }
}

impl fmt::Display for ElectionEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scheduled { delay, rank, primary_rank, offset } => write!(
                f,
                "Start of election delayed for {} milliseconds (rank #{rank}, primary rank #{primary_rank}, offset \
                 {offset}).",
                delay.as_millis()
            ),
            Self::RankChanged { rank, added_delay: added } => write!(
                f,
                "Replica rank updated to #{rank}, added {} milliseconds of delay.",
                added.as_millis()
            ),
            Self::BestReplica => {
                f.write_str("This is the best ranked replica and can initiate the election immediately.")
            }
            Self::BecameBestReplica => {
                f.write_str("Myself become the best ranked replica, initiate the election immediately.")
            }
            Self::Reset { epoch, reason: ElectionResetReason::ManualFailover } => write!(
                f,
                "Failover election in progress for epoch {epoch}, but received a new manual failover. \
                 Resetting the election."
            ),
            Self::Reset {
                epoch,
                reason: ElectionResetReason::NewerClaim { claimant: by, epoch: theirs },
            } => write!(
                f,
                "Failover election in progress for epoch {epoch}, but received a claim from node {by} with an \
                 equal or higher epoch {theirs}. Resetting the election since we cannot win an election in the \
                 past."
            ),
            Self::Started(epoch) => write!(f, "Starting a failover election for epoch {epoch}."),
            Self::Won(epoch) => {
                write!(
                    f,
                    "Failover election won: I'm the new primary. configEpoch set to {epoch} after successful failover"
                )
            }
            Self::Expired(epoch) => write!(f, "Failover attempt for epoch {epoch} expired."),
            Self::CannotFailover(reason) => write!(f, "Currently unable to failover: {reason}"),
            Self::VoteGranted { candidate, epoch } => {
                write!(f, "Failover auth granted to {candidate} for epoch {epoch}")
            }
            Self::VoteDenied { candidate, epoch, reason: why } => {
                write!(f, "Failover auth denied to {candidate}: {}", why.log_text(*epoch))
            }
        }
    }
}

impl fmt::Display for CannotFailoverReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DataTooOld { age: Some(age) } => write!(
                f,
                "Disconnected from primary for longer than allowed ({} ms). \
                 Please check the 'cluster-replica-validity-factor' configuration option.",
                age.as_millis()
            ),
            Self::DataTooOld { age: None } => f.write_str(
                "Never in sync with the primary since the start. \
                 Please check the 'cluster-replica-validity-factor' configuration option.",
            ),
            Self::NotConfirmed { received_votes: votes, needed_votes: needed } => {
                write!(f, "Waiting for votes, but majority still not reached: {votes} of {needed}.")
            }
        }
    }
}

impl VoteDenial {
    /// The reason in the wording of the Redis log.
    #[must_use]
    pub fn log_text(self, epoch: Epoch) -> String {
        match self {
            Self::OldEpoch { current_epoch: current } => format!("reqEpoch ({epoch}) < curEpoch({current})"),
            Self::AlreadyVoted => format!("already voted for epoch {epoch}"),
            Self::NotAReplica => "it is a primary node".to_owned(),
            Self::MasterUnknown => "I don't know its primary".to_owned(),
            Self::MasterIsUp => "its primary is up".to_owned(),
            Self::VotedForMasterRecently { remaining_time: wait } => {
                format!("can't vote about this primary before {} milliseconds", wait.as_millis())
            }
            Self::MayBeReplaced => "no majority has confirmed yet that I was not replaced".to_owned(),
            Self::StaleSlot { slot } => {
                format!("slot {slot} is served under a newer epoch than reqEpoch ({epoch})")
            }
        }
    }
}
