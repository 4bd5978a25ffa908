//! `redoubt lock`: runs a command while it holds a lock, as flock does with a file.
//!
//! If the lock is lost, the command gets SIGTERM, then SIGKILL. Signals are forwarded to the command. Without a terminal,
//! the command runs in its own process group, which gets all signals; with one, it stays in the foreground process group,
//! which already gets Ctrl-C from the terminal.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use clap::{Args, ValueEnum};
use redis::{ClientTlsConfig, TlsCertificates};
use redoubt_lock::{Error, Guard, Locks, Options, REQUEST_TIMEOUT, Server};
use rustix::fs::{Access, access};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Exit statuses of `sysexits.h`: `EX_TEMPFAIL` and `EX_UNAVAILABLE`.
const EXIT_LOCK_TIMEOUT: u8 = 75;
const EXIT_NO_SERVER: u8 = 69;
/// Exit statuses with which shells report that a program cannot be run or found.
const EXIT_CANNOT_RUN: u8 = 126;
const EXIT_NOT_FOUND: u8 = 127;
/// Exit status if the lock was lost while the command ran.
const EXIT_LOCK_LOST: u8 = 74;

/// The server's URL if neither `--url` nor REDOUBT_URL is given.
const DEFAULT_URL: &str = "redis://127.0.0.1:6379";
const URL_VARIABLE: &str = "REDOUBT_URL";
/// Environment variable that passes the fencing token to the command.
const TOKEN_VARIABLE: &str = "REDOUBT_LOCK_TOKEN";

/// The action on the command when the lock is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LossAction {
    /// End the command: SIGTERM, then SIGKILL.
    Kill,
    /// Print a warning and let the command continue.
    Warn,
}

/// `redoubt lock KEY [OPTIONS] -- COMMAND...`
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: that of the command (128 plus the signal number if a signal ended it); 75 if the \
    lock was not free in time; 69 if no server is reachable; 74 if the lock was lost while the command ran and \
    the command did not fail itself; 126 or 127 if the command could not be started. The command gets its fencing \
    token in REDOUBT_LOCK_TOKEN."
)]
pub(crate) struct LockArguments {
    /// Name of the lock.
    key: String,
    /// Give up if the lock is not free after this time, such as 10s, 500ms or 2m. The default is to wait forever.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    wait: Option<Duration>,
    /// Time until the lock expires if this process dies. It is renewed while the command runs.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    lease: Duration,
    /// The server: redis://[user:password@]host:port, redis+sentinel://host:port,.../name or
    /// redis+cluster://host:port,...; rediss instead of redis uses TLS. The default is $REDOUBT_URL, or else
    /// redis://127.0.0.1:6379.
    #[arg(long)]
    url: Option<String>,
    /// CA certificates (PEM) for rediss URLs; the default is the system's trust store.
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,
    /// Client certificate (PEM).
    #[arg(long, value_name = "FILE", requires = "key_file")]
    cert: Option<PathBuf>,
    /// Private key of the client certificate (PEM).
    #[arg(long = "key", id = "key_file", value_name = "FILE", requires = "cert")]
    key_file: Option<PathBuf>,
    /// Number of replicas that must have the lock before it counts as acquired.
    #[arg(long, default_value_t = 0)]
    replicas: usize,
    /// Use a fair lock: first come, first served.
    #[arg(long)]
    fair: bool,
    /// The action on the command when the lock is lost.
    #[arg(long, value_enum, default_value = "kill")]
    on_lost: LossAction,
    /// Time between SIGTERM and SIGKILL.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    kill_after: Duration,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Parses `10s`, `500ms`, `2m` or `1h`. A number without a unit means seconds.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "ms" => 1,
        "" | "s" => 1000,
        "m" => 60 * 1000,
        "h" => 3600 * 1000,
        _ => return Err("expected a number with the unit ms, s, m or h".to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| "expected a number".to_owned())?;
    number.checked_mul(factor).map(Duration::from_millis).ok_or_else(|| "too long".to_owned())
}

