//! What must hold, by name.

use clap::ValueEnum;

/// An invariant, under the name of the file in `invariants/` that says what it asks. Those of the cluster and of the
/// sentinels that ask for the same have the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Rule {
    Agreement,
    Authority,
    Claims,
    Coverage,
    Epochs,
    Freshness,
    Majority,
    Minority,
    NoLoss,
    NoOverwrite,
    OneOwner,
    OnePromotion,
    OneVote,
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
