//! Runs all groups of scenarios in `stories` with Valkey's and Redoubt's sentinels.

use sentinel_tests::stories::{CHAPTERS, chapter};
use sentinel_tests::story::told_by_both;

fn told(name: &str) {
    let (servers, stories) = chapter(name);
    told_by_both(servers, stories);
}

#[test]
fn replicas() {
    told("replicas");
}

#[test]
fn replicas_that_stray() {
    told("replicas that stray");
}

#[test]
fn a_master() {
    told("a master");
}

#[test]
fn a_master_that_loads_and_computes() {
    told("a master that loads and computes");
}

#[test]
fn sentinels() {
    told("sentinels");
}

#[test]
fn agreement() {
    told("agreement");
}

#[test]
fn configuration() {
    told("configuration");
}

#[test]
fn a_failover_that_is_held() {
    told("a failover that is held");
}

#[test]
fn a_failover_that_is_given_up() {
    told("a failover that is given up");
}

#[test]
fn a_handover() {
    told("a handover");
}

#[test]
fn every_chapter_has_its_test() {
    let untold = CHAPTERS.iter().map(|(name, ..)| *name);
    let untold: Vec<&str> =
        untold.filter(|name| !include_str!("states.rs").contains(&format!("told(\"{name}\")"))).collect();
    assert_eq!(untold, Vec::<&str>::new());
}
