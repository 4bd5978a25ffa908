//! The thread that writes the append-only file. It performs the state machine's file operations.
//!
//! It writes the bytes of the replication log, so nothing is encoded twice.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use append_only::{Effect, Failure, Hands, Lost, Operation, Policy};
use clock::Instant;
use process::time;
use slot_routing::ReplOffset;

use super::folder::Folder;
use super::{AppendOnly, Stopping, keep};
use crate::disk::SystemDisk;

/// Pause after a write that no client waits for, so that later changes are written together.
const REST: Duration = Duration::from_millis(1);
/// Upper bound for waiting before the state machine is asked again.
const LONGEST: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Writer {
    shared: Arc<AppendOnly>,
    hands: Hands<SystemDisk>,
    /// The bytes to write.
    buffer: Vec<u8>,
}

/// The writer's next step.
#[derive(Debug)]
enum Next {
    Do(Operation, Option<tempfile::NamedTempFile>),
    /// The log was lost; ask the state machine again.
    Again,
    /// Wait until the log grows, an event arrives, or the deadline passes.
    Wait(Option<Instant>),
    Stop,
}

impl Writer {
    /// Continues with `file`, or waits for the first increment.
    pub(super) fn new(shared: Arc<AppendOnly>, folder: Folder, file: Option<File>) -> Self {
        Self { shared, hands: Hands { folder, file }, buffer: Vec::new() }
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
                match self.shared.next(&mut self.buffer) {
                    Next::Do(operation, base) => {
                        let rests = matches!(operation, Operation::Write { .. });
                        let outcome = self.hands.carry_out(operation, &self.buffer, base);
                        if self.shared.done(&self.hands.folder, outcome) && rests {
                            tokio::time::sleep(REST).await;
                        }
                    }
                    Next::Again => {}
                    Next::Wait(deadline) => self.wait(deadline).await,
                    Next::Stop => break,
                }
            }
        });
    }

    async fn wait(&self, deadline: Option<Instant>) {
        let left = deadline.map_or(LONGEST, |deadline| deadline.since(time::instant())).min(LONGEST);
        let shared = &self.shared;
        let seen = shared.end_that_was_told();
        // If writing fails at the moment, more bytes in the log change nothing.
        let grown = async {
            match seen {
                Some(seen) => {
                    let has_grown = || shared.log.lock().position().offset > seen;
                    shared.log.when_grown(|| has_grown().then_some(())).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = grown => {}
            () = shared.asked.notified() => {}
            () = tokio::time::sleep(left) => {}
        }
    }
}

impl AppendOnly {
    /// Asks the state machine for the next step. For a write, fills `buffer`.
    fn next(&self, buffer: &mut Vec<u8>) -> Next {
        let now = time::instant();
        let mut log = self.log.lock();
        let mut state = self.state.lock();
        self.follow(&mut log, &mut state);
        let stopping = state.stopping;
        let Some(machine) = &mut state.machine else { return Next::Stop };
        let is_over =
            |stopping: Stopping| machine.has_synced(stopping.until) || machine.failures() > stopping.failures;
        if stopping.is_some_and(is_over) {
            return Next::Stop;
        }
        let operation = machine.next_operation(now);
        let deadline = machine.next_deadline(now);
        keep(&mut log, &mut state);
        let Some(operation) = operation else { return Next::Wait(deadline) };
        let base = match &operation {
            Operation::PutBase { rewrite, .. } => state.ready.take_if(|(ready, _)| ready == rewrite),
            _ => None,
        };
        drop(state);
        if let Operation::Write { head, from, len } = &operation {
            buffer.clear();
            buffer.extend_from_slice(head);
            if log.peek(*from, usize::try_from(*len).unwrap_or(usize::MAX), buffer).is_err() {
                drop(log);
                self.fell_off();
                return Next::Again;
            }
        }
        Next::Do(operation, base.map(|(_, file)| file))
    }

    fn fell_off(&self) {
        let mut effects = Vec::new();
        let mut state = self.state.lock();
        if let Some(machine) = &mut state.machine {
            machine.done(time::instant(), Err(Failure::FellOff(Lost::LetGo)), &mut effects);
        }
        self.carry_out(&mut state, effects);
    }

    /// Reports the result of an operation. Returns whether the writer may pause.
    fn done(&self, folder: &Folder, outcome: Result<(), Failure>) -> bool {
        let mut effects = Vec::new();
        let mut state = self.state.lock();
        let stopping = state.stopping.is_some();
        let Some(machine) = &mut state.machine else { return false };
        let (was, delays) = (machine.manifest().files().count(), machine.delays());
        machine.done(time::instant(), outcome, &mut effects);
        if machine.delays() > delays {
            tracing::warn!("Asynchronous AOF fsync is taking too long (disk is busy?)");
        }
        let rests = machine.policy() != Policy::Always && !stopping && !machine.is_asked();
        let is_other = machine.manifest().files().count() != was
            || effects.iter().any(|effect| matches!(effect, Effect::Rewritten { .. }));
        if is_other {
            let sizes = folder.sizes(machine.manifest());
            let increment = machine.increment_bytes();
            (state.base_size, state.size_before) = (sizes.base, sizes.all.saturating_sub(increment));
        }
        self.carry_out(&mut state, effects);
        drop(state);
        self.moved.notify_all();
        rests
    }

    /// The last log end passed to the state machine, if it follows the log and has no error.
    fn end_that_was_told(&self) -> Option<ReplOffset> {
        let state = self.state.lock();
        let machine = state.machine.as_ref().filter(|machine| machine.error().is_none())?;
        machine.written().map(|_| machine.log_end())
    }
}
