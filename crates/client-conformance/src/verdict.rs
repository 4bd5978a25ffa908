//! Grades a library's behavior in a scenario and gives the reasons.
//!
//! The verdict is a pure function of the recorded events. The worst faults cost users data or money: a command that ran
//! twice, a command that was acknowledged but never ran, or a wrong reply. Scenarios that do not finish correctly are
//! graded better than that. A scenario is costly if it finishes, but exceeds its limits for redirections, connections
//! or time, or reports a misleading error.

mod costs;
mod effects;
mod errors;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::adapter::AdapterFailure;
use crate::protocol::AdapterOutcome;
use crate::scenario::{ErrorPolicy, Scenario, StepAction};
use crate::scenario_run::{ScenarioRun, StepResult, describe_step, is_error_item};

pub use costs::MeasuredCosts;

/// The grades, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Grade {
    /// The library behaved correctly and within the cost limits.
    Good,
    /// The library lacks a feature that the scenario needs.
    #[serde(rename = "not-offered")]
    Unsupported,
    /// The behavior is correct, but too expensive, or errors are misleading.
    Costly,
    /// The scenario does not finish correctly.
    Fails,
    /// Data is at risk: a wrong reply, a duplicate execution, or a false acknowledgement.
    Harmful,
}

impl Grade {
    /// Returns the grade's name for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Unsupported => "not offered",
            Self::Costly => "costly",
            Self::Fails => "fails",
            Self::Harmful => "HARMFUL",
        }
    }
}

/// One reason for a grade.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The grade that this finding alone would give.
    pub grade: Grade,
    /// The observation as a sentence, shown on the scorecard.
    pub text: String,
}

impl Finding {
    fn new(grade: Grade, text: impl Into<String>) -> Self {
        Self { grade, text: text.into() }
    }
}

/// The grade of a scenario with its reasons.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The worst grade among the findings, or good without any.
    pub grade: Grade,
    /// The reasons for the grade, worst first.
    pub findings: Vec<Finding>,
    /// The measured costs, reported even if they are within their limits.
    #[serde(rename = "measures")]
    pub costs: MeasuredCosts,
}

/// Grades a run by its recorded events only.
#[must_use]
pub fn grade_run(scenario: &Scenario, scenario_run: &ScenarioRun) -> Verdict {
    let costs = MeasuredCosts::measure(scenario_run);
    let mut findings = check_early_end(scenario_run, &costs);
    for played in &scenario_run.steps {
        findings.extend(check_step(played, scenario_run));
    }
    findings.extend(effects::effect_findings(scenario_run));
    findings.extend(errors::error_findings(scenario_run));
    let not_offered = findings.iter().any(|finding| finding.grade == Grade::Unsupported);
    if scenario_run.client_error.is_none() && !not_offered {
        findings.extend(costs::cost_findings(&scenario.allow, &costs));
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.grade));
    let grade = findings.first().map_or(Grade::Good, |finding| finding.grade);
    Verdict { grade, findings, costs }
}

/// Reports the reason why a run ended before its last step.
fn check_early_end(scenario_run: &ScenarioRun, costs: &MeasuredCosts) -> Vec<Finding> {
    if let Some(outcome) = &scenario_run.client_error {
        return vec![match outcome {
            Ok(AdapterOutcome::Error(text)) => {
                Finding::new(Grade::Fails, format!("cannot create a client: {}", first_line(text)))
            }
            Ok(AdapterOutcome::Unsupported(text)) => Finding::new(Grade::Unsupported, text.clone()),
            Ok(AdapterOutcome::Ok(_)) => {
                Finding::new(Grade::Fails, "the adapter does not report its library")
            }
            Err(why) => Finding::new(Grade::Fails, describe_missing_answer(why, "the connection")),
        }];
    }
    let mut findings = Vec::new();
    for played in &scenario_run.steps {
        for attempt in &played.attempts {
            if let Err(why) = &attempt.outcome {
                let mut text =
                    describe_missing_answer(why, &describe_step(&played.action, &attempt.commands));
                if *why == AdapterFailure::TimedOut && costs.redirects > 50 {
                    text = format!("follows redirects endlessly: {} for one command", costs.redirects);
                }
                findings.push(Finding::new(Grade::Fails, text));
            }
        }
    }
    findings
}

fn describe_missing_answer(failure: &AdapterFailure, request: &str) -> String {
    match failure {
        AdapterFailure::TimedOut => format!("hangs: {request} gets neither a reply nor an error"),
        AdapterFailure::Exited => format!("the program exits during: {request}"),
        AdapterFailure::InvalidLine(text) => format!("the adapter violates the protocol: {text}"),
    }
}

