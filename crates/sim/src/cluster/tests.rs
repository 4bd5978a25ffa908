use crate::{Machine, Plan, Plant, explore, run};

fn plan(seed: u64) -> Plan {
    Plan { machine: Machine::Cluster, seed, nodes: 5, plant: None }
}

#[test]
fn the_same_seed_makes_the_same_trace() {
    let first = run(plan(7), true);
    assert!(first.trace.len() > 50);
    assert_eq!(run(plan(7), true), first);
    assert_ne!(run(plan(8), true).digest, first.digest);
}

#[test]
fn a_forgotten_vote_is_found() {
    let explored = explore(0..1000, |seed| Plan { plant: Some(Plant::ForgottenVotes), ..plan(seed) });
    let (_, violation) = explored.failed.expect("a thousand seeds find a vote that was not written");
    assert!(violation.contains("voted for"), "{violation}");
}

#[test]
fn a_panic_is_told_with_its_seed() {
    let explored = explore(0..100, |seed| Plan { plant: Some(Plant::Panic), ..plan(seed) });
    let (seed, violation) = explored.failed.expect("there is a promotion in a hundred seeds");
    assert!(violation.contains("panicked: ") && violation.contains("planted"), "{violation}");
    // And replayed, with all that led to it.
    let replayed = run(Plan { plant: Some(Plant::Panic), ..plan(seed) }, true);
    assert_eq!(replayed.violation, Some(violation));
    assert!(replayed.trace.len() > 10);
}

#[test]
fn two_thousand_seeds_violate_nothing() {
    let explored = explore(0..2000, plan);
    assert_eq!(explored.failed, None, "replay: cargo run -p sim -- --machine cluster --nodes 5 --seed N");
    assert!(explored.promotions > 1000, "{} promotions", explored.promotions);
}
