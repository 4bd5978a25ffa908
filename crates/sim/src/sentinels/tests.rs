use crate::{Machine, Plan, Plant, explore, run};

fn plan(seed: u64) -> Plan {
    Plan { machine: Machine::Sentinel, seed, nodes: 6, plant: None }
}

#[test]
fn the_same_seed_makes_the_same_trace() {
    let first = run(plan(7), true);
    assert!(first.trace.len() > 100);
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
    let explored = explore(0..1800, plan);
    assert_eq!(explored.failed, None, "replay: cargo run -p sim -- --machine sentinel --nodes 6 --seed N");
    assert!(explored.promotions > 1500, "{} promotions", explored.promotions);
    let larger = explore(1800..2000, |seed| Plan { nodes: 12, ..plan(seed) });
    assert_eq!(larger.failed, None, "replay: cargo run -p sim -- --machine sentinel --nodes 12 --seed N");
}
