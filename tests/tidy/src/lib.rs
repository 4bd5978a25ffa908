//! The repository's rules, as functions from files to complaints.
//!
//! `docs/ARCHITECTURE.md` says which crate may use which, which crates are pure, and how large a file may be.
//! Here the same is data, and each rule is a function over [`File`]s, so that its own tests can plant a fault;
//! `tests/repository.rs` runs them all on what is in the repository.
#![forbid(unsafe_code)]

mod circles;
mod kinds;
mod layers;
mod purity;
mod text;

use std::path::{Path, PathBuf};
use std::process::Command;

pub use circles::check_circles;
pub use kinds::check_kinds;
pub use layers::{check_floors, check_known, check_libraries, check_messages};
pub use purity::{check_pure_manifests, check_pure_sources};
pub use text::{check_hosts, check_length, check_unfinished, check_unsafe};

/// A text file of the repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Relative to the repository's root, with `/` between its parts.
    pub path: String,
    /// The content of the file.
    pub text: String,
}

impl File {
    /// A file with these contents, for tests.
    #[must_use]
    pub fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    /// The crate under `crates/` that the file belongs to.
    #[must_use]
    pub fn crate_name(&self) -> Option<&str> {
        self.path.strip_prefix("crates/")?.split('/').next()
    }

    /// The path inside the crate's folder.
    fn path_in_crate(&self) -> &str {
        self.path.splitn(3, '/').nth(2).unwrap_or_default()
    }

    /// Whether the whole file is test code.
    fn is_test(&self) -> bool {
        let path = self.path_in_crate();
        ["tests/", "benches/", "examples/"].iter().any(|folder| path.starts_with(folder))
            || path.split('/').any(|part| part == "tests.rs" || part == "tests")
    }

    /// The lines that are shipped, with their numbers: no comments, nothing from an inline `#[cfg(test)] mod` on
    /// (which stands last in a file).
    fn shipped_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut lines = self.text.lines().enumerate().peekable();
        let whole_file_is_test = self.is_test();
        std::iter::from_fn(move || {
            loop {
                let (index, line) = lines.next()?;
                let next = lines.peek().map_or("", |(_, next)| *next);
                let tests_begin =
                    line == "#[cfg(test)]" && next.starts_with("mod ") && next.trim_end().ends_with('{');
                if whole_file_is_test || tests_begin {
                    return None;
                }
                if !line.trim_start().starts_with("//") {
                    return Some((index + 1, line));
                }
            }
        })
    }
}

/// The repository's root.
///
/// # Panics
/// If this crate no longer lies two folders below it.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("tests/tidy lies in the repository")
        .into()
}

/// Every text file that git tracks or would track.
///
/// # Panics
/// Without git, or outside a checkout.
#[must_use]
pub fn repository_files() -> Vec<File> {
    let root = root();
    let list = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(&root)
        .output()
        .expect("git lists the files");
    assert!(list.status.success(), "git ls-files: {}", String::from_utf8_lossy(&list.stderr));
    String::from_utf8(list.stdout)
        .expect("paths are UTF-8")
        .split_terminator('\0')
        .filter_map(|path| {
            // A file deleted but not yet committed, or one that is no text, has no lines to check.
            let text = std::fs::read_to_string(root.join(path)).ok()?;
            Some(File { path: path.to_owned(), text })
        })
        .collect()
}
