//! The commands that took effect, compared with those that were asked for and those that were acknowledged.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Finding, Grade, is_same_command};
use crate::play::{Attempt, Run, is_error};
use crate::protocol::Outcome;
use crate::scenario::Act;
use crate::stage::{is_write, shown, waits};

#[derive(Debug, Default)]
struct Count {
    asked: usize,
    done: usize,
    ran: usize,
}

/// Commands that ran more often than they were asked for, or less often than they were said to be done; transactions of
/// which a part ran.
pub(super) fn findings(run: &Run) -> Vec<Finding> {
    let mut counts: BTreeMap<&[String], Count> = BTreeMap::new();
    for attempt in run.steps.iter().flat_map(|played| &played.attempts) {
        let counted = |command: &[String]| is_write(command) && (run.counts_pops || !waits(command));
        for (place, command) in attempt.commands.iter().enumerate().filter(|(_, command)| counted(command)) {
            let count = counts.entry(command).or_default();
            count.asked += 1;
            count.done += usize::from(is_done(attempt, place));
        }
    }
    for executed in &run.executed {
        if let Some((_, count)) = counts.iter_mut().find(|(args, _)| is_same_command(args, &executed.args)) {
            count.ran += 1;
        }
    }
    let mut findings = Vec::new();
    for (command, count) in &counts {
        let what = shown(command);
        let times = |number: usize| if number == 1 { "once".to_owned() } else { format!("{number} times") };
        if count.ran > count.asked {
            let how =
                if count.ran == 2 && count.asked == 1 { "executes twice" } else { "executes too often" };
            let text =
                format!("{how}: {what} was asked for {} and ran {}", times(count.asked), times(count.ran));
            findings.push(Finding::new(Grade::Harmful, text));
        }
        if count.ran < count.done {
            let ran =
                if count.ran == 0 { "never ran".to_owned() } else { format!("ran {}", times(count.ran)) };
            let text =
                format!("silently not at all: {what} was said to be done {} and {ran}", times(count.done));
            findings.push(Finding::new(Grade::Harmful, text));
        }
    }
    findings.extend(halves(run, &counts));
    findings
}

/// Transactions of which some commands ran, and others less often.
fn halves(run: &Run, counts: &BTreeMap<&[String], Count>) -> Vec<Finding> {
    let transactions = run.steps.iter().filter(|played| matches!(played.act, Act::Transaction(_)));
    let attempts = transactions.flat_map(|played| &played.attempts);
    let halved = attempts.filter(|attempt| {
        let mut ran =
            attempt.commands.iter().filter_map(|command| counts.get(&command[..])).map(|count| count.ran);
        let first = ran.next();
        ran.any(|other| Some(other) != first)
    });
    let text = |attempt: &Attempt| {
        let commands: Vec<String> = attempt.commands.iter().map(|command| shown(command)).collect();
        format!("half a transaction: of {} not all ran equally often", commands.join("; "))
    };
    halved.take(1).map(|attempt| Finding::new(Grade::Harmful, text(attempt))).collect()
}

/// Whether the caller was told that the command at this place is done.
fn is_done(attempt: &Attempt, place: usize) -> bool {
    match &attempt.outcome {
        Ok(Outcome::Ok(Value::Array(items))) if attempt.commands.len() > 1 => {
            items.get(place).is_some_and(|item| !is_error(item))
        }
        // A transaction or pipeline of one command, or no list: done unless an error stands in it.
        Ok(Outcome::Ok(value)) => {
            let alone = value.as_array().filter(|items| items.len() == 1).map_or(value, |items| &items[0]);
            !alone.is_null() && !is_error(alone)
        }
        Ok(Outcome::Error(_) | Outcome::Unsupported(_)) | Err(_) => false,
    }
}
