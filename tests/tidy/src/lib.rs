//! Implements the repository's rules as functions from files to violations.
//!
//! The table of crates in `docs/ARCHITECTURE.md` defines the layers and the pure crates.
//! Each rule is a function over [`SourceFile`]s, so that its unit tests can pass a faulty file. `tests/repository.rs`
//! applies all rules to the repository.
#![forbid(unsafe_code)]

mod assertions;
mod crate_table;
mod layers;
mod module_cycles;
mod parameters;
mod purity;
mod text;
mod value_types;

use std::path::{Path, PathBuf};
use std::process::Command;

pub use assertions::check_best_of_rounds;
pub use layers::{check_layers, check_layers_are_complete, check_libraries_are_documented, check_log_filter};
pub use module_cycles::check_module_cycles;
pub use parameters::check_tuple_parameters;
pub use purity::{check_pure_manifests, check_pure_sources, check_timed_waits_are_needed};
pub use text::{check_file_length, check_registry_hosts, check_unfinished, check_unsafe_code};
pub use value_types::check_value_type_files;

/// A text file of the repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFile {
    /// The path relative to the repository root, separated by `/`.
    pub path: String,
    /// The whole content of the file.
    pub text: String,
}

impl SourceFile {
    /// Creates a file that does not exist, for unit tests of the rules.
    #[must_use]
    pub fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    /// Returns the crate under `crates/` to which the file belongs.
    #[must_use]
    pub fn crate_name(&self) -> Option<&str> {
        self.path.strip_prefix("crates/")?.split('/').next()
    }

    /// Returns the path inside the crate's folder.
    fn path_in_crate(&self) -> &str {
        self.path.splitn(3, '/').nth(2).unwrap_or_default()
    }

    /// Returns whether the whole file is test code.
    fn is_test(&self) -> bool {
        let path = self.path_in_crate();
        ["tests/", "benches/", "examples/"].iter().any(|folder| path.starts_with(folder))
            || path.split('/').any(|part| part == "tests.rs" || part == "tests")
    }

    /// Returns the non-test lines with their numbers, without comments. An inline `#[cfg(test)]
    /// mod` ends the file's shipped part.
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

/// Returns the repository root.
///
/// # Panics
/// This crate has moved to another depth.
#[must_use]
pub fn repository_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("tests/tidy lies in the repository")
        .into()
}

/// Returns every text file that git tracks or would track.
///
/// # Panics
/// Git is not installed, or the folder is not a checkout.
#[must_use]
pub fn repository_files() -> Vec<SourceFile> {
    let root = repository_root();
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
            // Skip files that are deleted but not committed, and binary files.
            let text = std::fs::read_to_string(root.join(path)).ok()?;
            Some(SourceFile { path: path.to_owned(), text })
        })
        .collect()
}
