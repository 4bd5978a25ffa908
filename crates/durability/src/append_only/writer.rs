//! The thread that writes the append-only file. It performs the state machine's file operations.
//!
//! It writes the bytes of the replication log, so nothing is encoded twice.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use append_only::{AofEffect, FileExecutor, FileOperation, FsyncPolicy, LogLoss, OperationError};
use clock::Instant;
use process::time;
use slot_routing::ReplOffset;

use super::directory::AofDirectory;
use super::{AppendOnly, StopCondition, retain_log};
use crate::disk::SystemDisk;

/// Pause after a write that no client waits for, so that later changes are written together.
const WRITE_PAUSE: Duration = Duration::from_millis(1);
/// Upper bound for waiting before the state machine is asked again.
const MAX_WAIT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Writer {
    shared: Arc<AppendOnly>,
    executor: FileExecutor<SystemDisk>,
    /// The bytes to write.
    buffer: Vec<u8>,
}

/// The writer's next step.
#[derive(Debug)]
enum NextStep {
    Run(FileOperation, Option<tempfile::NamedTempFile>),
    /// The log was lost; ask the state machine again.
    Again,
    /// Wait until the log grows, an event arrives, or the deadline passes.
    Wait(Option<Instant>),
    Stop,
}

impl Writer {
    /// Continues with `file`, or waits for the first increment.
    pub(super) fn new(shared: Arc<AppendOnly>, folder: AofDirectory, file: Option<File>) -> Self {
        Self { shared, executor: FileExecutor { folder, file }, buffer: Vec::new() }
    }

    /// Runs until the append-only file is disabled.
    pub(super) fn run(mut self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.expect("the writer thread needs an event loop");
        runtime.block_on(async {
            loop {
                let sleep = self.shared.flush_sleep.load(Ordering::Relaxed);
                if sleep > 0 {
                    tokio::time::sleep(Duration::from_micros(sleep)).await;
                }
                match self.shared.next_step(&mut self.buffer) {
                    NextStep::Run(operation, base) => {
                        let rests = matches!(operation, FileOperation::Write { .. });
                        let outcome = self.executor.execute(operation, &self.buffer, base);
                        if self.shared.complete(&self.executor.folder, outcome) && rests {
                            tokio::time::sleep(WRITE_PAUSE).await;
                        }
                    }
                    NextStep::Again => {}
                    NextStep::Wait(deadline) => self.wait(deadline).await,
                    NextStep::Stop => break,
                }
            }
        });
    }

    async fn wait(&self, deadline: Option<Instant>) {
        let left = deadline.map_or(MAX_WAIT, |deadline| deadline.since(time::instant())).min(MAX_WAIT);
        let shared = &self.shared;
        let seen = shared.reported_log_end();
        // If writing fails at the moment, more bytes in the log change nothing.
        let grown = async {
            match seen {
                Some(seen) => {
                    let has_grown = || shared.log.lock().position().offset > seen;
                    shared.log.wait_for_growth(|| has_grown().then_some(())).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = grown => {}
            () = shared.wake_writer.notified() => {}
            () = tokio::time::sleep(left) => {}
        }
    }
}

impl AppendOnly {
    /// Asks the state machine for the next step. For a write, fills `buffer`.
    fn next_step(&self, buffer: &mut Vec<u8>) -> NextStep {
        let now = time::instant();
        let mut log = self.log.lock();
        let mut state = self.state.lock();
        self.report_log(&mut log, &mut state);
        let stop_condition = state.stop_condition;
        let Some(machine) = &mut state.machine else { return NextStep::Stop };
        let is_over = |stop_condition: StopCondition| {
            machine.has_synced(stop_condition.until) || machine.failures() > stop_condition.failures
        };
        if stop_condition.is_some_and(is_over) {
            return NextStep::Stop;
        }
        let operation = machine.next_operation(now);
        let deadline = machine.next_deadline(now);
        retain_log(&mut log, &mut state);
        let Some(operation) = operation else { return NextStep::Wait(deadline) };
        let base = match &operation {
            FileOperation::InstallBase { rewrite, .. } => {
                state.finished_base.take_if(|(ready, _)| ready == rewrite)
            }
            _ => None,
        };
        drop(state);
        if let FileOperation::Write { head, from, len } = &operation {
            buffer.clear();
            buffer.extend_from_slice(head);
            if log.read_exact_at(*from, usize::try_from(*len).unwrap_or(usize::MAX), buffer).is_err() {
                drop(log);
                self.report_lost_log();
                return NextStep::Again;
            }
        }
        NextStep::Run(operation, base.map(|(_, file)| file))
    }

    fn report_lost_log(&self) {
        let mut effects = Vec::new();
        let mut state = self.state.lock();
        if let Some(machine) = &mut state.machine {
            machine.done(time::instant(), Err(OperationError::LogLost(LogLoss::Trimmed)), &mut effects);
        }
        self.apply_effects(&mut state, effects);
    }

    /// Reports the result of an operation. Returns whether the writer may pause.
    fn complete(&self, folder: &AofDirectory, outcome: Result<(), OperationError>) -> bool {
        let mut effects = Vec::new();
        let mut state = self.state.lock();
        let stop_condition = state.stop_condition.is_some();
        let Some(machine) = &mut state.machine else { return false };
        let (was, delays) = (machine.manifest().files().count(), machine.delays());
        machine.done(time::instant(), outcome, &mut effects);
        if machine.delays() > delays {
            tracing::warn!("Asynchronous AOF fsync is taking too long (disk is busy?)");
        }
        let rests =
            machine.policy() != FsyncPolicy::Always && !stop_condition && !machine.is_sync_requested();
        let is_other = machine.manifest().files().count() != was
            || effects.iter().any(|effect| matches!(effect, AofEffect::RewriteEnded { .. }));
        if is_other {
            let sizes = folder.sizes(machine.manifest());
            let increment = machine.increment_bytes();
            (state.base_size, state.size_before) = (sizes.base, sizes.all.saturating_sub(increment));
        }
        self.apply_effects(&mut state, effects);
        drop(state);
        self.changed.notify_all();
        rests
    }

    /// The last log end passed to the state machine, if it follows the log and has no error.
    fn reported_log_end(&self) -> Option<ReplOffset> {
        let state = self.state.lock();
        let machine = state.machine.as_ref().filter(|machine| machine.error().is_none())?;
        machine.written().map(|_| machine.log_end())
    }
}
