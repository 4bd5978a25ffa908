//! The scorecard of a library: a verdict for each scenario, with the bytes on the wire as evidence.

mod baseline;
mod compared;
mod html;
mod junit;
#[cfg(test)]
mod tests;
mod text;

use serde::{Deserialize, Serialize};

use crate::log::Entry;
use crate::protocol::Library;
use crate::scenario::{Scenario, Theme};
use crate::verdict::{Grade, Verdict};

pub use baseline::worse;
pub use compared::{CardOfOne, compared};
pub use html::html;
pub use junit::junit;
pub use text::{evidence, text};

/// A scenario on the card.
#[derive(Debug, Clone, Serialize)]
pub struct Case {
    /// The scenario's name.
    pub name: String,
    /// The theme that it belongs to.
    pub theme: Theme,
    /// The story of the scenario, for people.
    pub story: String,
    /// The verdict on the library.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// The events, in order.
    pub log: Vec<Entry>,
    /// The end of the adapter's standard error.
    pub complaints: String,
}

/// A card.
#[derive(Debug, Clone, Serialize)]
pub struct Card {
    /// The library.
    pub library: Option<Library>,
    /// The seed that keys and the like were drawn from.
    pub seed: u64,
    /// The real servers that it was played on, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub servers: Option<String>,
    /// The scenarios, theme by theme.
    pub cases: Vec<Case>,
}

/// The part of a card that later ones are compared with.
#[derive(Debug, Clone, Deserialize)]
pub struct Baseline {
    cases: Vec<BaselineCase>,
}

#[derive(Debug, Clone, Deserialize)]
struct BaselineCase {
    name: String,
    grade: Grade,
}

impl Case {
    /// A scenario's case.
    #[must_use]
    pub fn new(scenario: &Scenario, verdict: Verdict, log: Vec<Entry>, complaints: String) -> Self {
        Self {
            name: scenario.name.clone(),
            theme: scenario.theme,
            story: scenario.story.trim().to_owned(),
            verdict,
            log,
            complaints,
        }
    }
}

impl Card {
    /// How many scenarios have each grade, worst first.
    #[must_use]
    pub fn counts(&self) -> Vec<(Grade, usize)> {
        let grades = [Grade::Harmful, Grade::Fails, Grade::Costly, Grade::NotOffered, Grade::Good];
        let count = |grade| self.cases.iter().filter(|case| case.verdict.grade == grade).count();
        grades.into_iter().map(|grade| (grade, count(grade))).collect()
    }

    /// The worst grade on it.
    #[must_use]
    pub fn worst(&self) -> Grade {
        self.cases.iter().map(|case| case.verdict.grade).max().unwrap_or(Grade::Good)
    }

    /// The library and its version.
    #[must_use]
    pub fn title(&self) -> String {
        match &self.library {
            Some(library) => format!("{} {}", library.library, library.version).trim().to_owned(),
            None => "a library that does not say which it is".to_owned(),
        }
    }
}
