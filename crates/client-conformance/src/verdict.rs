//! The verdict of a scenario on a library: a grade, and each reason for it in words.
//!
//! A function of what was seen, without clock or sockets. The worst are faults that cost users data or money: a command
//! that ran twice, one that was acknowledged and never ran, a wrong answer. Then come scenarios that do not end right.
//! One that ends right and takes more redirects, connections or time than the scenario allows is costly, and so is one whose
//! error hides what is known.

mod costs;
mod effects;
mod errors;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::adapter::NoAnswer;
use crate::play::{Played, Run, is_error, told};
use crate::protocol::Outcome;
use crate::scenario::{Act, Errors, Scenario};

pub use costs::Measures;

/// How good it was, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Grade {
    /// As it should be.
    Good,
    /// The library has no such thing.
    NotOffered,
    /// It ends right, and takes more than it should, or leaves its user in the dark.
    Costly,
    /// It does not end right.
    Fails,
    /// It costs data: a wrong answer, something done twice, something not done and said to be.
    Harmful,
}

impl Grade {
    /// For people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::NotOffered => "not offered",
            Self::Costly => "costly",
            Self::Fails => "fails",
            Self::Harmful => "HARMFUL",
        }
    }
}

/// A reason for a grade.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// How bad it is.
    pub grade: Grade,
    /// The observation, as a sentence.
    pub text: String,
}

impl Finding {
    fn new(grade: Grade, text: impl Into<String>) -> Self {
        Self { grade, text: text.into() }
    }
}

/// The verdict of a scenario.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The worst of the findings.
    pub grade: Grade,
    /// The reasons, worst first.
    pub findings: Vec<Finding>,
    /// The measured costs.
    pub measures: Measures,
}

/// Judges a run.
#[must_use]
pub fn judge(scenario: &Scenario, run: &Run) -> Verdict {
    let measures = Measures::of(run);
    let mut findings = endings(run, &measures);
    for played in &run.steps {
        findings.extend(of_step(played, run));
    }
    findings.extend(effects::findings(run));
    findings.extend(errors::findings(run));
    let not_offered = findings.iter().any(|finding| finding.grade == Grade::NotOffered);
    if run.no_client.is_none() && !not_offered {
        findings.extend(costs::findings(&scenario.allow, &measures));
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.grade));
    let grade = findings.first().map_or(Grade::Good, |finding| finding.grade);
    Verdict { grade, findings, measures }
}

/// Why it ended before its last step.
fn endings(run: &Run, measures: &Measures) -> Vec<Finding> {
    if let Some(outcome) = &run.no_client {
        return vec![match outcome {
            Ok(Outcome::Error(text)) => {
                Finding::new(Grade::Fails, format!("no client can be made: {}", short(text)))
            }
            Ok(Outcome::Unsupported(text)) => Finding::new(Grade::NotOffered, text.clone()),
            Ok(Outcome::Ok(_)) => Finding::new(Grade::Fails, "the adapter does not say which library it is"),
            Err(why) => Finding::new(Grade::Fails, no_answer(why, "the connection")),
        }];
    }
    let mut findings = Vec::new();
    for played in &run.steps {
        for attempt in &played.attempts {
            if let Err(why) = &attempt.outcome {
                let mut text = no_answer(why, &told(&played.act, &attempt.commands));
                if *why == NoAnswer::Hung && measures.redirects > 50 {
                    text = format!("follows redirects for ever: {} for one command", measures.redirects);
                }
                findings.push(Finding::new(Grade::Fails, text));
            }
        }
    }
    findings
}

fn no_answer(why: &NoAnswer, what: &str) -> String {
    match why {
        NoAnswer::Hung => format!("hangs: {what} never ends, with neither a reply nor an error"),
        NoAnswer::Ended => format!("the program ends at: {what}"),
        NoAnswer::Nonsense(text) => format!("the adapter does not keep to the protocol: {text}"),
    }
}

