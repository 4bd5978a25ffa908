//! The checkers: the replies that clients got, against the data that is there in the end.

mod elements;
mod linear;
mod locks;
mod sums;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::workload::Final;
use crate::{Op, Outcome, Timeline, Timeouts};

/// How many findings of a kind are told in full.
const TOLD: usize = 20;

/// The findings of the checkers.
#[derive(Debug, Default, Serialize)]
pub struct Findings {
    /// The states that must never be.
    pub violations: Vec<String>,
    /// How many violations there are, told or not.
    pub violated: usize,
    /// How many acknowledged writes are lost as asynchronous replication may lose them, by workload.
    pub explained: BTreeMap<&'static str, usize>,
    /// How many acknowledged writes are lost, explained or not.
    pub lost: usize,
}

impl Findings {
    fn violation(&mut self, text: String) {
        self.violated += 1;
        if self.violations.len() < TOLD {
            self.violations.push(text);
        }
    }

    /// An acknowledged write is not there.
    fn lost(&mut self, op: &Op, case: &Case<'_>) {
        self.lost += 1;
        if op.confirmed {
            self.violation(format!("confirmed by a replica, and lost: {op:?}"));
        } else if case.explains(op) {
            *self.explained.entry(op.workload).or_default() += 1;
        } else {
            self.violation(format!("lost without a reason: {op:?}"));
        }
    }
}

/// The input of a checker.
#[derive(Debug)]
pub struct Case<'a> {
    /// The operations of the clients, in the order in which they completed.
    pub ops: &'a [Op],
    /// The data that is there in the end, by workload.
    pub finals: &'a BTreeMap<&'static str, Final>,
    /// The faults that the servers were given, and the masters in time.
    pub timeline: &'a Timeline,
    /// The bounds by which a loss is explained.
    pub timeouts: Timeouts,
}

impl<'a> Case<'a> {
    fn explains(&self, op: &Op) -> bool {
        self.timeline.explains(op, self.timeouts)
    }

    /// The operations of a workload on a key.
    fn of_key(&self, workload: &str, key: &str) -> impl Iterator<Item = &'a Op> {
        let (workload, key) = (workload.to_owned(), key.to_owned());
        self.ops.iter().filter(move |op| op.workload == workload && op.key == key)
    }

    /// The keys of a workload, with what they hold.
    fn keys(&self, workload: &str) -> impl Iterator<Item = (&'a String, &'a Vec<u64>)> {
        self.finals.get(workload).into_iter().flatten()
    }
}

fn acknowledged(op: &Op) -> bool {
    op.outcome == Outcome::Acknowledged
}

/// Whether it may have been done.
fn possible(op: &Op) -> bool {
    op.outcome != Outcome::Failed
}

/// Everything that the checkers find.
#[must_use]
pub fn check(case: &Case<'_>) -> Findings {
    let mut findings = Findings::default();
    for text in &case.timeline.violations {
        findings.violation(text.clone());
    }
    linear::check(case, &mut findings);
    for workload in ["set", "list", "stream", "queue", "confirmed"] {
        elements::check(case, workload, &mut findings);
    }
    sums::check(case, &mut findings);
    locks::check(case, &mut findings);
    findings
}

#[cfg(test)]
mod tests;
