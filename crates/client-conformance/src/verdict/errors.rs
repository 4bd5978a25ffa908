//! Whether an error says what is known.
//!
//! Of a command that a server refused, it is known that it was not done, and why. Of one whose reply never came, it is known
//! that nobody knows: a user who is told that it was refused does it once more. Both are compared with what was on the wire
//! while the library had the command.

use super::{Finding, Grade, is_same_command, short};
use crate::log::Happened;
use crate::play::{Attempt, Played, Run, told};
use crate::protocol::Outcome;
use crate::stage::{NO_ANSWER, is_write, shown};

/// The codes by which servers say that a command was not done.
const REFUSALS: [&str; 10] = [
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
/// Words by which libraries say that a connection broke or their time was over.
const NO_REPLY: [&str; 18] = [
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
/// And that they followed too many redirects.
const REDIRECTED: [&str; 3] = ["redirect", "moved", "ask"];

/// Other words for a refusal that say as much as its code.
fn other_words(code: &str) -> &'static [&'static str] {
    match code {
        "TRYAGAIN" => &["try again"],
        "CLUSTERDOWN" => &["cluster is down", "not served", "not covered"],
        "READONLY" => &["read only", "read-only", "replica", "slave"],
        "MASTERDOWN" => &["master is down", "link with master"],
        _ => &[],
    }
}

/// A finding for each step with an error that hides or denies what is known.
pub(super) fn findings(run: &Run) -> Vec<Finding> {
    run.steps
        .iter()
        .filter_map(|played| played.attempts.iter().find_map(|attempt| of(played, attempt, run)))
        .collect()
}

fn of(played: &Played, attempt: &Attempt, run: &Run) -> Option<Finding> {
    let Ok(Outcome::Error(error)) = &attempt.outcome else { return None };
    let what = told(&played.act, &attempt.commands);
    let says = |words: &[&str]| {
        let error = error.to_lowercase();
        words.iter().any(|word| error.contains(&word.to_lowercase()))
    };
    if error.trim_matches(|letter: char| !letter.is_alphanumeric()).is_empty() {
        return Some(Finding::new(Grade::Fails, format!("an error without words: {what}")));
    }
    let ran = attempt.commands.iter().find(|command| is_write(command) && has_run(command, attempt, run));
    if let Some(command) = ran {
        let denied = REFUSALS.iter().find(|code| error.contains(**code));
        let text = match denied {
            Some(code) => {
                format!(
                    "denies what was done: {} ran, and the error says {code}: {}",
                    shown(command),
                    short(error)
                )
            }
            None if says(&NO_REPLY) => return None,
            None => {
                let told = short(error);
                format!(
                    "hides that nobody knows: {} ran, its reply was lost, and the error says: {told}",
                    shown(command)
                )
            }
        };
        let grade = if denied.is_some() { Grade::Fails } else { Grade::Costly };
        return Some(Finding::new(grade, text));
    }
    let code = last_refusal(attempt, run)?;
    let is_told = match code {
        // Where it was sent it may have met anything.
        "MOVED" | "ASK" => says(&REDIRECTED) || says(&NO_REPLY),
        code => says(&[code]) || says(other_words(code)),
    };
    // A library that asked elsewhere then tells of what it met there.
    let met_others = says(&NO_REPLY) && nodes_ended_connections(attempt, run);
    (!is_told && !met_others).then(|| {
        let text =
            format!("hides what is known: {what} was answered {code}, and the error says: {}", short(error));
        Finding::new(Grade::Costly, text)
    })
}

fn has_run(command: &[String], attempt: &Attempt, run: &Run) -> bool {
    run.executed
        .iter()
        .any(|executed| executed.step == attempt.step && is_same_command(command, &executed.args))
}

/// The code of the last refusal of one of the attempt's commands. Real servers do not tell which they refused.
fn last_refusal<'a>(attempt: &Attempt, run: &'a Run) -> Option<&'a str> {
    let refusal = run.refused.iter().rev().find(|refusal| {
        refusal.step == attempt.step
            && attempt.commands.iter().any(|command| is_same_command(command, &refusal.args))
    })?;
    (refusal.code != NO_ANSWER).then_some(&refusal.code[..])
}

/// A connection that the client closed itself does not count: it met nothing there.
fn nodes_ended_connections(attempt: &Attempt, run: &Run) -> bool {
    let is_end = |what: &Happened| matches!(what, Happened::Slammed | Happened::Ended | Happened::Fault(_));
    let meanwhile = attempt.asked..=attempt.answered;
    run.log.iter().any(|entry| meanwhile.contains(&entry.ms) && is_end(&entry.what))
}
