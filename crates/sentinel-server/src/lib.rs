//! The sentinel process: sockets, files and scripts around the state machine of the `sentinel` crate.
//!
//! One thread runs the state machine, because the load is small and order matters. Tasks read from sockets and send
//! what they receive as [`ServerEvent`]s. The event loop in [`running`] passes the events to the machine and executes
//! its actions in their order. The machine returns a vote only after its record is synced.
//!
//! | module | purpose |
//! | --- | --- |
//! | `access` | ACL users and their lines in the configuration file |
//! | `server_state` | the state of the process |
//! | `client` | the state of a client or another sentinel: session, subscriptions |
//! | `commands` | commands that do not involve the state machine: PING, SUBSCRIBE, ... |
//! | `connection` | inbound connections |
//! | `traffic` | counters for INFO |
//! | `files` | the configuration file and the journal |
//! | `info` | INFO |
//! | `links` | outbound connections to masters, replicas and other sentinels |
//! | `running` | the event loop |
//! | `scripts` | the operator's scripts |
#![forbid(unsafe_code)]

mod access;
mod client;
mod commands;
mod connection;
mod files;
mod info;
mod links;
mod running;
mod scripts;
mod server_state;
mod traffic;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use process::random::random_u64;
use process::{StartError, crash, daemon, file_limit, log, paths};
use resp::Value;
use sentinel::{JobId, LinkId, ScriptOutcome};
use tokio::sync::oneshot;

use self::connection::AcceptedClient;
use self::files::Files;
use config::{Config, ConfigError, ConfigSource, SetError, arguments_to_lines, keys};

/// An event that a task reports to the event loop.
enum ServerEvent {
    LinkUp {
        link: LinkId,
        connection_number: u64,
        local_ip: String,
    },
    LinkFailed {
        link: LinkId,
        connection_number: u64,
        refused: bool,
    },
    LinkDown {
        link: LinkId,
        connection_number: u64,
    },
    LinkReply {
        link: LinkId,
        connection_number: u64,
        value: Value,
    },
    ClientOpened(AcceptedClient),
    ClientRequest {
        client: u64,
        args: Vec<Vec<u8>>,
    },
    ClientClosed {
        client: u64,
    },
    /// Asks for a notification when all earlier events have been processed.
    Flush(oneshot::Sender<()>),
    Resolved {
        host: String,
        ip: String,
    },
    ScriptDone {
        job: JobId,
        outcome: ScriptOutcome,
    },
}

/// Runs a sentinel until it is shut down. `arguments` are a configuration file and `--option value` pairs.
///
/// # Errors
/// The process could not start, or stopped because of an error.
pub fn serve_sentinel(arguments: &[String]) -> Result<(), StartError> {
    start_from_arguments(arguments).map_err(StartError::Start)
}

fn start_from_arguments(arguments: &[String]) -> Result<()> {
    let Some((file, options)) = arguments.split_first().filter(|(file, _)| !file.starts_with("--")) else {
        bail!("Sentinel needs config file on disk to save state. Usage: redoubt sentinel FILE");
    };
    let path = std::path::absolute(file).with_context(|| format!("no such place: '{file}'"))?;
    let mut text = std::fs::read(&path)
        .with_context(|| format!("Fatal error, can't open config file '{}'", path.display()))?;
    let options = arguments_to_lines(options);
    if !text.is_empty() && !text.ends_with(b"\n") {
        text.push(b'\n');
    }
    let place = LineNumbers { path: &path, lines: text.iter().filter(|byte| **byte == b'\n').count() };
    text.extend(options.into_bytes());
    let mut own = sentinel::SentinelConfig::parse(&text)
        .map_err(|error| place.line_error(error.line, &error.text, error.reason.clone()))?;
    let config = server_config(&own, &place)?;
    let started_in = paths::enter_working_directory(&config)?;
    check_script_files(&own, &place)?;
    let engine = engine::Engine::for_sentinel(::commands::sentinel_registry().catalogue(), random_u64()?);
    set_users(&engine, &mut own, &config, &place)?;
    // Values from the command line are not written to the file, because the next start may have another command line.
    own.forget_lines_from(place.lines);
    if daemon::daemonize(&config, &started_in, None)? {
        return Ok(());
    }
    run_sentinel(config, own, engine, path)
}

