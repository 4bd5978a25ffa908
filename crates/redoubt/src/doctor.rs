//! `redoubt doctor`: is this machine, this configuration, this cluster fit to be relied on?
//!
//! Each part first gathers facts and then checks them; the checks are pure, so that tests can hand them any machine:
//!
//! | part | facts |
//! | --- | --- |
//! | `host` | the kernel's settings, limits of the process, memory, the disk under `dir`, the clock's source |
//! | `setup` | the configuration file and the certificates that it names |
//! | `nodes` | a server, or every node of a cluster: ports and bus, versions, clocks, state, links, saving |
//!
//! It changes nothing. What it finds to be mended comes with the way to mend it.

mod finding;
mod host;
mod nodes;
mod setup;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use config::Config;

use finding::{Finding, Verdict};

/// The arguments.
#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0 nothing is to be mended, 1 warnings, 2 faults.")]
pub(crate) struct Options {
    /// The configuration with which a server runs, or is to run, on this machine.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// redis://[user:password@]host:port of a server, or of a node of a cluster, all of whose nodes are then asked.
    #[arg(long, value_name = "URL")]
    from: Option<String>,
    /// Ask the nodes alone: they run on other machines.
    #[arg(long, requires = "from")]
    no_host: bool,
    /// Show what is to be mended alone.
    #[arg(long, short)]
    quiet: bool,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// Examines and reports.
pub(crate) fn run(options: &Options) -> ExitCode {
    let findings = examine(options);
    let worst = findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Fine);
    if let Err(error) = show(options, &findings) {
        eprintln!("{error:#}");
        return ExitCode::from(2);
    }
    match worst {
        Verdict::Fine => ExitCode::SUCCESS,
        Verdict::Warning => ExitCode::from(1),
        Verdict::Fault => ExitCode::from(2),
    }
}

fn examine(options: &Options) -> Vec<Finding> {
    let config = Config::default();
    let mut findings = Vec::new();
    if let Some(file) = &options.config {
        findings.extend(setup::load(&config, file));
        findings.extend(setup::check(&config));
        let now = time::OffsetDateTime::now_utc().unix_timestamp();
        findings.extend(setup::check_certificates(&node::certificate_files(&config), now));
    }
    if !options.no_host {
        findings.extend(host::check(&host::Facts::gather(&config), &host::Wanted::of(&config)));
    }
    if let Some(url) = &options.from {
        match nodes::gather(url) {
            Ok(nodes) => findings.extend(nodes::check(&nodes)),
            Err(error) => findings.push(Finding::fault(
                "nodes",
                format!("{error:#}"),
                "is it running, is this its address, and does the URL have its password?",
            )),
        }
    }
    findings
}

fn show(options: &Options, findings: &[Finding]) -> Result<()> {
    let mut out = io::stdout().lock();
    let shown = findings.iter().filter(|finding| !options.quiet || finding.verdict != Verdict::Fine);
    if options.json {
        serde_json::to_writer_pretty(&mut out, &shown.collect::<Vec<_>>())?;
        writeln!(out)?;
        return Ok(());
    }
    for finding in shown {
        write!(out, "{finding}")?;
    }
    let count = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
    writeln!(
        out,
        "{} in order, {} warnings, {} faults",
        count(Verdict::Fine),
        count(Verdict::Warning),
        count(Verdict::Fault)
    )?;
    Ok(())
}
