//! `redoubt doctor`: is this machine, this configuration, this cluster fit to be relied on?
//!
//! Each part first gathers facts and then checks them; the checks are pure, so that tests can hand them any machine:
//!
//! | part | facts |
//! | --- | --- |
//! | `host` | the kernel's settings, limits of the process, memory, the disk under `dir`, the clock's source and whether it is kept |
//! | `setup` | the configuration file and the certificates that it names |
//! | `nodes` | a server, or every node of a cluster: ports and bus, versions, clocks, state, links, saving |
//! | `sentinels` | every sentinel of a group: reachability, versions, clocks, quorum, whether its file can be written |
//!
//! It changes nothing: a sentinel is asked to write its file again, which it does by itself whenever it learns something.
//! Each finding comes with the way to mend it.

mod finding;
mod host;
mod nodes;
mod sentinels;
mod setup;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Args;
use config::Config;
use net::tls::certificates::certificate_files;
use redis::IntoConnectionInfo as _;

use finding::{Finding, Verdict};

/// The arguments.
#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0 nothing is to be mended, 1 warnings, 2 faults.")]
pub(crate) struct Options {
    /// The configuration with which a server runs, or is to run, on this machine.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// redis://[user:password@]host:port of a server, of a node of a cluster, all of whose nodes are then asked, or of a
    /// sentinel, all of whose group are.
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
        eprintln!("{}", crate::error_text(&error));
        return ExitCode::from(2);
    }
    match worst {
        Verdict::Fine => ExitCode::SUCCESS,
        Verdict::Warning => ExitCode::from(1),
        Verdict::Fault => ExitCode::from(2),
    }
}

/// `redoubt server --check-system`: examines the machine alone. Exits with 1 on a warning, as redis-server does.
pub(crate) fn check_system() -> ExitCode {
    let config = Config::default();
    let findings = host::check(&host::Facts::gather(&config), &host::Wanted::of(&config));
    for finding in &findings {
        print!("{finding}");
    }
    let is_fine = findings.iter().all(|finding| finding.verdict == Verdict::Fine);
    if is_fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn examine(options: &Options) -> Vec<Finding> {
    let config = Config::default();
    let mut findings = Vec::new();
    if let Some(file) = &options.config {
        findings.extend(setup::load(&config, file));
        findings.extend(setup::check(&config));
        let now = time::OffsetDateTime::now_utc().unix_timestamp();
        findings.extend(setup::check_certificates(&certificate_files(&config), now));
    }
    if !options.no_host {
        findings.extend(host::check(&host::Facts::gather(&config), &host::Wanted::of(&config)));
    }
    if let Some(url) = &options.from {
        match ask(url) {
            Ok(Asked::Nodes(nodes)) => findings.extend(nodes::check(&nodes)),
            Ok(Asked::Sentinels(sentinels)) => findings.extend(sentinels::check(&sentinels)),
            Err(error) => findings.push(Finding::fault(
                "nodes",
                crate::error_text(&error),
                "is it running, is this its address, and does the URL have its password?",
            )),
        }
    }
    findings
}

/// Those at an address, and all that they know of.
enum Asked {
    Nodes(Vec<nodes::Node>),
    Sentinels(Vec<sentinels::Sentinel>),
}

fn ask(url: &str) -> Result<Asked> {
    let info = url.into_connection_info().with_context(|| format!("{url} is no address"))?;
    let address = info.addr().to_string();
    let first = nodes::ask_at(&info, &address).with_context(|| format!("{address} cannot be asked"))?;
    if first.field("redis_mode") == Some("sentinel") || first.field("server_mode") == Some("sentinel") {
        return Ok(Asked::Sentinels(sentinels::gather(&info, first)?));
    }
    Ok(Asked::Nodes(nodes::gather(&info, first)))
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
        "{} in order, {}, {}",
        count(Verdict::Fine),
        counted(count(Verdict::Warning), "warning"),
        counted(count(Verdict::Fault), "fault")
    )?;
    Ok(())
}

/// A number with its noun: `1 warning`, `2 warnings`.
fn counted(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_counted_in_the_singular() {
        let counts = [0, 1, 2].map(|number| counted(number, "warning"));
        assert_eq!(counts, ["0 warnings", "1 warning", "2 warnings"]);
    }
}
