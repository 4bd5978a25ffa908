//! Checks registers for linearizability: each operation appears to take effect at one moment
//! between call and reply (algorithm of Wing and Gong with Lowe's memoization). Disturbed periods
//! split the history into segments that are checked separately.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use super::{CheckInput, CheckerFindings, is_acknowledged, may_have_taken_effect};
use crate::{OpOutcome, Operation};

/// The number of states after which the search for one key is abandoned.
const MAX_STATES: usize = 2_000_000;

/// What a client may read from a register at some point of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum RegisterState {
    /// Any value, because a write before the segment may have been lost.
    AnyValue,
    Value(Option<u64>),
}

pub(super) fn check(input: &CheckInput<'_>, findings: &mut CheckerFindings) {
    let mut keys: BTreeMap<&str, Vec<&Operation>> = BTreeMap::new();
    for op in input.ops.iter().filter(|op| op.workload == "register") {
        keys.entry(&op.key).or_default().push(op);
    }
    for (key, ops) in keys {
        check_invented_values(key, &ops, findings);
        for (first, segment) in split_at_disturbances(input, &ops) {
            let state = if first { RegisterState::Value(None) } else { RegisterState::AnyValue };
            match is_linearizable(&segment, state) {
                Some(true) => {}
                Some(false) => findings.add_violation(format!(
                    "{key}: no order explains its {} operations from {:?} to {:?}",
                    segment.len(),
                    segment[0].invoked,
                    segment[segment.len() - 1].completed
                )),
                None => eprintln!("{key}: too many orders to look at"),
            }
        }
    }
}

/// Reports values that no client wrote.
fn check_invented_values(key: &str, ops: &[&Operation], findings: &mut CheckerFindings) {
    let written: HashSet<u64> =
        ops.iter().filter(|op| may_have_taken_effect(op)).filter_map(|op| op.written).collect();
    for op in ops.iter().filter(|op| op.read.is_some_and(|value| !written.contains(&value))) {
        findings.add_violation(format!("{key}: nobody wrote what was read: {op:?}"));
    }
}

/// Splits the operations at disturbances. Each segment also includes earlier operations that may still take effect; the
/// flag marks the first segment.
fn split_at_disturbances<'a>(
    input: &CheckInput<'_>,
    ops: &[&'a Operation],
) -> Vec<(bool, Vec<&'a Operation>)> {
    let mut spans: Vec<(Duration, Duration)> = ops
        .iter()
        .map(|op| op.node)
        .collect::<HashSet<_>>()
        .into_iter()
        .flat_map(|node| input.timeline.disturbed_periods(node, input.timeouts))
        .collect();
    spans.sort();
    spans.push((Duration::MAX, Duration::MAX));
    let mut segments = Vec::new();
    let mut from = Duration::ZERO;
    for (begin, end) in spans {
        let within = |op: &&&Operation| op.invoked >= from && op.completed <= begin;
        let open =
            |op: &&&Operation| op.invoked < from && op.outcome == OpOutcome::Unknown && op.written.is_some();
        let mut segment: Vec<&Operation> =
            ops.iter().filter(|op| op.outcome != OpOutcome::Failed && within(op)).copied().collect();
        if !segment.is_empty() {
            if from > Duration::ZERO {
                segment.extend(ops.iter().filter(open).copied());
            }
            segment.sort_by_key(|op| op.invoked);
            segments.push((from == Duration::ZERO, segment));
        }
        from = from.max(end);
    }
    segments
}

/// Returns whether some order explains the operations, or `None` if the state limit is reached.
fn is_linearizable(ops: &[&Operation], initial_state: RegisterState) -> Option<bool> {
    let mut seen: HashSet<(Vec<u64>, RegisterState)> = HashSet::new();
    let mut stack = vec![(vec![0_u64; ops.len().div_ceil(64)], initial_state)];
    while let Some((done, state)) = stack.pop() {
        if seen.len() > MAX_STATES {
            return None;
        }
        let is_done = |at: usize| done[at / 64] >> (at % 64) & 1 == 1;
        let waiting = || ops.iter().enumerate().filter(|(at, _)| !is_done(*at));
        if waiting().all(|(_, op)| !is_acknowledged(op)) {
            return Some(true);
        }
        // An operation can come next only if it began before every pending acknowledged operation
        // completed.
        let bound = waiting().filter(|(_, op)| is_acknowledged(op)).map(|(_, op)| op.completed).min();
        let bound = bound.unwrap_or(Duration::MAX);
        for (at, op) in waiting().take_while(|(_, op)| op.invoked <= bound) {
            let Some(next) = apply_op(op, state) else { continue };
            let mut after = done.clone();
            after[at / 64] |= 1 << (at % 64);
            if seen.insert((after.clone(), next)) {
                stack.push((after, next));
            }
        }
    }
    Some(false)
}

fn apply_op(op: &Operation, state: RegisterState) -> Option<RegisterState> {
    match (op.written, state) {
        (Some(value), _) => Some(RegisterState::Value(Some(value))),
        (None, RegisterState::AnyValue) => Some(RegisterState::Value(op.read)),
        (None, RegisterState::Value(value)) => (value == op.read || !is_acknowledged(op)).then_some(state),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{acknowledged_op, unknown_op};

    fn set_op(value: u64, invoked: u64, completed: u64) -> Operation {
        Operation { written: Some(value), ..acknowledged_op("register", "set", invoked, completed) }
    }

    fn get_op(value: u64, invoked: u64, completed: u64) -> Operation {
        Operation { read: Some(value), ..acknowledged_op("register", "get", invoked, completed) }
    }

    fn is_explained(ops: &[Operation]) -> bool {
        let mut ops: Vec<&Operation> = ops.iter().collect();
        ops.sort_by_key(|op| op.invoked);
        is_linearizable(&ops, RegisterState::Value(None)).expect("few orders")
    }

    #[test]
    fn read_returns_latest_completed_write() {
        assert!(is_explained(&[set_op(1, 0, 10), get_op(1, 20, 30)]));
        assert!(!is_explained(&[set_op(1, 0, 10), set_op(2, 20, 30), get_op(1, 40, 50)]), "a stale read");
    }

    #[test]
    fn read_may_return_overlapping_write() {
        assert!(is_explained(&[set_op(1, 0, 10), set_op(2, 20, 60), get_op(1, 30, 40)]));
        assert!(is_explained(&[set_op(1, 0, 10), set_op(2, 20, 60), get_op(2, 30, 40)]));
        assert!(
            !is_explained(&[set_op(1, 0, 10), set_op(2, 20, 60), get_op(2, 30, 35), get_op(1, 40, 50)]),
            "back in time"
        );
    }

    #[test]
    fn unknown_write_may_take_effect_later_or_never() {
        let lost = Operation { written: Some(2), ..unknown_op("register", "set", 10, 20) };
        assert!(is_explained(&[set_op(1, 0, 5), lost.clone(), get_op(1, 30, 40), get_op(2, 50, 60)]));
        assert!(is_explained(&[set_op(1, 0, 5), lost.clone(), get_op(1, 30, 40)]));
        assert!(!is_explained(&[set_op(1, 0, 5), lost, get_op(2, 30, 40), get_op(1, 50, 60)]));
    }
}
