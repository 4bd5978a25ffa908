//! Detects stalls of the test machine. If the kernel does not run a process for a while, servers, replicas and
//! sentinels freeze although the test injected no fault. On shared machines this can happen at any time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::{FaultKind, InjectedFault, OpHistory};

const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// The shortest stall to record. Shorter stalls do not affect sentinels, which probe several times per half second.
const MIN_STALL_DURATION: Duration = Duration::from_millis(100);
/// Stalls closer together than this are merged into one.
const MAX_MERGED_GAP: Duration = Duration::from_millis(500);

type TimeSpan = (Duration, Duration);

/// Watches all cores until `stop` is set and returns their stalls as faults of all nodes.
pub(crate) fn detect_core_stalls(
    nodes: usize,
    history: &OpHistory,
    should_stop: &AtomicBool,
) -> Vec<InjectedFault> {
    let waits = thread::scope(|scope| {
        let cores: Vec<_> = allowed_cores()
            .into_iter()
            .map(|core| scope.spawn(move || detect_stalls_of_core(core, history, should_stop)))
            .collect();
        cores.into_iter().flat_map(|core| core.join().expect("a thread that only sleeps")).collect()
    });
    let nodes: Vec<usize> = (0..nodes).collect();
    // It is unknown which process the stall affected, so the fault covers all nodes for its whole duration.
    let injected = |(begin, end)| InjectedFault {
        fault: FaultKind::Stall,
        nodes: nodes.clone(),
        begin,
        in_effect: end,
        end,
    };
    merge_spans(waits).into_iter().map(injected).collect()
}

/// Returns the cores that this process may run on.
fn allowed_cores() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return vec![0] };
    (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()
}

fn detect_stalls_of_core(core: usize, history: &OpHistory, should_stop: &AtomicBool) -> Vec<TimeSpan> {
    let mut only = CpuSet::new();
    only.set(core);
    // If the watcher thread cannot be bound to one core, it detects fewer stalls, which is still useful.
    let _ = sched_setaffinity(None, &only);
    let mut waits = Vec::new();
    let mut last = history.now();
    while !should_stop.load(Ordering::Relaxed) {
        thread::sleep(POLL_INTERVAL);
        let now = history.now();
        if now - last > MIN_STALL_DURATION {
            waits.push((last, now));
        }
        last = now;
    }
    waits
}

/// Sorts spans and merges neighbors.
fn merge_spans(mut spans: Vec<TimeSpan>) -> Vec<TimeSpan> {
    spans.sort();
    let mut joined: Vec<TimeSpan> = Vec::new();
    for (begin, end) in spans {
        match joined.last_mut() {
            Some(last) if begin <= last.1 + MAX_MERGED_GAP => last.1 = last.1.max(end),
            _ => joined.push((begin, end)),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearby_stalls_of_all_cores_are_merged() {
        let span = |begin, end| (Duration::from_millis(begin), Duration::from_millis(end));
        let waits = vec![span(5000, 5200), span(100, 300), span(250, 700), span(1100, 1250)];
        assert_eq!(merge_spans(waits), [span(100, 1250), span(5000, 5200)]);
    }
}
