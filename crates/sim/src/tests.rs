use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

use crate::explore::SearchResult;
use crate::{InjectedBug, InvariantName, RunPlan, SimulationTarget, explore, run};

const TARGETS: [SimulationTarget; 3] =
    [SimulationTarget::Cluster, SimulationTarget::Sentinel, SimulationTarget::Node];

fn plan(target: SimulationTarget, seed: u64) -> RunPlan {
    let nodes = match target {
        SimulationTarget::Cluster => 5,
        SimulationTarget::Sentinel => 6,
        SimulationTarget::Node => 1,
    };
    RunPlan { machine: target, seed, nodes, injected_bug: None, only_invariant: None }
}

/// For each invariant an injected bug that violates it, and the number of processes that the violation requires.
const INJECTED_BUGS: [(SimulationTarget, InvariantName, InjectedBug, usize); 52] = [
    (SimulationTarget::Cluster, InvariantName::OneVote, InjectedBug::UnsavedVotes, 9),
    (SimulationTarget::Cluster, InvariantName::Majority, InjectedBug::IgnoredQuorum, 5),
    (SimulationTarget::Cluster, InvariantName::OnePromotion, InjectedBug::IgnoredQuorum, 7),
    (SimulationTarget::Cluster, InvariantName::OneOwner, InjectedBug::IgnoredQuorum, 7),
    (SimulationTarget::Cluster, InvariantName::Epochs, InjectedBug::LostDiskWrites, 5),
    (SimulationTarget::Cluster, InvariantName::Claims, InjectedBug::IgnoredClaims, 5),
    (SimulationTarget::Cluster, InvariantName::Freshness, InjectedBug::LostOffsets, 9),
    (SimulationTarget::Cluster, InvariantName::Freshness, InjectedBug::UnreportedDataLoss, 5),
    (SimulationTarget::Cluster, InvariantName::Minority, InjectedBug::ServingWhenDown, 5),
    (SimulationTarget::Cluster, InvariantName::Coverage, InjectedBug::IgnoredClaims, 5),
    (SimulationTarget::Cluster, InvariantName::Coverage, InjectedBug::OmittedSuspects, 6),
    (SimulationTarget::Cluster, InvariantName::WholeMoves, InjectedBug::EarlySlotHandover, 5),
    (SimulationTarget::Cluster, InvariantName::WholeMoves, InjectedBug::LateClaims, 5),
    (SimulationTarget::Cluster, InvariantName::KeyMoves, InjectedBug::EarlyKeyDeletion, 5),
    (SimulationTarget::Sentinel, InvariantName::OneVote, InjectedBug::UnsavedVotes, 6),
    (SimulationTarget::Sentinel, InvariantName::OnePromotion, InjectedBug::LostDiskWrites, 6),
    (SimulationTarget::Sentinel, InvariantName::Authority, InjectedBug::IgnoredQuorum, 6),
    (SimulationTarget::Sentinel, InvariantName::Epochs, InjectedBug::LostDiskWrites, 6),
    (SimulationTarget::Sentinel, InvariantName::Freshness, InjectedBug::LostOffsets, 6),
    (SimulationTarget::Sentinel, InvariantName::Agreement, InjectedBug::IgnoredOrders, 6),
    (SimulationTarget::Cluster, InvariantName::Handover, InjectedBug::SkippedDrain, 5),
    (SimulationTarget::Cluster, InvariantName::SameData, InjectedBug::StreamAfterPromotion, 5),
    (SimulationTarget::Cluster, InvariantName::SameData, InjectedBug::UnloggedEffects, 5),
    (SimulationTarget::Cluster, InvariantName::SameData, InjectedBug::ResumedTransactions, 5),
    (SimulationTarget::Cluster, InvariantName::NoOverwrite, InjectedBug::StreamAfterPromotion, 5),
    (SimulationTarget::Cluster, InvariantName::NoLoss, InjectedBug::EarlyAcknowledgement, 5),
    (SimulationTarget::Cluster, InvariantName::NoOverwrite, InjectedBug::ReplyAfterDemotion, 5),
    (SimulationTarget::Cluster, InvariantName::NoErasure, InjectedBug::EmptyMasterServes, 5),
    (SimulationTarget::Sentinel, InvariantName::Handover, InjectedBug::SkippedDrain, 6),
    (SimulationTarget::Sentinel, InvariantName::SameData, InjectedBug::ReplicaLogsClientWrites, 6),
    (SimulationTarget::Sentinel, InvariantName::NoOverwrite, InjectedBug::StreamAfterPromotion, 6),
    (SimulationTarget::Sentinel, InvariantName::NoLoss, InjectedBug::EarlyAcknowledgement, 6),
    (SimulationTarget::Sentinel, InvariantName::NoErasure, InjectedBug::EmptyMasterServes, 6),
    (SimulationTarget::Cluster, InvariantName::Copies, InjectedBug::EarlyAcknowledgement, 5),
    (SimulationTarget::Sentinel, InvariantName::Copies, InjectedBug::EarlyAcknowledgement, 6),
    (SimulationTarget::Cluster, InvariantName::Durable, InjectedBug::EarlySync, 5),
    (SimulationTarget::Sentinel, InvariantName::Durable, InjectedBug::EarlyReply, 6),
    (SimulationTarget::Cluster, InvariantName::Waits, InjectedBug::MissedWakeups, 5),
    (SimulationTarget::Sentinel, InvariantName::Waits, InjectedBug::MissedWakeups, 6),
    (SimulationTarget::Node, InvariantName::Durable, InjectedBug::EarlySync, 1),
    (SimulationTarget::Node, InvariantName::Durable, InjectedBug::EarlyReply, 1),
    (SimulationTarget::Node, InvariantName::Durable, InjectedBug::RecreatedIncrement, 1),
    (SimulationTarget::Node, InvariantName::Prefix, InjectedBug::LateIncrementStart, 1),
    (SimulationTarget::Node, InvariantName::Prefix, InjectedBug::UnsyncedBase, 1),
    (SimulationTarget::Node, InvariantName::Prefix, InjectedBug::UntruncatedTail, 1),
    (SimulationTarget::Node, InvariantName::NoInvention, InjectedBug::CorruptedReads, 1),
    (SimulationTarget::Node, InvariantName::Waits, InjectedBug::LostFileProgress, 1),
    (SimulationTarget::Node, InvariantName::Waits, InjectedBug::MissedWakeups, 1),
    (SimulationTarget::Node, InvariantName::Saved, InjectedBug::UnsyncedSave, 1),
    (SimulationTarget::Node, InvariantName::Served, InjectedBug::CorruptedReads, 1),
    (SimulationTarget::Node, InvariantName::Watches, InjectedBug::IgnoredWatch, 1),
    (SimulationTarget::Node, InvariantName::Answered, InjectedBug::LostBackgroundRequests, 1),
];

