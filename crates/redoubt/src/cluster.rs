//! `redoubt cluster`: shows past failovers and slot migrations.

mod migrations;
mod timeline;

use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use clap::{Args, Subcommand};
use failover_history::Failover;
use migrations::MigrationFields;
use redis::{Client, Connection, RedisError};

/// Subcommands of `redoubt cluster`.
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Show a timeline of the latest failovers, as recorded by a node or sentinel.
    Failovers(HistoryOptions),
    /// Show the latest slot migrations of a node (CLUSTER MIGRATESLOTS, CLUSTER MIGRATION) with progress, speed and
    /// remaining time.
    Migrations(HistoryOptions),
}

/// Arguments of both subcommands.
#[derive(Debug, Args)]
pub(crate) struct HistoryOptions {
    /// redis://[user:password@]host:port of a cluster node or a sentinel. Each node reports only its own observations.
    #[arg(long, value_name = "URL", default_value = "redis://127.0.0.1:6379")]
    from: String,
    /// Number of entries to show, newest ones.
    #[arg(long, default_value_t = 10)]
    last: usize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Timeout of each request in seconds.
    #[arg(long, default_value_t = 3)]
    timeout: u64,
}

/// Runs a subcommand of `redoubt cluster`.
pub(crate) fn run_cluster(command: &ClusterCommand) -> Result<()> {
    let text = match command {
        ClusterCommand::Failovers(options) => {
            let mut told = query_failovers(&mut connect(options)?)?;
            told.drain(..told.len().saturating_sub(options.last));
            match options.json {
                true => failover_history::to_json(&told) + "\n",
                false => timeline::format_failovers(&told),
            }
        }
        ClusterCommand::Migrations(options) => {
            let mut told: Vec<MigrationFields> =
                redis::cmd("CLUSTER").arg("GETSLOTMIGRATIONS").query(&mut connect(options)?)?;
            told.truncate(options.last);
            match options.json {
                true => migrations::migrations_to_json(&told) + "\n",
                false => migrations::format_migrations(&told),
            }
        }
    };
    io::stdout().write_all(text.as_bytes()).context("cannot write to the standard output")
}

fn connect(options: &HistoryOptions) -> Result<Connection> {
    let timeout = Duration::from_secs(options.timeout);
    let client =
        Client::open(options.from.as_str()).with_context(|| format!("invalid URL: {}", options.from))?;
    let connection = client.get_connection_with_timeout(timeout)?;
    connection.set_read_timeout(Some(timeout))?;
    Ok(connection)
}

/// Replaces control characters, so that a server cannot send escape sequences to the terminal.
fn replace_control_characters(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn query_failovers(connection: &mut Connection) -> Result<Vec<Failover>> {
    let text = match query_json(connection, "CLUSTER") {
        // A sentinel does not know the command; it has SENTINEL FAILOVERS instead.
        Err(error) if !error.is_io_error() => query_json(connection, "SENTINEL").map_err(|_| error)?,
        answer => answer?,
    };
    failover_history::from_json(&text).map_err(|error| anyhow!("malformed reply: {error}"))
}

fn query_json(connection: &mut Connection, command: &str) -> Result<String, RedisError> {
    redis::cmd(command).arg("FAILOVERS").arg("JSON").query(connection)
}
