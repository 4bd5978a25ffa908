//! Where a process works and writes: the folder that `dir` names, the log, what is taken relative to it.
//!
//! As in Redis the process goes to `dir` before it opens anything, so every relative path in its configuration
//! (`logfile`, `pidfile`, `unixsocket`, ...) is relative to `dir`, wherever it was started.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use config::{Config, keys};

/// Goes to `dir`, which is an absolute path from then on, and sees whether the log can be written there. Gives
/// back where the process was started.
///
/// # Errors
/// If either cannot be used: nothing should be started then.
pub fn enter_directory(config: &Config) -> Result<PathBuf> {
    let started_in = std::env::current_dir().unwrap_or_default();
    let dir = config.get(keys::DIR);
    go_to_dir(config).with_context(|| format!("Can't chdir to '{dir}'"))?;
    let log = config.get(keys::LOGFILE);
    if let Some(log) = log {
        open_log(Path::new(&*log)).with_context(|| format!("Can't open the log file '{log}'"))?;
    }
    Ok(started_in)
}

/// Makes `dir` the process's folder.
///
/// # Errors
/// As the system says; the process stays where it is.
pub fn go_to_dir(config: &Config) -> io::Result<()> {
    std::env::set_current_dir(&*config.get(keys::DIR))?;
    let whole = std::env::current_dir()?;
    config.put(keys::DIR, whole.to_string_lossy().into());
    Ok(())
}

/// A log file, to be written on at its end.
///
/// # Errors
/// As the system says.
pub(crate) fn open_log(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// A file beside others of this process, to be given a name once it is whole. Its mode is what the umask leaves, as of
/// any file: a user that fetches backups may read it.
///
/// # Errors
/// As the system says.
pub fn temporary(prefix: &str, suffix: &str) -> io::Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(prefix).suffix(suffix).permissions(Permissions::from_mode(0o666)).tempfile_in(".")
}
