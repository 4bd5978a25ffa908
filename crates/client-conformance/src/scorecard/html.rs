//! Renders the scorecard as one HTML page with a timeline per scenario.

use anyhow::Result;
use minijinja::{Environment, context};

use super::{ScenarioResult, Scorecard};
use crate::event_log::LogEvent;

const HTML_TEMPLATE: &str = include_str!("card.html");

/// Renders the scorecard as one HTML page.
///
/// # Errors
/// The template does not match the scorecard.
pub fn render_html(scorecard: &Scorecard) -> Result<String> {
    let mut environment = Environment::new();
    environment.add_template("card.html", HTML_TEMPLATE)?;
    let cases: Vec<_> = scorecard.cases.iter().map(timeline_of).collect();
    let counts: Vec<_> = scorecard
        .grade_counts()
        .into_iter()
        .map(|(grade, count)| context! { grade => grade, name => grade.name(), count })
        .collect();
    let page = context! { title => scorecard.title(), seed => scorecard.seed, servers => scorecard.servers, cases, counts };
    Ok(environment.get_template("card.html")?.render(page)?)
}

fn timeline_of(case: &ScenarioResult) -> minijinja::Value {
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
            let kind = match &entry.event {
                LogEvent::ConnectionOpened => "opened",
                LogEvent::ConnectionRejected => "refused",
                LogEvent::ClientClosed => "closed",
                LogEvent::CommandReceived(_) => "asked",
                LogEvent::ReplySent(text) if text.starts_with('-') => "refused",
                LogEvent::ReplySent(_) => "answered",
                LogEvent::NodeClosed | LogEvent::FaultInjected(_) | LogEvent::NodesChanged(_) => "fault",
                LogEvent::RequestSent(_) => "step",
                LogEvent::AdapterAnswered(text) if text.starts_with("error") || text == "no answer" => {
                    "refused"
                }
                LogEvent::AdapterAnswered(_) => "said",
            };
            context! { ms => entry.ms, lane, kind, line => entry.to_line() }
        })
        .collect();
    // The timeline begins with the first step, because the time to start the adapter is not the library's fault.
    let steps = case.log.iter().filter(|entry| matches!(entry.event, LogEvent::RequestSent(_)));
    let begin = steps.map(|entry| entry.ms).nth(1).unwrap_or(0);
    let length = case.verdict.costs.ms.saturating_sub(begin).max(1);
    context! {
        name => case.name, theme => case.theme.name(), story => case.story, grade => case.verdict.grade,
        grade_name => case.verdict.grade.name(), findings => case.verdict.findings, measures => case.verdict.costs,
        complaints => case.stderr_tail, begin, length, lanes, marks,
    }
}
