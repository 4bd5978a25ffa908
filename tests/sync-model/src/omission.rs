//! Rules that can be left out.

/// A rule that the model leaves out, named after the mistake that it permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Omission {
    /// A write is acknowledged when the master has it.
    AcknowledgeBeforeCommit,
    /// Acknowledgements of another epoch count.
    CountOtherHistories,
    /// Acknowledgements and promotions name the node instead of its incarnation.
    IgnoreIncarnations,
    /// A copy acknowledges the end of the log when a full synchronisation begins.
    AcknowledgeDuringFullSync,
    /// The master stops waiting for a member as soon as it proposes to remove it.
    ShrinkBeforeDecision,
    /// The master waits for a new member only once it knows that it was added.
    GrowWithoutWaiting,
    /// A proposal without a reply is given up.
    ForgetProposal,
    /// The group accepts a change of any version.
    AcceptAnyVersion,
    /// The group promotes whoever asks.
    PromoteNonMember,
    /// A candidate still acknowledges to the old master.
    AcknowledgeAsCandidate,
    /// A new master counts its whole log as committed.
    ServeBeforeCommit,
    /// A replica compares lengths of logs instead of their entries, so an old master keeps its tail.
    MergeOldTail,
    /// A restarted master serves because it was the master.
    RestartAsMaster,
    /// A member that restarts with its data may ask to be promoted at once, although it made a promise before.
    ForgetPromiseAtRestart,
    /// A copy that restarts with its data forgets the newest epoch that it has heard of.
    ForgetEpochAtRestart,
    /// The master counts a lease from the moment of the reply.
    LeaseFromReply,
    /// The master's lease is as long as the member's promise.
    LeaseWithoutMargin,
    /// The lease is checked once, not for each read.
    CheckLeaseOnce,
    /// A refused connection is taken for the master's death, so the candidate does not wait.
    StandDespitePromise,
}

impl Omission {
    /// All of them.
    pub(crate) const ALL: [Self; 19] = [
        Self::AcknowledgeBeforeCommit,
        Self::CountOtherHistories,
        Self::IgnoreIncarnations,
        Self::AcknowledgeDuringFullSync,
        Self::ShrinkBeforeDecision,
        Self::GrowWithoutWaiting,
        Self::ForgetProposal,
        Self::AcceptAnyVersion,
        Self::PromoteNonMember,
        Self::AcknowledgeAsCandidate,
        Self::ServeBeforeCommit,
        Self::MergeOldTail,
        Self::RestartAsMaster,
        Self::ForgetPromiseAtRestart,
        Self::ForgetEpochAtRestart,
        Self::LeaseFromReply,
        Self::LeaseWithoutMargin,
        Self::CheckLeaseOnce,
        Self::StandDespitePromise,
    ];
}
