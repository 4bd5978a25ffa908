//! Histories with a planted fault, each of which must be found, beside those that are as they should be.

use std::time::Duration;

use super::*;
use crate::{Fault, Injected, Reign};

const TIMEOUTS: Timeouts = Timeouts {
    deposed: Duration::from_millis(2000),
    lag: Duration::from_millis(500),
    slack: Duration::from_millis(500),
};

fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(super) fn acknowledged_op(workload: &'static str, verb: &'static str, from: u64, to: u64) -> Op {
    Op {
        workload,
        client: 0,
        key: format!("{workload}:0"),
        verb,
        written: None,
        read: None,
        invoked: at(from),
        completed: at(to),
        node: 0,
        outcome: Outcome::Acknowledged,
        confirmed: false,
        error: None,
    }
}

pub(super) fn unknown_op(workload: &'static str, verb: &'static str, from: u64, to: u64) -> Op {
    Op { outcome: Outcome::Unknown, ..acknowledged_op(workload, verb, from, to) }
}

fn add(workload: &'static str, element: u64, when: u64) -> Op {
    Op { written: Some(element), ..acknowledged_op(workload, "add", when, when + 1) }
}

fn injected(fault: Fault, node: usize, begin: u64, end: u64) -> Injected {
    let (begin, end) = (at(begin), at(end));
    Injected { fault, nodes: vec![node], begin, in_effect: begin, end }
}

/// Node 0 is master until a fault, node 3 after it.
fn failed_over(fault: Fault, begin: u64, end: u64) -> Timeline {
    Timeline {
        faults: vec![injected(fault, 0, begin, end)],
        reigns: vec![
            Reign { node: 0, since: at(0), until: at(begin) },
            Reign { node: 3, since: at(begin + 1000), until: at(60_000) },
        ],
        shards: 3,
        ..Timeline::default()
    }
}

fn found(ops: &[Op], workload: &'static str, elements: &[u64], timeline: &Timeline) -> Findings {
    let held = Final::from([(format!("{workload}:0"), elements.to_vec())]);
    let finals = BTreeMap::from([(workload, held)]);
    check(&Case { ops, finals: &finals, timeline, timeouts: TIMEOUTS })
}

fn violated(ops: &[Op], workload: &'static str, elements: &[u64], timeline: &Timeline) -> bool {
    !found(ops, workload, elements, timeline).violations.is_empty()
}

#[test]
fn a_write_just_before_its_master_was_killed_may_be_lost() {
    let timeline = failed_over(Fault::Kill, 10_000, 14_000);
    let findings = found(&[add("set", 1, 1000), add("set", 2, 9_990)], "set", &[1], &timeline);
    assert_eq!((findings.violations.len(), findings.explained["set"], findings.lost), (0, 1, 1));
    let findings = found(&[add("set", 1, 1000), add("set", 2, 9_990)], "set", &[], &timeline);
    assert_eq!((findings.violations.len(), findings.lost), (1, 2), "with a reason or without");
}

#[test]
fn a_range_that_a_replica_skipped_is_found() {
    let timeline = failed_over(Fault::Kill, 10_000, 14_000);
    assert!(violated(&[add("set", 1, 1000), add("set", 2, 9_990)], "set", &[2], &timeline), "long before");
    assert!(violated(&[add("set", 1, 1000)], "set", &[], &Timeline::default()), "nothing happened");
}

#[test]
fn a_deposed_master_that_goes_on_accepting_is_found() {
    let timeline = failed_over(Fault::Isolate, 10_000, 18_000);
    assert!(!violated(&[add("set", 1, 11_500)], "set", &[], &timeline), "it could not know yet");
    assert!(violated(&[add("set", 1, 13_000)], "set", &[], &timeline), "it had to");
}

#[test]
fn a_machine_that_stands_still_explains_what_a_cut_does() {
    let timeline = failed_over(Fault::Stall, 10_000, 10_300);
    assert!(!violated(&[add("set", 1, 10_350)], "set", &[], &timeline), "nobody could know yet");
    assert!(violated(&[add("set", 1, 13_000)], "set", &[], &timeline), "it had to");
}

#[test]
fn a_thawed_master_that_takes_writes_is_found() {
    let timeline = failed_over(Fault::Freeze, 10_000, 15_000);
    assert!(violated(&[add("set", 1, 15_010)], "set", &[], &timeline));
}

#[test]
fn nothing_may_be_lost_in_a_planned_failover() {
    let timeline = failed_over(Fault::Failover, 10_000, 10_000);
    assert!(violated(&[add("set", 1, 9_999)], "set", &[], &timeline));
}

#[test]
fn what_a_replica_confirmed_may_not_be_lost() {
    let timeline = failed_over(Fault::Kill, 10_000, 14_000);
    let op = Op { confirmed: true, ..add("confirmed", 1, 9_990) };
    assert!(violated(&[op], "confirmed", &[], &timeline));
}

#[test]
fn elements_that_nobody_added_or_that_are_there_twice_are_found() {
    let (ops, quiet) = ([add("list", 1, 0), add("list", 2, 5)], Timeline::default());
    assert!(!violated(&ops, "list", &[1, 2], &quiet));
    assert!(violated(&ops, "list", &[1, 2, 3], &quiet), "invented");
    assert!(violated(&ops, "list", &[1, 2, 2], &quiet), "twice");
    assert!(violated(&ops, "list", &[2, 1], &quiet), "in another order");
}

