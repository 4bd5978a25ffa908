//! The scorecard of a library: one verdict per scenario, with the recorded commands and replies as evidence.

mod baseline;
mod comparison;
mod html;
mod junit;
#[cfg(test)]
mod tests;
mod text;

use serde::{Deserialize, Serialize};

use crate::event_log::LogEntry;
use crate::protocol::ClientLibrary;
use crate::scenario::{Scenario, Theme};
use crate::verdict::{Grade, Verdict};

pub use baseline::worse_results;
pub use comparison::{SavedScorecard, compare_scorecards};
pub use html::render_html;
pub use junit::render_junit;
pub use text::{render_evidence, render_text};

/// The verdict on one scenario, with its evidence.
#[derive(Debug, Clone, Serialize)]
pub struct ScenarioResult {
    /// The scenario's name, by which cards are compared.
    pub name: String,
    /// The theme under which the scenario is listed.
    pub theme: Theme,
    /// The scenario's description for people.
    pub story: String,
    /// The library's grade and its reasons.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// The logged events in order, which are the evidence for the verdict.
    pub log: Vec<LogEntry>,
    /// The end of the adapter's standard error, shown when a scenario fails.
    #[serde(rename = "complaints")]
    pub stderr_tail: String,
}

/// The scorecard of one library.
#[derive(Debug, Clone, Serialize)]
pub struct Scorecard {
    /// The library's name and version; `None` if its adapter never reported them.
    pub library: Option<ClientLibrary>,
    /// The seed from which the keys of scenarios were drawn.
    pub seed: u64,
    /// Name and version of the real servers; `None` if scripted nodes were used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub servers: Option<String>,
    /// One result per scenario, ordered by theme.
    pub cases: Vec<ScenarioResult>,
}

/// The results of an earlier scorecard, with which new scorecards are compared.
#[derive(Debug, Clone, Deserialize)]
pub struct Baseline {
    cases: Vec<BaselineResult>,
}

#[derive(Debug, Clone, Deserialize)]
struct BaselineResult {
    name: String,
    grade: Grade,
}

impl ScenarioResult {
    /// Creates a result, taking name, theme and description from the scenario.
    #[must_use]
    pub fn new(scenario: &Scenario, verdict: Verdict, log: Vec<LogEntry>, stderr_tail: String) -> Self {
        Self {
            name: scenario.name.clone(),
            theme: scenario.theme,
            story: scenario.story.trim().to_owned(),
            verdict,
            log,
            stderr_tail,
        }
    }
}

impl Scorecard {
    /// Returns each grade with its number of scenarios, worst grade first.
    #[must_use]
    pub fn grade_counts(&self) -> Vec<(Grade, usize)> {
        let grades = [Grade::Harmful, Grade::Fails, Grade::Costly, Grade::Unsupported, Grade::Good];
        let count = |grade| self.cases.iter().filter(|case| case.verdict.grade == grade).count();
        grades.into_iter().map(|grade| (grade, count(grade))).collect()
    }

    /// Returns the worst grade on the scorecard.
    #[must_use]
    pub fn worst_grade(&self) -> Grade {
        self.cases.iter().map(|case| case.verdict.grade).max().unwrap_or(Grade::Good)
    }

    /// Returns the library's name and version, as the scorecard's title.
    #[must_use]
    pub fn title(&self) -> String {
        match &self.library {
            Some(library) => format!("{} {}", library.library, library.version).trim().to_owned(),
            None => "a library that does not say which it is".to_owned(),
        }
    }
}
