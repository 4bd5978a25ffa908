//! The card in each of its forms.

use super::*;
use crate::log::Happened;
use crate::verdict::{Finding, Measures};

fn case(name: &str, grade: Grade, text: &str) -> Case {
    let findings = if text.is_empty() { Vec::new() } else { vec![Finding { grade, text: text.to_owned() }] };
    let measures = Measures { ms: 1500, redirects_in_all: 1, ..Measures::default() };
    Case {
        name: name.to_owned(),
        theme: Theme::Replies,
        story: "A story.".to_owned(),
        verdict: Verdict { grade, findings, measures },
        log: vec![Entry {
            ms: 3,
            node: "a".to_owned(),
            connection: 1,
            what: Happened::Asked("GET <k>".to_owned()),
        }],
        complaints: String::new(),
    }
}

fn card() -> Card {
    let library = Library { library: "lib".to_owned(), version: "1.0".to_owned() };
    let cases = vec![
        case("fine", Grade::Good, ""),
        case("bad", Grade::Harmful, "executes twice: <INCR>"),
        case("dear", Grade::Costly, "a storm"),
        case("none", Grade::NotOffered, "no such thing"),
    ];
    Card { library: Some(library), seed: 5, servers: None, cases }
}

#[test]
fn the_text_has_a_line_for_each_scenario_and_reason() {
    let text = text(&card());
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
fn junit_has_failures_and_skips_and_its_text_is_escaped() {
    let xml = junit(&card());
    assert!(xml.contains("tests=\"4\" failures=\"1\" skipped=\"1\""), "{xml}");
    assert!(xml.contains("<failure type=\"HARMFUL\" message=\"executes twice: &lt;INCR&gt;\">"), "{xml}");
    assert!(xml.contains("GET &lt;k&gt;") && !xml.contains("<k>"), "{xml}");
    assert!(xml.contains("<skipped message=\"no such thing\"/>"), "{xml}");
}

#[test]
fn the_page_has_every_scenario_and_no_markup_of_the_wire() {
    let page = html(&card()).unwrap();
    for part in ["<h2 id=\"bad\">", "executes twice: &lt;INCR&gt;", "GET &lt;k&gt;", "A story."] {
        assert!(page.contains(part), "{part}\n{page}");
    }
}

#[test]
fn what_is_worse_than_in_an_older_card_is_named() {
    let older = serde_json::to_string(&card()).unwrap();
    let baseline: Baseline = serde_json::from_str(&older).unwrap();
    assert_eq!(worse(&card(), &baseline), Vec::<String>::new());
    let mut later = card();
    later.cases[0].verdict.grade = Grade::Costly;
    later.cases[1].verdict.grade = Grade::Good;
    later.cases.push(case("new", Grade::Harmful, "x"));
    assert_eq!(worse(&later, &baseline), ["fine: costly, was good"]);
}

#[test]
fn cards_beside_each_other_have_a_row_for_each_scenario_and_their_reasons_below() {
    let read =
        |card: &Card| serde_json::from_str::<CardOfOne>(&serde_json::to_string(card).unwrap()).unwrap();
    let mut other = card();
    other.library = Some(Library { library: "another".to_owned(), version: "2".to_owned() });
    other.cases[1].verdict.grade = Grade::Good;
    other.cases[1].verdict.findings.clear();
    let mut on_real = card();
    on_real.servers = Some("valkey-server".to_owned());
    let page = compared(&[read(&card()), read(&other), read(&on_real)]);
    for line in [
        "| scenario | another 2 | lib 1.0 |",
        "| **replies and connections** | | |",
        "| fine | good | good |",
        "| bad | good | HARMFUL |",
        "### lib 1.0",
        "- bad (HARMFUL; the same on valkey-server): executes twice: \\<INCR>",
        "- dear (costly; the same on valkey-server): a storm",
    ] {
        assert!(page.lines().any(|known| known == line), "{line}\n{page}");
    }
}
