//! Checks the rules within small bounds, and finds a counterexample for each rule that is left out.

use crate::model::{
    ACKNOWLEDGED_WRITES_ON_DISK, ClockSpeed, Durability, FRESH_READS, NO_ACKNOWLEDGED_WRITE_LOST,
    ONE_MASTER_SERVES_READS, ShardModel, StateBounds,
};
use crate::omission::Omission;
use stateright::{Checker, HasDiscoveries, Model};

/// The most unfavourable clocks: the leases of node 0 last long, and the promises of the other nodes are short.
const CLOCK_SPEEDS: [ClockSpeed; 3] = [ClockSpeed::Slow, ClockSpeed::Fast, ClockSpeed::Fast];

fn parse_bounds(text: &str) -> StateBounds {
    let mut bounds = StateBounds {
        max_writes: 0,
        max_epoch: 0,
        max_versions: 0,
        max_rounds: 0,
        max_crashes: 0,
        max_generations: 0,
    };
    for word in text.split_whitespace() {
        let (name, number) = word.split_once('=').expect("name=number");
        let field = match name {
            "writes" => &mut bounds.max_writes,
            "epochs" => &mut bounds.max_epoch,
            "versions" => &mut bounds.max_versions,
            "rounds" => &mut bounds.max_rounds,
            "crashes" => &mut bounds.max_crashes,
            "generations" => &mut bounds.max_generations,
            _ => panic!("no bound is called {name}"),
        };
        *field = number.parse().expect("a number");
    }
    bounds
}

fn shard_model(durability: Durability, bounds_text: &str) -> ShardModel {
    let bounds = parse_bounds(bounds_text);
    let serves_reads = bounds.max_rounds > 0;
    ShardModel {
        bounds,
        durability,
        serves_reads,
        speeds: CLOCK_SPEEDS,
        omitted: None,
        checks_liveness: false,
    }
}

/// Visits all states within the bounds, and fails if one violates a property.
fn check_all_states(shard: ShardModel) {
    let description = format!("{:?} {:?} {:?}", shard.durability, shard.speeds, shard.bounds);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let checker = shard.checker().threads(threads).spawn_bfs().join();
    println!("{description}: {} states, depth {}", checker.unique_state_count(), checker.max_depth());
    checker.assert_properties();
}

/// Finds a counterexample to one of the properties named in `expected`.
fn find_counterexample(omitted_rule: Omission, durability: Durability, bounds_text: &str, expected: &[&str]) {
    let shard = ShardModel { omitted: Some(omitted_rule), ..shard_model(durability, bounds_text) };
    let checker = shard.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let found = checker.discoveries();
    let steps = found.values().map(|path| path.clone().into_actions().len()).min();
    println!("{omitted_rule:?}: {} states, {steps:?} steps", checker.unique_state_count());
    assert!(found.keys().any(|name| expected.contains(name)), "{omitted_rule:?}: {:?}", found.keys());
}

/// Tests that omit one rule at a time and expect a counterexample; `make soak` explores the full state space with all
/// rules.
mod counterexamples {
    use super::*;

    macro_rules! counterexamples {
        ($($test:ident: $omitted:ident, $durability:ident, $limits:literal, $expected:expr;)*) => {
            $(
                #[test]
                fn $test() {
                    find_counterexample(Omission::$omitted, Durability::$durability, $limits, &$expected);
                }
            )*

            #[test]
            fn every_omission_has_a_test() {
                let tested = [$(Omission::$omitted),*];
                assert!(Omission::ALL.iter().all(|omitted| tested.contains(omitted)));
            }
        };
    }

