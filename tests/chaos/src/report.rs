//! The report: one HTML file with a timeline of faults, masters, throughput, latency, errors and losses.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use minijinja::{Environment, context};
use serde::Serialize;

use crate::{Op, Options, Outcome, Verdict};

/// The width of a column of the chart.
const STEP: Duration = Duration::from_millis(500);
const TEMPLATE: &str = include_str!("report/report.html");

/// The operations of one step of time.
#[derive(Debug, Default, Clone, Serialize)]
struct Column {
    done: usize,
    failed: usize,
    unknown: usize,
    /// Milliseconds.
    slowest: f64,
}

/// The report of a run.
///
/// # Errors
/// If the template does not fit it.
pub fn html(options: &Options, verdict: &Verdict) -> Result<String> {
    let columns = columns(&verdict.ops);
    let mut environment = Environment::new();
    environment.add_filter("seconds", |moment: f64| format!("{moment:.1}"));
    environment.add_template("report.html", TEMPLATE)?;
    let length = verdict.ops.last().map_or(1.0, |op| op.completed.as_secs_f64()).max(1.0);
    let span = |begin: Duration, end: Duration| (begin.as_secs_f64(), end.as_secs_f64());
    let faults: Vec<_> = verdict
        .timeline
        .faults
        .iter()
        .map(|injected| {
            let (begin, end) = span(injected.begin, injected.end);
            context! { fault => injected.fault, nodes => injected.nodes, planned => injected.fault.is_planned(), begin, end }
        })
        .collect();
    let reigns: Vec<_> = verdict
        .timeline
        .reigns
        .iter()
        .map(|reign| {
            let (begin, end) = span(reign.since, reign.until);
            context! { node => reign.node, begin, end }
        })
        .collect();
    let healings: Vec<_> = verdict
        .timeline
        .healings
        .iter()
        .map(|healing| context! { began => healing.began.as_secs_f64(), took => healing.took.as_secs_f64(), wrong => healing.wrong })
        .collect();
    let text = environment.get_template("report.html")?.render(context! {
        mode => options.mode,
        server => options.program.name(),
        other => options.other.as_ref().map(harness::Program::name),
        seed => options.seed,
        good => verdict.is_good(),
        operations => verdict.ops.len(),
        injected => verdict.timeline.injected(),
        stalled => verdict.timeline.stalled().as_secs_f64(),
        nodes => options.mode.nodes(),
        most => columns.iter().map(|column| column.done).max().unwrap_or(1).max(1),
        slowest => columns.iter().map(|column| column.slowest).fold(1.0, f64::max),
        step => STEP.as_secs_f64(),
        findings => verdict.findings,
        columns,
        errors => errors(&verdict.ops),
        length,
        faults,
        reigns,
        healings,
    })?;
    Ok(text)
}

/// The errors that clients got, by workload and the beginning of the text, and how often.
fn errors(ops: &[Op]) -> Vec<(&str, String, usize)> {
    let mut errors: BTreeMap<(&str, String), usize> = BTreeMap::new();
    for op in ops {
        if let Some(error) = &op.error {
            // Addresses and the like differ each time.
            let kind: Vec<&str> = error.split(' ').take(3).collect();
            *errors.entry((op.workload, kind.join(" "))).or_default() += 1;
        }
    }
    errors.into_iter().map(|((workload, error), count)| (workload, error, count)).collect()
}

fn columns(ops: &[Op]) -> Vec<Column> {
    let mut columns: Vec<Column> = Vec::new();
    for op in ops {
        let at = (op.completed.as_millis() / STEP.as_millis()) as usize;
        if columns.len() <= at {
            columns.resize(at + 1, Column::default());
        }
        let column = &mut columns[at];
        match op.outcome {
            Outcome::Acknowledged => column.done += 1,
            Outcome::Failed => column.failed += 1,
            Outcome::Unknown => column.unknown += 1,
        }
        let took = (op.completed - op.invoked).as_secs_f64() * 1000.0;
        column.slowest = column.slowest.max(took);
    }
    columns
}
