//! Skips tests that this machine cannot run. Each skipped test is reported and counted. If `CI` is set, it fails
//! instead.
//!
//! Test runners hide the output of passing tests. Therefore each skipped test is also appended to the file named by
//! `LEFT_OUT`, whose lines `scripts/test` prints and counts at the end.

use std::fs::OpenOptions;
use std::io::Write;

/// Reports that the test part named by `description` is skipped, and why.
///
/// # Panics
/// `CI` is set in the environment, where nothing may be skipped.
pub fn report_skipped(description: &str, reason: &str) {
    let line = format!("left out: {description}: {reason}");
    assert!(std::env::var_os("CI").is_none(), "{line}");
    eprintln!("{line}");
    if let Some(path) = std::env::var_os("LEFT_OUT") {
        let file = OpenOptions::new().create(true).append(true).open(&path);
        // A single write prevents lines of several processes from being mixed.
        file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()))
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

/// Returns the value. If there is none, reports the test part named by `description` as skipped and returns `None`.
///
/// # Panics
/// See [`report_skipped`].
pub fn value_or_skip<T>(description: &str, result: Result<T, String>) -> Option<T> {
    result.inspect_err(|reason| report_skipped(description, reason)).ok()
}
