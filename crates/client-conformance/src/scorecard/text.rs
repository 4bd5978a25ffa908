//! Renders the scorecard for a terminal.

use std::fmt::Write as _;

use super::{ScenarioResult, Scorecard};
use crate::verdict::Grade;

/// Renders one line per scenario and one per finding.
#[must_use]
pub fn render_text(scorecard: &Scorecard) -> String {
    let mut out = format!("{}, seed {}\n", scorecard.title(), scorecard.seed);
    let mut theme = None;
    let width = scorecard.cases.iter().map(|case| case.name.len()).max().unwrap_or(0);
    for case in &scorecard.cases {
        if theme != Some(case.theme) {
            theme = Some(case.theme);
            // Writing to a `String` cannot fail.
            let _ = write!(out, "\n{}\n", case.theme.name());
        }
        let _ =
            writeln!(out, "  {:<11} {:width$}  {}", case.verdict.grade.name(), case.name, format_costs(case));
        for finding in &case.verdict.findings {
            let _ = writeln!(out, "              {}", finding.text);
        }
    }
    let counts: Vec<String> = scorecard
        .grade_counts()
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(grade, count)| format!("{count} {}", grade.name()))
        .collect();
    let seconds = scorecard.cases.iter().map(|case| case.verdict.costs.ms).sum::<u64>() as f64 / 1000.0;
    let _ =
        write!(out, "\n{} scenarios, {seconds:.0} s of play: {}\n", scorecard.cases.len(), counts.join(", "));
    out
}

/// Formats the costs that are worth mentioning.
fn format_costs(case: &ScenarioResult) -> String {
    let measures = &case.verdict.costs;
    if case.verdict.grade == Grade::Unsupported {
        return String::new();
    }
    let mut figures = Vec::new();
    let mut tell = |count: usize, word: &str| {
        if count > 0 {
            figures.push(format!("{count} {word}{}", if count == 1 { "" } else { "s" }));
        }
    };
    tell(measures.redirects_in_all, "redirect");
    tell(measures.refreshes, "refresh");
    tell(measures.connections, "connection");
    if let Some(ms) = measures.recovery_ms {
        figures.push(format!("back after {ms} ms"));
    }
    figures.join(", ").replace("refreshs", "refreshes")
}

/// Returns the evidence of a scenario: its description and the logged commands and replies.
#[must_use]
pub fn render_evidence(case: &ScenarioResult) -> String {
    let mut out = format!("--- {} ({})\n{}\n", case.name, case.verdict.grade.name(), case.story);
    for finding in &case.verdict.findings {
        let _ = writeln!(out, "* {}", finding.text);
    }
    for entry in &case.log {
        let _ = writeln!(out, "{}", entry.to_line());
    }
    if !case.stderr_tail.trim().is_empty() {
        let _ = write!(out, "the adapter wrote:\n{}\n", case.stderr_tail.trim_end());
    }
    out
}
