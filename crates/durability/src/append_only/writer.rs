//! The thread that writes the append-only file. It performs the driver's file operations.
//!
//! The thread writes the bytes of the replication log, so no change is encoded twice.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use append_only::{CompletedOperation, FileExecutor, WriterStep};
use clock::Instant;
use process::time;
use slot_routing::ReplOffset;

use super::AppendOnlyFile;
use crate::disk::SystemDisk;

/// Maximum time between two requests for the driver's next step.
const MAX_WRITER_WAIT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct AofWriter {
    shared: Arc<AppendOnlyFile>,
    executor: FileExecutor<SystemDisk>,
}

impl AofWriter {
    pub(super) fn new(append_only_file: Arc<AppendOnlyFile>, executor: FileExecutor<SystemDisk>) -> Self {
        Self { shared: append_only_file, executor }
    }

    /// Performs the driver's steps until the append-only file is disabled.
    pub(super) fn run(mut self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.expect("the writer thread needs an event loop");
        runtime.block_on(async {
            loop {
                let sleep = self.shared.flush_sleep_micros.load(Ordering::Relaxed);
                if sleep > 0 {
                    tokio::time::sleep(Duration::from_micros(sleep)).await;
                }
                match self.shared.next_step() {
                    WriterStep::Run(pending) => {
                        let completed = self.executor.execute(pending);
                        self.shared.complete(completed);
                    }
                    WriterStep::Wait { until, wake_past_offset: growth_past } => {
                        self.wait(until, growth_past).await;
                    }
                    WriterStep::Stop => break,
                }
            }
        });
    }

    async fn wait(&self, until: Option<Instant>, wake_past_offset: Option<ReplOffset>) {
        let left =
            until.map_or(MAX_WRITER_WAIT, |until| until.since(time::monotonic_now())).min(MAX_WRITER_WAIT);
        let shared = &self.shared;
        let grown = async {
            match wake_past_offset {
                Some(past) => {
                    let has_grown = || shared.log.lock().position().offset > past;
                    shared.log.wait_for_growth(|| has_grown().then_some(())).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = grown => {}
            () = shared.writer_wakeup.notified() => {}
            () = tokio::time::sleep(left) => {}
        }
    }
}

impl AppendOnlyFile {
    fn next_step(&self) -> WriterStep<tempfile::NamedTempFile> {
        let mut log = self.log.lock();
        let mut state = self.state.lock();
        let mut actions = Vec::new();
        let step = state.driver.next_step(&mut log, time::monotonic_now(), time::now(), &mut actions);
        self.perform_while_log_is_locked(&mut state, actions);
        step
    }

    fn complete(&self, completed: CompletedOperation) {
        let mut state = self.state.lock();
        let mut actions = Vec::new();
        state.driver.complete(time::monotonic_now(), completed, &mut actions);
        self.perform_actions(&mut state, actions);
    }
}