/// Acquires the lock, runs the command and releases the lock.
pub(crate) fn run_lock(arguments: &LockArguments) -> ExitCode {
    // The lock crate reports unreachable servers through the log.
    tracing_subscriber::fmt()
        .with_env_filter("redoubt_lock=warn")
        .with_writer(std::io::stderr)
        .without_time()
        .with_level(false)
        .with_target(false)
        .init();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return print_error(EXIT_CANNOT_RUN, &error),
    };
    runtime.block_on(run_with_lock(arguments))
}

fn print_error(status: u8, reason: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("redoubt lock: {reason}");
    ExitCode::from(status)
}

async fn run_with_lock(arguments: &LockArguments) -> ExitCode {
    // A missing program is reported before the lock is acquired, so that other clients do not wait in vain.
    if let Err((status, why)) = check_executable(Path::new(&arguments.command[0])) {
        return print_error(status, &format!("{}: {why}", arguments.command[0].display()));
    }
    let guard = match acquire_lock(arguments).await {
        Ok(guard) => guard,
        Err(error) => return print_error(exit_status_of(&error), &format!("{}: {error}", arguments.key)),
    };
    let mut command = Command::new(&arguments.command[0]);
    command.args(&arguments.command[1..]).env(TOKEN_VARIABLE, guard.token().to_string());
    let grouped = !std::io::stdin().is_terminal();
    if grouped {
        command.process_group(0);
    }
    // From here on, signals are forwarded to the command.
    let signals = match receive_signals(grouped) {
        Ok(signals) => signals,
        Err(error) => return print_error(EXIT_CANNOT_RUN, &error),
    };
    let (outcome, was_reported) = match command.spawn() {
        Ok(child) => {
            let mut running = RunningCommand { child, has_own_group: grouped, signals, is_lost: false };
            (running.wait_for_end(&guard, arguments).await, running.is_lost)
        }
        Err(error) => {
            (print_error(EXIT_CANNOT_RUN, &format!("{}: {error}", arguments.command[0].display())), false)
        }
    };
    let Err(error) = guard.release().await else { return outcome };
    if !was_reported {
        eprintln!("redoubt lock: {}: {error}", arguments.key);
    }
    let lost = matches!(error, Error::Lost(_) | Error::NotHeld);
    let is_failure = arguments.on_lost == LossAction::Kill && lost && outcome == ExitCode::SUCCESS;
    if is_failure { ExitCode::from(EXIT_LOCK_LOST) } else { outcome }
}

/// Checks that the program exists and is executable.
///
/// # Errors
/// Returns the exit status and the reason.
fn check_executable(program: &Path) -> Result<(), (u8, &'static str)> {
    let candidates: Vec<PathBuf> = if program.as_os_str().as_encoded_bytes().contains(&b'/') {
        vec![program.to_owned()]
    } else {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).map(|folder| folder.join(program)).collect()
    };
    let runs = |file: &PathBuf| file.is_file() && access(file, Access::EXEC_OK).is_ok();
    if candidates.iter().any(runs) {
        Ok(())
    } else if candidates.iter().any(|file| file.exists()) {
        Err((EXIT_CANNOT_RUN, "permission denied or not executable"))
    } else {
        Err((EXIT_NOT_FOUND, "command not found"))
    }
}

async fn acquire_lock(arguments: &LockArguments) -> Result<Guard, Error> {
    let url = arguments.url.clone().or_else(|| std::env::var(URL_VARIABLE).ok());
    let options = Options::default()
        .lease(arguments.lease)
        .replicas(arguments.replicas)
        .wait(arguments.wait.unwrap_or(Duration::MAX));
    let server: Server = url.as_deref().unwrap_or(DEFAULT_URL).parse()?;
    let certificates = read_certificates(arguments)?;
    let locks = Locks::connect_with_tls(&server, REQUEST_TIMEOUT, certificates.as_ref()).await?.with(options);
    let lock = if arguments.fair { locks.fair_lock(&arguments.key) } else { locks.lock(&arguments.key) };
    lock.acquire().await
}

fn read_certificates(arguments: &LockArguments) -> Result<Option<TlsCertificates>, Error> {
    let read = |file: &Option<PathBuf>| {
        let bytes = file.as_ref().map(|file| {
            std::fs::read(file).map_err(|error| Error::Address(format!("{}: {error}", file.display())))
        });
        bytes.transpose()
    };
    let (root_cert, cert, key) =
        (read(&arguments.cacert)?, read(&arguments.cert)?, read(&arguments.key_file)?);
    let client_tls =
        cert.zip(key).map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
    let any = root_cert.is_some() || client_tls.is_some();
    Ok(any.then_some(TlsCertificates { client_tls, root_cert }))
}

