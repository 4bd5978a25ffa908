use crate::{Machine, Plan, Plant, explore, run};

const MACHINES: [Machine; 2] = [Machine::Cluster, Machine::Sentinel];

fn plan(machine: Machine, seed: u64) -> Plan {
    let nodes = match machine {
        Machine::Cluster => 5,
        Machine::Sentinel => 6,
    };
    Plan { machine, seed, nodes, plant: None }
}

/// What the first of many seeds finds of a fault that was built in.
fn found(machine: Machine, plant: Plant) -> (Plan, String) {
    let with = |seed| Plan { plant: Some(plant), ..plan(machine, seed) };
    let (seed, violation) = explore(0..1000, with).failed.expect("a thousand seeds find a planted fault");
    (with(seed), violation)
}

#[test]
fn the_same_seed_makes_the_same_trace() {
    for machine in MACHINES {
        let first = run(plan(machine, 7), true);
        assert!(first.trace.len() > 50);
        assert_eq!(run(plan(machine, 7), true), first);
        assert_ne!(run(plan(machine, 8), true).digest, first.digest);
    }
}

#[test]
fn a_forgotten_vote_is_found() {
    for machine in MACHINES {
        let (_, violation) = found(machine, Plant::ForgottenVotes);
        assert!(violation.contains("voted for"), "{violation}");
    }
}

#[test]
fn an_ignored_quorum_is_found() {
    let (_, violation) = found(Machine::Cluster, Plant::IgnoredQuorum);
    assert!(violation.contains("was elected in epoch"), "{violation}");
    let (_, violation) = found(Machine::Sentinel, Plant::IgnoredQuorum);
    assert!(violation.contains("of 2 have suspected it"), "{violation}");
}

#[test]
fn a_panic_is_told_with_its_seed() {
    for machine in MACHINES {
        let (plan, violation) = found(machine, Plant::Panic);
        assert!(violation.contains("panicked: ") && violation.contains("planted"), "{violation}");
        // And replayed, with all that led to it.
        let replayed = run(plan, true);
        assert_eq!(replayed.violation, Some(violation));
        assert!(replayed.trace.len() > 10);
    }
}

#[test]
fn two_thousand_seeds_of_the_cluster_violate_nothing() {
    let explored = explore(0..2000, |seed| plan(Machine::Cluster, seed));
    assert_eq!(explored.failed, None, "replay: cargo run -p sim -- --machine cluster --nodes 5 --seed N");
    assert!(explored.promotions > 1000, "{} promotions", explored.promotions);
}

#[test]
fn two_thousand_seeds_of_the_sentinels_violate_nothing() {
    let explored = explore(0..1800, |seed| plan(Machine::Sentinel, seed));
    assert_eq!(explored.failed, None, "replay: cargo run -p sim -- --machine sentinel --nodes 6 --seed N");
    assert!(explored.promotions > 1500, "{} promotions", explored.promotions);
    let larger = explore(1800..2000, |seed| Plan { nodes: 12, ..plan(Machine::Sentinel, seed) });
    assert_eq!(larger.failed, None, "replay: cargo run -p sim -- --machine sentinel --nodes 12 --seed N");
}
