//! Finds server binaries and builds commands that run them.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::{TestHost, value_or_skip};

/// A server binary that accepts the command line of redis-server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    binary: PathBuf,
    is_redoubt: bool,
}

impl Program {
    /// Returns our own server: the binary named by `REDOUBT`, or the one built beside this test.
    ///
    /// # Panics
    /// There is no binary.
    #[must_use]
    pub fn redoubt() -> Self {
        if let Some(named) = std::env::var_os("REDOUBT").filter(|named| !named.is_empty()) {
            return Self::from_binary(Path::new(&named));
        }
        let own = std::env::current_exe().expect("a test knows its binary");
        let binary = own
            .ancestors()
            .skip(1)
            .take(2)
            .map(|folder| folder.join("redoubt"))
            .find(|binary| binary.is_file())
            .unwrap_or_else(|| {
                panic!("no redoubt beside {}: run cargo build -p redoubt first", own.display())
            });
        Self { binary, is_redoubt: true }
    }

    /// Returns Debian's Redis 7.0, which represents older servers in compatibility tests.
    #[must_use]
    pub fn redis() -> Self {
        Self { binary: "redis-server".into(), is_redoubt: false }
    }

    /// Returns Valkey 9.1 or later, the reference for every feature that Valkey has. `None`, reported as skipped, if it
    /// is not installed.
    ///
    /// # Panics
    /// See [`report_skipped`].
    #[must_use]
    pub fn valkey() -> Option<Self> {
        value_or_skip("comparisons with Valkey 9.1", find_reference_server("valkey-server", 9, 1))
    }

    /// Returns Redis 8.6 or later, the reference for features that only Redis has. `None`, reported as skipped, if it
    /// is not installed.
    ///
    /// # Panics
    /// See [`report_skipped`].
    #[must_use]
    pub fn redis_8() -> Option<Self> {
        value_or_skip("comparisons with Redis 8.6", find_reference_server("redis86-server", 8, 6))
    }

    /// Returns Redis 8.6 or later. `None`, reported as skipped, if it is not installed.
    ///
    /// # Panics
    /// See [`report_skipped`].
    #[must_use]
    pub fn redis_8_6() -> Option<Self> {
        value_or_skip("comparisons with Redis 8.6", find_reference_server("redis86-server", 8, 6))
    }

    /// Returns the program with this binary. If its name begins with `redoubt`, the subcommand `server` is used.
    #[must_use]
    pub fn from_binary(binary: &Path) -> Self {
        let is_redoubt = binary.file_name().is_some_and(|name| name.to_string_lossy().starts_with("redoubt"));
        // The path must be absolute, because each node runs in its own folder. Bare names are looked up in PATH.
        // Symbolic links are not resolved, because their names matter.
        let is_bare = binary.components().count() == 1;
        let binary =
            if is_bare { binary.into() } else { std::path::absolute(binary).expect("a current folder") };
        Self { binary, is_redoubt }
    }

    /// Returns a command that runs the binary without configuration file and options.
    #[must_use]
    pub fn command(&self) -> Command {
        self.command_on(None)
    }

    /// Returns a command that runs the binary, on a test host if one is given.
    pub(crate) fn command_on(&self, host: Option<&TestHost>) -> Command {
        let mut command = command_on(host, &self.binary);
        if self.is_redoubt {
            command.arg("server");
        }
        command
    }

    /// Returns the absolute path of the binary, or a bare name that is looked up in PATH.
    #[must_use]
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// Returns the program's name, which distinguishes servers in failure messages.
    #[must_use]
    pub fn name(&self) -> String {
        self.binary.file_name().unwrap_or(self.binary.as_os_str()).to_string_lossy().into_owned()
    }
}

/// Returns a program of at least this version, installed by `scripts/install-peers` or found in PATH.
fn find_reference_server(name: &str, min_major: u32, min_minor: u32) -> Result<Program, String> {
    let missing = || format!("there is no {name} (scripts/install-peers)");
    let candidates =
        reference_servers_folder().map(|folder| folder.join(name)).into_iter().chain([name.into()]);
    let (binary, told) = candidates
        .filter_map(|binary| Some((binary.clone(), Command::new(&binary).arg("--version").output().ok()?)))
        .next()
        .ok_or_else(missing)?;
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let version = told.split_once("v=").map_or("", |(_, rest)| rest);
    let mut parts = version.split('.').map_while(|part| part.parse().ok());
    if (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) < (min_major, min_minor) {
        return Err(format!("{name} is older than {min_major}.{min_minor}: {}", told.trim()));
    }
    Ok(Program::from_binary(&binary))
}

/// Returns the folder named by `PEERS`, or else the default folder in the user's cache.
fn reference_servers_folder() -> Option<PathBuf> {
    let named = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    named("PEERS").or_else(|| {
        let cache = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")))?;
        Some(cache.join("redoubt/peers"))
    })
}

/// Builds a command that runs the binary, on a test host if one is given.
fn command_on(host: Option<&TestHost>, binary: &Path) -> Command {
    let Some([first, rest @ ..]) = host.map(TestHost::command_prefix) else { return Command::new(binary) };
    let mut command = Command::new(first);
    command.args(rest).arg(binary);
    command
}

/// Runs a command that should end by itself within 30 seconds. Returns its exit status and output.
///
/// # Panics
/// The command cannot be started, or does not end in time; in the latter case it is killed.
#[must_use]
pub fn run_to_end(command: &mut Command) -> (ExitStatus, String) {
    let mut printed = tempfile::tempfile().expect("a temporary file");
    let writer = || printed.try_clone().expect("a file can be shared");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(writer())
        .stderr(writer())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let start = Instant::now();
    let status = loop {
        match child.try_wait().expect("a child can be waited for") {
            Some(status) => break Some(status),
            None if start.elapsed() > Duration::from_secs(30) => {
                child.kill().expect("a child can be killed");
                child.wait().expect("a child can be waited for");
                break None;
            }
            None => thread::sleep(Duration::from_millis(20)),
        }
    };
    let mut text = Vec::new();
    printed
        .seek(SeekFrom::Start(0))
        .and_then(|_| printed.read_to_end(&mut text))
        .expect("the file can be read");
    let text = String::from_utf8_lossy(&text).into_owned();
    (status.unwrap_or_else(|| panic!("{command:?} goes on running:\n{text}")), text)
}

/// Runs `redis-cli` and returns its output.
///
/// # Errors
/// `redis-cli` failed; the error is its output.
///
/// # Panics
/// `redis-cli` is not installed.
pub fn redis_cli(arguments: &[&str]) -> Result<String, String> {
    redis_cli_on(None, arguments)
}

/// Runs `redis-cli`, on a test host if one is given.
pub(crate) fn redis_cli_on(host: Option<&TestHost>, arguments: &[&str]) -> Result<String, String> {
    let output = command_on(host, Path::new("redis-cli"))
        .args(arguments)
        .output()
        .expect("redis-cli is installed (scripts/install-test-tools)");
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    if output.status.success() { Ok(text) } else { Err(text) }
}