    counterexamples! {
        reply_before_commit: AcknowledgeBeforeCommit, Memory,
            "writes=1 epochs=2", [NO_ACKNOWLEDGED_WRITE_LOST];
        acknowledgement_of_another_history: CountOtherHistories, Disk,
            "writes=1 epochs=3 versions=1 crashes=1 generations=2", [ACKNOWLEDGED_WRITES_ON_DISK, NO_ACKNOWLEDGED_WRITE_LOST];
        acknowledgement_of_another_incarnation: IgnoreIncarnations, Memory,
            "writes=1 epochs=2 versions=1 crashes=1 generations=1", [NO_ACKNOWLEDGED_WRITE_LOST];
        acknowledgement_during_full_sync: AcknowledgeDuringFullSync, Memory,
            "writes=2 epochs=3 versions=1 generations=1", [NO_ACKNOWLEDGED_WRITE_LOST];
        removal_before_the_decision: ShrinkBeforeDecision, Memory,
            "writes=1 epochs=2 versions=1", [NO_ACKNOWLEDGED_WRITE_LOST];
        addition_without_waiting: GrowWithoutWaiting, Memory,
            "writes=1 epochs=2 versions=2 generations=1", [NO_ACKNOWLEDGED_WRITE_LOST];
        forgotten_proposal: ForgetProposal, Memory,
            "writes=1 epochs=2 versions=2 generations=1", [NO_ACKNOWLEDGED_WRITE_LOST];
        late_change_of_an_older_version: AcceptAnyVersion, Memory,
            "writes=1 epochs=2 versions=3 generations=1", [NO_ACKNOWLEDGED_WRITE_LOST];
        promotion_of_a_non_member: PromoteNonMember, Memory,
            "writes=1 epochs=2 versions=1", [NO_ACKNOWLEDGED_WRITE_LOST];
        candidate_that_acknowledges: AcknowledgeAsCandidate, Memory,
            "writes=1 epochs=2 rounds=1 generations=1", [ONE_MASTER_SERVES_READS, FRESH_READS];
        new_master_that_serves_its_tail: ServeBeforeCommit, Memory,
            "writes=2 epochs=3 versions=1 generations=1", [NO_ACKNOWLEDGED_WRITE_LOST];
        old_master_that_keeps_its_tail: MergeOldTail, Memory,
            "writes=3 epochs=3 versions=1 generations=1", [NO_ACKNOWLEDGED_WRITE_LOST];
        master_that_restarts_as_master: RestartAsMaster, Memory,
            "writes=1 epochs=2 versions=1 crashes=1 generations=1", [NO_ACKNOWLEDGED_WRITE_LOST];
        restart_that_forgets_its_promise: ForgetPromiseAtRestart, Disk,
            "writes=1 epochs=2 rounds=1 crashes=1 generations=1", [ONE_MASTER_SERVES_READS, FRESH_READS];
        restart_that_forgets_its_epoch: ForgetEpochAtRestart, Disk,
            "writes=1 epochs=2 versions=1 crashes=1 generations=1", [ACKNOWLEDGED_WRITES_ON_DISK];
        lease_from_the_reply: LeaseFromReply, Memory,
            "writes=1 epochs=2 rounds=1 generations=1", [ONE_MASTER_SERVES_READS, FRESH_READS];
        lease_without_margin: LeaseWithoutMargin, Memory,
            "writes=1 epochs=2 rounds=1 generations=1", [ONE_MASTER_SERVES_READS, FRESH_READS];
        lease_checked_once: CheckLeaseOnce, Memory,
            "writes=1 epochs=2 rounds=1 generations=1", [ONE_MASTER_SERVES_READS, FRESH_READS];
        refused_connection_taken_for_death: StandDespitePromise, Memory,
            "writes=1 epochs=2 rounds=1 generations=1", [ONE_MASTER_SERVES_READS, FRESH_READS];
    }
}

#[test]
fn small_bounds_have_no_counterexample() {
    for durability in [Durability::Memory, Durability::Disk] {
        let limits = "writes=1 epochs=2 versions=1 crashes=1 generations=1";
        check_all_states(ShardModel { checks_liveness: true, ..shard_model(durability, limits) });
    }
}

#[test]
fn reads_under_leases_have_no_counterexample() {
    for durability in [Durability::Memory, Durability::Disk] {
        check_all_states(shard_model(durability, "writes=1 epochs=2 rounds=1 generations=1"));
    }
}

#[test]
#[ignore = "long: make soak"]
fn two_writes_and_three_epochs_have_no_counterexample() {
    for durability in [Durability::Memory, Durability::Disk] {
        check_all_states(shard_model(durability, "writes=2 epochs=3 versions=1 crashes=1 generations=1"));
        check_all_states(shard_model(durability, "writes=1 epochs=3 versions=2 crashes=1 generations=2"));
    }
}

#[test]
#[ignore = "long: make soak"]
fn leases_with_crashes_and_any_clocks_have_no_counterexample() {
    let clocks =
        [[ClockSpeed::Exact; 3], [ClockSpeed::Fast, ClockSpeed::Slow, ClockSpeed::Exact], CLOCK_SPEEDS];
    for durability in [Durability::Memory, Durability::Disk] {
        for speeds in clocks {
            let limits = "writes=1 epochs=2 versions=1 rounds=1 crashes=1 generations=1";
            check_all_states(ShardModel { speeds, ..shard_model(durability, limits) });
        }
    }
}

#[test]
#[ignore = "long: make soak"]
fn shard_serves_again_after_any_fault() {
    for durability in [Durability::Memory, Durability::Disk] {
        let limits = "writes=1 epochs=3 versions=1 crashes=2 generations=2";
        check_all_states(ShardModel { checks_liveness: true, ..shard_model(durability, limits) });
    }
}