#[test]
fn an_element_is_given_to_one() {
    let pop = |element, when| Op { read: Some(element), ..acknowledged_op("queue", "pop", when, when + 1) };
    let (quiet, ops) = (Timeline::default(), [add("queue", 1, 0), pop(1, 5), pop(1, 9)]);
    assert!(!violated(&ops[..2], "queue", &[], &quiet));
    assert!(violated(&ops, "queue", &[], &quiet), "given twice");
    assert!(violated(&ops[..2], "queue", &[1], &quiet), "given and kept");
    let perhaps = [add("queue", 1, 0), unknown_op("queue", "pop", 5, 9)];
    assert!(!violated(&perhaps, "queue", &[], &quiet), "the pop that nobody heard of took it");
}

#[test]
fn a_counter_counts_what_was_acknowledged() {
    let incr = |answer, when| Op { read: Some(answer), ..acknowledged_op("counter", "incr", when, when + 1) };
    let (quiet, ops) = (Timeline::default(), [incr(1, 0), incr(2, 5)]);
    assert!(!violated(&ops, "counter", &[2], &quiet));
    assert!(violated(&ops, "counter", &[1], &quiet), "one is lost");
    assert!(violated(&ops, "counter", &[3], &quiet), "nobody counted it");
    assert!(violated(&[incr(1, 0), incr(1, 5)], "counter", &[1], &quiet), "one answer to two");
    let timeline = failed_over(Fault::Kill, 10_000, 14_000);
    assert!(
        !violated(&[incr(1, 9_990), incr(1, 12_000)], "counter", &[1], &timeline),
        "forgotten by the failover"
    );
}

#[test]
fn halves_of_transactions_and_scripts_are_found() {
    let torn = Op { read: Some(crate::workload::TORN), ..acknowledged_op("transaction", "read", 0, 1) };
    assert!(violated(&[torn], "transaction", &[0], &Timeline::default()));
    let half = Op { read: Some(1), ..acknowledged_op("script", "move", 0, 1) };
    assert!(violated(&[half], "script", &[0], &Timeline::default()));
    assert!(violated(&[], "script", &[3], &Timeline::default()));
}

#[test]
fn two_holders_of_a_lock_are_found() {
    let acquire =
        |owner, when| Op { written: Some(owner), ..acknowledged_op("lock", "acquire", when, when + 1) };
    let release =
        |owner, when| Op { written: Some(owner), ..acknowledged_op("lock", "release", when, when + 1) };
    let quiet = Timeline::default();
    let one_after_the_other = [acquire(1, 0), release(1, 10), acquire(2, 12), release(2, 20)];
    assert!(!violated(&one_after_the_other, "lock", &[], &quiet));
    let both = [acquire(1, 0), acquire(2, 5), release(1, 10), release(2, 20)];
    assert!(violated(&both, "lock", &[], &quiet));
}

#[test]
fn a_full_disk_and_a_clock_that_jumps_explain_no_loss() {
    for fault in [Fault::FullDisk, Fault::ClockJump] {
        let timeline = failed_over(fault, 10_000, 12_000);
        let findings = found(&[add("set", 1, 9_900)], "set", &[], &timeline);
        assert_eq!(findings.violated, 1, "{fault:?}: {findings:?}");
    }
}

#[test]
fn a_bad_line_explains_a_loss_as_long_as_it_is_bad_and_no_longer() {
    let timeline = failed_over(Fault::Loss, 10_000, 15_000);
    let lost = |when: u64| found(&[add("set", 1, when)], "set", &[], &timeline).violated == 0;
    assert!(lost(10_500) && lost(14_900), "each packet may be the one that was needed");
    assert!(!lost(8_000) && !lost(19_000));
}

#[test]
fn a_cut_that_was_long_in_the_making_explains_what_was_lost_meanwhile() {
    let mut timeline = failed_over(Fault::OneWay, 10_000, 30_000);
    let lost = |timeline: &Timeline, when| found(&[add("set", 1, when)], "set", &[], timeline).violated == 0;
    assert!(!lost(&timeline, 18_000));
    timeline.faults[0].in_effect = at(17_000);
    assert!(lost(&timeline, 18_000) && !lost(&timeline, 22_000));
}

#[test]
fn a_replica_whose_disk_is_full_is_behind_when_its_master_dies() {
    let mut timeline = failed_over(Fault::Kill, 12_000, 13_000);
    let lost = |timeline: &Timeline| found(&[add("set", 1, 10_000)], "set", &[], timeline).violated == 0;
    assert!(!lost(&timeline));
    timeline.faults.insert(0, injected(Fault::FullDisk, 3, 9_500, 12_500));
    assert!(lost(&timeline));
}

#[test]
fn a_lock_ends_early_only_where_a_clock_jumped() {
    let take = |client: usize, when: u64| Op {
        client,
        written: Some(client as u64),
        ..acknowledged_op("lock", "acquire", when, when + 1)
    };
    let give = Op { written: Some(1), ..acknowledged_op("lock", "release", 5_000, 5_001) };
    let ops = [take(1, 1_000), take(2, 3_000), give];
    let quiet = Timeline { shards: 3, ..Timeline::default() };
    assert_eq!(found(&ops, "lock", &[], &quiet).violated, 1);
    let jumped = failed_over(Fault::ClockJump, 2_000, 2_500);
    assert_eq!(found(&ops, "lock", &[], &jumped).violated, 0);
}

#[test]
fn under_sentinels_a_master_with_a_replica_on_its_side_cannot_know_that_it_is_deposed() {
    let mut timeline = failed_over(Fault::Halves, 10_000, 18_000);
    let lost = |timeline: &Timeline| found(&[add("set", 1, 16_000)], "set", &[], timeline).violated == 0;
    assert!(!lost(&timeline), "in a cluster it has to reach the other masters");
    timeline.shards = 1;
    assert!(lost(&timeline));
}
