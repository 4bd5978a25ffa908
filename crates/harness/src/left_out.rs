//! Comparisons and tests that this machine does not allow: each is told, counted, and a failure where `CI` is set.
//!
//! A test runner hides what a passing test prints, so each is also appended to the file that `LEFT_OUT` names;
//! `scripts/test` prints and counts its lines at the end.

use std::fs::OpenOptions;
use std::io::Write;

/// Tells that `what` is left out, and why.
///
/// # Panics
/// Where the environment has `CI`: nothing may be left out there.
pub fn left_out(what: &str, reason: &str) {
    let line = format!("left out: {what}: {reason}");
    assert!(std::env::var_os("CI").is_none(), "{line}");
    eprintln!("{line}");
    if let Some(path) = std::env::var_os("LEFT_OUT") {
        let file = OpenOptions::new().create(true).append(true).open(&path);
        // One write, so that lines of several processes do not mix.
        file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()))
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

/// The value that was made, or nothing and a line about the reason.
///
/// # Panics
/// As [`left_out`].
pub fn permitted<T>(what: &str, made: Result<T, String>) -> Option<T> {
    made.inspect_err(|reason| left_out(what, reason)).ok()
}
