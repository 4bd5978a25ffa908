//! The operator's scripts, as processes of their own.

use std::process::Stdio;

use sentinel::{JobId, Outcome};
use tokio::process::Command;
use tokio::sync::mpsc::Sender;
use tokio::task::JoinHandle;

use super::Event;

/// Starts a script; its end comes as an event. Aborting the task kills the process.
pub(super) fn run(job: JobId, argv: &[String], events: Sender<Event>) -> JoinHandle<()> {
    let mut command = Command::new(&argv[0]);
    command.args(&argv[1..]).stdin(Stdio::null()).kill_on_drop(true);
    tokio::spawn(async move {
        let outcome = match command.status().await {
            Ok(status) => status.code().map_or(Outcome::Died, Outcome::Exited),
            Err(error) => {
                tracing::warn!("-script-error {error}");
                Outcome::Died
            }
        };
        let _ = events.send(Event::ScriptDone { job, outcome }).await;
    })
}
