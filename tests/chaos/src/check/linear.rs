//! Registers: as if each operation had happened at one moment between its call and its reply (linearizability, by the
//! algorithm of Wing and Gong with the memory of Lowe). Times in which a shard was disturbed are left out: before and
//! after them, not across.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use super::{Case, Findings, acknowledged, possible};
use crate::{Op, Outcome};

/// How many states are looked at before a key is given up.
const MOST: usize = 2_000_000;

/// The state of a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum State {
    /// Unknown: something may have been lost before.
    Any,
    Value(Option<u64>),
}

pub(super) fn check(case: &Case<'_>, findings: &mut Findings) {
    let mut keys: BTreeMap<&str, Vec<&Op>> = BTreeMap::new();
    for op in case.ops.iter().filter(|op| op.workload == "register") {
        keys.entry(&op.key).or_default().push(op);
    }
    for (key, ops) in keys {
        invented(key, &ops, findings);
        for (first, segment) in segments(case, &ops) {
            let state = if first { State::Value(None) } else { State::Any };
            match linearizable(&segment, state) {
                Some(true) => {}
                Some(false) => findings.violation(format!(
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

/// Values that no client wrote.
fn invented(key: &str, ops: &[&Op], findings: &mut Findings) {
    let written: HashSet<u64> = ops.iter().filter(|op| possible(op)).filter_map(|op| op.written).collect();
    for op in ops.iter().filter(|op| op.read.is_some_and(|value| !written.contains(&value))) {
        findings.violation(format!("{key}: nobody wrote what was read: {op:?}"));
    }
}

/// The operations between disturbances, with those of before that may still happen; and whether it is the first.
fn segments<'a>(case: &Case<'_>, ops: &[&'a Op]) -> Vec<(bool, Vec<&'a Op>)> {
    let mut spans: Vec<(Duration, Duration)> = ops
        .iter()
        .map(|op| op.node)
        .collect::<HashSet<_>>()
        .into_iter()
        .flat_map(|node| case.timeline.disturbed(node, case.timeouts))
        .collect();
    spans.sort();
    spans.push((Duration::MAX, Duration::MAX));
    let mut segments = Vec::new();
    let mut from = Duration::ZERO;
    for (begin, end) in spans {
        let within = |op: &&&Op| op.invoked >= from && op.completed <= begin;
        let open = |op: &&&Op| op.invoked < from && op.outcome == Outcome::Unknown && op.written.is_some();
        let mut segment: Vec<&Op> =
            ops.iter().filter(|op| op.outcome != Outcome::Failed && within(op)).copied().collect();
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

/// Whether some order explains them; nothing if there are too many to look at.
fn linearizable(ops: &[&Op], initial: State) -> Option<bool> {
    let mut seen: HashSet<(Vec<u64>, State)> = HashSet::new();
    let mut stack = vec![(vec![0_u64; ops.len().div_ceil(64)], initial)];
    while let Some((done, state)) = stack.pop() {
        if seen.len() > MOST {
            return None;
        }
        let is_done = |at: usize| done[at / 64] >> (at % 64) & 1 == 1;
        let waiting = || ops.iter().enumerate().filter(|(at, _)| !is_done(*at));
        if waiting().all(|(_, op)| !acknowledged(op)) {
            return Some(true);
        }
        // Nothing can come after an operation that has completed but those that had begun before.
        let bound = waiting().filter(|(_, op)| acknowledged(op)).map(|(_, op)| op.completed).min();
        let bound = bound.unwrap_or(Duration::MAX);
        for (at, op) in waiting().take_while(|(_, op)| op.invoked <= bound) {
            let Some(next) = apply(op, state) else { continue };
            let mut after = done.clone();
            after[at / 64] |= 1 << (at % 64);
            if seen.insert((after.clone(), next)) {
                stack.push((after, next));
            }
        }
    }
    Some(false)
}

fn apply(op: &Op, state: State) -> Option<State> {
    match (op.written, state) {
        (Some(value), _) => Some(State::Value(Some(value))),
        (None, State::Any) => Some(State::Value(op.read)),
        (None, State::Value(value)) => (value == op.read || !acknowledged(op)).then_some(state),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{acknowledged_op, unknown_op};

    fn set(value: u64, from: u64, to: u64) -> Op {
        Op { written: Some(value), ..acknowledged_op("register", "set", from, to) }
    }

    fn get(value: u64, from: u64, to: u64) -> Op {
        Op { read: Some(value), ..acknowledged_op("register", "get", from, to) }
    }

    fn explained(ops: &[Op]) -> bool {
        let mut ops: Vec<&Op> = ops.iter().collect();
        ops.sort_by_key(|op| op.invoked);
        linearizable(&ops, State::Value(None)).expect("few orders")
    }

    #[test]
    fn a_read_sees_what_was_written_before_it() {
        assert!(explained(&[set(1, 0, 10), get(1, 20, 30)]));
        assert!(!explained(&[set(1, 0, 10), set(2, 20, 30), get(1, 40, 50)]), "a stale read");
    }

    #[test]
    fn what_overlaps_may_be_seen_or_not() {
        assert!(explained(&[set(1, 0, 10), set(2, 20, 60), get(1, 30, 40)]));
        assert!(explained(&[set(1, 0, 10), set(2, 20, 60), get(2, 30, 40)]));
        assert!(!explained(&[set(1, 0, 10), set(2, 20, 60), get(2, 30, 35), get(1, 40, 50)]), "back in time");
    }

    #[test]
    fn a_write_without_a_reply_may_happen_later_or_never() {
        let lost = Op { written: Some(2), ..unknown_op("register", "set", 10, 20) };
        assert!(explained(&[set(1, 0, 5), lost.clone(), get(1, 30, 40), get(2, 50, 60)]));
        assert!(explained(&[set(1, 0, 5), lost.clone(), get(1, 30, 40)]));
        assert!(!explained(&[set(1, 0, 5), lost, get(2, 30, 40), get(1, 50, 60)]));
    }
}