/// Runs a sentinel with a valid configuration. With `daemonize`, this is the background process.
fn run_sentinel(
    config: Config,
    own: sentinel::SentinelConfig,
    engine: engine::Engine,
    path: PathBuf,
) -> Result<()> {
    log::start_logging(&config).context("the log file cannot be opened")?;
    log::set_level(config.get(keys::LOGLEVEL));
    log::set_role_letter(b'X');
    log::log_startup("sentinel", own.global.port);
    crash::abort_on_panic(None);
    file_limit::raise_at_startup(&config);
    let (files, journal) = Files::open(path)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    daemon::write_pid_file(&config);
    let pid_file = daemon::pid_file_path(&config);
    let outcome = runtime.block_on(running::run(config, own, files, journal, engine, random_u64()?));
    runtime.shutdown_background();
    if let Some(pid_file) = pid_file {
        // The file may have been removed already.
        let _ = std::fs::remove_file(&*pid_file);
    }
    if let Err(error) = &outcome {
        // A daemon has no terminal, so the error is logged.
        tracing::warn!("{error:#}");
    }
    outcome
}

/// Finds the line numbers of configuration lines, for error messages.
struct LineNumbers<'a> {
    path: &'a Path,
    /// Number of lines in the file. Later lines come from the command line.
    lines: usize,
}

impl LineNumbers<'_> {
    fn line_error(&self, line: usize, text: &str, reason: String) -> anyhow::Error {
        let (source, line) = match line.checked_sub(self.lines) {
            None | Some(0) => (ConfigSource::File(self.path.display().to_string()), line),
            Some(option) => (ConfigSource::CommandLine, option),
        };
        ConfigError { source, line, text: text.to_owned(), reason }.into()
    }

    /// Returns an error message that names the line with these words.
    fn line_error_for(
        &self,
        own: &sentinel::SentinelConfig,
        words: &[&[u8]],
        reason: String,
    ) -> anyhow::Error {
        let (line, text) = own.line_of(words).unwrap_or_default();
        self.line_error(line, &text, reason)
    }
}

/// Checks at startup that the scripts are executable, because a failure to call them would be noticed too late.
fn check_script_files(own: &sentinel::SentinelConfig, place: &LineNumbers<'_>) -> Result<()> {
    for master in &own.masters {
        let (name, settings) = (&master.name, &master.settings);
        for (option, path) in [
            ("notification-script", &settings.notification_script),
            ("client-reconfig-script", &settings.client_reconfig_script),
        ] {
            let objection =
                path.as_ref().and_then(|path| Some((path, scripts::rejection_reason(option, path)?)));
            if let Some((path, objection)) = objection {
                let words = ["sentinel", option, name, path].map(str::as_bytes);
                return Err(place.line_error_for(own, &words, format!("{objection}.")));
            }
        }
    }
    Ok(())
}

/// Creates the users that the file describes, and replaces their passwords in the file by hashes.
fn set_users(
    engine: &engine::Engine,
    own: &mut sentinel::SentinelConfig,
    config: &Config,
    place: &LineNumbers<'_>,
) -> Result<()> {
    let required = config.get(keys::REQUIREPASS).unwrap_or_default();
    access::create_users(engine, &required, &own.users).map_err(|(line, reason)| {
        let words: Vec<&[u8]> =
            std::iter::once(&b"user"[..]).chain(own.users[line].iter().map(Vec::as_slice)).collect();
        place.line_error_for(own, &words, reason)
    })?;
    let had_default = own.users.iter().any(|line| line[0] == acl::DEFAULT_USER_NAME);
    own.users = access::user_lines(engine, &required, had_default);
    Ok(())
}

/// Returns the directives that concern the process rather than the monitored masters.
fn server_config(own: &sentinel::SentinelConfig, place: &LineNumbers<'_>) -> Result<Config> {
    let config = Config::default();
    // Like Redis, a sentinel accepts remote clients by default.
    config.set_value(keys::PROTECTED_MODE, false);
    for words in &own.server {
        config.load(&words[0], &words[1..]).map_err(|error| {
            let reason = match error {
                SetError::Invalid(reason) => reason,
                SetError::UnknownParameter | SetError::Immutable | SetError::Protected => {
                    "Bad directive or wrong number of arguments".into()
                }
            };
            let words: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
            place.line_error_for(own, &words, reason)
        })?;
    }
    Ok(config)
}
