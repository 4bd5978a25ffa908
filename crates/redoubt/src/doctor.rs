//! `redoubt doctor`: checks a machine, a configuration and a cluster for problems, and suggests a fix for each.
//!
//! Each module first gathers facts, then checks them. The checks are pure functions, so tests can pass any facts:
//!
//! | module | facts |
//! | --- | --- |
//! | `host` | kernel settings, process limits, memory, the disk under `dir`, clock source and synchronisation |
//! | `setup` | the configuration file and its certificates |
//! | `nodes` | a server, or every node of a cluster: ports and bus, versions, clocks, state, links, saving |
//! | `sentinels` | every sentinel of a group: reachability, versions, clocks, quorum, whether its file can be written |
//!
//! The only command with a side effect is SENTINEL FLUSHCONFIG, which sentinels also run by themselves.

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

use finding::{Finding, Severity};

/// Arguments of `redoubt doctor`.
#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0 if all is well, 1 on warnings, 2 on faults.")]
pub(crate) struct DoctorOptions {
    /// Check the configuration file of a server on this machine.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check running servers: redis://[user:password@]host:port of a server, or of any node of a cluster or any sentinel;
    /// all nodes or sentinels that it knows are checked, too.
    #[arg(long, value_name = "URL")]
    from: Option<String>,
    /// Do not check this machine; use it if the servers run elsewhere.
    #[arg(long, requires = "from")]
    no_host: bool,
    /// Show only warnings and faults.
    #[arg(long, short)]
    quiet: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the checks and prints the findings.
pub(crate) fn run_doctor(options: &DoctorOptions) -> ExitCode {
    let findings = run_checks(options);
    let worst = findings.iter().map(|finding| finding.verdict).max().unwrap_or(Severity::Fine);
    if let Err(error) = print_findings(options, &findings) {
        eprintln!("{}", crate::error_text(&error));
        return ExitCode::from(2);
    }
    match worst {
        Severity::Fine => ExitCode::SUCCESS,
        Severity::Warning => ExitCode::from(1),
        Severity::Fault => ExitCode::from(2),
    }
}

/// Checks this machine only (`redoubt server --check-system`). Exits with 1 on a warning, as redis-server does.
pub(crate) fn check_system() -> ExitCode {
    let config = Config::default();
    let findings = host::check_host(
        &host::HostFacts::gather_host_facts(&config),
        &host::HostRequirements::from_config(&config),
    );
    for finding in &findings {
        print!("{finding}");
    }
    let is_fine = findings.iter().all(|finding| finding.verdict == Severity::Fine);
    if is_fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_checks(options: &DoctorOptions) -> Vec<Finding> {
    let config = Config::default();
    let mut findings = Vec::new();
    if let Some(file) = &options.config {
        findings.extend(setup::check_config_file(&config, file));
        findings.extend(setup::check_parameters(&config));
        let now = time::OffsetDateTime::now_utc().unix_timestamp();
        findings.extend(setup::check_certificates(&certificate_files(&config), now));
    }
    if !options.no_host {
        findings.extend(host::check_host(
            &host::HostFacts::gather_host_facts(&config),
            &host::HostRequirements::from_config(&config),
        ));
    }
    if let Some(url) = &options.from {
        match query_servers(url) {
            Ok(QueriedServers::Nodes(nodes)) => findings.extend(nodes::check_servers(&nodes)),
            Ok(QueriedServers::Sentinels(sentinels)) => {
                findings.extend(sentinels::check_sentinels(&sentinels));
            }
            Err(error) => findings.push(Finding::fault(
                "nodes",
                crate::error_text(&error),
                "check that it runs, and that the address and the password in the URL are right",
            )),
        }
    }
    findings
}

/// The servers or sentinels that were found by asking one of them.
enum QueriedServers {
    Nodes(Vec<nodes::ServerFacts>),
    Sentinels(Vec<sentinels::SentinelFacts>),
}

fn query_servers(url: &str) -> Result<QueriedServers> {
    let info = url.into_connection_info().with_context(|| format!("invalid URL: {url}"))?;
    let address = info.addr().to_string();
    let first = nodes::query_server(&info, &address).with_context(|| format!("cannot query {address}"))?;
    if first.info_field("redis_mode") == Some("sentinel")
        || first.info_field("server_mode") == Some("sentinel")
    {
        return Ok(QueriedServers::Sentinels(sentinels::query_all_sentinels(&info, first)?));
    }
    Ok(QueriedServers::Nodes(nodes::query_all_nodes(&info, first)))
}

fn print_findings(options: &DoctorOptions, findings: &[Finding]) -> Result<()> {
    let mut out = io::stdout().lock();
    let shown = findings.iter().filter(|finding| !options.quiet || finding.verdict != Severity::Fine);
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
        "{} ok, {}, {}",
        count(Severity::Fine),
        count_with_noun(count(Severity::Warning), "warning"),
        count_with_noun(count(Severity::Fault), "fault")
    )?;
    Ok(())
}

/// Formats a number with its noun, such as `1 warning` or `2 warnings`.
fn count_with_noun(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_use_singular_and_plural() {
        let counts = [0, 1, 2].map(|number| count_with_noun(number, "warning"));
        assert_eq!(counts, ["0 warnings", "1 warning", "2 warnings"]);
    }
}
