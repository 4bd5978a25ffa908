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
fn replicas_with_a_wrong_master() {
    told("replicas with a wrong master");
}

#[test]
fn master() {
    told("master");
}

#[test]
fn loading_and_busy_master() {
    told("loading and busy master");
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
fn failover_waiting_for_promotion() {
    told("failover waiting for promotion");
}

#[test]
fn aborted_failover() {
    told("aborted failover");
}

#[test]
fn handover() {
    told("handover");
}

#[test]
fn every_scenario_group_has_a_test() {
    let untold = CHAPTERS.iter().map(|(name, ..)| *name);
    let untold: Vec<&str> =
        untold.filter(|name| !include_str!("states.rs").contains(&format!("told(\"{name}\")"))).collect();
    assert_eq!(untold, Vec::<&str>::new());
}
