//! Writes the HTML report: a timeline of faults, masters, throughput, latency, errors and losses.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use minijinja::{Environment, context};
use serde::Serialize;

use crate::{ChaosOptions, OpOutcome, Operation, RunResult};

/// The time span that a chart column covers.
const COLUMN_DURATION: Duration = Duration::from_millis(500);
const HTML_TEMPLATE: &str = include_str!("report/report.html");

/// The operations within one chart column.
#[derive(Debug, Default, Clone, Serialize)]
struct ChartColumn {
    done: usize,
    failed: usize,
    unknown: usize,
    /// The highest latency of an operation, in milliseconds.
    slowest: f64,
}

/// Renders the report of a run.
///
/// # Errors
/// The template does not match the data.
pub fn render_html(options: &ChaosOptions, result: &RunResult) -> Result<String> {
    let columns = chart_columns(&result.ops);
    let mut environment = Environment::new();
    environment.add_filter("seconds", |moment: f64| format!("{moment:.1}"));
    environment.add_template("report.html", HTML_TEMPLATE)?;
    let length = result.ops.last().map_or(1.0, |op| op.completed.as_secs_f64()).max(1.0);
    let span = |begin: Duration, end: Duration| (begin.as_secs_f64(), end.as_secs_f64());
    let faults: Vec<_> = result
        .timeline
        .faults
        .iter()
        .map(|injected| {
            let (begin, end) = span(injected.begin, injected.end);
            context! { fault => injected.fault, nodes => injected.nodes, planned => injected.fault.is_planned(), begin, end }
        })
        .collect();
    let master_periods: Vec<_> = result
        .timeline
        .master_periods
        .iter()
        .map(|reign| {
            let (begin, end) = span(reign.since, reign.until);
            context! { node => reign.node, begin, end }
        })
        .collect();
    let recoveries: Vec<_> = result
        .timeline
        .recoveries
        .iter()
        .map(|healing| context! { began => healing.began.as_secs_f64(), took => healing.took.as_secs_f64(), wrong => healing.wrong })
        .collect();
    let text = environment.get_template("report.html")?.render(context! {
        mode => options.mode,
        server => options.program.name(),
        other => options.last_replica_program.as_ref().map(harness::Program::name),
        seed => options.seed,
        good => result.is_success(),
        operations => result.ops.len(),
        injected => result.timeline.fault_count(),
        stalled => result.timeline.total_stall().as_secs_f64(),
        nodes => options.mode.node_count(),
        most => columns.iter().map(|column| column.done).max().unwrap_or(1).max(1),
        slowest => columns.iter().map(|column| column.slowest).fold(1.0, f64::max),
        step => COLUMN_DURATION.as_secs_f64(),
        findings => result.findings,
        columns,
        errors => count_errors(&result.ops),
        length,
        faults,
        master_periods,
        recoveries,
    })?;
    Ok(text)
}

/// Counts client errors by workload and kind.
fn count_errors(ops: &[Operation]) -> Vec<(&str, String, usize)> {
    let mut errors: BTreeMap<(&str, String), usize> = BTreeMap::new();
    for op in ops {
        if let Some(error) = &op.error {
            // Only the first words identify the kind; addresses differ each time.
            let kind: Vec<&str> = error.split(' ').take(3).collect();
            *errors.entry((op.workload, kind.join(" "))).or_default() += 1;
        }
    }
    errors.into_iter().map(|((workload, error), count)| (workload, error, count)).collect()
}

fn chart_columns(ops: &[Operation]) -> Vec<ChartColumn> {
    let mut columns: Vec<ChartColumn> = Vec::new();
    for op in ops {
        let at = (op.completed.as_millis() / COLUMN_DURATION.as_millis()) as usize;
        if columns.len() <= at {
            columns.resize(at + 1, ChartColumn::default());
        }
        let column = &mut columns[at];
        match op.outcome {
            OpOutcome::Acknowledged => column.done += 1,
            OpOutcome::Failed => column.failed += 1,
            OpOutcome::Unknown => column.unknown += 1,
        }
        let took = (op.completed - op.invoked).as_secs_f64() * 1000.0;
        column.slowest = column.slowest.max(took);
    }
    columns
}
