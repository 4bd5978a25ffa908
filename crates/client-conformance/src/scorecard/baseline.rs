//! Finds scenarios whose grade is worse than on an earlier scorecard.

use super::{Baseline, Scorecard};

/// Describes each scenario whose grade is worse than in the baseline. Scenarios missing from the
/// baseline are skipped.
#[must_use]
pub fn worse_results(scorecard: &Scorecard, baseline: &Baseline) -> Vec<String> {
    let before = |name: &str| baseline.cases.iter().find(|case| case.name == name).map(|case| case.grade);
    scorecard
        .cases
        .iter()
        .filter_map(|case| {
            let before = before(&case.name).filter(|before| case.verdict.grade > *before)?;
            Some(format!("{}: {}, was {}", case.name, case.verdict.grade.name(), before.name()))
        })
        .collect()
}
