//! What must hold, by name.

use clap::ValueEnum;

/// An invariant, under the name of the file in `invariants/` that says what it asks. Those of the cluster and of the
/// sentinels that ask for the same have the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Rule {
    /// In the end all see the same.
    Agreement,
    /// Who leads was elected.
    Authority,
    /// A claim has one epoch and one claimant.
    Claims,
    /// In the end every slot is served.
    Coverage,
    /// Epochs never fall, over crashes too.
    Epochs,
    /// Who takes over has fresh enough data.
    Freshness,
    /// Who leads has a majority.
    Majority,
    /// Who is cut off from the majority stops serving.
    Minority,
    /// What reached a promoted replica is kept.
    NoLoss,
    /// A master that lost its data is not copied by who has it.
    NoErasure,
    /// What a new master acknowledged stays.
    NoOverwrite,
    /// A slot has one owner an epoch.
    OneOwner,
    /// An epoch has one promotion.
    OnePromotion,
    /// A member votes once an epoch.
    OneVote,
    /// Replicas have their master's data.
    SameData,
}

impl Rule {
    /// As in a file's name.
    #[must_use]
    pub fn name(self) -> String {
        let named = self.to_possible_value().expect("no rule is hidden from the command line");
        named.get_name().replace('-', "_")
    }
}
