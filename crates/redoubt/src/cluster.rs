//! `redoubt cluster`: what a cluster, or sentinels, remember.

mod migrations;
mod timeline;

use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use clap::{Args, Subcommand};
use failovers::Failover;
use migrations::Move;
use redis::{Client, Connection, RedisError};

/// The questions.
#[derive(Debug, Subcommand)]
pub(crate) enum Question {
    /// Draw the last failovers that a node, or a sentinel, saw: when each step was, and why.
    Failovers(Options),
    /// Draw the last moves of slots (CLUSTER MIGRATESLOTS, CLUSTER MIGRATION) of a node: how far each is, how fast it
    /// goes, and how long it will take yet.
    Migrations(Options),
}

/// The arguments.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// redis://[user:password@]host:port of a node of the cluster, or of a sentinel. Each tells what it saw itself.
    #[arg(long, value_name = "URL", default_value = "redis://127.0.0.1:6379")]
    from: String,
    /// How many, of the newest.
    #[arg(long, default_value_t = 10)]
    last: usize,
    /// As JSON.
    #[arg(long)]
    json: bool,
    /// Seconds to wait for each answer.
    #[arg(long, default_value_t = 3)]
    timeout: u64,
}

/// Answers a question.
pub(crate) fn run(question: &Question) -> Result<()> {
    let text = match question {
        Question::Failovers(options) => {
            let mut told = failovers_of(&mut connect(options)?)?;
            told.drain(..told.len().saturating_sub(options.last));
            match options.json {
                true => failovers::json(&told) + "\n",
                false => timeline::draw(&told),
            }
        }
        Question::Migrations(options) => {
            let mut told: Vec<Move> =
                redis::cmd("CLUSTER").arg("GETSLOTMIGRATIONS").query(&mut connect(options)?)?;
            told.truncate(options.last);
            match options.json {
                true => migrations::json(&told) + "\n",
                false => migrations::draw(&told),
            }
        }
    };
    io::stdout().write_all(text.as_bytes()).context("the output is closed")
}

fn connect(options: &Options) -> Result<Connection> {
    let timeout = Duration::from_secs(options.timeout);
    let client =
        Client::open(options.from.as_str()).with_context(|| format!("{} is no address", options.from))?;
    let connection = client.get_connection_with_timeout(timeout)?;
    connection.set_read_timeout(Some(timeout))?;
    Ok(connection)
}

/// A server's words must not steer the terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn failovers_of(connection: &mut Connection) -> Result<Vec<Failover>> {
    let text = match told_by(connection, "CLUSTER") {
        // A sentinel has no such command.
        Err(error) if !error.is_io_error() => told_by(connection, "SENTINEL").map_err(|_| error)?,
        answer => answer?,
    };
    failovers::from_json(&text).map_err(|error| anyhow!("the answer is not understood: {error}"))
}

fn told_by(connection: &mut Connection, command: &str) -> Result<String, RedisError> {
    redis::cmd(command).arg("FAILOVERS").arg("JSON").query(connection)
}
