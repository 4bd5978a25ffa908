//! Measures the costs of a scenario: redirections, slot map queries, connections, repeated requests and time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Finding, Grade};
use crate::event_log::LogEvent;
use crate::protocol::AdapterOutcome;
use crate::scenario::{CostLimits, ErrorPolicy, StepAction};
use crate::scenario_run::ScenarioRun;

/// Length of the window for counting requests per second.
const COUNTING_WINDOW_MS: u64 = 1000;

/// The costs of a run, which are compared with the scenario's limits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredCosts {
    /// The maximum number of MOVED and ASK replies for one command.
    pub redirects: usize,
    /// The total number of MOVED and ASK replies.
    pub redirects_in_all: usize,
    /// The number of slot map queries after the client was created.
    pub refreshes: usize,
    /// The number of connections that the client opened in the whole run.
    pub connections: usize,
    /// The maximum number of connections per second to a node that accepts none.
    #[serde(rename = "knocks")]
    pub rejected_connections: usize,
    /// The maximum number of commands per second that one node refused or did not answer.
    #[serde(rename = "refusals")]
    pub refused_commands: usize,
    /// Milliseconds from the last event to the first success after it; `None` if there was no event or no success.
    pub recovery_ms: Option<u64>,
    /// The run's duration in milliseconds.
    pub ms: u64,
}

impl MeasuredCosts {
    /// Measures a run from its recorded events.
    #[must_use]
    pub fn measure(scenario_run: &ScenarioRun) -> Self {
        let redirected: Vec<_> = scenario_run
            .refused_commands
            .iter()
            .filter(|refusal| matches!(&refusal.code[..], "MOVED" | "ASK"))
            .collect();
        let mut by_command: BTreeMap<&[String], usize> = BTreeMap::new();
        // Real servers report only the number of redirections, without the commands.
        for refusal in redirected.iter().filter(|refusal| !refusal.args.is_empty()) {
            *by_command.entry(&refusal.args).or_default() += 1;
        }
        let tries = |command: &[String]| {
            let attempts = scenario_run.steps.iter().flat_map(|played| &played.attempts);
            attempts.filter(|attempt| attempt.commands.iter().any(|asked| asked == command)).count().max(1)
        };
        let redirects = by_command.iter().map(|(command, count)| count.div_ceil(tries(command))).max();
        let is_refresh = |text: &str| {
            let text = text.to_ascii_uppercase();
            ["CLUSTER SLOTS", "CLUSTER SHARDS", "CLUSTER NODES"].iter().any(|word| text.starts_with(word))
        };
        let mut rejected_connections: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        let mut refused_commands: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        let (mut refreshes, mut connections) = (0, 0);
        for entry in &scenario_run.log {
            match &entry.event {
                LogEvent::CommandReceived(text)
                    if entry.ms > scenario_run.connected_at_ms && is_refresh(text) =>
                {
                    refreshes += 1;
                }
                LogEvent::ConnectionOpened => connections += 1,
                LogEvent::ConnectionRejected => {
                    rejected_connections.entry(&entry.node).or_default().push(entry.ms);
                }
                _ => {}
            }
        }
        scenario_run
            .refused_commands
            .iter()
            .for_each(|refusal| refused_commands.entry(refusal.node).or_default().push(refusal.ms));
        Self {
            redirects: redirects.unwrap_or(0),
            redirects_in_all: redirected.len(),
            refreshes,
            connections,
            rejected_connections: rejected_connections
                .values()
                .map(|times| max_in_window(times))
                .max()
                .unwrap_or(0),
            refused_commands: refused_commands.values().map(|times| max_in_window(times)).max().unwrap_or(0),
            recovery_ms: recovery_time(scenario_run),
            ms: scenario_run.duration_ms,
        }
    }
}

/// Returns the maximum number of `times`, which must be ascending, within one window.
fn max_in_window(times: &[u64]) -> usize {
    let within = |(from, first): (usize, &u64)| {
        times[from..].iter().take_while(|time| **time < first + COUNTING_WINDOW_MS).count()
    };
    times.iter().enumerate().map(within).max().unwrap_or(0)
}

/// Returns the longest time from an event to the first success after it. Only steps with several attempts and the first
/// request after each event are measured.
fn recovery_time(scenario_run: &ScenarioRun) -> Option<u64> {
    let mut recovered = None;
    let mut is_behind_event = false;
    for played in &scenario_run.steps {
        if matches!(played.action, StepAction::ChangeNodes(_)) {
            is_behind_event = true;
            continue;
        }
        // For any later request the measured time would include pauses between steps.
        let is_first =
            std::mem::take(&mut is_behind_event) && played.expectation.errors == ErrorPolicy::Forbidden;
        if !is_first && played.attempts.len() < 2 {
            continue;
        }
        let done =
            played.attempts.iter().find(|attempt| matches!(attempt.outcome, Ok(AdapterOutcome::Ok(_))))?;
        let events = scenario_run.log.iter().filter(|entry| matches!(entry.event, LogEvent::NodesChanged(_)));
        let last = events.map(|entry| entry.ms).filter(|ms| *ms <= done.answer_ms).max();
        if let Some(last) = last {
            recovered = recovered.max(Some(done.answer_ms - last));
        }
    }
    recovered
}

/// Reports each cost above its limit.
pub(super) fn cost_findings(limits: &CostLimits, measured_costs: &MeasuredCosts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut costs = |is: usize, most: usize, text: String| {
        if is > most {
            findings.push(Finding::new(Grade::Costly, format!("{text} (expected at most {most})")));
        }
    };
    let is_blind = measured_costs.refreshes == 0 && measured_costs.redirects_in_all > limits.redirects_in_all;
    costs(
        measured_costs.redirects,
        limits.redirects,
        format!("{} redirects for one command", measured_costs.redirects),
    );
    let kept = if is_blind { "never refreshes its map: " } else { "" };
    costs(
        measured_costs.redirects_in_all,
        limits.redirects_in_all,
        format!("{kept}{} redirects in total", measured_costs.redirects_in_all),
    );
    costs(
        measured_costs.refreshes,
        limits.refreshes,
        format!("{} slot map requests", measured_costs.refreshes),
    );
    costs(
        measured_costs.connections,
        limits.connections,
        format!("{} connections opened", measured_costs.connections),
    );
    costs(
        measured_costs.rejected_connections,
        limits.storm,
        format!(
            "retry storm: {} connections within a second to a node that is down",
            measured_costs.rejected_connections
        ),
    );
    costs(
        measured_costs.refused_commands,
        limits.storm,
        format!(
            "retry storm: {} commands within a second that a node refuses or never answers",
            measured_costs.refused_commands
        ),
    );
    if let Some(ms) = measured_costs.recovery_ms.filter(|ms| *ms > limits.recovery_ms) {
        let text = format!(
            "slow: the first success came {ms} ms after the servers had recovered (expected at most {} ms)",
            limits.recovery_ms
        );
        findings.push(Finding::new(Grade::Costly, text));
    }
    findings
}
