//! The invariants, by name.

use clap::ValueEnum;

/// An invariant, under the name of the file in `invariants/` that says what it asks. Those of the cluster and of the
/// sentinels that ask for the same have the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Rule {
    /// In the end all see the same.
    Agreement,
    /// Every request has one reply.
    Answered,
    /// A leader was elected.
    Authority,
    /// A claim has one epoch and one claimant.
    Claims,
    /// A client that waits for copies of its writes is told of no more than there are.
    Copies,
    /// In the end every slot is served.
    Coverage,
    /// A write that was acknowledged, or called synced, is there after a power cut.
    Durable,
    /// Epochs never fall, over crashes too.
    Epochs,
    /// A replica that takes over has fresh enough data.
    Freshness,
    /// A replica that takes over in order has all that its master acknowledged.
    Handover,
    /// A key that has gone from its node on its way to another is there.
    KeyMoves,
    /// A leader has a majority.
    Majority,
    /// A node that is cut off from the majority stops serving.
    Minority,
    /// A write that reached a promoted replica is kept.
    NoLoss,
    /// Nothing is there that nobody wrote.
    NoInvention,
    /// A master that lost its data is not copied by a node that has it.
    NoErasure,
    /// A write that a new master acknowledged stays.
    NoOverwrite,
    /// A slot has one owner an epoch.
    OneOwner,
    /// An epoch has one promotion.
    OnePromotion,
    /// A member votes once an epoch.
    OneVote,
    /// The files that load are a prefix of the history.
    Prefix,
    /// Replicas have their master's data.
    SameData,
    /// The file of a save that was done is there, whole.
    Saved,
    /// Clients read the data that the history makes.
    Served,
    /// Every wait ends.
    Waits,
    /// A node that claims slots which moved in one piece has all that their last owner acknowledged.
    WholeMoves,
    /// A transaction runs only while what its client watched is as it was.
    Watches,
}

impl Rule {
    /// As in a file's name.
    #[must_use]
    pub fn name(self) -> String {
        let named = self.to_possible_value().expect("no rule is hidden from the command line");
        named.get_name().replace('-', "_")
    }
}
