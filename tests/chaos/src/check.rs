//! Checks clients' replies against the final data.

mod elements;
mod linear;
mod locks;
mod sums;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::workload::FinalData;
use crate::{LossTimeouts, OpOutcome, Operation, Timeline};

/// The maximum number of violations of one kind that are described in full.
const MAX_DESCRIBED_VIOLATIONS: usize = 20;

/// What the checkers found in one run.
#[derive(Debug, Default, Serialize)]
pub struct CheckerFindings {
    /// Descriptions of states that must never occur, up to a limit.
    pub violations: Vec<String>,
    /// The number of violations, including those that are not described.
    pub violation_count: usize,
    /// Lost acknowledged writes that asynchronous replication explains, by workload.
    pub explained_losses: BTreeMap<&'static str, usize>,
    /// The number of lost acknowledged writes, explained or not.
    pub lost_writes: usize,
}

impl CheckerFindings {
    fn add_violation(&mut self, text: String) {
        self.violation_count += 1;
        if self.violations.len() < MAX_DESCRIBED_VIOLATIONS {
            self.violations.push(text);
        }
    }

    /// Records that an acknowledged write is missing.
    fn add_lost_write(&mut self, op: &Operation, input: &CheckInput<'_>) {
        self.lost_writes += 1;
        if op.confirmed {
            self.add_violation(format!("confirmed by a replica, and lost: {op:?}"));
        } else if input.explains_loss_of(op) {
            *self.explained_losses.entry(op.workload).or_default() += 1;
        } else {
            self.add_violation(format!("lost without a reason: {op:?}"));
        }
    }
}

/// Everything that the checkers compare: operations, final data, faults and limits.
#[derive(Debug)]
pub struct CheckInput<'a> {
    /// All client operations in order of completion.
    pub ops: &'a [Operation],
    /// The data read after the run, by workload.
    pub final_data: &'a BTreeMap<&'static str, FinalData>,
    /// The injected faults and the masters over time.
    pub timeline: &'a Timeline,
    /// Time limits for explaining a loss.
    pub timeouts: LossTimeouts,
}

impl<'a> CheckInput<'a> {
    fn explains_loss_of(&self, op: &Operation) -> bool {
        self.timeline.explains_loss_of(op, self.timeouts)
    }

    /// Returns a workload's operations on `key`.
    fn ops_on_key(&self, workload: &str, key: &str) -> impl Iterator<Item = &'a Operation> {
        let (workload, key) = (workload.to_owned(), key.to_owned());
        self.ops.iter().filter(move |op| op.workload == workload && op.key == key)
    }

    /// Returns a workload's keys with their final data.
    fn keys(&self, workload: &str) -> impl Iterator<Item = (&'a String, &'a Vec<u64>)> {
        self.final_data.get(workload).into_iter().flatten()
    }
}

fn is_acknowledged(op: &Operation) -> bool {
    op.outcome == OpOutcome::Acknowledged
}

fn may_have_taken_effect(op: &Operation) -> bool {
    op.outcome != OpOutcome::Failed
}

/// Runs all checkers and combines their findings.
#[must_use]
pub fn check(input: &CheckInput<'_>) -> CheckerFindings {
    let mut findings = CheckerFindings::default();
    for text in &input.timeline.violations {
        findings.add_violation(text.clone());
    }
    linear::check(input, &mut findings);
    for workload in ["set", "list", "stream", "queue", "confirmed"] {
        elements::check(input, workload, &mut findings);
    }
    sums::check(input, &mut findings);
    locks::check(input, &mut findings);
    findings
}

#[cfg(test)]
mod tests;
