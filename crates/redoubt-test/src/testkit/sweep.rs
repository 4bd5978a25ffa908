//! Removes all servers and files of the test kit, even if the test kit itself is killed.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

/// Prefix of the directory's name. Directories without this prefix are never removed.
const FOLDER_PREFIX: &str = "redoubt-testkit-";
const SWEEP_TIMEOUT: Duration = Duration::from_secs(20);

/// A second process, the sweeper, that outlives this one and removes the directory.
pub(super) struct Sweeper {
    folder: PathBuf,
    child: Child,
}

impl Sweeper {
    pub(super) fn start() -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix(FOLDER_PREFIX)
            .tempdir()
            .context("cannot create a temporary directory")?
            .keep();
        let own = std::env::current_exe().context("cannot find the path of this program")?;
        let mut command = Command::new(own);
        command.args(["testkit", "--sweep"]).arg(&folder).stdin(Stdio::piped());
        // The sweeper has a process group of its own, so that signals to this group do not end it.
        command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        Ok(Self { child: command.spawn().context("the sweeper")?, folder })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Tells the sweeper to clean up, and waits until it has ended.
    pub(super) fn clean_up(mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Runs the sweeper: waits for the end of standard input, kills all processes in the directory, and removes the
/// directory.
pub(super) fn run_sweeper(folder: &Path) -> Result<()> {
    let is_ours = folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(FOLDER_PREFIX));
    anyhow::ensure!(is_ours, "{} is not a directory of the test kit", folder.display());
    let folder = folder.canonicalize().context("cannot resolve the directory")?;
    // Nothing is ever written to this pipe, so the read ends when the test kit ends.
    std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink())
        .context("cannot read standard input")?;
    let began = Instant::now();
    while kill_processes_in(&folder) > 0 && began.elapsed() < SWEEP_TIMEOUT {
        thread::sleep(Duration::from_millis(20));
    }
    fs::remove_dir_all(&folder).context("cannot remove the directory")
}

/// Sends SIGKILL to all processes whose working directory is below `folder`, and returns their number.
fn kill_processes_in(folder: &Path) -> usize {
    let Ok(processes) = fs::read_dir("/proc") else { return 0 };
    let mut killed = 0;
    for process in processes.flatten() {
        let number = process.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw);
        let Some(pid) = number else { continue };
        let within = fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(folder));
        if within {
            killed += 1;
            // An error means that the process has ended meanwhile.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    killed
}
