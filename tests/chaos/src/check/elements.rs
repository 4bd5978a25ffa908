//! Collections: each element that was added is there once, or was taken once.

use std::collections::{BTreeMap, BTreeSet};

use super::{Case, Findings, acknowledged, possible};
use crate::{Op, Outcome};

pub(super) fn check(case: &Case<'_>, workload: &'static str, findings: &mut Findings) {
    for (key, elements) in case.keys(workload) {
        let ops: Vec<&Op> = case.of_key(workload, key).collect();
        let added: BTreeMap<u64, &Op> =
            ops.iter().filter(|op| op.verb == "add").filter_map(|op| Some((op.written?, *op))).collect();
        let taken = taken(case, &ops, findings);
        let mut there = BTreeSet::new();
        for element in elements {
            if !added.get(element).is_some_and(|op| possible(op)) {
                findings.violation(format!("{key} holds {element}, which nobody added"));
            }
            if !there.insert(*element) {
                findings.violation(format!("{key} holds {element} twice"));
            }
            if let Some(pop) = taken.get(element)
                && !case.explains(pop)
            {
                findings.violation(format!("{key} holds {element}, which was taken: {pop:?}"));
            }
        }
        // A pop whose reply was lost may have taken any one of them.
        let mut perhaps = ops.iter().filter(|op| op.verb == "pop" && op.outcome == Outcome::Unknown).count();
        for (element, op) in &added {
            if !acknowledged(op) || there.contains(element) || taken.contains_key(element) {
                continue;
            }
            if perhaps > 0 {
                perhaps -= 1;
            } else {
                findings.lost(op, case);
            }
        }
        if workload == "list" {
            in_order(key, elements, findings);
        }
    }
}

/// Returns the elements that were popped, or delivered as new, with the operation that got each.
fn taken<'a>(case: &Case<'_>, ops: &[&'a Op], findings: &mut Findings) -> BTreeMap<u64, &'a Op> {
    let mut taken: BTreeMap<u64, &Op> = BTreeMap::new();
    let mut delivered: BTreeMap<u64, &Op> = BTreeMap::new();
    for op in ops.iter().filter(|op| acknowledged(op)) {
        let given = match op.verb {
            "pop" => &mut taken,
            "deliver" => &mut delivered,
            _ => continue,
        };
        let Some(element) = op.read else { continue };
        if let Some(before) = given.insert(element, op)
            && !case.explains(before)
        {
            findings.violation(format!("given twice: {before:?}, {op:?}"));
        }
    }
    taken
}

/// An element that a client added later stands behind those that it added before.
fn in_order(key: &str, elements: &[u64], findings: &mut Findings) {
    let mut last: BTreeMap<u64, u64> = BTreeMap::new();
    for element in elements {
        let client = element >> 32;
        if last.insert(client, *element).is_some_and(|before| before > *element) {
            findings.violation(format!("{key} holds {element} in another order than it was added"));
        }
    }
}
