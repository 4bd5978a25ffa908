//! Runs a client with an injected bug in each scenario. The bug must be detected with the right message, and the same
//! client without the bug must pass.
//!
//! The client is `adapters/planted.py`, which needs only Python.

use client_conformance::scorecard::ScenarioResult;
use client_conformance::scorecard::Scorecard;
use client_conformance::verdict::Grade;
use client_conformance::{Scenario, ScenarioRunner, built_in_scenarios};

fn adapter_command(fault: &str) -> Vec<String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/adapters/planted.py");
    ["python3", script, fault].iter().filter(|word| !word.is_empty()).map(|word| (*word).to_owned()).collect()
}

fn grade_scenario(scenarios: &[Scenario], adapter: &[String], seed: u64) -> anyhow::Result<Scorecard> {
    ScenarioRunner { adapter, seed, servers: None, jobs: 4 }.run_all(scenarios)
}

fn run_scenario(scenario: &str, fault: &str) -> ScenarioResult {
    let scenarios: Vec<_> =
        built_in_scenarios().unwrap().into_iter().filter(|known| known.name == scenario).collect();
    assert_eq!(scenarios.len(), 1, "there is a scenario {scenario}");
    let mut card = grade_scenario(&scenarios, &adapter_command(fault), 7).unwrap();
    card.cases.remove(0)
}

/// Asserts that the scenario detects the bug with a message that contains `expected_text`, and that the client without
/// the bug passes.
fn assert_detected(fault: &str, scenario: &str, grade: Grade, expected_text: &str) {
    let innocent = run_scenario(scenario, "");
    assert_eq!(
        innocent.verdict.findings,
        [],
        "{}",
        client_conformance::scorecard::render_evidence(&innocent)
    );
    let guilty = run_scenario(scenario, fault);
    let evidence = client_conformance::scorecard::render_evidence(&guilty);
    assert_eq!(guilty.verdict.grade, grade, "{evidence}");
    assert!(guilty.verdict.findings.iter().any(|finding| finding.text.contains(expected_text)), "{evidence}");
}

#[test]
fn detects_command_repeated_after_timeout() {
    assert_detected("executes-twice", "reply-never-comes", Grade::Harmful, "executes twice: INCR");
    assert_detected("executes-twice", "reply-cut", Grade::Harmful, "executes twice: INCR");
}

#[test]
fn detects_missing_slot_map_refresh() {
    assert_detected(
        "never-refreshes",
        "moved-once",
        Grade::Costly,
        "never refreshes its map: 6 redirects in total",
    );
}

#[test]
fn detects_missing_sentinel_query() {
    assert_detected("never-asks-again", "sentinel-master-is-demoted", Grade::Fails, "READONLY");
}

#[test]
fn detects_endless_redirect_loop() {
    assert_detected("follows-for-ever", "moved-in-circle", Grade::Fails, "follows redirects endlessly");
}

#[test]
fn detects_lost_subscriptions() {
    assert_detected(
        "drops-subscriptions",
        "subscribers-connection-ends",
        Grade::Fails,
        "drops the subscription to news",
    );
}

#[test]
fn detects_late_reply_mistaken_for_the_reply_to_the_next_command() {
    assert_detected("mixes-up-replies", "reply-is-late", Grade::Harmful, "which is the reply to GET");
}

#[test]
fn detects_executed_command_reported_as_refused() {
    assert_detected(
        "denies-what-was-done",
        "reply-lost",
        Grade::Fails,
        "reports failure of an executed command: INCR",
    );
    assert_detected(
        "hides-what-is-known",
        "tryagain",
        Grade::Costly,
        "got TRYAGAIN, and the error says: it failed",
    );
}

#[test]
fn detects_repeated_pop_after_lost_reply() {
    assert_detected("executes-twice", "blocking-reply-lost", Grade::Harmful, "executes twice: BLPOP");
}

#[test]
fn detects_success_reported_without_execution() {
    assert_detected(
        "invents-replies",
        "master-dies",
        Grade::Harmful,
        "reports success without effect: RPUSH",
    );
}

#[test]
fn adapter_exit_hang_and_protocol_violation_are_distinguished() {
    let scenarios: Vec<_> =
        built_in_scenarios().unwrap().into_iter().filter(|known| known.name == "moved-once").collect();
    for (script, words) in
        [("exit 1", "the program exits"), ("read line; echo nonsense", "violates the protocol")]
    {
        let command = ["sh", "-c", script].map(str::to_owned);
        let card = grade_scenario(&scenarios, &command, 1).unwrap();
        let verdict = &card.cases[0].verdict;
        assert_eq!(verdict.grade, Grade::Fails);
        assert!(verdict.findings[0].text.contains(words), "{script}: {verdict:?}");
    }
    assert!(grade_scenario(&scenarios, &["/nowhere/adapter".to_owned()], 1).is_err());
}

#[test]
fn equal_seeds_give_equal_grades() {
    let scenarios: Vec<_> = built_in_scenarios()
        .unwrap()
        .into_iter()
        .filter(|known| {
            ["ask-once", "moved-once", "reply-cut", "reply-is-late", "map-empty-later"]
                .contains(&&known.name[..])
        })
        .collect();
    let grades = || -> Vec<(Grade, Vec<String>)> {
        let card = grade_scenario(&scenarios, &adapter_command("executes-twice"), 3).unwrap();
        let texts = |case: &ScenarioResult| {
            case.verdict.findings.iter().map(|finding| finding.text.clone()).collect()
        };
        card.cases.iter().map(|case| (case.verdict.grade, texts(case))).collect()
    };
    assert_eq!(grades(), grades());
}
