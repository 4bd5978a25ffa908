//! Rules that can be left out, to show that each one is needed.

/// A rule that the model leaves out, named after the mistake that the omission permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Omission {
    /// A write is acknowledged as soon as the master has it.
    AcknowledgeBeforeCommit,
    /// The master counts acknowledgements of another epoch.
    CountOtherHistories,
    /// Acknowledgements and promotions name the node instead of its incarnation.
    IgnoreIncarnations,
    /// A node acknowledges the end of the log when a full synchronisation begins.
    AcknowledgeDuringFullSync,
    /// The master stops waiting for a member as soon as it proposes to remove it.
    ShrinkBeforeDecision,
    /// The master waits for a new member only once it knows that the member was added.
    GrowWithoutWaiting,
    /// The master gives up a proposal that got no reply.
    ForgetProposal,
    /// The group accepts a change whatever version it has.
    AcceptAnyVersion,
    /// The group promotes any node that requests it.
    PromoteNonMember,
    /// A candidate still acknowledges to the old master.
    AcknowledgeAsCandidate,
    /// A new master counts its whole log as committed.
    ServeBeforeCommit,
    /// A replica compares only the lengths of logs, not their entries, so a former master keeps the diverged tail of
    /// its log.
    MergeOldTail,
    /// A restarted process serves clients because it was the master before.
    RestartAsMaster,
    /// A member that restarts with its data may request promotion at once, although it made a promise before.
    ForgetPromiseAtRestart,
    /// A node that restarts with its data forgets the newest epoch that it has learned of.
    ForgetEpochAtRestart,
    /// The master counts its lease from the moment of the reply.
    LeaseFromReply,
    /// The master's lease is as long as the member's promise.
    LeaseWithoutMargin,
    /// The lease is checked once and not for each read.
    CheckLeaseOnce,
    /// A candidate mistakes a refused connection for the master's death and does not wait for its promise to end.
    StandDespitePromise,
}

impl Omission {
    /// All rules. The tests omit one of them at a time.
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