fn exit_status_of(error: &Error) -> u8 {
    match error {
        Error::TimedOut(_) | Error::Lost(_) | Error::NotHeld => EXIT_LOCK_TIMEOUT,
        Error::Connection(_) | Error::NotEnoughNodes { .. } => EXIT_NO_SERVER,
        Error::Address(_) | Error::Name(_) => 2,
    }
}

/// Returns the stream of signals to forward.
fn receive_signals(has_own_group: bool) -> std::io::Result<mpsc::UnboundedReceiver<Signal>> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let mut all = vec![Signal::TERM, Signal::HUP, Signal::USR1, Signal::USR2];
    let from_terminal = [Signal::INT, Signal::QUIT];
    if has_own_group {
        all.extend(from_terminal);
    }
    for passed in all {
        let mut stream = signal(SignalKind::from_raw(passed.as_raw()))?;
        let sender = sender.clone();
        tokio::spawn(async move {
            // The loop ends when the receiver is dropped.
            while stream.recv().await.is_some() && sender.send(passed).is_ok() {}
        });
    }
    if !has_own_group {
        for kept in from_terminal {
            // The terminal sends these signals to the command as well; this process must only survive them.
            let mut stream = signal(SignalKind::from_raw(kept.as_raw()))?;
            tokio::spawn(async move { while stream.recv().await.is_some() {} });
        }
    }
    Ok(receiver)
}

struct RunningCommand {
    child: Child,
    has_own_group: bool,
    signals: mpsc::UnboundedReceiver<Signal>,
    /// Whether the loss of the lock has been reported already.
    is_lost: bool,
}

impl RunningCommand {
    /// Waits until the command ends, forwarding signals and watching the lock.
    async fn wait_for_end(&mut self, guard: &Guard, arguments: &LockArguments) -> ExitCode {
        let mut lost = std::pin::pin!(guard.lost());
        loop {
            tokio::select! {
                ended = self.child.wait() => return exit_code_of(ended),
                Some(signal) = self.signals.recv() => self.send_signal(signal),
                loss = &mut lost, if !self.is_lost => {
                    self.is_lost = true;
                    eprintln!("redoubt lock: {} is lost: {loss}", arguments.key);
                    match arguments.on_lost {
                        LossAction::Warn => {}
                        LossAction::Kill => {
                            self.terminate(arguments.kill_after).await;
                            return ExitCode::from(EXIT_LOCK_LOST);
                        }
                    }
                }
            }
        }
    }

    /// Sends SIGTERM, and SIGKILL after the timeout.
    async fn terminate(&mut self, timeout: Duration) {
        self.send_signal(Signal::TERM);
        let ended = tokio::time::timeout(timeout, self.child.wait()).await.is_ok();
        if self.has_own_group || !ended {
            // The signal also reaches child processes that the command has left running.
            self.send_signal(Signal::KILL);
        }
        if let Err(error) = self.child.wait().await {
            eprintln!("redoubt lock: {error}");
        }
    }

    fn send_signal(&self, signal: Signal) {
        // Without a process id, the command has ended and was reaped.
        let Some(pid) = self.child.id().and_then(|id| Pid::from_raw(id.cast_signed())) else { return };
        let sent =
            if self.has_own_group { kill_process_group(pid, signal) } else { kill_process(pid, signal) };
        if let Err(error) = sent {
            // The command may have ended just now.
            eprintln!("redoubt lock: {error}");
        }
    }
}

fn exit_code_of(result: std::io::Result<ExitStatus>) -> ExitCode {
    match result {
        Ok(status) => {
            let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
            ExitCode::from(u8::try_from(code).unwrap_or(1))
        }
        Err(error) => print_error(EXIT_CANNOT_RUN, &error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed() {
        for (text, ms) in [("10s", 10_000), ("500ms", 500), ("2m", 120_000), ("1h", 3_600_000), ("7", 7000)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "s", "-1s", "1.5s", "3d", "99999999999999999999s", "18446744073709551615h"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
