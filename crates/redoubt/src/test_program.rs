//! Forwards the subcommands judge, chaos and testkit to the separate program `redoubt-test`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

const TEST_PROGRAM: &str = "redoubt-test";

/// Replaces this process with `redoubt-test` from the same directory. That program starts servers with this binary,
/// unless the environment variable REDOUBT names another one.
pub(crate) fn run_test_program(task: &str, arguments: &[OsString]) -> ExitCode {
    let own = match std::env::current_exe() {
        Ok(own) => own,
        Err(error) => {
            eprintln!("Cannot find the path of this program: {error}");
            return ExitCode::FAILURE;
        }
    };
    let companion = own.parent().unwrap_or(Path::new("")).join(TEST_PROGRAM);
    let mut command = Command::new(&companion);
    command.arg(task).args(arguments);
    if std::env::var_os("REDOUBT").is_none_or(|named| named.is_empty()) {
        command.env("REDOUBT", &own);
    }
    // exec returns only on failure.
    let error = command.exec();
    eprintln!(
        "'redoubt {task}' needs the program {TEST_PROGRAM}, which cannot be run: {} ({error}).\n\
         Build it with 'cargo build --package {TEST_PROGRAM}' and place it in the same directory as redoubt.",
        companion.display()
    );
    ExitCode::FAILURE
}
