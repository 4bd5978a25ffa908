//! Checks numbers: counters match acknowledged increments, both keys of a transaction are equal,
//! and scripts preserve the sum.

use std::collections::BTreeMap;

use super::{CheckInput, CheckerFindings, is_acknowledged, may_have_taken_effect};
use crate::Operation;
use crate::workload::TORN_PAIR;

pub(super) fn check(input: &CheckInput<'_>, findings: &mut CheckerFindings) {
    for workload in ["counter", "transaction"] {
        for (key, value) in input.keys(workload) {
            let ops: Vec<&Operation> =
                input.ops_on_key(workload, key).filter(|op| op.verb == "incr").collect();
            check_counter(input, key, value.first().copied().unwrap_or(0), &ops, findings);
        }
    }
    let pairs = input.ops.iter().filter(|op| op.workload == "transaction" && op.read == Some(TORN_PAIR));
    for op in pairs {
        findings.add_violation(format!("half of a transaction was seen: {op:?}"));
    }
    let sums =
        input.ops.iter().filter(|op| op.workload == "script" && is_acknowledged(op) && op.read != Some(0));
    for op in sums {
        findings.add_violation(format!("a script saw another's half: {op:?}"));
    }
    for (key, sum) in input.keys("script").filter(|(_, sum)| **sum != [0]) {
        findings.add_violation(format!("{key}: the sum of both is {sum:?} in the end"));
    }
}

fn check_counter(
    input: &CheckInput<'_>,
    key: &str,
    value: u64,
    ops: &[&Operation],
    findings: &mut CheckerFindings,
) {
    if value == TORN_PAIR {
        return findings.add_violation(format!("{key} and its twin differ in the end"));
    }
    let most = ops.iter().filter(|op| may_have_taken_effect(op)).count() as u64;
    if value > most {
        findings.add_violation(format!("{key} is {value}, and at most {most} were counted"));
    }
    // Each counter value may be returned once. A repeated value shows that the earlier increment
    // was lost.
    let mut answered: BTreeMap<u64, &Operation> = BTreeMap::new();
    let mut forgotten = 0;
    for op in ops.iter().filter(|op| is_acknowledged(op)) {
        if let Some(before) = op.read.and_then(|number| answered.insert(number, op)) {
            let first = if before.completed <= op.completed { before } else { op };
            findings.add_lost_write(first, input);
            forgotten += 1;
        }
    }
    let acknowledged = ops.iter().filter(|op| is_acknowledged(op)).count();
    let missing = (acknowledged as u64).saturating_sub(value) as usize;
    // If an increment was lost, so were the increments whose replies exceed the final value.
    let mut past: Vec<&&Operation> =
        ops.iter().filter(|op| op.read.is_some_and(|number| number > value)).collect();
    past.sort_by_key(|op| std::cmp::Reverse(op.read));
    for op in past.into_iter().take(missing.saturating_sub(forgotten)) {
        findings.add_lost_write(op, input);
    }
}
