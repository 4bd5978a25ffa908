//! `redoubt ping`: reports through its exit status whether a server is alive or ready, for container health checks.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use redis::{Client, Connection};

/// Arguments of `redoubt ping`.
#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0 if the server is alive (or ready), otherwise 1.")]
pub(crate) struct PingOptions {
    /// The server to check.
    #[arg(long, value_name = "URL", default_value = "redis://127.0.0.1:6379")]
    from: String,
    /// Also require that the data is loaded, a replica is connected to its master, and a cluster serves all slots.
    #[arg(long)]
    ready: bool,
    /// Timeout of each request in seconds.
    #[arg(long, default_value_t = 3)]
    timeout: u64,
}

/// Checks the server; prints the reason if the check fails.
pub(crate) fn run_ping(options: &PingOptions) -> ExitCode {
    match check_server(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", crate::error_text(&error));
            ExitCode::FAILURE
        }
    }
}

fn check_server(options: &PingOptions) -> Result<()> {
    let timeout = Duration::from_secs(options.timeout);
    let client =
        Client::open(options.from.as_str()).with_context(|| format!("invalid URL: {}", options.from))?;
    let opened = client.get_connection_with_timeout(timeout);
    let mut connection = match opened {
        // A server that sends an error is alive.
        Err(error) if !options.ready && !error.is_io_error() => return Ok(()),
        opened => opened?,
    };
    connection.set_read_timeout(Some(timeout))?;
    match redis::cmd("PING").exec(&mut connection) {
        Err(error) if options.ready || error.is_io_error() => return Err(error.into()),
        _ if !options.ready => return Ok(()),
        _ => {}
    }
    let info = |connection: &mut Connection, section: &str| -> Result<String> {
        Ok(redis::cmd("INFO").arg(section).query(connection)?)
    };
    let text = [info(&mut connection, "persistence")?, info(&mut connection, "replication")?].concat();
    for (line, reason) in [
        ("loading:1", "it is loading its data"),
        ("master_link_status:down", "the link to its master is down"),
    ] {
        if text.lines().any(|known| known.trim() == line) {
            bail!("{reason}");
        }
    }
    if info(&mut connection, "cluster")?.contains("cluster_enabled:1") {
        let state: String = redis::cmd("CLUSTER").arg("INFO").query(&mut connection)?;
        if !state.contains("cluster_state:ok") {
            bail!("the cluster does not serve all slots");
        }
    }
    Ok(())
}
