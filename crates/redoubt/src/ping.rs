//! `redoubt ping`: whether a server lives, and whether it is ready, said by the exit status. For the health checks of
//! containers that have no other program in them.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use redis::{Client, Connection};

/// The arguments.
#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0 yes, 1 no.")]
pub(crate) struct Options {
    /// The server.
    #[arg(long, value_name = "URL", default_value = "redis://127.0.0.1:6379")]
    from: String,
    /// Ask for more than an answer: its data is loaded, a replica follows its master, a cluster's slots are served.
    #[arg(long)]
    ready: bool,
    /// Seconds to wait for each answer.
    #[arg(long, default_value_t = 3)]
    timeout: u64,
}

/// Asks, and says why not.
pub(crate) fn run(options: &Options) -> ExitCode {
    match ask(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", crate::error_text(&error));
            ExitCode::FAILURE
        }
    }
}

fn ask(options: &Options) -> Result<()> {
    let timeout = Duration::from_secs(options.timeout);
    let client =
        Client::open(options.from.as_str()).with_context(|| format!("{} is no address", options.from))?;
    let opened = client.get_connection_with_timeout(timeout);
    let mut connection = match opened {
        // A refusal is an answer: whoever sends one lives.
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
        ("loading:1", "its data is being loaded"),
        ("master_link_status:down", "it does not follow its master"),
    ] {
        if text.lines().any(|known| known.trim() == line) {
            bail!("{reason}");
        }
    }
    if info(&mut connection, "cluster")?.contains("cluster_enabled:1") {
        let state: String = redis::cmd("CLUSTER").arg("INFO").query(&mut connection)?;
        if !state.contains("cluster_state:ok") {
            bail!("its cluster does not serve all slots");
        }
    }
    Ok(())
}
