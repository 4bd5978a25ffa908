//! Watches the machine that everything runs on. A core that lets a process wait stops servers, sentinels and replicas as a
//! freeze does, some of them and at any moment: on a shared machine that is a fault which the test did not inject.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::{Fault, History, Injected};

const TICK: Duration = Duration::from_millis(10);
/// A process that waits for so long may be missed by sentinels, which look several times in half a second.
const LONG: Duration = Duration::from_millis(100);
/// Waits that are no farther apart are one.
const APART: Duration = Duration::from_millis(500);

type Span = (Duration, Duration);

/// Looks until it is told to stop; gives the times in which a core let a process wait, as faults of all nodes.
pub(crate) fn watch(nodes: usize, history: &History, stop: &AtomicBool) -> Vec<Injected> {
    let waits = thread::scope(|scope| {
        let cores: Vec<_> =
            cores().into_iter().map(|core| scope.spawn(move || watch_core(core, history, stop))).collect();
        cores.into_iter().flat_map(|core| core.join().expect("a thread that only sleeps")).collect()
    });
    let nodes: Vec<usize> = (0..nodes).collect();
    // It comes and goes until its end: who waited last is not known.
    let injected =
        |(begin, end)| Injected { fault: Fault::Stall, nodes: nodes.clone(), begin, in_effect: end, end };
    joined(waits).into_iter().map(injected).collect()
}

/// The cores that this process may run on.
fn cores() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return vec![0] };
    (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()
}

fn watch_core(core: usize, history: &History, stop: &AtomicBool) -> Vec<Span> {
    let mut only = CpuSet::new();
    only.set(core);
    // Elsewhere it sees less; that is no reason not to look.
    let _ = sched_setaffinity(None, &only);
    let mut waits = Vec::new();
    let mut last = history.now();
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(TICK);
        let now = history.now();
        if now - last > LONG {
            waits.push((last, now));
        }
        last = now;
    }
    waits
}

/// In order, with those that are near each other as one.
fn joined(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort();
    let mut joined: Vec<Span> = Vec::new();
    for (begin, end) in spans {
        match joined.last_mut() {
            Some(last) if begin <= last.1 + APART => last.1 = last.1.max(end),
            _ => joined.push((begin, end)),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_of_all_cores_are_joined_where_they_are_near() {
        let span = |begin, end| (Duration::from_millis(begin), Duration::from_millis(end));
        let waits = vec![span(5000, 5200), span(100, 300), span(250, 700), span(1100, 1250)];
        assert_eq!(joined(waits), [span(100, 1250), span(5000, 5200)]);
    }
}
