//! Numbers: counters count what was acknowledged, both keys of a transaction are equal, the sum of a script is kept.

use std::collections::BTreeMap;

use super::{Case, Findings, acknowledged, possible};
use crate::Op;
use crate::workload::TORN;

pub(super) fn check(case: &Case<'_>, findings: &mut Findings) {
    for workload in ["counter", "transaction"] {
        for (key, value) in case.keys(workload) {
            let ops: Vec<&Op> = case.of_key(workload, key).filter(|op| op.verb == "incr").collect();
            counted(case, key, value.first().copied().unwrap_or(0), &ops, findings);
        }
    }
    let pairs = case.ops.iter().filter(|op| op.workload == "transaction" && op.read == Some(TORN));
    for op in pairs {
        findings.violation(format!("half of a transaction was seen: {op:?}"));
    }
    let sums = case.ops.iter().filter(|op| op.workload == "script" && acknowledged(op) && op.read != Some(0));
    for op in sums {
        findings.violation(format!("a script saw another's half: {op:?}"));
    }
    for (key, sum) in case.keys("script").filter(|(_, sum)| **sum != [0]) {
        findings.violation(format!("{key}: the sum of both is {sum:?} in the end"));
    }
}

fn counted(case: &Case<'_>, key: &str, value: u64, ops: &[&Op], findings: &mut Findings) {
    if value == TORN {
        return findings.violation(format!("{key} and its twin differ in the end"));
    }
    let most = ops.iter().filter(|op| possible(op)).count() as u64;
    if value > most {
        findings.violation(format!("{key} is {value}, and at most {most} were counted"));
    }
    // Each number is answered once. The later answer shows that the earlier increment was forgotten.
    let mut answered: BTreeMap<u64, &Op> = BTreeMap::new();
    let mut forgotten = 0;
    for op in ops.iter().filter(|op| acknowledged(op)) {
        if let Some(before) = op.read.and_then(|number| answered.insert(number, op)) {
            let first = if before.completed <= op.completed { before } else { op };
            findings.lost(first, case);
            forgotten += 1;
        }
    }
    let acknowledged = ops.iter().filter(|op| acknowledged(op)).count();
    let missing = (acknowledged as u64).saturating_sub(value) as usize;
    // The rest of the missing operations went with the last of them: those whose numbers are past the end.
    let mut past: Vec<&&Op> = ops.iter().filter(|op| op.read.is_some_and(|number| number > value)).collect();
    past.sort_by_key(|op| std::cmp::Reverse(op.read));
    for op in past.into_iter().take(missing.saturating_sub(forgotten)) {
        findings.lost(op, case);
    }
}
