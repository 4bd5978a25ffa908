//! Bugs that can be injected to show that the simulator detects them.
//!
//! The state machines themselves have no bugs. Each injected bug is a fault of the simulated environment: a disk that
//! loses data, an altered input, or an action that is not carried out.

use clap::ValueEnum;

/// A bug that the simulated environment can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum InjectedBug {
    /// Votes are not written to disk.
    #[value(alias = "forgotten-votes")]
    UnsavedVotes,
    /// Nothing is written to disk except the node id and, on a sentinel, the known sentinels.
    #[value(alias = "forgotten-writes")]
    LostDiskWrites,
    /// A candidate, or a node that suspects its master, needs no majority.
    IgnoredQuorum,
    /// A master ignores claims on its slots.
    #[value(alias = "unheard-claims")]
    IgnoredClaims,
    /// Replication offsets that other nodes report are lost.
    #[value(alias = "unheard-offsets")]
    LostOffsets,
    /// Gossip omits nodes without an address.
    #[value(alias = "unnamed-suspects")]
    OmittedSuspects,
    /// A replica that dropped its data for a snapshot that then failed to load still reports its old offset.
    #[value(alias = "unheard-losses")]
    UnreportedDataLoss,
    /// A node keeps serving when its machine reports the cluster as down.
    ServingWhenDown,
    /// A server accepts an order to follow another server but does not follow it.
    IgnoredOrders,
    /// A node becomes a replica, or reports its offset, before running writes have ended.
    #[value(alias = "unawaited-writes")]
    SkippedDrain,
    /// A master's stream is applied to its end even after a promotion.
    #[value(alias = "endless-stream")]
    StreamAfterPromotion,
    /// A client's write on a replica enters the replica's log.
    #[value(alias = "logged-by-replica")]
    ReplicaLogsClientWrites,
    /// Only the last command of a pipeline enters the log.
    UnloggedEffects,
    /// A transaction that a broken link interrupted continues with the data of the next link.
    #[value(alias = "kept-transactions")]
    ResumedTransactions,
    /// A replica that sends a keepalive counts as having received all bytes sent to it.
    #[value(alias = "counted-early")]
    EarlyAcknowledgement,
    /// A master that returns without its data accepts clients and replicas at once.
    #[value(alias = "empty-masters")]
    EmptyMasterServes,
    /// Atomically migrated slots are handed over before the last writes are sent.
    #[value(alias = "early-handover")]
    EarlySlotHandover,
    /// A migrated key is deleted before the target confirms it.
    #[value(alias = "early-release")]
    EarlyKeyDeletion,
    /// A node claims granted slots no matter how long ago they were granted.
    LateClaims,
    /// A sync of the append-only file is reported but not performed.
    EarlySync,
    /// Clients get replies before their writes are in the file.
    #[value(alias = "answered-early")]
    EarlyReply,
    /// A new replica replies to writes that it began as a master.
    ReplyAfterDemotion,
    /// The next increment begins at the log offset at which the base was written, instead of the offset of its
    /// snapshot.
    #[value(alias = "late-cut")]
    LateIncrementStart,
    /// An increment that is in use is created again, which truncates it.
    #[value(alias = "twice-begun")]
    RecreatedIncrement,
    /// A base file is renamed into place before it is synced.
    UnsyncedBase,
    /// An RDB file is renamed into place before it is synced.
    UnsyncedSave,
    /// The torn end of a file is not truncated when the file is loaded.
    #[value(alias = "kept-tail")]
    UntruncatedTail,
    /// The disk returns corrupted bytes when a file is read.
    #[value(alias = "flipped-bits")]
    CorruptedReads,
    /// Progress reports of the append-only file are lost.
    #[value(alias = "unheard-commits")]
    LostFileProgress,
    /// The server never checks whether a blocked client can continue.
    #[value(alias = "endless-waits")]
    MissedWakeups,
    /// WATCH does not watch the key, so EXEC is never aborted.
    #[value(alias = "forgotten-watches")]
    IgnoredWatch,
    /// A request sent to the background does not run.
    #[value(alias = "lost-handovers")]
    LostBackgroundRequests,
    /// A process panics when a replica is to be promoted.
    Panic,
}
