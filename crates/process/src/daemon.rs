//! Daemonizing (`daemonize`), pid files, and readiness notification for systemd and upstart.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use tokio::signal::unix::{SignalKind, signal};

use config::{Config, Supervised, Text, keys};

/// Environment variable of the background process, which prevents that process from daemonizing again.
const BACKGROUND_ENV: &str = "REDOUBT_IN_BACKGROUND";

/// With `daemonize yes`, starts this program again, detached from the terminal. Returns `true` if the calling process
/// should exit. Has no effect under a supervisor. The new process starts in `start_directory`, because it parses the
/// same command line with relative paths.
///
/// # Errors
/// The program cannot be started again.
pub fn daemonize(config: &Config, start_directory: &Path, stdin: Option<&str>) -> Result<bool> {
    if !config.get(keys::DAEMONIZE) || detect_supervisor(config).is_some() {
        return Ok(false);
    }
    if std::env::var_os(BACKGROUND_ENV).is_some() {
        // A new session has no terminal that could stop the process. This cannot fail, as the process is not a group
        // leader.
        let _ = rustix::process::setsid();
        return Ok(false);
    }
    let mut command =
        Command::new(std::env::current_exe().context("cannot determine the path of the executable")?);
    let mut arguments = std::env::args_os();
    if let Some(name) = arguments.next() {
        std::os::unix::process::CommandExt::arg0(&mut command, name);
    }
    command
        .current_dir(start_directory)
        .args(arguments)
        .env(BACKGROUND_ENV, "1")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.stdin(if stdin.is_some() { Stdio::piped() } else { Stdio::null() });
    let mut child = command.spawn().context("cannot start the server in the background")?;
    if let (Some(text), Some(mut pipe)) = (stdin, child.stdin.take()) {
        std::io::Write::write_all(&mut pipe, text.as_bytes())
            .context("cannot pass the configuration to the background process")?;
    }
    Ok(true)
}

/// Returns the path of the pid file. A daemon has a pid file even if `pidfile` is not set.
pub fn pid_file_path(config: &Config) -> Option<Text> {
    let is_daemon = || config.get(keys::DAEMONIZE) && detect_supervisor(config).is_none();
    config.get(keys::PIDFILE).or_else(|| is_daemon().then(|| "/var/run/redis.pid".into()))
}

/// Writes the pid file. A failure is logged and otherwise ignored.
pub fn write_pid_file(config: &Config) {
    if let Some(path) = pid_file_path(config)
        && let Err(error) = std::fs::write(&*path, format!("{}\n", std::process::id()))
    {
        tracing::warn!("Failed to write PID file '{path}': {error}");
    }
}

/// Removes the pid file and the unix socket. Errors are ignored, since the process is ending.
pub fn remove_pid_file_and_socket(config: &Config) {
    for path in [pid_file_path(config), config.get(keys::UNIXSOCKET)].into_iter().flatten() {
        // The file may have been removed already.
        let _ = std::fs::remove_file(&*path);
    }
}

/// Ignores SIGHUP, so that the server outlives its terminal.
///
/// # Errors
/// The signal handler cannot be installed, or the calling thread runs no event loop.
pub fn ignore_hangups() -> Result<()> {
    // tokio replaces the default action for good, even if the listener is dropped at once.
    drop(signal(SignalKind::hangup())?);
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
enum Supervisor {
    /// The supervisor is systemd; contains the path of its notification socket.
    Systemd(String),
    Upstart,
}

fn detect_supervisor(config: &Config) -> Option<Supervisor> {
    let environment = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    choose_supervisor(config.get(keys::SUPERVISED), environment("NOTIFY_SOCKET"), environment("UPSTART_JOB"))
}

fn choose_supervisor(
    supervised: Supervised,
    notify_socket: Option<String>,
    upstart_job: Option<String>,
) -> Option<Supervisor> {
    let (takes_systemd, takes_upstart) = match supervised {
        Supervised::No => (false, false),
        Supervised::Systemd => (true, false),
        Supervised::Upstart => (false, true),
        Supervised::Auto => (true, true),
    };
    let systemd = notify_socket.filter(|_| takes_systemd).map(Supervisor::Systemd);
    let upstart = upstart_job.filter(|_| takes_upstart).map(|_| Supervisor::Upstart);
    systemd.or(upstart)
}

/// Notifies the supervisor that the server accepts clients.
pub fn notify_ready(config: &Config) {
    match detect_supervisor(config) {
        Some(Supervisor::Systemd(socket)) => {
            if let Err(error) = notify_systemd(&socket, READY_MESSAGE) {
                tracing::warn!("systemd supervision requested, but NOTIFY_SOCKET cannot be used: {error}");
            }
        }
        Some(Supervisor::Upstart) => {
            tracing::info!("supervised by upstart, will stop to signal readiness");
            suspend_process();
        }
        None => {}
    }
}

/// Notifies systemd that the process is stopping, so that a long save is not taken for a hang.
pub fn notify_stopping(config: &Config) {
    if let Some(Supervisor::Systemd(socket)) = detect_supervisor(config) {
        // An error is ignored, because the process stops either way.
        let _ = notify_systemd(&socket, b"STOPPING=1\n");
    }
}

const READY_MESSAGE: &[u8] = b"STATUS=Ready to accept connections\nREADY=1\n";

fn notify_systemd(path: &str, message: &[u8]) -> std::io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    let address = match path.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    socket.send_to_addr(message, &address).map(|_| ())
}

/// Stops this process by SIGSTOP, until a SIGCONT arrives.
pub fn suspend_process() {
    // A process may always signal itself, so this cannot fail.
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supervisor_must_be_configured_and_present() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(choose_supervisor(Supervised::No, some("/run/s"), some("job")), None);
        assert_eq!(choose_supervisor(Supervised::Systemd, None, some("job")), None);
        assert_eq!(
            choose_supervisor(Supervised::Systemd, some("/run/s"), None),
            Some(Supervisor::Systemd("/run/s".into()))
        );
        assert_eq!(choose_supervisor(Supervised::Auto, None, some("job")), Some(Supervisor::Upstart));
        assert_eq!(choose_supervisor(Supervised::Auto, None, None), None);
    }
}
