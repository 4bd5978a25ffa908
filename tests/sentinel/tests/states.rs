//! Runs all groups of scenarios in `scenarios` with Valkey's and Redoubt's sentinels.

use sentinel_tests::scenario::run_with_both_sentinels;
use sentinel_tests::scenarios::{SCENARIO_GROUPS, find_scenarios};

fn run_scenario_group(name: &str) {
    let (servers, stories) = find_scenarios(name);
    run_with_both_sentinels(servers, stories);
}

#[test]
fn replica_states_match_valkey() {
    run_scenario_group("replicas");
}

#[test]
fn replicas_with_a_wrong_master_match_valkey() {
    run_scenario_group("replicas with a wrong master");
}

#[test]
fn master_states_match_valkey() {
    run_scenario_group("master");
}

#[test]
fn loading_and_busy_master_match_valkey() {
    run_scenario_group("loading and busy master");
}

#[test]
fn sentinel_states_match_valkey() {
    run_scenario_group("sentinels");
}

#[test]
fn agreement_between_sentinels_matches_valkey() {
    run_scenario_group("agreement");
}

#[test]
fn configuration_commands_match_valkey() {
    run_scenario_group("configuration");
}

#[test]
fn failover_waiting_for_promotion_matches_valkey() {
    run_scenario_group("failover waiting for promotion");
}

#[test]
fn aborted_failover_matches_valkey() {
    run_scenario_group("aborted failover");
}

#[test]
fn handover_matches_valkey() {
    run_scenario_group("handover");
}

#[test]
fn every_scenario_group_has_a_test() {
    let groups = SCENARIO_GROUPS.iter().map(|(name, ..)| *name);
    let has_test =
        |name: &&str| include_str!("states.rs").contains(&format!("run_scenario_group(\"{name}\")"));
    let missing: Vec<&str> = groups.filter(|name| !has_test(name)).collect();
    assert_eq!(missing, Vec::<&str>::new());
}