/// Runs many seeds at low CPU priority, so that tests that run in parallel are not slowed down.
fn explore_at_low_priority(seeds: Range<u64>, plan: impl Fn(u64) -> RunPlan + Sync) -> SearchResult {
    // The priority applies to this thread and its children. If it cannot be set, parallel tests run slower.
    let _ = rustix::process::nice(10);
    explore(seeds, plan)
}

/// Runs up to a thousand seeds with an injected bug. Returns the first violation, with the plan of its run.
fn find_violation(make_plan: impl Fn(u64) -> RunPlan + Sync) -> Option<(RunPlan, String)> {
    let (seed, violation) = explore_at_low_priority(0..1000, &make_plan).failure?;
    Some((make_plan(seed), violation))
}

#[test]
fn equal_seeds_give_equal_traces() {
    for machine in TARGETS {
        let first = run(plan(machine, 7), true);
        assert!(first.trace.len() > 50);
        assert_eq!(run(plan(machine, 7), true), first);
        assert_ne!(run(plan(machine, 8), true).digest, first.digest);
    }
}

fn assert_bugs_are_found(target: SimulationTarget) {
    for (machine, rule, injected_bug, nodes) in
        INJECTED_BUGS.into_iter().filter(|(machine, ..)| *machine == target)
    {
        let with = |seed| RunPlan {
            nodes,
            injected_bug: Some(injected_bug),
            only_invariant: Some(rule),
            ..plan(machine, seed)
        };
        let (plan, violation) = find_violation(with)
            .unwrap_or_else(|| panic!("{rule:?} of {machine:?} does not find {injected_bug:?}"));
        eprintln!("{machine:?} {injected_bug:?} with seed {}: {violation}", plan.seed);
        assert!(violation.contains(&format!(" us: {}: ", rule.name())), "{violation}");
    }
}