fn of_step(played: &Played, run: &Run) -> Vec<Finding> {
    if let Act::Hears { channel, .. } = &played.act {
        let broken = played.attempts.iter().any(|attempt| attempt.outcome.is_err());
        if played.heard || broken {
            return Vec::new();
        }
        let text = format!("drops the subscription to {channel}: no message came again");
        return vec![Finding::new(Grade::Fails, text)];
    }
    let mut findings = Vec::new();
    for attempt in &played.attempts {
        if let Ok(Outcome::Ok(value)) = &attempt.outcome {
            findings.extend(wrong_reply(played, value, &told(&played.act, &attempt.commands), run));
        }
    }
    let Some(last) = played.attempts.last() else { return findings };
    let what = told(&played.act, &last.commands);
    match (&last.outcome, played.wants.errors) {
        (Ok(Outcome::Unsupported(text)), _) => {
            findings.push(Finding::new(Grade::NotOffered, text.clone()));
        }
        (Ok(Outcome::Error(text)), Errors::Wrong) => {
            let tries = played.attempts.len();
            let after = if tries > 1 { format!(" after {tries} tries") } else { String::new() };
            findings.push(Finding::new(Grade::Fails, format!("{what} fails{after}: {}", short(text))));
        }
        (Ok(Outcome::Ok(Value::Array(items))), Errors::Wrong)
            if matches!(played.act, Act::Pipeline(_)) && items.iter().any(is_error) =>
        {
            let error = items.iter().find(|item| is_error(item)).map(|item| item["error"].to_string());
            let text = format!("{what} fails in part: {}", short(&error.unwrap_or_default()));
            findings.push(Finding::new(Grade::Fails, text));
        }
        (Ok(Outcome::Ok(value)), Errors::Right) => {
            findings
                .push(Finding::new(Grade::Fails, format!("{what} cannot be answered, and is, with {value}")));
        }
        (Ok(Outcome::Ok(_) | Outcome::Error(_)) | Err(_), _) => {}
    }
    findings
}

/// A wrong reply.
fn wrong_reply(played: &Played, value: &Value, what: &str, run: &Run) -> Option<Finding> {
    let wanted = played.wants.reply.as_ref()?;
    let failed_in_part = value.as_array().is_some_and(|items| items.iter().any(is_error));
    if is_same(wanted, value) || failed_in_part {
        return None;
    }
    let other = run.steps.iter().find(|other| {
        let reply = other.wants.reply.as_ref();
        let is_telling = value.is_string() || value.is_array();
        is_telling && reply != Some(wanted) && reply.is_some_and(|reply| is_same(reply, value))
    });
    let text = match other {
        Some(other) => {
            let commands = other.attempts.first().map(|attempt| attempt.commands.clone()).unwrap_or_default();
            format!(
                "mixes up replies: {what} is answered {value}, which is the answer to {}",
                told(&other.act, &commands)
            )
        }
        None => format!("a wrong answer: {what} is {wanted}, not {value}"),
    };
    Some(Finding::new(Grade::Harmful, text))
}

/// Whether two replies are the same but for how libraries show them: a status as a truth, a number as text.
fn is_same(wanted: &Value, value: &Value) -> bool {
    match (wanted, value) {
        (Value::String(text), Value::Bool(truth)) => *truth && text == "OK",
        (Value::Number(number), Value::String(text)) => number.to_string() == *text,
        (Value::Array(wanted), Value::Array(items)) => {
            wanted.len() == items.len()
                && wanted.iter().zip(items).all(|(wanted, item)| is_same(wanted, item))
        }
        (wanted, value) => wanted == value,
    }
}

/// Whether a command on the wire is the one that was asked for: libraries write names and numbers in their own way.
fn is_same_command(asked: &[String], on_wire: &[String]) -> bool {
    let number = |word: &String| word.parse::<f64>().ok();
    let is_same = |(asked, on_wire): (&String, &String)| {
        asked == on_wire || number(asked).is_some_and(|asked| number(on_wire) == Some(asked))
    };
    asked.len() == on_wire.len()
        && asked[0].eq_ignore_ascii_case(&on_wire[0])
        && asked[1..].iter().zip(&on_wire[1..]).all(is_same)
}

/// The first line of an error, and not too much of it.
fn short(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(160) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_owned(),
    }
}
