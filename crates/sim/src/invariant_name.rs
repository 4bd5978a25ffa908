//! The names of the invariants.

use clap::ValueEnum;

/// An invariant, named like its file in `invariants/`. Cluster and sentinel invariants that check
/// the same property share a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum InvariantName {
    /// All nodes agree in the end.
    Agreement,
    /// Every request has one reply.
    Answered,
    /// Only an elected leader promotes.
    Authority,
    /// Conflicting claims are resolved.
    Claims,
    /// WAIT and WAITAOF count only existing copies.
    Copies,
    /// Every slot is served in the end.
    Coverage,
    /// Acknowledged or synced writes survive a power failure.
    Durable,
    /// Epochs never decrease, even across crashes.
    Epochs,
    /// A replica that takes over has sufficiently recent data.
    Freshness,
    /// A replica promoted by a handover has every acknowledged write.
    Handover,
    /// A migrated key exists at its target.
    KeyMoves,
    /// A leader has a majority.
    Majority,
    /// A node cut off from the majority stops serving.
    Minority,
    /// A write that reached a promoted replica survives.
    NoLoss,
    /// Every value was written by a client.
    NoInvention,
    /// A node with data does not replicate a master that lost its data.
    NoErasure,
    /// A write acknowledged by a new master survives.
    NoOverwrite,
    /// A slot has one owner per epoch.
    OneOwner,
    /// An epoch has one promotion.
    OnePromotion,
    /// A member votes once per epoch.
    OneVote,
    /// Loaded files are a prefix of the history.
    Prefix,
    /// Replicas have their master's data.
    SameData,
    /// A completed save survives completely.
    Saved,
    /// Clients read the data of the history.
    Served,
    /// Every wait ends.
    Waits,
    /// A node that claims atomically migrated slots has every acknowledged write.
    WholeMoves,
    /// A transaction executes only if its watched keys are unchanged.
    Watches,
}

impl InvariantName {
    /// Returns the name as in the file name.
    #[must_use]
    pub fn name(self) -> String {
        let named = self.to_possible_value().expect("no rule is hidden from the command line");
        named.get_name().replace('-', "_")
    }
}
