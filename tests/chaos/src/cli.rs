//! The command line of `redoubt-test chaos`, for example `--mode cluster --seed 7 --seconds 60`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use harness::Program;

use crate::{ChaosOptions, DeploymentMode, FaultKind, RunResult, comparison, report, run};

/// Options of `redoubt-test chaos`.
#[derive(Debug, Args)]
pub struct ChaosArguments {
    /// How servers detect and replace a failed node.
    #[arg(long, value_enum, default_value = "cluster")]
    mode: DeploymentMode,
    /// The seed of the fault schedule; equal seeds give equal faults.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// No further round of faults begins after this many seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The maximum number of rounds.
    #[arg(long, default_value_t = usize::MAX)]
    rounds: usize,
    /// The server binary: Redoubt, Redis or Valkey. The default is the Redoubt binary of this build.
    #[arg(long)]
    server: Option<PathBuf>,
    /// A binary of another server for one of the replicas.
    #[arg(long)]
    other: Option<PathBuf>,
    /// Runs the same rounds on this server after the run on Redoubt. The test fails if Redoubt loses ten times as many
    /// acknowledged writes as this server does, even if every loss is explained.
    #[arg(long, alias = "beside")]
    compare_with: Option<PathBuf>,
    /// The faults from which the schedule is drawn; the default is all faults.
    #[arg(long, value_enum, value_delimiter = ',')]
    faults: Vec<FaultKind>,
    /// The report's file name; node logs are kept beside it if there are findings.
    #[arg(long, default_value = "target/chaos.html")]
    report: PathBuf,
}

/// Runs the test, writes the report and prints the findings.
///
/// # Errors
/// The servers cannot be started, or the report cannot be written.
pub fn run_command(arguments: ChaosArguments) -> Result<ExitCode> {
    let faults = if arguments.faults.is_empty() {
        FaultKind::default_faults(arguments.mode)
    } else {
        arguments.faults
    };
    let options = ChaosOptions {
        mode: arguments.mode,
        program: arguments.server.as_deref().map_or_else(Program::redoubt, Program::from_binary),
        last_replica_program: arguments.other.as_deref().map(Program::from_binary),
        seed: arguments.seed,
        duration: Duration::from_secs(arguments.seconds),
        rounds: arguments.rounds,
        faults,
        log_folder: Some(arguments.report.with_extension("logs")),
    };
    let result = run_and_report(&options, &arguments.report)?;
    let too_much = match arguments.compare_with {
        Some(binary) => {
            loses_far_more_writes_than(&options, &result, Program::from_binary(&binary), &arguments.report)?
        }
        None => false,
    };
    Ok(if result.is_success() && !too_much { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the same rounds on the server `other` and returns whether that server lost far fewer writes. Findings about
/// `other` are printed but do not fail the test.
fn loses_far_more_writes_than(
    options: &ChaosOptions,
    result: &RunResult,
    other_program: Program,
    report: &Path,
) -> Result<bool> {
    println!("The same rounds with {} ...", other_program.name());
    let theirs = run_and_report(
        &comparison::with_same_rounds(options, result, other_program),
        &report.with_extension("beside.html"),
    )?;
    let (lost, others) = (result.findings.lost_writes, theirs.findings.lost_writes);
    println!("Acknowledged writes lost, explained or not: {lost}, and there {others}.");
    let too_much = comparison::loses_far_more_writes(lost, others);
    if too_much {
        println!("FAR MORE LOST: {lost} versus {others}.");
    }
    Ok(too_much)
}

/// Runs the test once, writes the report and prints the findings.
fn run_and_report(options: &ChaosOptions, report: &Path) -> Result<RunResult> {
    let result = run(options)?;
    let page = report::render_html(options, &result)?;
    std::fs::write(report, page)
        .with_context(|| format!("the report cannot be written to {}", report.display()))?;
    let timeline = &result.timeline;
    let healed = timeline.recoveries.iter().map(|healing| healing.took).max().unwrap_or_default();
    println!(
        "seed {}: {} operations, {} faults in {} rounds, healed within {:.1} s, lost and explained: {:?}",
        options.seed,
        result.ops.len(),
        timeline.fault_count(),
        timeline.recoveries.len(),
        healed.as_secs_f64(),
        result.findings.explained_losses
    );
    let stalled = timeline.total_stall();
    if !stalled.is_zero() {
        println!(
            "The machine let processes wait for {:.1} s; what that explains counts as explained.",
            stalled.as_secs_f64()
        );
    }
    for text in &result.findings.violations {
        println!("VIOLATION: {text}");
    }
    for healing in timeline.recoveries.iter().filter_map(|healing| healing.wrong.as_deref()) {
        println!("NOT HEALED: {healing}");
    }
    println!("The report is in {}.", report.display());
    Ok(result)
}
