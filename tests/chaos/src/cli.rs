//! `redoubt-test chaos --mode cluster --seed 7 --seconds 60`

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use harness::Program;

use crate::{Fault, Mode, Options, Verdict, beside, report, run};

/// The chaos test's command line.
#[derive(Debug, Args)]
pub struct Arguments {
    /// How servers find out that one is gone.
    #[arg(long, value_enum, default_value = "cluster")]
    mode: Mode,
    /// The seed that faults are drawn from; the same seed draws the same faults.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// After so long no further round of faults begins.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// At the latest after so many rounds.
    #[arg(long, default_value_t = usize::MAX)]
    rounds: usize,
    /// The server: a binary of Redoubt, Redis or Valkey. Without it, the Redoubt that was built.
    #[arg(long)]
    server: Option<PathBuf>,
    /// Another server among them, in the place of a replica.
    #[arg(long)]
    other: Option<PathBuf>,
    /// A server on which the same rounds are played afterwards. To lose ten times as many acknowledged writes as it does is a
    /// failure, explained or not.
    #[arg(long)]
    beside: Option<PathBuf>,
    /// The faults to draw from; all where none is named.
    #[arg(long, value_enum, value_delimiter = ',')]
    faults: Vec<Fault>,
    /// Where the report goes; what the nodes logged is kept beside it if something is found.
    #[arg(long, default_value = "target/chaos.html")]
    report: PathBuf,
}

/// Runs as the command line says, writes the report and prints what was found.
///
/// # Errors
/// If servers cannot be started, or the report cannot be written.
pub fn run_as_told(arguments: Arguments) -> Result<ExitCode> {
    let faults = if arguments.faults.is_empty() { Fault::usual(arguments.mode) } else { arguments.faults };
    let options = Options {
        mode: arguments.mode,
        program: arguments.server.as_deref().map_or_else(Program::redoubt, Program::named),
        other: arguments.other.as_deref().map(Program::named),
        seed: arguments.seed,
        lasting: Duration::from_secs(arguments.seconds),
        rounds: arguments.rounds,
        faults,
        logs: Some(arguments.report.with_extension("logs")),
    };
    let verdict = play(&options, &arguments.report)?;
    let too_much = match arguments.beside {
        Some(binary) => is_far_worse(&options, &verdict, Program::named(&binary), &arguments.report)?,
        None => false,
    };
    Ok(if verdict.is_good() && !too_much { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Plays the same rounds on `other`; says whether that lost far less. The findings about it are told, and are no failure.
fn is_far_worse(options: &Options, verdict: &Verdict, other: Program, report: &Path) -> Result<bool> {
    println!("The same rounds with {} ...", other.name());
    let theirs = play(&beside::same_rounds(options, verdict, other), &report.with_extension("beside.html"))?;
    let (lost, others) = (verdict.findings.lost, theirs.findings.lost);
    println!("Acknowledged writes lost, explained or not: {lost}, and there {others}.");
    let too_much = beside::loses_far_more(lost, others);
    if too_much {
        println!("FAR MORE LOST: {lost} beside {others}.");
    }
    Ok(too_much)
}

/// One run, its report, and what was found.
fn play(options: &Options, report: &Path) -> Result<Verdict> {
    let verdict = run(options)?;
    let page = report::html(options, &verdict)?;
    std::fs::write(report, page)
        .with_context(|| format!("the report cannot be written to {}", report.display()))?;
    let timeline = &verdict.timeline;
    let healed = timeline.healings.iter().map(|healing| healing.took).max().unwrap_or_default();
    println!(
        "seed {}: {} operations, {} faults in {} rounds, healed within {:.1} s, lost and explained: {:?}",
        options.seed,
        verdict.ops.len(),
        timeline.injected(),
        timeline.healings.len(),
        healed.as_secs_f64(),
        verdict.findings.explained
    );
    let stalled = timeline.stalled();
    if !stalled.is_zero() {
        println!(
            "The machine let processes wait for {:.1} s; what that explains counts as explained.",
            stalled.as_secs_f64()
        );
    }
    for text in &verdict.findings.violations {
        println!("VIOLATION: {text}");
    }
    for healing in timeline.healings.iter().filter_map(|healing| healing.wrong.as_deref()) {
        println!("NOT HEALED: {healing}");
    }
    println!("The report is in {}.", report.display());
    Ok(verdict)
}
