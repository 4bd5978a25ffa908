//! Going into the background, and telling a supervisor that the server is up.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use tokio::signal::unix::{SignalKind, signal};

use config::{Config, Supervised, Text, keys};

/// Set for the process that runs in the background, so that it does not go there again.
const MARK: &str = "REDOUBT_IN_BACKGROUND";

/// With `daemonize yes`: starts this program once more, detached from the terminal, and says that the
/// calling process is done. A server under a supervisor stays where it is.
/// The new process begins where this one did, in `started_in`, since it reads the same command line.
///
/// # Errors
/// This program cannot be started once more.
pub fn detach(config: &Config, started_in: &Path, stdin: Option<&str>) -> Result<bool> {
    if !config.get(keys::DAEMONIZE) || supervisor(config).is_some() {
        return Ok(false);
    }
    if std::env::var_os(MARK).is_some() {
        // A session of its own: no terminal can stop it. It is not a group's leader, so this succeeds.
        let _ = rustix::process::setsid();
        return Ok(false);
    }
    let mut command = Command::new(std::env::current_exe().context("this program's file is not known")?);
    let mut arguments = std::env::args_os();
    if let Some(name) = arguments.next() {
        std::os::unix::process::CommandExt::arg0(&mut command, name);
    }
    command
        .current_dir(started_in)
        .args(arguments)
        .env(MARK, "1")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.stdin(if stdin.is_some() { Stdio::piped() } else { Stdio::null() });
    let mut child = command.spawn().context("the server cannot be started in the background")?;
    if let (Some(text), Some(mut pipe)) = (stdin, child.stdin.take()) {
        std::io::Write::write_all(&mut pipe, text.as_bytes())
            .context("the configuration cannot be handed to the server in the background")?;
    }
    Ok(true)
}

/// Where the process id goes: a daemon always leaves it somewhere.
pub fn pid_file(config: &Config) -> Option<Text> {
    let is_daemon = || config.get(keys::DAEMONIZE) && supervisor(config).is_none();
    config.get(keys::PIDFILE).or_else(|| is_daemon().then(|| "/var/run/redis.pid".into()))
}

/// Writes the process id to where [`pid_file`] says; if that cannot be, the log says so and no more happens.
pub fn write_pid_file(config: &Config) {
    if let Some(path) = pid_file(config)
        && let Err(error) = std::fs::write(&*path, format!("{}\n", std::process::id()))
    {
        tracing::warn!("Failed to write PID file '{path}': {error}");
    }
}

/// Removes what says that the process runs.
pub fn remove_files(config: &Config) {
    for path in [pid_file(config), config.get(keys::UNIXSOCKET)].into_iter().flatten() {
        // It may be gone already.
        let _ = std::fs::remove_file(&*path);
    }
}

/// A terminal that is closed does not end what was started from it.
///
/// # Errors
/// The signal cannot be listened to, or no event loop runs in the calling thread.
pub fn ignore_hangups() -> Result<()> {
    // A listener, even if it is dropped at once, takes the signal from its default action for good.
    drop(signal(SignalKind::hangup())?);
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
enum Supervisor {
    /// The socket to be notified.
    Systemd(String),
    Upstart,
}

fn supervisor(config: &Config) -> Option<Supervisor> {
    let environment = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    choose(config.get(keys::SUPERVISED), environment("NOTIFY_SOCKET"), environment("UPSTART_JOB"))
}

fn choose(supervised: Supervised, notify: Option<String>, upstart: Option<String>) -> Option<Supervisor> {
    let (takes_systemd, takes_upstart) = match supervised {
        Supervised::No => (false, false),
        Supervised::Systemd => (true, false),
        Supervised::Upstart => (false, true),
        Supervised::Auto => (true, true),
    };
    let systemd = notify.filter(|_| takes_systemd).map(Supervisor::Systemd);
    let upstart = upstart.filter(|_| takes_upstart).map(|_| Supervisor::Upstart);
    systemd.or(upstart)
}

/// Tells the supervisor that clients are served.
pub fn notify_ready(config: &Config) {
    match supervisor(config) {
        Some(Supervisor::Systemd(socket)) => {
            if let Err(error) = notify_systemd(&socket, READY) {
                tracing::warn!("systemd supervision requested, but NOTIFY_SOCKET cannot be used: {error}");
            }
        }
        Some(Supervisor::Upstart) => {
            tracing::info!("supervised by upstart, will stop to signal readiness");
            suspend();
        }
        None => {}
    }
}

/// Tells systemd that the process has begun to stop, and is not to be taken for hung while it saves.
pub fn notify_stopping(config: &Config) {
    if let Some(Supervisor::Systemd(socket)) = supervisor(config) {
        // Whether it heard or not, the process stops.
        let _ = notify_systemd(&socket, b"STOPPING=1\n");
    }
}

const READY: &[u8] = b"STATUS=Ready to accept connections\nREADY=1\n";

fn notify_systemd(path: &str, message: &[u8]) -> std::io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    let address = match path.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    socket.send_to_addr(message, &address).map(|_| ())
}

/// Stops this process, as SIGSTOP does, until it gets SIGCONT.
pub fn suspend() {
    // A signal to oneself that exists and cannot be blocked is delivered.
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_supervisor_is_there_if_asked_for_and_present() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(choose(Supervised::No, some("/run/s"), some("job")), None);
        assert_eq!(choose(Supervised::Systemd, None, some("job")), None);
        assert_eq!(
            choose(Supervised::Systemd, some("/run/s"), None),
            Some(Supervisor::Systemd("/run/s".into()))
        );
        assert_eq!(choose(Supervised::Auto, None, some("job")), Some(Supervisor::Upstart));
        assert_eq!(choose(Supervised::Auto, None, None), None);
    }
}