fn check_step(step: &StepResult, scenario_run: &ScenarioRun) -> Vec<Finding> {
    if let StepAction::ExpectMessage { channel, .. } = &step.action {
        let broken = step.attempts.iter().any(|attempt| attempt.outcome.is_err());
        if step.has_message_arrived || broken {
            return Vec::new();
        }
        let text = format!("drops the subscription to {channel}: no more messages arrive");
        return vec![Finding::new(Grade::Fails, text)];
    }
    let mut findings = Vec::new();
    for attempt in &step.attempts {
        if let Ok(AdapterOutcome::Ok(value)) = &attempt.outcome {
            findings.extend(check_reply(
                step,
                value,
                &describe_step(&step.action, &attempt.commands),
                scenario_run,
            ));
        }
    }
    let Some(last) = step.attempts.last() else { return findings };
    let what = describe_step(&step.action, &last.commands);
    match (&last.outcome, step.expectation.errors) {
        (Ok(AdapterOutcome::Unsupported(text)), _) => {
            findings.push(Finding::new(Grade::Unsupported, text.clone()));
        }
        (Ok(AdapterOutcome::Error(text)), ErrorPolicy::Forbidden) => {
            let tries = step.attempts.len();
            let after = if tries > 1 { format!(" after {tries} tries") } else { String::new() };
            findings.push(Finding::new(Grade::Fails, format!("{what} fails{after}: {}", first_line(text))));
        }
        (Ok(AdapterOutcome::Ok(Value::Array(items))), ErrorPolicy::Forbidden)
            if matches!(step.action, StepAction::Pipeline(_)) && items.iter().any(is_error_item) =>
        {
            let error = items.iter().find(|item| is_error_item(item)).map(|item| item["error"].to_string());
            let text = format!("{what} fails in part: {}", first_line(&error.unwrap_or_default()));
            findings.push(Finding::new(Grade::Fails, text));
        }
        (Ok(AdapterOutcome::Ok(value)), ErrorPolicy::Required) => {
            findings.push(Finding::new(Grade::Fails, format!("{what} must fail but returns {value}")));
        }
        (Ok(AdapterOutcome::Ok(_) | AdapterOutcome::Error(_)) | Err(_), _) => {}
    }
    findings
}

/// Reports a reply that differs from the expected one.
fn check_reply(
    step: &StepResult,
    value: &Value,
    request: &str,
    scenario_run: &ScenarioRun,
) -> Option<Finding> {
    let wanted = step.expectation.reply.as_ref()?;
    let failed_in_part = value.as_array().is_some_and(|items| items.iter().any(is_error_item));
    if is_equivalent_reply(wanted, value) || failed_in_part {
        return None;
    }
    let other = scenario_run.steps.iter().find(|other| {
        let reply = other.expectation.reply.as_ref();
        let is_telling = value.is_string() || value.is_array();
        is_telling && reply != Some(wanted) && reply.is_some_and(|reply| is_equivalent_reply(reply, value))
    });
    let text = match other {
        Some(other) => {
            let commands = other.attempts.first().map(|attempt| attempt.commands.clone()).unwrap_or_default();
            format!(
                "mixes up replies: {request} returns {value}, which is the reply to {}",
                describe_step(&other.action, &commands)
            )
        }
        None => format!("wrong reply: {request} must return {wanted}, not {value}"),
    };
    Some(Finding::new(Grade::Harmful, text))
}

/// Returns whether two replies are equal apart from how a library represents them, for example a status as a boolean or
/// a number as text.
fn is_equivalent_reply(expected: &Value, value: &Value) -> bool {
    match (expected, value) {
        (Value::String(text), Value::Bool(truth)) => *truth && text == "OK",
        (Value::Number(number), Value::String(text)) => number.to_string() == *text,
        (Value::Array(wanted), Value::Array(items)) => {
            wanted.len() == items.len()
                && wanted.iter().zip(items).all(|(wanted, item)| is_equivalent_reply(wanted, item))
        }
        (wanted, value) => wanted == value,
    }
}

/// Returns whether a requested command is the same as one on the wire. Libraries differ in letter case and number
/// formats.
fn is_equivalent_command(requested: &[String], on_wire: &[String]) -> bool {
    let number = |word: &String| word.parse::<f64>().ok();
    let is_same = |(asked, on_wire): (&String, &String)| {
        asked == on_wire || number(asked).is_some_and(|asked| number(on_wire) == Some(asked))
    };
    requested.len() == on_wire.len()
        && requested[0].eq_ignore_ascii_case(&on_wire[0])
        && requested[1..].iter().zip(&on_wire[1..]).all(is_same)
}

/// Returns the first line of an error, truncated.
fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(160) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_owned(),
    }
}
