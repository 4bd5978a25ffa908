//! Runs a client with an injected bug in each scenario: the bug must be detected with the right
//! message, and the correct client must pass.
//!
//! The client is `adapters/planted.py`, which needs only Python.

use client_conformance::scorecard::ScenarioResult;
use client_conformance::scorecard::Scorecard;
use client_conformance::verdict::Grade;
use client_conformance::{Scenario, ScenarioRunner, built_in_scenarios};

fn adapter(fault: &str) -> Vec<String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/adapters/planted.py");
    ["python3", script, fault].iter().filter(|word| !word.is_empty()).map(|word| (*word).to_owned()).collect()
}

fn judge(scenarios: &[Scenario], adapter: &[String], seed: u64) -> anyhow::Result<Scorecard> {
    ScenarioRunner { adapter, seed, servers: None, jobs: 4 }.run_all(scenarios)
}

fn run_scenario(scenario: &str, fault: &str) -> ScenarioResult {
    let scenarios: Vec<_> =
        built_in_scenarios().unwrap().into_iter().filter(|known| known.name == scenario).collect();
    assert_eq!(scenarios.len(), 1, "there is a scenario {scenario}");
    let mut card = judge(&scenarios, &adapter(fault), 7).unwrap();
    card.cases.remove(0)
}

/// Asserts that the bug is detected in the scenario with these words, and that the correct client
/// passes.
fn is_caught(fault: &str, scenario: &str, grade: Grade, words: &str) {
    let innocent = run_scenario(scenario, "");
    assert_eq!(innocent.verdict.findings, [], "{}", client_conformance::scorecard::evidence(&innocent));
    let guilty = run_scenario(scenario, fault);
    let evidence = client_conformance::scorecard::evidence(&guilty);
    assert_eq!(guilty.verdict.grade, grade, "{evidence}");
    assert!(guilty.verdict.findings.iter().any(|finding| finding.text.contains(words)), "{evidence}");
}

#[test]
fn a_client_that_runs_a_command_once_more_after_a_timeout() {
    is_caught("executes-twice", "reply-never-comes", Grade::Harmful, "executes twice: INCR");
    is_caught("executes-twice", "reply-cut", Grade::Harmful, "executes twice: INCR");
}

#[test]
fn a_client_that_never_asks_for_the_map_again() {
    is_caught(
        "never-refreshes",
        "moved-once",
        Grade::Costly,
        "never refreshes its map: 6 redirects in total",
    );
}

#[test]
fn a_client_that_never_asks_sentinels_again() {
    is_caught("never-asks-again", "sentinel-master-is-demoted", Grade::Fails, "READONLY");
}

#[test]
fn a_client_that_follows_a_circle_for_ever() {
    is_caught("follows-for-ever", "moved-in-circle", Grade::Fails, "follows redirects endlessly");
}

#[test]
fn a_client_that_drops_subscriptions() {
    is_caught(
        "drops-subscriptions",
        "subscribers-connection-ends",
        Grade::Fails,
        "drops the subscription to news",
    );
}

#[test]
fn a_client_that_takes_a_late_reply_for_the_answer_to_the_next_question() {
    is_caught("mixes-up-replies", "reply-is-late", Grade::Harmful, "which is the reply to GET");
}

#[test]
fn a_client_that_says_it_was_refused_where_it_was_done() {
    is_caught(
        "denies-what-was-done",
        "reply-lost",
        Grade::Fails,
        "reports failure of an executed command: INCR",
    );
    is_caught(
        "hides-what-is-known",
        "tryagain",
        Grade::Costly,
        "got TRYAGAIN, and the error says: it failed",
    );
}

#[test]
fn a_client_that_takes_a_second_item_where_it_may_have_lost_one() {
    is_caught("executes-twice", "blocking-reply-lost", Grade::Harmful, "executes twice: BLPOP");
}

#[test]
fn a_client_that_says_done_where_nothing_ran() {
    is_caught("invents-replies", "master-dies", Grade::Harmful, "reports success without effect: RPUSH");
}

#[test]
fn a_program_that_ends_hangs_or_says_nonsense_is_told_apart() {
    let scenarios: Vec<_> =
        built_in_scenarios().unwrap().into_iter().filter(|known| known.name == "moved-once").collect();
    for (script, words) in
        [("exit 1", "the program exits"), ("read line; echo nonsense", "violates the protocol")]
    {
        let command = ["sh", "-c", script].map(str::to_owned);
        let card = judge(&scenarios, &command, 1).unwrap();
        let verdict = &card.cases[0].verdict;
        assert_eq!(verdict.grade, Grade::Fails);
        assert!(verdict.findings[0].text.contains(words), "{script}: {verdict:?}");
    }
    assert!(judge(&scenarios, &["/nowhere/adapter".to_owned()], 1).is_err());
}

#[test]
fn the_same_seed_gives_the_same_grades() {
    let scenarios: Vec<_> = built_in_scenarios()
        .unwrap()
        .into_iter()
        .filter(|known| {
            ["ask-once", "moved-once", "reply-cut", "reply-is-late", "map-empty-later"]
                .contains(&&known.name[..])
        })
        .collect();
    let grades = || -> Vec<(Grade, Vec<String>)> {
        let card = judge(&scenarios, &adapter("executes-twice"), 3).unwrap();
        let texts = |case: &ScenarioResult| {
            case.verdict.findings.iter().map(|finding| finding.text.clone()).collect()
        };
        card.cases.iter().map(|case| (case.verdict.grade, texts(case))).collect()
    };
    assert_eq!(grades(), grades());
}
