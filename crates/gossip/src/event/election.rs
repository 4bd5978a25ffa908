//! Elections and votes.

use std::fmt;
use std::time::Duration;

use slot_routing::{Epoch, NodeId, Slot};

use super::Event;

/// An election is held, or a vote given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ElectionEvent {
    /// An election will be held.
    Scheduled {
        /// In how long.
        delay: Duration,
        /// How many replicas have more data.
        rank: u32,
        /// How many masters with slots that have failed, too, come before this replica's.
        primary_rank: usize,
        /// The replication offset to stand with.
        offset: u64,
    },
    /// Other replicas turned out to have more data, or less.
    RankChanged {
        /// How many have more.
        rank: u32,
        /// By how much the election was put off.
        added: Duration,
    },
    /// No other replica can have more data: this one does not wait.
    Best,
    /// The same, heard while it waited.
    BecameBest,
    /// An election began, in this epoch.
    Started(Epoch),
    /// The election of this epoch is given up for another.
    Reset {
        /// The epoch that was asked in.
        epoch: Epoch,
        /// Why.
        why: Reset,
    },
    /// This node won the election of this epoch.
    Won(Epoch),
    /// The election of this epoch found no majority in time.
    Expired(Epoch),
    /// This node may not stand for election.
    CannotStand(Hindrance),
    /// This node voted.
    VoteGranted {
        /// The candidate.
        candidate: NodeId,
        /// In which epoch.
        epoch: Epoch,
    },
    /// This node refused to vote.
    VoteDenied {
        /// The candidate.
        candidate: NodeId,
        /// The election's epoch.
        epoch: Epoch,
        /// Why.
        why: Denial,
    },
}

/// Why an election is begun anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reset {
    /// An operator wants this replica for a master.
    Manual,
    /// Another node claims slots under that epoch or a newer one.
    Claim {
        /// The node.
        by: NodeId,
        /// Its epoch.
        epoch: Epoch,
    },
}

/// Why a replica of a failed master does not stand for election.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hindrance {
    /// Its data is too old.
    DataTooOld {
        /// How old; `None` if it never had any.
        age: Option<Duration>,
    },
    /// The other masters have not confirmed its last election.
    NotConfirmed {
        /// Votes so far.
        votes: usize,
        /// Votes needed.
        needed: usize,
    },
}

/// Why a vote was not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denial {
    /// The election is of an epoch that is over.
    OldEpoch {
        /// This node's epoch.
        current: Epoch,
    },
    /// This node voted in that epoch.
    AlreadyVoted,
    /// The candidate is a master.
    NotAReplica,
    /// The candidate's master is not known.
    MasterUnknown,
    /// The candidate's master is not failed.
    MasterIsUp,
    /// This node voted for a replica of that master a moment ago.
    VotedForMasterRecently {
        /// How long until it would again.
        wait: Duration,
    },
    /// This node started or stood still, and no majority has said yet that it was not replaced meanwhile.
    InDoubt,
    /// The candidate claims a slot under an older epoch than its owner's.
    StaleSlot {
        /// The slot.
        slot: Slot,
    },
}

impl From<ElectionEvent> for Event {
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
            Self::RankChanged { rank, added } => write!(
                f,
                "Replica rank updated to #{rank}, added {} milliseconds of delay.",
                added.as_millis()
            ),
            Self::Best => {
                f.write_str("This is the best ranked replica and can initiate the election immediately.")
            }
            Self::BecameBest => {
                f.write_str("Myself become the best ranked replica, initiate the election immediately.")
            }
            Self::Reset { epoch, why: Reset::Manual } => write!(
                f,
                "Failover election in progress for epoch {epoch}, but received a new manual failover. \
                 Resetting the election."
            ),
            Self::Reset { epoch, why: Reset::Claim { by, epoch: theirs } } => write!(
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
            Self::CannotStand(hindrance) => write!(f, "Currently unable to failover: {hindrance}"),
            Self::VoteGranted { candidate, epoch } => {
                write!(f, "Failover auth granted to {candidate} for epoch {epoch}")
            }
            Self::VoteDenied { candidate, epoch, why } => {
                write!(f, "Failover auth denied to {candidate}: {}", why.text(*epoch))
            }
        }
    }
}

impl fmt::Display for Hindrance {
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
            Self::NotConfirmed { votes, needed } => {
                write!(f, "Waiting for votes, but majority still not reached: {votes} of {needed}.")
            }
        }
    }
}

impl Denial {
    /// Why a vote in `epoch` was not given, in the words of the log.
    #[must_use]
    pub fn text(self, epoch: Epoch) -> String {
        match self {
            Self::OldEpoch { current } => format!("reqEpoch ({epoch}) < curEpoch({current})"),
            Self::AlreadyVoted => format!("already voted for epoch {epoch}"),
            Self::NotAReplica => "it is a primary node".to_owned(),
            Self::MasterUnknown => "I don't know its primary".to_owned(),
            Self::MasterIsUp => "its primary is up".to_owned(),
            Self::VotedForMasterRecently { wait } => {
                format!("can't vote about this primary before {} milliseconds", wait.as_millis())
            }
            Self::InDoubt => "a majority has not said yet that I was not replaced".to_owned(),
            Self::StaleSlot { slot } => {
                format!("slot {slot} is served under a newer epoch than reqEpoch ({epoch})")
            }
        }
    }
}
