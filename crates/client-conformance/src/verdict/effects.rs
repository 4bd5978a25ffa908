//! Compares the commands that took effect with the requested commands and with the acknowledged ones.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Finding, Grade, is_equivalent_command};
use crate::protocol::AdapterOutcome;
use crate::scenario::StepAction;
use crate::scenario_run::{RequestAttempt, ScenarioRun, is_error_item};
use crate::simulation::{format_command, is_write, may_block};

#[derive(Debug, Default)]
struct CommandCounts {
    requested_count: usize,
    acknowledged_count: usize,
    executed_count: usize,
}

/// Reports commands that ran more often than requested or less often than acknowledged, and
/// transactions that ran partially.
pub(super) fn effect_findings(scenario_run: &ScenarioRun) -> Vec<Finding> {
    let mut counts: BTreeMap<&[String], CommandCounts> = BTreeMap::new();
    for attempt in scenario_run.steps.iter().flat_map(|played| &played.attempts) {
        let counted = |command: &[String]| {
            is_write(command) && (scenario_run.records_pops_on_effect || !may_block(command))
        };
        for (place, command) in attempt.commands.iter().enumerate().filter(|(_, command)| counted(command)) {
            let count = counts.entry(command).or_default();
            count.requested_count += 1;
            count.acknowledged_count += usize::from(was_acknowledged(attempt, place));
        }
    }
    for executed in &scenario_run.executed_commands {
        if let Some((_, count)) =
            counts.iter_mut().find(|(args, _)| is_equivalent_command(args, &executed.args))
        {
            count.executed_count += 1;
        }
    }
    let mut findings = Vec::new();
    for (command, count) in &counts {
        let what = format_command(command);
        let times = |number: usize| if number == 1 { "once".to_owned() } else { format!("{number} times") };
        if count.executed_count > count.requested_count {
            let how = if count.executed_count == 2 && count.requested_count == 1 {
                "executes twice"
            } else {
                "executes too often"
            };
            let text = format!(
                "{how}: {what} was requested {} and ran {}",
                times(count.requested_count),
                times(count.executed_count)
            );
            findings.push(Finding::new(Grade::Harmful, text));
        }
        if count.executed_count < count.acknowledged_count {
            let ran = if count.executed_count == 0 {
                "never ran".to_owned()
            } else {
                format!("ran {}", times(count.executed_count))
            };
            let text = format!(
                "reports success without effect: {what} was acknowledged {} and {ran}",
                times(count.acknowledged_count)
            );
            findings.push(Finding::new(Grade::Harmful, text));
        }
    }
    findings.extend(partial_transactions(scenario_run, &counts));
    findings
}

/// Reports transactions of which only some commands ran.
fn partial_transactions(
    scenario_run: &ScenarioRun,
    counts: &BTreeMap<&[String], CommandCounts>,
) -> Vec<Finding> {
    let transactions =
        scenario_run.steps.iter().filter(|played| matches!(played.action, StepAction::Transaction(_)));
    let attempts = transactions.flat_map(|played| &played.attempts);
    let halved = attempts.filter(|attempt| {
        let mut counts_of_commands = attempt
            .commands
            .iter()
            .filter_map(|command| counts.get(&command[..]))
            .map(|count| count.executed_count);
        let first = counts_of_commands.next();
        counts_of_commands.any(|other| Some(other) != first)
    });
    let text = |attempt: &RequestAttempt| {
        let commands: Vec<String> = attempt.commands.iter().map(|command| format_command(command)).collect();
        format!("partial transaction: the commands {} ran a different number of times", commands.join("; "))
    };
    halved.take(1).map(|attempt| Finding::new(Grade::Harmful, text(attempt))).collect()
}

/// Returns whether the library reported success for the command at position `index`.
fn was_acknowledged(attempt: &RequestAttempt, index: usize) -> bool {
    match &attempt.outcome {
        Ok(AdapterOutcome::Ok(Value::Array(items))) if attempt.commands.len() > 1 => {
            items.get(index).is_some_and(|item| !is_error_item(item))
        }
        // A single reply, or a pipeline or transaction with one command, is successful unless it contains an error.
        Ok(AdapterOutcome::Ok(value)) => {
            let alone = value.as_array().filter(|items| items.len() == 1).map_or(value, |items| &items[0]);
            !alone.is_null() && !is_error_item(alone)
        }
        Ok(AdapterOutcome::Error(_) | AdapterOutcome::Unsupported(_)) | Err(_) => false,
    }
}
