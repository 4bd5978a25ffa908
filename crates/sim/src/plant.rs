//! Bugs that can be injected to show that the simulator detects them.
//!
//! None of them is in the machines. Each is a fault of the simulated environment: a disk that loses
//! data, an altered input, or an action that is not carried out.

use clap::ValueEnum;

/// A bug to inject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Plant {
    /// Votes are not written to disk.
    ForgottenVotes,
    /// Nothing reaches the disk except the node id and, on a sentinel, the known sentinels.
    ForgottenWrites,
    /// A candidate, or a node that suspects the master, needs no majority.
    IgnoredQuorum,
    /// A master ignores claims on its slots.
    UnheardClaims,
    /// Offsets of other nodes are lost.
    UnheardOffsets,
    /// Gossip omits nodes without an address.
    UnnamedSuspects,
    /// A replica that dropped its data for a snapshot that failed to load still reports its old
    /// offset.
    UnheardLosses,
    /// A node keeps serving when its machine reports the cluster as down.
    ServingWhenDown,
    /// A server accepts an order to follow another but does nothing.
    IgnoredOrders,
    /// A node becomes a replica, or reports its offset, before running writes have ended.
    UnawaitedWrites,
    /// A master's stream is applied to its end even after a promotion.
    EndlessStream,
    /// A client's write on a replica enters the replica's log.
    LoggedByReplica,
    /// Only the last command of a pipeline enters the log.
    UnloggedEffects,
    /// A transaction interrupted by a broken link continues with the next link's data.
    KeptTransactions,
    /// A replica that sends a keepalive counts as having received everything sent.
    CountedEarly,
    /// A master that returns without its data serves and is replicated at once.
    EmptyMasters,
    /// Atomically migrated slots are handed over before the last writes are sent.
    EarlyHandover,
    /// A migrated key is deleted before the target confirms it.
    EarlyRelease,
    /// A node claims granted slots no matter how long ago they were granted.
    LateClaims,
    /// A sync of the append-only file is reported but not performed.
    EarlySync,
    /// Clients get replies before their writes are in the file.
    AnsweredEarly,
    /// The next increment begins at the log position of the base's writing instead of its snapshot.
    LateCut,
    /// An increment in use is created again.
    TwiceBegun,
    /// A base file is renamed into place before it is synced.
    UnsyncedBase,
    /// An RDB file is renamed into place before it is synced.
    UnsyncedSave,
    /// The torn end of a file is not truncated.
    KeptTail,
    /// The disk returns corrupted bytes.
    FlippedBits,
    /// Progress reports of the file are lost.
    UnheardCommits,
    /// A client's connection never checks whether its wait is over.
    EndlessWaits,
    /// WATCH does not watch the key.
    ForgottenWatches,
    /// A request sent to the background does not run.
    LostHandovers,
    /// A process panics when a replica is to be promoted.
    Panic,
}
