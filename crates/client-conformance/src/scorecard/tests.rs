//! Tests every output format of the scorecard.

use super::*;
use crate::event_log::LogEvent;
use crate::verdict::{Finding, MeasuredCosts};

fn scenario_result(name: &str, grade: Grade, text: &str) -> ScenarioResult {
    let findings = if text.is_empty() { Vec::new() } else { vec![Finding { grade, text: text.to_owned() }] };
    let costs = MeasuredCosts { ms: 1500, redirects_in_all: 1, ..MeasuredCosts::default() };
    ScenarioResult {
        name: name.to_owned(),
        theme: Theme::Replies,
        story: "A story.".to_owned(),
        verdict: Verdict { grade, findings, costs },
        log: vec![LogEntry {
            ms: 3,
            node: "a".to_owned(),
            connection: 1,
            event: LogEvent::CommandReceived("GET <k>".to_owned()),
        }],
        stderr_tail: String::new(),
    }
}

fn scorecard() -> Scorecard {
    let library = ClientLibrary { library: "lib".to_owned(), version: "1.0".to_owned() };
    let cases = vec![
        scenario_result("fine", Grade::Good, ""),
        scenario_result("bad", Grade::Harmful, "executes twice: <INCR>"),
        scenario_result("dear", Grade::Costly, "retry storm"),
        scenario_result("none", Grade::Unsupported, "no such thing"),
    ];
    Scorecard { library: Some(library), seed: 5, servers: None, cases }
}

#[test]
fn text_lists_each_scenario_with_its_reason() {
    let text = render_text(&scorecard());
    for line in [
        "lib 1.0, seed 5",
        "  good        fine  1 redirect",
        "  HARMFUL     bad   1 redirect",
        "              executes twice: <INCR>",
        "4 scenarios, 6 s of play: 1 HARMFUL, 1 costly, 1 not offered, 1 good",
    ] {
        assert!(text.lines().any(|known| known == line), "{line}\n{text}");
    }
}

#[test]
fn junit_reports_failures_and_skips_with_escaped_text() {
    let xml = render_junit(&scorecard());
    assert!(xml.contains("tests=\"4\" failures=\"1\" skipped=\"1\""), "{xml}");
    assert!(xml.contains("<failure type=\"HARMFUL\" message=\"executes twice: &lt;INCR&gt;\">"), "{xml}");
    assert!(xml.contains("GET &lt;k&gt;") && !xml.contains("<k>"), "{xml}");
    assert!(xml.contains("<skipped message=\"no such thing\"/>"), "{xml}");
}

#[test]
fn html_page_lists_all_scenarios_with_escaped_text() {
    let page = render_html(&scorecard()).unwrap();
    for part in ["<h2 id=\"bad\">", "executes twice: &lt;INCR&gt;", "GET &lt;k&gt;", "A story."] {
        assert!(page.contains(part), "{part}\n{page}");
    }
}

#[test]
fn regressions_since_an_older_scorecard_are_listed() {
    let older = serde_json::to_string(&scorecard()).unwrap();
    let baseline: Baseline = serde_json::from_str(&older).unwrap();
    assert_eq!(worse_results(&scorecard(), &baseline), Vec::<String>::new());
    let mut delayed_events = scorecard();
    delayed_events.cases[0].verdict.grade = Grade::Costly;
    delayed_events.cases[1].verdict.grade = Grade::Good;
    delayed_events.cases.push(scenario_result("new", Grade::Harmful, "x"));
    assert_eq!(worse_results(&delayed_events, &baseline), ["fine: costly, was good"]);
}

#[test]
fn comparison_has_a_row_per_scenario_followed_by_reasons() {
    let read = |card: &Scorecard| {
        serde_json::from_str::<SavedScorecard>(&serde_json::to_string(card).unwrap()).unwrap()
    };
    let mut other = scorecard();
    other.library = Some(ClientLibrary { library: "another".to_owned(), version: "2".to_owned() });
    other.cases[1].verdict.grade = Grade::Good;
    other.cases[1].verdict.findings.clear();
    let mut on_real = scorecard();
    on_real.servers = Some("valkey-server".to_owned());
    let page = compare_scorecards(&[read(&scorecard()), read(&other), read(&on_real)]);
    for line in [
        "| scenario | another 2 | lib 1.0 |",
        "| **replies and connections** | | |",
        "| fine | good | good |",
        "| bad | good | HARMFUL |",
        "### lib 1.0",
        "- bad (HARMFUL; the same on valkey-server): executes twice: \\<INCR>",
        "- dear (costly; the same on valkey-server): retry storm",
    ] {
        assert!(page.lines().any(|known| known == line), "{line}\n{page}");
    }
}
