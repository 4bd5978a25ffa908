//! Checks that an error tells the user what is known about the command.
//!
//! If the server refused the command, the command did not run and the cause is known. If there was no reply, it is
//! unknown whether the command ran; a user who is told that it was refused would send it again. Errors are compared
//! with the commands and replies on the wire during the request.

use super::{Finding, Grade, first_line, is_equivalent_command};
use crate::event_log::LogEvent;
use crate::protocol::AdapterOutcome;
use crate::scenario_run::{RequestAttempt, ScenarioRun, StepResult, describe_step};
use crate::simulation::{NO_REPLY_CODE, format_command, is_write};

/// Error codes by which a server refuses a command without executing it.
const REFUSAL_CODES: [&str; 10] = [
    "MOVED",
    "ASK",
    "TRYAGAIN",
    "CLUSTERDOWN",
    "LOADING",
    "READONLY",
    "MASTERDOWN",
    "CROSSSLOT",
    "NOSCRIPT",
    "UNBLOCKED",
];
/// Phrases in error texts of libraries that mean a broken connection or a timeout.
const NO_REPLY_PHRASES: [&str; 18] = [
    "time",
    "connect",
    "clos",
    "reset",
    "eof",
    "end of",
    "pipe",
    "socket",
    "lost",
    "i/o",
    "io error",
    "ended",
    "refused",
    "abort",
    "cancel",
    "unreachable",
    "interrupt",
    "not respond",
];
/// Phrases in error texts of libraries that mean too many redirections.
const REDIRECT_PHRASES: [&str; 3] = ["redirect", "moved", "ask"];

/// Returns phrases that tell the user as much as the error code does.
fn equivalent_phrases(code: &str) -> &'static [&'static str] {
    match code {
        "TRYAGAIN" => &["try again"],
        "CLUSTERDOWN" => &["cluster is down", "not served", "not covered"],
        "READONLY" => &["read only", "read-only", "replica", "slave"],
        "MASTERDOWN" => &["master is down", "link with master"],
        _ => &[],
    }
}

/// Reports each step whose error hides or contradicts what is known about the command.
pub(super) fn error_findings(scenario_run: &ScenarioRun) -> Vec<Finding> {
    scenario_run
        .steps
        .iter()
        .filter_map(|played| {
            played.attempts.iter().find_map(|attempt| check_error(played, attempt, scenario_run))
        })
        .collect()
}

fn check_error(step: &StepResult, attempt: &RequestAttempt, scenario_run: &ScenarioRun) -> Option<Finding> {
    let Ok(AdapterOutcome::Error(error)) = &attempt.outcome else { return None };
    let what = describe_step(&step.action, &attempt.commands);
    let says = |words: &[&str]| {
        let error = error.to_lowercase();
        words.iter().any(|word| error.contains(&word.to_lowercase()))
    };
    if error.trim_matches(|letter: char| !letter.is_alphanumeric()).is_empty() {
        return Some(Finding::new(Grade::Fails, format!("empty error message: {what}")));
    }
    let ran = attempt
        .commands
        .iter()
        .find(|command| is_write(command) && was_executed(command, attempt, scenario_run));
    if let Some(command) = ran {
        let denied = REFUSAL_CODES.iter().find(|code| error.contains(**code));
        let text = match denied {
            Some(code) => {
                format!(
                    "reports failure of an executed command: {} ran, and the error says {code}: {}",
                    format_command(command),
                    first_line(error)
                )
            }
            None if says(&NO_REPLY_PHRASES) => return None,
            None => {
                let told = first_line(error);
                format!(
                    "hides an unknown result: {} ran, its reply was lost, and the error says: {told}",
                    format_command(command)
                )
            }
        };
        let grade = if denied.is_some() { Grade::Fails } else { Grade::Costly };
        return Some(Finding::new(grade, text));
    }
    let code = last_refusal_code(attempt, scenario_run)?;
    let is_told = match code {
        // After a redirection, the error may come from the node to which the client was redirected.
        "MOVED" | "ASK" => says(&REDIRECT_PHRASES) || says(&NO_REPLY_PHRASES),
        code => says(&[code]) || says(equivalent_phrases(code)),
    };
    // A library that retried at another node may report an error of that node.
    let met_others = says(&NO_REPLY_PHRASES) && was_connection_closed_by_node(attempt, scenario_run);
    (!is_told && !met_others).then(|| {
        let text = format!("hides the cause: {what} got {code}, and the error says: {}", first_line(error));
        Finding::new(Grade::Costly, text)
    })
}

fn was_executed(command: &[String], attempt: &RequestAttempt, scenario_run: &ScenarioRun) -> bool {
    scenario_run
        .executed_commands
        .iter()
        .any(|executed| executed.step == attempt.step && is_equivalent_command(command, &executed.args))
}

/// Returns the error code with which the last of the attempt's commands was refused. `None` on real servers, because
/// they do not report which command they refused.
fn last_refusal_code<'a>(attempt: &RequestAttempt, scenario_run: &'a ScenarioRun) -> Option<&'a str> {
    let refusal = scenario_run.refused_commands.iter().rev().find(|refusal| {
        refusal.step == attempt.step
            && attempt.commands.iter().any(|command| is_equivalent_command(command, &refusal.args))
    })?;
    (refusal.code != NO_REPLY_CODE).then_some(&refusal.code[..])
}

/// Returns whether a node closed or disturbed a connection during the attempt. Connections that the client closed
/// itself do not count.
fn was_connection_closed_by_node(attempt: &RequestAttempt, scenario_run: &ScenarioRun) -> bool {
    let is_end = |event: &LogEvent| {
        matches!(event, LogEvent::ConnectionRejected | LogEvent::NodeClosed | LogEvent::FaultInjected(_))
    };
    let meanwhile = attempt.request_ms..=attempt.answer_ms;
    scenario_run.log.iter().any(|entry| meanwhile.contains(&entry.ms) && is_end(&entry.event))
}
