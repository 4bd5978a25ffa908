//! Client conformance tests on real servers: a few scenarios against a cluster of three masters and against a sentinel
//! group.

use client_conformance::scorecard::{ScenarioResult, Scorecard, render_evidence};
use client_conformance::verdict::Grade;
use client_conformance::{Scenario, ScenarioRunner, ServerPrograms, built_in_scenarios};
use harness::Program;

/// The command line that starts the Python adapter, correct or with an injected fault.
fn adapter_command(fault: &str) -> Vec<String> {
    let script =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../../crates/client-conformance/tests/adapters/planted.py");
    ["python3", script, fault].iter().filter(|word| !word.is_empty()).map(|word| (*word).to_owned()).collect()
}

const CLUSTER_SCENARIOS: &str = "
story: A slot moves between masters of three, one of which dies in the end and leaves the others
theme: redirects
mode: cluster
nodes:
  a: {slots: [0-5461]}
  b: {slots: [5462-10922]}
  c: {slots: [10923-16383]}
steps:
  - {command: [SET, key(a), one], expect: OK}
  - {command: [SET, key(b), two], expect: OK}
  - {stage: {move: {key: key(a), to: c}}}
  - {command: [GET, key(a)], expect: one}
  - {command: [INCR, '{key(a)}:n'], expect: 1}
  - {command: [INCR, '{key(a)}:n'], expect: 2}
  - {command: [INCR, '{key(a)}:n'], expect: 3}
  - {stage: {run: {command: [SET, key(b), three]}}}
  - {command: [GET, key(b)], expect: three}
allow: {redirects: 1, redirects_in_all: 1}
";

fn run_scenarios(scenarios: &[Scenario], fault: &str) -> Scorecard {
    let adapter = adapter_command(fault);
    let servers = ServerPrograms { server: Program::redoubt(), sentinel: Program::redoubt() };
    ScenarioRunner { adapter: &adapter, seed: 5, servers: Some(&servers), jobs: 1 }
        .run_all(scenarios)
        .unwrap()
}

fn assert_passed(result: &ScenarioResult) {
    assert_eq!(result.verdict.findings, [], "{}", render_evidence(result));
}

#[test]
fn testkit_cluster_moves_slot_and_counts_commands() {
    let three = [Scenario::parse("three", CLUSTER_SCENARIOS).unwrap()];
    let innocent = run_scenarios(&three, "");
    assert_passed(&innocent.cases[0]);
    assert_eq!(
        innocent.cases[0].verdict.costs.redirects_in_all,
        1,
        "{}",
        render_evidence(&innocent.cases[0])
    );
    let guilty = run_scenarios(&three, "never-refreshes");
    let case = &guilty.cases[0];
    assert_eq!(case.verdict.grade, Grade::Costly, "{}", render_evidence(case));
    assert!(case.verdict.findings[0].text.contains("4 redirects in total"), "{}", render_evidence(case));
}

/// Scenarios on real sentinels: Redoubt's sentinels replace a dead master, and a live master on request.
#[test]
fn testkit_sentinels_replace_master() {
    let names = ["sentinel-master-dies", "sentinel-master-is-demoted"];
    let replaced: Vec<Scenario> = built_in_scenarios()
        .unwrap()
        .into_iter()
        .filter(|scenario| names.contains(&&scenario.name[..]))
        .collect();
    let innocent = run_scenarios(&replaced, "");
    assert_eq!(innocent.cases.len(), names.len());
    innocent.cases.iter().for_each(assert_passed);
    let guilty = run_scenarios(&replaced[1..], "never-asks-again");
    let case = &guilty.cases[0];
    assert_eq!(case.verdict.grade, Grade::Fails, "{}", render_evidence(case));
    assert!(case.verdict.findings[0].text.contains("READONLY"), "{}", render_evidence(case));
}

#[test]
fn client_inventing_replies_is_graded_harmful() {
    let dies: Vec<Scenario> =
        built_in_scenarios().unwrap().into_iter().filter(|scenario| scenario.name == "master-dies").collect();
    assert_passed(&run_scenarios(&dies, "").cases[0]);
    let guilty = run_scenarios(&dies, "invents-replies");
    let case = &guilty.cases[0];
    assert_eq!(case.verdict.grade, Grade::Harmful, "{}", render_evidence(case));
    assert!(
        case.verdict.findings[0].text.contains("reports success without effect: RPUSH"),
        "{}",
        render_evidence(case)
    );
}
