//! The card as one HTML page, with a timeline of each scenario.

use anyhow::Result;
use minijinja::{Environment, context};

use super::{Card, Case};
use crate::log::Happened;

const TEMPLATE: &str = include_str!("card.html");

/// The page.
///
/// # Errors
/// If the template does not fit the card.
pub fn html(card: &Card) -> Result<String> {
    let mut environment = Environment::new();
    environment.add_template("card.html", TEMPLATE)?;
    let cases: Vec<_> = card.cases.iter().map(shown).collect();
    let counts: Vec<_> = card
        .counts()
        .into_iter()
        .map(|(grade, count)| context! { grade => grade, name => grade.name(), count })
        .collect();
    let page = context! { title => card.title(), seed => card.seed, servers => card.servers, cases, counts };
    Ok(environment.get_template("card.html")?.render(page)?)
}

fn shown(case: &Case) -> minijinja::Value {
    let mut lanes: Vec<&str> = vec![""];
    for entry in &case.log {
        if !lanes.contains(&entry.node.as_str()) {
            lanes.push(&entry.node);
        }
    }
    lanes[1..].sort_unstable();
    let marks: Vec<_> = case
        .log
        .iter()
        .map(|entry| {
            let lane = lanes.iter().position(|lane| *lane == entry.node).unwrap_or(0);
            let kind = match &entry.what {
                Happened::Opened => "opened",
                Happened::Slammed => "refused",
                Happened::Closed => "closed",
                Happened::Asked(_) => "asked",
                Happened::Answered(text) if text.starts_with('-') => "refused",
                Happened::Answered(_) => "answered",
                Happened::Ended | Happened::Fault(_) | Happened::Event(_) => "fault",
                Happened::Step(_) => "step",
                Happened::Said(text) if text.starts_with("error") || text == "no answer" => "refused",
                Happened::Said(_) => "said",
            };
            context! { ms => entry.ms, lane, kind, line => entry.line() }
        })
        .collect();
    // Before it is told to connect, the adapter's program starts, which is not the library's doing.
    let steps = case.log.iter().filter(|entry| matches!(entry.what, Happened::Step(_)));
    let begin = steps.map(|entry| entry.ms).nth(1).unwrap_or(0);
    let length = case.verdict.measures.ms.saturating_sub(begin).max(1);
    context! {
        name => case.name, theme => case.theme.name(), story => case.story, grade => case.verdict.grade,
        grade_name => case.verdict.grade.name(), findings => case.verdict.findings, measures => case.verdict.measures,
        complaints => case.complaints, begin, length, lanes, marks,
    }
}
