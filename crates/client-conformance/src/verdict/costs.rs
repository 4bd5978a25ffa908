//! The costs of a scenario: redirects, questions for the map, connections, storms, time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Finding, Grade};
use crate::log::Happened;
use crate::play::Run;
use crate::protocol::Outcome;
use crate::scenario::{Act, Allow, Errors};

/// A storm is counted in windows of this length.
const WINDOW_MS: u64 = 1000;

/// Figures of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measures {
    /// The most MOVED and ASK for one command.
    pub redirects: usize,
    /// MOVED and ASK in all.
    pub redirects_in_all: usize,
    /// Questions for the map after the client was made.
    pub refreshes: usize,
    /// Connections in all.
    pub connections: usize,
    /// The most connections within a second to one node that takes none.
    pub knocks: usize,
    /// The most commands within a second that one node refused, or did not answer.
    pub refusals: usize,
    /// Milliseconds from the last event to the first success after it.
    pub recovery_ms: Option<u64>,
    /// Milliseconds in all.
    pub ms: u64,
}

impl Measures {
    /// The figures of a run.
    #[must_use]
    pub fn of(run: &Run) -> Self {
        let redirected: Vec<_> =
            run.refused.iter().filter(|refusal| matches!(&refusal.code[..], "MOVED" | "ASK")).collect();
        let mut by_command: BTreeMap<&[String], usize> = BTreeMap::new();
        // Real servers count redirects and do not tell of what.
        for refusal in redirected.iter().filter(|refusal| !refusal.args.is_empty()) {
            *by_command.entry(&refusal.args).or_default() += 1;
        }
        let tries = |command: &[String]| {
            let attempts = run.steps.iter().flat_map(|played| &played.attempts);
            attempts.filter(|attempt| attempt.commands.iter().any(|asked| asked == command)).count().max(1)
        };
        let redirects = by_command.iter().map(|(command, count)| count.div_ceil(tries(command))).max();
        let is_refresh = |text: &str| {
            let text = text.to_ascii_uppercase();
            ["CLUSTER SLOTS", "CLUSTER SHARDS", "CLUSTER NODES"].iter().any(|word| text.starts_with(word))
        };
        let mut knocks: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        let mut refusals: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        let (mut refreshes, mut connections) = (0, 0);
        for entry in &run.log {
            match &entry.what {
                Happened::Asked(text) if entry.ms > run.connected && is_refresh(text) => refreshes += 1,
                Happened::Opened => connections += 1,
                Happened::Slammed => knocks.entry(&entry.node).or_default().push(entry.ms),
                _ => {}
            }
        }
        run.refused.iter().for_each(|refusal| refusals.entry(refusal.node).or_default().push(refusal.ms));
        Self {
            redirects: redirects.unwrap_or(0),
            redirects_in_all: redirected.len(),
            refreshes,
            connections,
            knocks: knocks.values().map(|times| most_within(times)).max().unwrap_or(0),
            refusals: refusals.values().map(|times| most_within(times)).max().unwrap_or(0),
            recovery_ms: recovery(run),
            ms: run.ms,
        }
    }
}

/// The most of these moments, which come in order, within a window.
fn most_within(times: &[u64]) -> usize {
    let within = |(from, first): (usize, &u64)| {
        times[from..].iter().take_while(|time| **time < first + WINDOW_MS).count()
    };
    times.iter().enumerate().map(within).max().unwrap_or(0)
}

/// From the last event to the first success after it: of steps that are tried more than once, and of each first request
/// behind an event.
fn recovery(run: &Run) -> Option<u64> {
    let mut recovered = None;
    let mut is_behind_event = false;
    for played in &run.steps {
        if matches!(played.act, Act::Stage(_)) {
            is_behind_event = true;
            continue;
        }
        // Behind a pause the time would be that of the pause.
        let is_first = std::mem::take(&mut is_behind_event) && played.wants.errors == Errors::Wrong;
        if !is_first && played.attempts.len() < 2 {
            continue;
        }
        let done = played.attempts.iter().find(|attempt| matches!(attempt.outcome, Ok(Outcome::Ok(_))))?;
        let events = run.log.iter().filter(|entry| matches!(entry.what, Happened::Event(_)));
        let last = events.map(|entry| entry.ms).filter(|ms| *ms <= done.answered).max();
        if let Some(last) = last {
            recovered = recovered.max(Some(done.answered - last));
        }
    }
    recovered
}

/// Returns a finding for each cost above its bound.
pub(super) fn findings(allow: &Allow, measures: &Measures) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut costs = |is: usize, most: usize, text: String| {
        if is > most {
            findings.push(Finding::new(Grade::Costly, format!("{text} (at most {most} should be needed)")));
        }
    };
    let is_blind = measures.refreshes == 0 && measures.redirects_in_all > allow.redirects_in_all;
    costs(measures.redirects, allow.redirects, format!("{} redirects for one command", measures.redirects));
    let kept = if is_blind { "never refreshes its map: " } else { "" };
    costs(
        measures.redirects_in_all,
        allow.redirects_in_all,
        format!("{kept}{} redirects in all", measures.redirects_in_all),
    );
    costs(measures.refreshes, allow.refreshes, format!("{} questions for the map", measures.refreshes));
    costs(measures.connections, allow.connections, format!("{} connections opened", measures.connections));
    costs(
        measures.knocks,
        allow.storm,
        format!("a storm: {} connections within a second to a node that is down", measures.knocks),
    );
    costs(
        measures.refusals,
        allow.storm,
        format!(
            "a storm: {} commands within a second that a node refuses or never answers",
            measures.refusals
        ),
    );
    if let Some(ms) = measures.recovery_ms.filter(|ms| *ms > allow.recovery_ms) {
        let text = format!(
            "slow: the first success came {ms} ms after the servers were whole again ({} ms should be enough)",
            allow.recovery_ms
        );
        findings.push(Finding::new(Grade::Costly, text));
    }
    findings
}
