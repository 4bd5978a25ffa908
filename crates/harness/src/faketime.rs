//! A wall clock for one node, which a test can shift. It is implemented by preloading libfaketime. The monotonic clock
//! is unaffected, as when an operator sets the time of a machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// The variant of libfaketime for multi-threaded programs.
const FAKETIME_LIBRARY: &str = "faketime/libfaketimeMT.so.1";

/// The wall clock of one node, controlled by a file that libfaketime reads.
#[derive(Debug)]
pub(crate) struct FakeTime {
    library: PathBuf,
    folder: TempDir,
}

impl FakeTime {
    /// Creates a clock that shows the real time.
    ///
    /// # Errors
    /// libfaketime is not installed.
    pub(crate) fn new() -> Result<Self, String> {
        let library = find_library().ok_or("libfaketime is missing (scripts/install-test-tools)")?;
        let clock = Self { library, folder: crate::folders::create_temporary_folder("redoubt-clock-") };
        clock.shift(0);
        Ok(clock)
    }

    /// Sets the clock ahead of real time by `seconds_ahead`, which may be negative. Servers notice within a second.
    ///
    /// # Panics
    /// The clock's file cannot be written.
    pub(crate) fn shift(&self, seconds_ahead: i64) {
        // The file is renamed into place, so that no process reads a partial file.
        let next = self.folder.path().join("next");
        fs::write(&next, format!("{seconds_ahead:+}\n")).expect("the folder can be written to");
        fs::rename(next, self.offset_file()).expect("the folder can be written to");
    }

    /// Makes the program started by this command use the clock.
    pub(crate) fn apply_to(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", &self.library)
            .env("FAKETIME_TIMESTAMP_FILE", self.offset_file())
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("FAKETIME_DISABLE_SHM", "1")
            // libfaketime reads the file again after this number of seconds.
            .env("FAKETIME_CACHE_DURATION", "1");
    }

    fn offset_file(&self) -> PathBuf {
        self.folder.path().join("now")
    }
}

fn find_library() -> Option<PathBuf> {
    let folders = ["/usr/lib", "/usr/lib64", "/usr/local/lib"].map(Path::new);
    let architectures = fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    let mut places = folders.into_iter().map(Path::to_owned).chain(architectures);
    places.find_map(|folder| Some(folder.join(FAKETIME_LIBRARY)).filter(|library| library.is_file()))
}
