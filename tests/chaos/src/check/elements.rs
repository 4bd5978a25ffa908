//! Checks collections: each added element exists once or was removed once.

use std::collections::{BTreeMap, BTreeSet};

use super::{CheckInput, CheckerFindings, is_acknowledged, may_have_taken_effect};
use crate::{OpOutcome, Operation};

pub(super) fn check(input: &CheckInput<'_>, workload: &'static str, findings: &mut CheckerFindings) {
    for (key, elements) in input.keys(workload) {
        let ops: Vec<&Operation> = input.ops_on_key(workload, key).collect();
        let added: BTreeMap<u64, &Operation> =
            ops.iter().filter(|op| op.verb == "add").filter_map(|op| Some((op.written?, *op))).collect();
        let taken = collect_deliveries(input, &ops, findings);
        let mut there = BTreeSet::new();
        for element in elements {
            if !added.get(element).is_some_and(|op| may_have_taken_effect(op)) {
                findings.add_violation(format!("{key} holds {element}, which nobody added"));
            }
            if !there.insert(*element) {
                findings.add_violation(format!("{key} holds {element} twice"));
            }
            if let Some(pop) = taken.get(element)
                && !input.explains_loss_of(pop)
            {
                findings.add_violation(format!("{key} holds {element}, which was taken: {pop:?}"));
            }
        }
        // A pop whose reply was lost may have removed any one element.
        let mut perhaps =
            ops.iter().filter(|op| op.verb == "pop" && op.outcome == OpOutcome::Unknown).count();
        for (element, op) in &added {
            if !is_acknowledged(op) || there.contains(element) || taken.contains_key(element) {
                continue;
            }
            if perhaps > 0 {
                perhaps -= 1;
            } else {
                findings.add_lost_write(op, input);
            }
        }
        if workload == "list" {
            check_order(key, elements, findings);
        }
    }
}

/// Returns the elements that were popped or delivered as new, with the operation that received
/// each.
fn collect_deliveries<'a>(
    input: &CheckInput<'_>,
    ops: &[&'a Operation],
    findings: &mut CheckerFindings,
) -> BTreeMap<u64, &'a Operation> {
    let mut taken: BTreeMap<u64, &Operation> = BTreeMap::new();
    let mut delivered: BTreeMap<u64, &Operation> = BTreeMap::new();
    for op in ops.iter().filter(|op| is_acknowledged(op)) {
        let given = match op.verb {
            "pop" => &mut taken,
            "deliver" => &mut delivered,
            _ => continue,
        };
        let Some(element) = op.read else { continue };
        if let Some(before) = given.insert(element, op)
            && !input.explains_loss_of(before)
        {
            findings.add_violation(format!("given twice: {before:?}, {op:?}"));
        }
    }
    taken
}

/// Checks that elements of one client keep their insertion order.
fn check_order(key: &str, elements: &[u64], findings: &mut CheckerFindings) {
    let mut last: BTreeMap<u64, u64> = BTreeMap::new();
    for element in elements {
        let client = element >> 32;
        if last.insert(client, *element).is_some_and(|before| before > *element) {
            findings.add_violation(format!("{key} holds {element} in another order than it was added"));
        }
    }
}
