//! `redoubt-test`, the binary that tests clients and servers: its subcommands here are run there.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

const NAME: &str = "redoubt-test";

/// Becomes `redoubt-test`, which lies beside this binary, with these arguments. The servers that it starts are of this
/// binary, unless REDOUBT names another.
pub(crate) fn run(task: &str, arguments: &[OsString]) -> ExitCode {
    let own = match std::env::current_exe() {
        Ok(own) => own,
        Err(error) => {
            eprintln!("The system does not say where this program is: {error}");
            return ExitCode::FAILURE;
        }
    };
    let companion = own.parent().unwrap_or(Path::new("")).join(NAME);
    let mut command = Command::new(&companion);
    command.arg(task).args(arguments);
    if std::env::var_os("REDOUBT").is_none_or(|named| named.is_empty()) {
        command.env("REDOUBT", &own);
    }
    // It returns only if there is no such program.
    let error = command.exec();
    eprintln!(
        "'redoubt {task}' is done by {NAME}, which is not where it is looked for: {} ({error}).\n\
         It is built with 'cargo build --package {NAME}' and lies beside redoubt.",
        companion.display()
    );
    ExitCode::FAILURE
}