#[test]
fn cluster_invariants_detect_injected_bugs() {
    assert_bugs_are_found(SimulationTarget::Cluster);
}

#[test]
fn sentinel_invariants_detect_injected_bugs() {
    assert_bugs_are_found(SimulationTarget::Sentinel);
}

#[test]
fn node_invariants_detect_injected_bugs() {
    assert_bugs_are_found(SimulationTarget::Node);
}

/// Returns the names of the invariants that have a file in `folder`.
fn invariant_files(folder: &str) -> impl Iterator<Item = String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(folder).join("invariants");
    let files = folder.read_dir().expect("the invariants have a folder");
    files.filter_map(|file| {
        let path = file.expect("it can be read").path();
        path.file_stem().map(|name| name.to_string_lossy().into_owned())
    })
}

#[test]
fn each_invariant_has_an_injected_bug() {
    for (machine, folders) in [
        (SimulationTarget::Cluster, &["cluster", "data"][..]),
        (SimulationTarget::Sentinel, &["sentinels", "data"]),
        (SimulationTarget::Node, &["node"]),
    ] {
        let files: BTreeSet<String> = folders.iter().flat_map(|folder| invariant_files(folder)).collect();
        let broken = INJECTED_BUGS.iter().filter(|(of, ..)| *of == machine).map(|(_, rule, ..)| rule.name());
        assert_eq!(broken.collect::<BTreeSet<_>>(), files, "{machine:?}");
    }
}

#[test]
fn panic_is_reported_with_its_seed() {
    for machine in TARGETS {
        let with = |seed| RunPlan { injected_bug: Some(InjectedBug::Panic), ..plan(machine, seed) };
        let (plan, violation) = find_violation(with).expect("a thousand seeds find an injected bug");
        assert!(violation.contains("panicked: ") && violation.contains("injected panic"), "{violation}");
        // The same plan must reproduce the violation and its trace.
        let replayed = run(plan, true);
        assert_eq!(replayed.violation, Some(violation));
        assert!(replayed.trace.len() > 10);
    }
}

fn assert_no_violation(target: SimulationTarget, seeds: Range<u64>, min_promotions: usize) {
    let RunPlan { nodes, .. } = plan(target, 0);
    let explored = explore_at_low_priority(seeds, |seed| plan(target, seed));
    let name = format!("{target:?}").to_lowercase();
    assert_eq!(
        explored.failure, None,
        "replay: cargo run -p sim -- --machine {name} --nodes {nodes} --seed N"
    );
    assert!(explored.promotion_count > min_promotions, "{} promotions or starts", explored.promotion_count);
}

/// The two thousand seeds of each machine are split over several tests. `make soak` and the command line run more.
#[test]
fn cluster_seeds_0_to_1000_hold_all_invariants() {
    assert_no_violation(SimulationTarget::Cluster, 0..1000, 500);
}

#[test]
fn cluster_seeds_1000_to_2000_hold_all_invariants() {
    assert_no_violation(SimulationTarget::Cluster, 1000..2000, 500);
}

/// In this run the driver carries out a step with repeated vote requests just before one in which the last vote
/// arrives.
#[test]
fn vote_after_repeated_requests_is_counted() {
    let plan = RunPlan { nodes: 6, ..plan(SimulationTarget::Cluster, 5249) };
    assert_eq!(run(plan, false).violation, None);
}

#[test]
fn sentinel_seeds_0_to_1000_hold_all_invariants() {
    assert_no_violation(SimulationTarget::Sentinel, 0..1000, 600);
}

#[test]
fn sentinel_seeds_1000_to_1800_hold_all_invariants() {
    assert_no_violation(SimulationTarget::Sentinel, 1000..1800, 600);
}

#[test]
fn twelve_sentinels_hold_all_invariants() {
    let larger = explore_at_low_priority(1800..2000, |seed| RunPlan {
        nodes: 12,
        ..plan(SimulationTarget::Sentinel, seed)
    });
    assert_eq!(larger.failure, None, "replay: cargo run -p sim -- --machine sentinel --nodes 12 --seed N");
}

/// Seed 369 once found an increment that was reported as synced although its manifest entry was not on the disk.
#[test]
fn node_seeds_0_to_2000_hold_all_invariants() {
    assert_no_violation(SimulationTarget::Node, 0..2000, 5000);
}
