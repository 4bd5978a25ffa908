//! Locks: where nothing was disturbed, one holder at a time. A lock is a key with a time to live, and that is measured by
//! the wall clock: where one jumped, its lock may have ended early.

use super::{Case, Findings, acknowledged};
use crate::Op;

pub(super) fn check(case: &Case<'_>, findings: &mut Findings) {
    let mut held: Vec<&Op> = case
        .ops
        .iter()
        .filter(|op| op.workload == "lock" && op.verb == "acquire" && acknowledged(op))
        .collect();
    held.sort_by_key(|op| (&op.key, op.completed));
    for pair in held.windows(2) {
        let [first, second] = pair else { continue };
        if first.key != second.key || second.completed >= release_of(case, first) {
            continue;
        }
        if case.timeline.is_clock_wrong(first.node, first.invoked, second.completed) {
            continue;
        }
        // The second came in while the first held it: its lock was forgotten.
        findings.lost(first, case);
    }
}

/// When its holder began to give it back.
fn release_of(case: &Case<'_>, acquired: &Op) -> std::time::Duration {
    let release = case.ops.iter().find(|op| op.verb == "release" && op.written == acquired.written);
    release.map_or(acquired.completed, |op| op.invoked)
}
