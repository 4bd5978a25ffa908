//! The names of the invariants.

use clap::ValueEnum;

/// An invariant, named after its file in `invariants/`. Cluster and sentinel invariants that check the same property
/// share a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum InvariantName {
    /// All nodes agree after the faults have ended.
    Agreement,
    /// Every request has exactly one reply.
    Answered,
    /// Only an elected leader promotes a replica.
    Authority,
    /// Two nodes do not claim the same slot for long.
    Claims,
    /// WAIT and WAITAOF count only copies that exist.
    Copies,
    /// Every slot is served after the faults have ended.
    Coverage,
    /// Acknowledged or synced writes survive a power failure.
    Durable,
    /// Epochs never decrease, even across crashes.
    Epochs,
    /// A replica takes over only if its data is sufficiently recent.
    Freshness,
    /// A replica promoted by a handover has every acknowledged write.
    Handover,
    /// A migrated key exists at its target.
    KeyMoves,
    /// A leader or elected replica has a majority of votes.
    Majority,
    /// A node cut off from the majority stops serving.
    Minority,
    /// A write that reached a promoted replica survives.
    NoLoss,
    /// Every stored value was written by a client.
    NoInvention,
    /// A node with data does not replicate a master that lost its data.
    NoErasure,
    /// A write acknowledged by a new master survives.
    NoOverwrite,
    /// A slot has at most one owner per epoch.
    OneOwner,
    /// At most one replica is promoted per epoch.
    OnePromotion,
    /// A voter votes for only one candidate per epoch.
    OneVote,
    /// Loaded files contain a prefix of the history.
    Prefix,
    /// Replicas at the same offset have their master's data.
    SameData,
    /// The RDB file contains all data of the last completed save.
    Saved,
    /// Clients read exactly the data that the log defines.
    Served,
    /// Every blocked client is eventually served.
    Waits,
    /// A node that claims atomically migrated slots has every acknowledged write.
    WholeMoves,
    /// A transaction executes only if its watched keys are unchanged.
    Watches,
}

impl InvariantName {
    /// Returns the invariant's name as used for its file and on the command line.
    #[must_use]
    pub fn name(self) -> String {
        let named = self.to_possible_value().expect("no rule is hidden from the command line");
        named.get_name().replace('-', "_")
    }
}
