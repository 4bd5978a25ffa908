//! Tests the checkers with faulty histories, each next to a correct one.

use std::time::Duration;

use super::*;
use crate::{FaultKind, InjectedFault, MasterPeriod};

const TIMEOUTS: LossTimeouts = LossTimeouts {
    deposed_after: Duration::from_millis(2000),
    max_lag: Duration::from_millis(500),
    tolerance: Duration::from_millis(500),
};

fn run_time(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(super) fn acknowledged_op(
    workload: &'static str,
    verb: &'static str,
    invoked: u64,
    completed: u64,
) -> Operation {
    Operation {
        workload,
        client: 0,
        key: format!("{workload}:0"),
        verb,
        written: None,
        read: None,
        invoked: run_time(invoked),
        completed: run_time(completed),
        node: 0,
        outcome: OpOutcome::Acknowledged,
        confirmed: false,
        error: None,
    }
}

pub(super) fn unknown_op(
    workload: &'static str,
    verb: &'static str,
    invoked: u64,
    completed: u64,
) -> Operation {
    Operation { outcome: OpOutcome::Unknown, ..acknowledged_op(workload, verb, invoked, completed) }
}

fn add_operation(workload: &'static str, element: u64, invoked: u64) -> Operation {
    Operation { written: Some(element), ..acknowledged_op(workload, "add", invoked, invoked + 1) }
}

fn injected_fault(fault: FaultKind, node: usize, begin: u64, end: u64) -> InjectedFault {
    let (begin, end) = (run_time(begin), run_time(end));
    InjectedFault { fault, nodes: vec![node], begin, in_effect: begin, end }
}

/// Returns a timeline in which node 0 is master until the fault and node 3 afterwards.
fn failover_timeline(fault: FaultKind, begin: u64, end: u64) -> Timeline {
    Timeline {
        faults: vec![injected_fault(fault, 0, begin, end)],
        master_periods: vec![
            MasterPeriod { node: 0, since: run_time(0), until: run_time(begin) },
            MasterPeriod { node: 3, since: run_time(begin + 1000), until: run_time(60_000) },
        ],
        shards: 3,
        ..Timeline::default()
    }
}

fn run_checkers(
    ops: &[Operation],
    workload: &'static str,
    elements: &[u64],
    timeline: &Timeline,
) -> CheckerFindings {
    let held = FinalData::from([(format!("{workload}:0"), elements.to_vec())]);
    let final_data = BTreeMap::from([(workload, held)]);
    check(&CheckInput { ops, final_data: &final_data, timeline, timeouts: TIMEOUTS })
}

fn has_violations(ops: &[Operation], workload: &'static str, elements: &[u64], timeline: &Timeline) -> bool {
    !run_checkers(ops, workload, elements, timeline).violations.is_empty()
}

#[test]
fn kill_explains_loss_of_last_write() {
    let timeline = failover_timeline(FaultKind::Kill, 10_000, 14_000);
    let findings = run_checkers(
        &[add_operation("set", 1, 1000), add_operation("set", 2, 9_990)],
        "set",
        &[1],
        &timeline,
    );
    assert_eq!(
        (findings.violations.len(), findings.explained_losses["set"], findings.lost_writes),
        (0, 1, 1)
    );
    let findings =
        run_checkers(&[add_operation("set", 1, 1000), add_operation("set", 2, 9_990)], "set", &[], &timeline);
    assert_eq!((findings.violations.len(), findings.lost_writes), (1, 2), "with a reason or without");
}

#[test]
fn checker_finds_range_skipped_by_replica() {
    let timeline = failover_timeline(FaultKind::Kill, 10_000, 14_000);
    assert!(
        has_violations(
            &[add_operation("set", 1, 1000), add_operation("set", 2, 9_990)],
            "set",
            &[2],
            &timeline
        ),
        "long before"
    );
    assert!(
        has_violations(&[add_operation("set", 1, 1000)], "set", &[], &Timeline::default()),
        "nothing happened"
    );
}

#[test]
fn checker_finds_deposed_master_accepting_writes() {
    let timeline = failover_timeline(FaultKind::Isolate, 10_000, 18_000);
    assert!(
        !has_violations(&[add_operation("set", 1, 11_500)], "set", &[], &timeline),
        "it could not know yet"
    );
    assert!(has_violations(&[add_operation("set", 1, 13_000)], "set", &[], &timeline), "it had to");
}

#[test]
fn machine_stall_explains_loss_like_a_partition() {
    let timeline = failover_timeline(FaultKind::Stall, 10_000, 10_300);
    assert!(
        !has_violations(&[add_operation("set", 1, 10_350)], "set", &[], &timeline),
        "nobody could know yet"
    );
    assert!(has_violations(&[add_operation("set", 1, 13_000)], "set", &[], &timeline), "it had to");
}

#[test]
fn checker_finds_resumed_master_accepting_writes() {
    let timeline = failover_timeline(FaultKind::Freeze, 10_000, 15_000);
    assert!(has_violations(&[add_operation("set", 1, 15_010)], "set", &[], &timeline));
}

#[test]
fn planned_failover_explains_no_loss() {
    let timeline = failover_timeline(FaultKind::Failover, 10_000, 10_000);
    assert!(has_violations(&[add_operation("set", 1, 9_999)], "set", &[], &timeline));
}

#[test]
fn confirmed_write_must_not_be_lost() {
    let timeline = failover_timeline(FaultKind::Kill, 10_000, 14_000);
    let op = Operation { confirmed: true, ..add_operation("confirmed", 1, 9_990) };
    assert!(has_violations(&[op], "confirmed", &[], &timeline));
}

#[test]
fn checker_finds_invented_and_duplicate_elements() {
    let (ops, quiet) = ([add_operation("list", 1, 0), add_operation("list", 2, 5)], Timeline::default());
    assert!(!has_violations(&ops, "list", &[1, 2], &quiet));
    assert!(has_violations(&ops, "list", &[1, 2, 3], &quiet), "invented");
    assert!(has_violations(&ops, "list", &[1, 2, 2], &quiet), "twice");
    assert!(has_violations(&ops, "list", &[2, 1], &quiet), "in another order");
}

#[test]
fn checker_finds_element_delivered_twice() {
    let pop =
        |element, when| Operation { read: Some(element), ..acknowledged_op("queue", "pop", when, when + 1) };
    let (quiet, ops) = (Timeline::default(), [add_operation("queue", 1, 0), pop(1, 5), pop(1, 9)]);
    assert!(!has_violations(&ops[..2], "queue", &[], &quiet));
    assert!(has_violations(&ops, "queue", &[], &quiet), "given twice");
    assert!(has_violations(&ops[..2], "queue", &[1], &quiet), "given and kept");
    let perhaps = [add_operation("queue", 1, 0), unknown_op("queue", "pop", 5, 9)];
    assert!(!has_violations(&perhaps, "queue", &[], &quiet), "the pop that nobody heard of took it");
}

#[test]
fn counter_matches_acknowledged_increments() {
    let incr =
        |answer, when| Operation { read: Some(answer), ..acknowledged_op("counter", "incr", when, when + 1) };
    let (quiet, ops) = (Timeline::default(), [incr(1, 0), incr(2, 5)]);
    assert!(!has_violations(&ops, "counter", &[2], &quiet));
    assert!(has_violations(&ops, "counter", &[1], &quiet), "one is lost");
    assert!(has_violations(&ops, "counter", &[3], &quiet), "nobody counted it");
    assert!(has_violations(&[incr(1, 0), incr(1, 5)], "counter", &[1], &quiet), "one answer to two");
    let timeline = failover_timeline(FaultKind::Kill, 10_000, 14_000);
    assert!(
        !has_violations(&[incr(1, 9_990), incr(1, 12_000)], "counter", &[1], &timeline),
        "forgotten by the failover"
    );
}

#[test]
fn checker_finds_partial_transactions_and_scripts() {
    let torn =
        Operation { read: Some(crate::workload::TORN_PAIR), ..acknowledged_op("transaction", "read", 0, 1) };
    assert!(has_violations(&[torn], "transaction", &[0], &Timeline::default()));
    let half = Operation { read: Some(1), ..acknowledged_op("script", "move", 0, 1) };
    assert!(has_violations(&[half], "script", &[0], &Timeline::default()));
    assert!(has_violations(&[], "script", &[3], &Timeline::default()));
}

#[test]
fn checker_finds_two_lock_holders() {
    let acquire = |owner, when| Operation {
        written: Some(owner),
        ..acknowledged_op("lock", "acquire", when, when + 1)
    };
    let release = |owner, when| Operation {
        written: Some(owner),
        ..acknowledged_op("lock", "release", when, when + 1)
    };
    let quiet = Timeline::default();
    let one_after_the_other = [acquire(1, 0), release(1, 10), acquire(2, 12), release(2, 20)];
    assert!(!has_violations(&one_after_the_other, "lock", &[], &quiet));
    let both = [acquire(1, 0), acquire(2, 5), release(1, 10), release(2, 20)];
    assert!(has_violations(&both, "lock", &[], &quiet));
}

#[test]
fn full_disk_and_clock_jump_explain_no_loss() {
    for fault in [FaultKind::FullDisk, FaultKind::ClockJump] {
        let timeline = failover_timeline(fault, 10_000, 12_000);
        let findings = run_checkers(&[add_operation("set", 1, 9_900)], "set", &[], &timeline);
        assert_eq!(findings.violation_count, 1, "{fault:?}: {findings:?}");
    }
}

#[test]
fn bad_link_explains_loss_only_while_active() {
    let timeline = failover_timeline(FaultKind::Loss, 10_000, 15_000);
    let lost = |when: u64| {
        run_checkers(&[add_operation("set", 1, when)], "set", &[], &timeline).violation_count == 0
    };
    assert!(lost(10_500) && lost(14_900), "each packet may be the one that was needed");
    assert!(!lost(8_000) && !lost(19_000));
}

#[test]
fn slow_partition_setup_explains_loss_during_setup() {
    let mut timeline = failover_timeline(FaultKind::OneWay, 10_000, 30_000);
    let lost = |timeline: &Timeline, when| {
        run_checkers(&[add_operation("set", 1, when)], "set", &[], timeline).violation_count == 0
    };
    assert!(!lost(&timeline, 18_000));
    timeline.faults[0].in_effect = run_time(17_000);
    assert!(lost(&timeline, 18_000) && !lost(&timeline, 22_000));
}

#[test]
fn full_disk_on_replica_extends_loss_window() {
    let mut timeline = failover_timeline(FaultKind::Kill, 12_000, 13_000);
    let lost = |timeline: &Timeline| {
        run_checkers(&[add_operation("set", 1, 10_000)], "set", &[], timeline).violation_count == 0
    };
    assert!(!lost(&timeline));
    timeline.faults.insert(0, injected_fault(FaultKind::FullDisk, 3, 9_500, 12_500));
    assert!(lost(&timeline));
}

#[test]
fn clock_jump_explains_early_lock_expiry() {
    let take = |client: usize, when: u64| Operation {
        client,
        written: Some(client as u64),
        ..acknowledged_op("lock", "acquire", when, when + 1)
    };
    let give = Operation { written: Some(1), ..acknowledged_op("lock", "release", 5_000, 5_001) };
    let ops = [take(1, 1_000), take(2, 3_000), give];
    let quiet = Timeline { shards: 3, ..Timeline::default() };
    assert_eq!(run_checkers(&ops, "lock", &[], &quiet).violation_count, 1);
    let jumped = failover_timeline(FaultKind::ClockJump, 2_000, 2_500);
    assert_eq!(run_checkers(&ops, "lock", &[], &jumped).violation_count, 0);
}

#[test]
fn partition_with_one_replica_explains_loss_under_sentinels() {
    let mut timeline = failover_timeline(FaultKind::Halves, 10_000, 18_000);
    let lost = |timeline: &Timeline| {
        run_checkers(&[add_operation("set", 1, 16_000)], "set", &[], timeline).violation_count == 0
    };
    assert!(!lost(&timeline), "in a cluster it has to reach the other masters");
    timeline.shards = 1;
    assert!(lost(&timeline));
}
