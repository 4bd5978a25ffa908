//! Checks that without disturbance a lock has one holder at a time. A lock expires by the wall clock, so it may end
//! early where a clock jumped.

use super::{CheckInput, CheckerFindings, is_acknowledged};
use crate::Operation;

pub(super) fn check(input: &CheckInput<'_>, findings: &mut CheckerFindings) {
    let mut held: Vec<&Operation> = input
        .ops
        .iter()
        .filter(|op| op.workload == "lock" && op.verb == "acquire" && is_acknowledged(op))
        .collect();
    held.sort_by_key(|op| (&op.key, op.completed));
    for pair in held.windows(2) {
        let [first, second] = pair else { continue };
        if first.key != second.key || second.completed >= release_time(input, first) {
            continue;
        }
        if input.timeline.is_clock_wrong(first.node, first.invoked, second.completed) {
            continue;
        }
        // The second client acquired the lock while the first held it, so the first acquisition was
        // lost.
        findings.add_lost_write(first, input);
    }
}

/// Returns when the holder began to release the lock.
fn release_time(input: &CheckInput<'_>, acquire_op: &Operation) -> std::time::Duration {
    let release = input.ops.iter().find(|op| op.verb == "release" && op.written == acquire_op.written);
    release.map_or(acquire_op.completed, |op| op.invoked)
}
