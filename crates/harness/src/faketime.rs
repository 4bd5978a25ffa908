//! A wall clock of its own for one node, which a test can have jump: Debian's libfaketime, preloaded. The monotonic
//! clock stays what it is, as on a machine whose time is set.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// The library that is preloaded into a program with threads.
const LIBRARY: &str = "faketime/libfaketimeMT.so.1";

/// The clock of a node.
#[derive(Debug)]
pub(crate) struct FakeTime {
    library: PathBuf,
    folder: TempDir,
}

impl FakeTime {
    /// A clock that is right.
    ///
    /// # Errors
    /// If libfaketime is not installed.
    pub(crate) fn new() -> Result<Self, String> {
        let library = library().ok_or("libfaketime is missing (scripts/install-test-tools)")?;
        let clock = Self { library, folder: crate::folders::temporary("redoubt-clock-") };
        clock.set(0);
        Ok(clock)
    }

    /// Sets it so many seconds ahead, or behind. Servers notice within a second.
    ///
    /// # Panics
    /// If its file cannot be written.
    pub(crate) fn set(&self, ahead: i64) {
        // Renamed into its place, so that no process reads half of it.
        let next = self.folder.path().join("next");
        fs::write(&next, format!("{ahead:+}\n")).expect("the folder can be written to");
        fs::rename(next, self.file()).expect("the folder can be written to");
    }

    /// Has the program that is started with this command go by it.
    pub(crate) fn rule(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", &self.library)
            .env("FAKETIME_TIMESTAMP_FILE", self.file())
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("FAKETIME_DISABLE_SHM", "1")
            // Seconds after which it reads the file again.
            .env("FAKETIME_CACHE_DURATION", "1");
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("now")
    }
}

fn library() -> Option<PathBuf> {
    let folders = ["/usr/lib", "/usr/lib64", "/usr/local/lib"].map(Path::new);
    let architectures = fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    let mut places = folders.into_iter().map(Path::to_owned).chain(architectures);
    places.find_map(|folder| Some(folder.join(LIBRARY)).filter(|library| library.is_file()))
}
