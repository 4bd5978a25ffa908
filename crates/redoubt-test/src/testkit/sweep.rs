//! Leaves nothing behind, however the test's process ended.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

/// The first words of the folder's name: nothing else is ever swept.
const PREFIX: &str = "redoubt-testkit-";
const TIMEOUT: Duration = Duration::from_secs(20);

/// The process that outlives this one, and the folder that it removes.
pub(super) struct Sweeper {
    folder: PathBuf,
    child: Child,
}

impl Sweeper {
    pub(super) fn start() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir().context("no temporary folder")?.keep();
        let own = std::env::current_exe().context("a program knows its binary")?;
        let mut command = Command::new(own);
        command.args(["testkit", "--sweep"]).arg(&folder).stdin(Stdio::piped());
        // A group of its own, so that what ends this one's does not end it.
        command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        Ok(Self { child: command.spawn().context("the sweeper")?, folder })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Has it clean up now, and waits for that.
    pub(super) fn finish(mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Waits for the end of standard input, then kills the processes in the folder and removes it: the sweeper's work.
pub(super) fn sweep(folder: &Path) -> Result<()> {
    let is_ours = folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
    anyhow::ensure!(is_ours, "{} is not a test kit's folder", folder.display());
    let folder = folder.canonicalize().context("no such folder")?;
    // Nothing comes but the end.
    std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink()).context("waiting for the end")?;
    let began = Instant::now();
    while kill_all_in(&folder) > 0 && began.elapsed() < TIMEOUT {
        thread::sleep(Duration::from_millis(20));
    }
    fs::remove_dir_all(&folder).context("removing the folder")
}

/// SIGKILL for every process whose current folder is within this one; how many there were.
fn kill_all_in(folder: &Path) -> usize {
    let Ok(processes) = fs::read_dir("/proc") else { return 0 };
    let mut killed = 0;
    for process in processes.flatten() {
        let number = process.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw);
        let Some(pid) = number else { continue };
        let within = fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(folder));
        if within {
            killed += 1;
            // It may have ended by itself.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    killed
}
