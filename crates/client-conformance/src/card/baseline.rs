//! Scenarios whose grade got worse since another card.

use super::{Baseline, Card};

/// The scenarios whose grade is worse than in the baseline, with both grades. A scenario that the baseline does not
/// have is not worse.
#[must_use]
pub fn worse(card: &Card, baseline: &Baseline) -> Vec<String> {
    let before = |name: &str| baseline.cases.iter().find(|case| case.name == name).map(|case| case.grade);
    card.cases
        .iter()
        .filter_map(|case| {
            let before = before(&case.name).filter(|before| case.verdict.grade > *before)?;
            Some(format!("{}: {}, was {}", case.name, case.verdict.grade.name(), before.name()))
        })
        .collect()
}
