//! The working directory, and files with paths relative to it.
//!
//! As in Redis, the process changes to `dir` before it opens any file. Relative paths in the configuration (`logfile`,
//! `pidfile`, `unixsocket` and others) are therefore relative to `dir`, wherever the server was started.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use config::{Config, keys};

/// Changes to `dir`, makes that setting absolute, and checks that the log file can be written there. Returns the
/// previous working directory.
///
/// # Errors
/// The directory or the log file cannot be used. In this case the server should not start.
pub fn enter_working_directory(config: &Config) -> Result<PathBuf> {
    let started_in = std::env::current_dir().unwrap_or_default();
    let dir = config.get(keys::DIR);
    change_to_dir(config).with_context(|| format!("Can't chdir to '{dir}'"))?;
    let log = config.get(keys::LOGFILE);
    if let Some(log) = log {
        open_log_file(Path::new(&*log)).with_context(|| format!("Can't open the log file '{log}'"))?;
    }
    Ok(started_in)
}

/// Changes the working directory to `dir`.
///
/// # Errors
/// The system call failed. The working directory is unchanged then.
pub fn change_to_dir(config: &Config) -> io::Result<()> {
    std::env::set_current_dir(&*config.get(keys::DIR))?;
    let absolute = std::env::current_dir()?;
    config.set_value(keys::DIR, absolute.to_string_lossy().into());
    Ok(())
}

/// Opens a log file for appending.
///
/// # Errors
/// The file cannot be created or opened.
pub(crate) fn open_log_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// Creates a temporary file in the working directory, to be renamed when complete. Its mode follows the umask like that
/// of other files, so a backup user may read it.
///
/// # Errors
/// The file cannot be created.
pub fn create_temporary_file(prefix: &str, suffix: &str) -> io::Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(prefix).suffix(suffix).permissions(Permissions::from_mode(0o666)).tempfile_in(".")
}
