//! Runs the operator's scripts as child processes.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use sentinel::{JobId, ScriptOutcome};
use tokio::process::Command;
use tokio::sync::mpsc::Sender;
use tokio::task::JoinHandle;

use super::ServerEvent;

/// Returns why this script cannot be configured; `None` if it can.
pub(super) fn rejection_reason(option: &str, path: &str) -> Option<&'static str> {
    let executable = std::fs::metadata(path)
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0);
    match option {
        _ if executable => None,
        "notification-script" => Some("Notification script seems non existing or non executable"),
        _ => Some("Client reconfiguration script seems non existing or non executable"),
    }
}

/// Starts a script as a child process. An event reports its end. Aborting the task kills the process.
pub(super) fn run(job: JobId, argv: &[String], events: Sender<ServerEvent>) -> JoinHandle<()> {
    let mut command = Command::new(&argv[0]);
    command.args(&argv[1..]).stdin(Stdio::null()).kill_on_drop(true);
    tokio::spawn(async move {
        let outcome = match command.status().await {
            Ok(status) => status.code().map_or(ScriptOutcome::Died, ScriptOutcome::Exited),
            Err(error) => {
                tracing::warn!("-script-error {error}");
                ScriptOutcome::Died
            }
        };
        let _ = events.send(ServerEvent::ScriptDone { job, outcome }).await;
    })
}
