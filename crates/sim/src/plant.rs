//! Faults that the code does not have, but could: built in to show that the simulator finds them.
//!
//! None of them is in the machines. Each is a mistake of what surrounds them here: a disk that does not keep what it
//! was given, an input that was altered on its way, an action that is not carried out.

use clap::ValueEnum;

/// A fault to build in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Plant {
    /// Votes are not written to disk.
    ForgottenVotes,
    /// Nothing that a process writes reaches its disk, but for its name and, of a sentinel, the names that it knows.
    ForgottenWrites,
    /// A candidate, or a node that suspects the master, needs nobody's consent.
    IgnoredQuorum,
    /// A master does not hear that others claim what it serves.
    UnheardClaims,
    /// How far the others are is not heard.
    UnheardOffsets,
    /// Gossip does not name nodes without an address.
    UnnamedSuspects,
    /// A replica that has dropped its data for a snapshot, and could not load that, says how far its data had come.
    UnheardLosses,
    /// A node goes on serving when its machine says that the cluster is down.
    ServingWhenDown,
    /// A server that is told to follow another says yes and does nothing.
    IgnoredOrders,
    /// A node is a replica, or says how far its data goes, before the writes that are under way have ended.
    UnawaitedWrites,
    /// A master's stream is applied to its end, also by a node that has been promoted.
    EndlessStream,
    /// A client's write on a replica goes into the replica's log.
    LoggedByReplica,
    /// Of the commands that a client sends at once the last alone goes into the log.
    UnloggedEffects,
    /// A transaction that a broken link left open goes on with what the next link brings.
    KeptTransactions,
    /// A replica that shows life is taken to have all that it was sent.
    CountedEarly,
    /// A master that comes back without its data serves and is copied at once.
    EmptyMasters,
    /// Slots that move in one piece are given away before the last writes to them have been sent.
    EarlyHandover,
    /// A key goes from its node before the other has said that it is there.
    EarlyRelease,
    /// A node claims slots however long ago they were granted.
    LateClaims,
    /// A sync of the append-only file is said to be done, and is not.
    EarlySync,
    /// Clients are answered before their writes are in the file.
    AnsweredEarly,
    /// The next increment begins where the log is when the base is written, not where its snapshot was cut.
    LateCut,
    /// An increment that is written to is begun once more.
    TwiceBegun,
    /// A base gets its name before it is on the disk.
    UnsyncedBase,
    /// The file of a save gets its name before it is on the disk.
    UnsyncedSave,
    /// The torn end of a file stays where it is.
    KeptTail,
    /// The disk gives other bytes than it was given.
    FlippedBits,
    /// Nobody hears how far the file is.
    UnheardCommits,
    /// A client's connection does not look whether its wait is over.
    EndlessWaits,
    /// A client that wants to watch a key does not.
    ForgottenWatches,
    /// A request that goes to the background does not run there.
    LostHandovers,
    /// A process panics when a replica is to be promoted.
    Panic,
}
