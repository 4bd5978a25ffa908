//! Renders the cards of several libraries side by side as Markdown.

use std::fmt::Write as _;

use serde::Deserialize;

use crate::protocol::ClientLibrary;
use crate::scenario::Theme;
use crate::verdict::{Finding, Grade};

/// The part of a scorecard saved with `--json` that the comparison needs.
#[derive(Debug, Clone, Deserialize)]
pub struct SavedScorecard {
    library: Option<ClientLibrary>,
    #[serde(default)]
    servers: Option<String>,
    cases: Vec<SavedResult>,
}

#[derive(Debug, Clone, Deserialize)]
struct SavedResult {
    name: String,
    theme: Theme,
    grade: Grade,
    findings: Vec<Finding>,
}

impl SavedScorecard {
    fn title(&self) -> String {
        let library = self.library.as_ref();
        library.map_or_else(String::new, |library| format!("{} {}", library.library, library.version))
    }

    fn find_case(&self, name: &str) -> Option<&SavedResult> {
        self.cases.iter().find(|case| case.name == name)
    }
}

/// Renders a table with one row per scenario and one column per library, followed by the reasons for each grade below
/// good. Cards from real servers get no column; the reasons mention whether a grade on real servers confirms or
/// contradicts the one from scripted nodes.
#[must_use]
pub fn compare_scorecards(cards: &[SavedScorecard]) -> String {
    let (on_real, mut on_scripted): (Vec<_>, Vec<_>) = cards.iter().partition(|card| card.servers.is_some());
    on_scripted.sort_by_key(|card| card.title().to_lowercase());
    let mut out = comparison_table(&on_scripted);
    for card in on_scripted {
        let on_real: Vec<&SavedScorecard> =
            on_real.iter().copied().filter(|real| real.library == card.library).collect();
        // Writing to a `String` cannot fail.
        let _ = write!(out, "\n### {}\n\n", card.title());
        for case in card.cases.iter().filter(|case| !case.findings.is_empty()) {
            let _ = writeln!(out, "{}", format_reasons(case, &on_real));
        }
    }
    out
}

fn comparison_table(cards: &[&SavedScorecard]) -> String {
    let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let titles = cards.iter().map(|card| card.title());
    let mut out = row(std::iter::once("scenario".to_owned()).chain(titles).collect());
    out += &format!("| --- |{}\n", " --- |".repeat(cards.len()));
    let mut theme = None;
    for case in cards.first().map_or(&[][..], |card| &card.cases[..]) {
        if theme != Some(case.theme) {
            theme = Some(case.theme);
            out += &format!("| **{}** |{}\n", case.theme.name(), " |".repeat(cards.len()));
        }
        let grade = |card: &&SavedScorecard| {
            card.find_case(&case.name).map_or_else(String::new, |case| case.grade.name().to_owned())
        };
        out += &row(std::iter::once(case.name.clone()).chain(cards.iter().map(grade)).collect());
    }
    out
}

fn format_reasons(case: &SavedResult, cards_from_real_servers: &[&SavedScorecard]) -> String {
    let mut told = case.grade.name().to_owned();
    for card in cards_from_real_servers {
        let (Some(real), Some(servers)) = (card.find_case(&case.name), &card.servers) else { continue };
        let there = match real.grade == case.grade {
            true => format!("the same on {servers}"),
            false => format!("{} on {servers}", real.grade.name()),
        };
        told += &format!("; {there}");
    }
    let findings: Vec<String> =
        case.findings.iter().map(|finding| escape_table_cell(&finding.text)).collect();
    format!("- {} ({told}): {}", case.name, findings.join("; "))
}

/// Escapes characters that have a meaning in a Markdown table cell.
fn escape_table_cell(text: &str) -> String {
    text.chars().fold(String::new(), |mut out, letter| {
        if matches!(letter, '<' | '*' | '_' | '`' | '[' | '|' | '\\') {
            out.push('\\');
        }
        out.push(letter);
        out
    })
}
