//! Drives the append-only file: combines [`AofStateMachine`] with the log, the cursor that retains the unwritten part
//! of the log, and the rewrites. The node and the simulator run this same driver.
//!
//! The process owns the files, the snapshots, the locks and the clock:
//!
//! | | the process | the driver |
//! | --- | --- | --- |
//! | 1 | reports each event with [`AofDriver::handle`] and performs the actions at once | |
//! | 2 | requests the writer's next step with [`AofDriver::next_step`] | names the one file operation that may run now, with its bytes |
//! | 3 | performs it with [`FileExecutor::execute`](crate::FileExecutor::execute) without holding a lock | |
//! | 4 | reports the result with [`AofDriver::complete`] and performs the actions | |
//!
//! The types separate what touches the disk from what does not. An [`AofAction`] never waits: whatever had to be synced
//! before it has been synced. A [`PendingOperation`] must be performed; only performing it yields the
//! [`CompletedOperation`] that the driver accepts. So nothing is announced before its operation has succeeded, and two
//! operations never overlap.
//!
//! Rewrites also run while the file is disabled. In that case the process installs the base itself.

#[cfg(test)]
mod tests;

use std::time::Duration;

use clock::{Instant, Millis};
use persistence::aof::Manifest;
use replication::Log;
use slot_routing::ReplOffset;

use crate::executor::{CompletedOperation, PendingOperation, StartPosition};
use crate::machine::AofStateMachine;
use crate::retained_cursor::RetainedCursor;
use crate::rewrites::{RewriteId, RewriteRunningError, RewriteThresholds, Rewrites};
use crate::{
    AofEffect, AofEvent, AofSettings, AofSizes, AofState, BaseInstallError, FileOperation, FsyncPolicy,
    LogEnd, LogLoss, OperationError,
};

/// Pause after a write that no client waits for, so that later changes are written together.
const WRITE_PAUSE: Duration = Duration::from_millis(1);

/// The append-only files as found or created at the start.
#[derive(Debug)]
pub struct AofStart {
    /// The options that apply from the start on.
    pub settings: AofSettings,
    /// The manifest that is on disk.
    pub manifest: Manifest,
    /// Where to start following the log.
    pub start_position: StartPosition,
    /// The sizes of the files that the manifest names.
    pub sizes: AofSizes,
}

/// An event that the process reports. `B` is the type of a base's temporary file.
#[derive(Debug)]
pub enum AofDriverEvent<B> {
    /// The log may have grown or may have been replaced. Every other event implies this one.
    LogChanged,
    /// The configuration may have changed; these are the current options.
    Configured(AofSettings),
    /// Sync the whole log now, and retry failed operations at once.
    SyncRequested,
    /// The rewrite has taken its snapshot at the current end of the log.
    SnapshotTaken {
        /// The id from [`AofDriver::begin_rewrite`].
        rewrite: RewriteId,
        /// The database selected in the master's stream; `None` if the log repeats the SELECT after this position.
        db: Option<u16>,
    },
    /// The base of the rewrite is written and synced.
    BaseWritten {
        /// The id from [`AofDriver::begin_rewrite`].
        rewrite: RewriteId,
        /// The temporary file that becomes the base.
        base: B,
        /// Whether the base is an RDB file; otherwise it contains commands.
        is_rdb: bool,
    },
    /// The process has installed the base of this rewrite itself, because the append-only file is disabled.
    BaseInstalled(RewriteId),
    /// The snapshot could not be taken, or the base could not be written.
    RewriteFailed(RewriteId),
    /// All files of [`AofAction::DeleteHistory`] are deleted.
    HistoryDeleted,
    /// Obsolete files of [`AofAction::DeleteHistory`] remain, because the configuration retains them or some could not
    /// be deleted.
    HistoryKept,
}

/// An action to perform at once. No action waits for a file operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AofAction {
    /// Replies to writes up to this offset may be sent.
    PublishCommitPoint(ReplOffset),
    /// Whether replies to writes must wait for [`AofAction::PublishCommitPoint`] from now on.
    HoldReplies(bool),
    /// Writing the file fails with this error; `None` means that it works again.
    WriteErrorChanged(Option<String>),
    /// A sync took so long that a write had to wait for it.
    SyncDelayed,
    /// The base of the current rewrite is installed. Delete these obsolete files, then send
    /// [`AofDriverEvent::HistoryDeleted`] or [`AofDriverEvent::HistoryKept`].
    DeleteHistory(Vec<String>),
    /// The rewrite has ended, with or without an installed base.
    RewriteEnded {
        /// The id from [`AofDriver::begin_rewrite`].
        rewrite: RewriteId,
        /// Success if the base was installed, otherwise why it was not.
        outcome: Result<(), BaseInstallError>,
    },
}

/// The next step of the writer, a thread that performs one file operation at a time.
#[derive(Debug)]
pub enum WriterStep<B> {
    /// Perform this operation, then call [`AofDriver::complete`].
    Run(PendingOperation<B>),
    /// There is nothing to do now. Call [`AofDriver::next_step`] again after an event, or when one of these conditions
    /// holds.
    Wait {
        /// Call again at this time; `None` if no operation is scheduled.
        until: Option<Instant>,
        /// Call again once the log has grown past this offset; `None` if growth alone requires no operation.
        wake_past_offset: Option<ReplOffset>,
    },
    /// The writer must stop, because the file is being disabled: everything up to the requested offset is synced, or an
    /// operation has failed.
    Stop,
}

/// A request to sync the log up to an offset. See [`AofDriver::request_sync`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyncTarget {
    offset: ReplOffset,
    /// Number of failed operations at the time of the request.
    failures_before: u64,
}

/// The state of an enabled append-only file, for INFO.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AofStatus {
    /// Whether the files contain the data.
    pub state: AofState,
    /// When the file is synced (`appendfsync`).
    pub fsync_policy: FsyncPolicy,
    /// Log offset up to which the files are synced; `None` while they are not complete.
    pub synced_offset: Option<ReplOffset>,
    /// Log offset up to which the file is written; `None` while the log is not followed.
    pub written_offset: Option<ReplOffset>,
    /// Whether the last file operation failed.
    pub has_error: bool,
    /// Number of syncs that delayed a write, since the counters were reset.
    pub delayed_sync_count: u64,
    /// Size of the current base in bytes; 0 if there is none.
    pub base_size: u64,
    /// Size of all files in bytes.
    pub size: u64,
}

/// The progress of the running rewrite.
#[derive(Debug)]
enum RewritePhase<B> {
    /// The process takes the snapshot and writes the base. This is also the phase while no rewrite is running.
    Writing,
    /// The base is written. The writer takes `base` and installs it once the increment that follows it exists.
    Installing { base: Option<B> },
    /// The base is installed, and the process deletes the files before it.
    DeletingHistory,
    /// The files before the base are deleted, and the writer removes them from the manifest.
    UpdatingManifest,
}

/// The append-only file while it is enabled.
#[derive(Debug)]
struct EnabledFile {
    machine: AofStateMachine,
    cursor: RetainedCursor,
    base_size: u64,
    /// Size of all files before the current increment.
    size_before_increment: u64,
    /// No operation starts before this time, unless a client waits for it.
    paused_until: Instant,
    /// The writer stops when this target is synced, or after the next failed operation.
    stop_target: Option<SyncTarget>,
}

/// Drives the append-only file of one process. `B` is the type of a base's temporary file.
///
/// Methods that take the log expect it to be locked by the caller.
#[derive(Debug)]
pub struct AofDriver<B> {
    /// The state of the file; `None` while it is disabled.
    file: Option<EnabledFile>,
    rewrites: Rewrites,
    rewrite_phase: RewritePhase<B>,
    /// The buffer of the last operation, whose allocation the next operation reuses.
    buffer: Vec<u8>,
}

impl<B> Default for AofDriver<B> {
    fn default() -> Self {
        Self {
            file: None,
            rewrites: Rewrites::default(),
            rewrite_phase: RewritePhase::Writing,
            buffer: Vec::new(),
        }
    }
}

impl<B> AofDriver<B> {
    /// Enables the file, which follows the log from the given position on.
    pub fn start(
        &mut self,
        aof_start: AofStart,
        log: &mut Log,
        now: Instant,
        wall_time: Millis,
        out: &mut Vec<AofAction>,
    ) {
        let AofStart { settings, manifest, start_position: position, sizes } = aof_start;
        let end = LogEnd::from_log(log, wall_time);
        let machine = match position {
            StartPosition::NextSnapshot => AofStateMachine::without_base(settings, manifest, now),
            StartPosition::Base { db } => AofStateMachine::with_base(settings, manifest, end, db, now),
            StartPosition::Increment { bytes } => {
                AofStateMachine::continue_increment(settings, manifest, bytes, end, now)
            }
        };
        let size_before = sizes.total_bytes.saturating_sub(machine.increment_bytes());
        self.rewrites.size_after_last_rewrite = sizes.total_bytes;
        self.rewrites.is_scheduled |= position == StartPosition::NextSnapshot;
        self.file = Some(EnabledFile {
            machine,
            cursor: RetainedCursor::default(),
            base_size: sizes.base_bytes,
            size_before_increment: size_before,
            paused_until: now,
            stop_target: None,
        });
        self.handle(log, now, wall_time, AofDriverEvent::LogChanged, out);
    }

    /// Handles an event and appends the resulting actions to `out`.
    pub fn handle(
        &mut self,
        log: &mut Log,
        now: Instant,
        wall_time: Millis,
        event: AofDriverEvent<B>,
        out: &mut Vec<AofAction>,
    ) {
        self.report_log_changes(log, now, wall_time, out);
        let event = self.translate_event(log, now, event, out);
        let mut effects = Vec::new();
        if let (Some(file), Some(event)) = (&mut self.file, event) {
            file.machine.handle(event, &mut effects);
        }
        self.apply_effects(now, effects, out);
        self.retain_log(log);
    }

    /// Returns the writer's next step.
    pub fn next_step(
        &mut self,
        log: &mut Log,
        now: Instant,
        wall_time: Millis,
        out: &mut Vec<AofAction>,
    ) -> WriterStep<B> {
        loop {
            self.report_log_changes(log, now, wall_time, out);
            let Some(file) = self.file.as_mut().filter(|file| !file.is_stopped()) else {
                return WriterStep::Stop;
            };
            if let Some(until) = file.pause_end(now) {
                self.retain_log(log);
                return WriterStep::Wait { until: Some(until), wake_past_offset: None };
            }
            let operation = file.machine.next_operation(now);
            let wait = WriterStep::Wait {
                until: file.machine.next_deadline(now),
                wake_past_offset: file.wake_offset(),
            };
            self.retain_log(log);
            let Some(operation) = operation else { return wait };
            match self.prepare_operation(log, operation) {
                Some(pending) => return WriterStep::Run(pending),
                None => self.finish_operation(now, Err(OperationError::LogLost(LogLoss::Trimmed)), out),
            }
        }
    }

    /// Accepts the result of the operation that [`Self::next_step`] returned.
    pub fn complete(&mut self, now: Instant, completed: CompletedOperation, out: &mut Vec<AofAction>) {
        let CompletedOperation { bytes, is_write, outcome, sizes } = completed;
        self.buffer = bytes;
        let Some(file) = &mut self.file else { return };
        // The pause collects changes for the next write. It is skipped while the file gets other commands than the log,
        // because writes are then split before and after each replaced range, and the rest must follow at once.
        if is_write && !file.machine.has_file_versions() {
            file.paused_until = now + WRITE_PAUSE;
        }
        let delays = file.machine.delayed_sync_count();
        let mut effects = Vec::new();
        file.machine.complete_operation(now, outcome, &mut effects);
        if file.machine.delayed_sync_count() > delays {
            out.push(AofAction::SyncDelayed);
        }
        if let Some(AofSizes { base_bytes: base, total_bytes: all }) = sizes {
            file.base_size = base;
            file.size_before_increment = all.saturating_sub(file.machine.increment_bytes());
        }
        self.apply_effects(now, effects, out);
    }

    /// Starts a rewrite. The process takes a snapshot next.
    ///
    /// # Errors
    /// A rewrite is already running.
    pub fn begin_rewrite(&mut self, now: Instant) -> Result<RewriteId, RewriteRunningError> {
        let rewrite = self.rewrites.begin(now)?;
        self.rewrite_phase = RewritePhase::Writing;
        Ok(rewrite)
    }

    /// Schedules a rewrite. The process starts it when [`Self::is_rewrite_due`] returns true.
    pub fn schedule_rewrite(&mut self) {
        self.rewrites.is_scheduled = true;
    }

    /// Cancels the running or scheduled rewrite. Returns whether one was running.
    pub fn cancel_rewrite(&mut self) -> bool {
        self.rewrite_phase = RewritePhase::Writing;
        self.rewrites.cancel()
    }

    /// Whether a scheduled or automatic rewrite should start. The parameters are `auto-aof-rewrite-percentage` and
    /// `auto-aof-rewrite-min-size`.
    #[must_use]
    pub fn is_rewrite_due(&self, now: Instant, percentage: u64, min_size: u64) -> bool {
        let size = self.file.as_ref().map_or(0, EnabledFile::total_size);
        self.rewrites.is_due(now, RewriteThresholds { size, percentage, min_size })
    }

    /// The running rewrite and the results of earlier ones.
    #[must_use]
    pub fn rewrites(&self) -> &Rewrites {
        &self.rewrites
    }

    /// Resets the counters that INFO shows (CONFIG RESETSTAT).
    pub fn reset_counts(&mut self) {
        (self.rewrites.success_count, self.rewrites.consecutive_failures) = (0, 0);
        self.file.iter_mut().for_each(|file| file.machine.reset_delayed_sync_count());
    }

    /// Requests that the whole log be synced. [`Self::sync_result`] reports the result.
    pub fn request_sync(
        &mut self,
        log: &mut Log,
        now: Instant,
        wall_time: Millis,
        out: &mut Vec<AofAction>,
    ) -> SyncTarget {
        let failures = self.failure_count();
        self.handle(log, now, wall_time, AofDriverEvent::SyncRequested, out);
        SyncTarget { offset: log.position().offset, failures_before: failures }
    }

    /// The result of a request to sync, or `None` while it is not known. A disabled file has nothing to sync.
    #[must_use]
    pub fn sync_result(&self, target: SyncTarget) -> Option<Result<(), String>> {
        let Some(EnabledFile { machine, .. }) = &self.file else { return Some(Ok(())) };
        match machine.error() {
            Some(error) if machine.failure_count() > target.failures_before => Some(Err(error.to_owned())),
            _ => machine.has_synced_up_to(target.offset).then_some(Ok(())),
        }
    }

    /// Begins to disable the file: cancels the rewrite and syncs the log. Then the writer stops
    /// ([`WriterStep::Stop`]), and the process calls [`Self::disable`].
    pub fn stop_writer(&mut self, log: &mut Log, now: Instant, wall_time: Millis, out: &mut Vec<AofAction>) {
        self.cancel_rewrite();
        self.handle(log, now, wall_time, AofDriverEvent::SyncRequested, out);
        let target = SyncTarget { offset: log.position().offset, failures_before: self.failure_count() };
        if let Some(file) = &mut self.file {
            file.stop_target = Some(target);
        }
    }

    /// Disables the file after the writer has stopped.
    pub fn disable(&mut self, log: &mut Log) {
        if let Some(mut file) = self.file.take() {
            file.cursor.release(log);
        }
    }

    /// The state of the file, or `None` while it is disabled.
    #[must_use]
    pub fn status(&self) -> Option<AofStatus> {
        let file = self.file.as_ref()?;
        let machine = &file.machine;
        Some(AofStatus {
            state: machine.state(),
            fsync_policy: machine.fsync_policy(),
            synced_offset: machine.synced_offset(),
            written_offset: machine.written_offset(),
            has_error: machine.error().is_some(),
            delayed_sync_count: machine.delayed_sync_count(),
            base_size: file.base_size,
            size: file.total_size(),
        })
    }

    /// Whether the append-only file is disabled or its files, together with the unwritten part of the log, contain all
    /// data.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.file.as_ref().is_none_or(|file| file.machine.state() == AofState::Complete)
    }

    /// Whether the first base is being written, so that the files do not contain the current data yet.
    #[must_use]
    pub fn is_writing_first_base(&self) -> bool {
        let is_fresh = |file: &EnabledFile| file.machine.state() == AofState::NoBase;
        self.file.as_ref().is_some_and(is_fresh) && self.rewrites.is_running()
    }

    /// Log offset up to which the files are synced; `None` while they are not complete.
    #[must_use]
    pub fn synced_offset(&self) -> Option<ReplOffset> {
        self.file.as_ref().and_then(|file| file.machine.synced_offset())
    }

    /// The obsolete files that the manifest still names.
    #[must_use]
    pub fn obsolete_files(&self) -> Vec<String> {
        let manifest = self.file.as_ref().map(|file| file.machine.manifest());
        manifest.into_iter().flat_map(|manifest| &manifest.history).map(|file| file.name.clone()).collect()
    }

    /// Returns whether the manifest is being rewritten without the files that were deleted.
    #[must_use]
    pub fn is_updating_manifest(&self) -> bool {
        self.file.as_ref().is_some_and(EnabledFile::is_updating_manifest)
    }

    fn failure_count(&self) -> u64 {
        self.file.as_ref().map_or(0, |file| file.machine.failure_count())
    }

    /// Reports the end of the log to the state machine, or that the log can no longer be followed.
    fn report_log_changes(
        &mut self,
        log: &mut Log,
        now: Instant,
        wall_time: Millis,
        out: &mut Vec<AofAction>,
    ) {
        let mut effects = Vec::new();
        if let Some(EnabledFile { machine, cursor, .. }) = &mut self.file {
            cursor.report_log_changes(machine, log, wall_time, &mut effects);
        }
        self.apply_effects(now, effects, out);
    }

    /// Prevents the log from being trimmed beyond the bytes that the state machine still needs.
    fn retain_log(&mut self, log: &mut Log) {
        if let Some(EnabledFile { machine, cursor, .. }) = &mut self.file {
            cursor.move_to_needed_offset(machine, log);
        }
    }

    /// Records what the event changes about the rewrite. Returns the event to pass to the state machine, if any; events
    /// of cancelled rewrites are dropped.
    fn translate_event(
        &mut self,
        log: &Log,
        now: Instant,
        event: AofDriverEvent<B>,
        out: &mut Vec<AofAction>,
    ) -> Option<AofEvent> {
        match event {
            AofDriverEvent::LogChanged => None,
            AofDriverEvent::Configured(settings) => Some(AofEvent::Configured(settings)),
            AofDriverEvent::SyncRequested => Some(AofEvent::SyncRequested),
            AofDriverEvent::SnapshotTaken { rewrite, db } => {
                let is_current = self.rewrites.is_current(rewrite);
                is_current.then(|| AofEvent::SnapshotTaken { rewrite, at: log.position(), db })
            }
            AofDriverEvent::BaseWritten { rewrite, base, is_rdb: rdb } => {
                if !self.rewrites.is_current(rewrite) {
                    return None;
                }
                self.rewrite_phase = RewritePhase::Installing { base: Some(base) };
                Some(AofEvent::BaseReady { rewrite, is_rdb: rdb })
            }
            AofDriverEvent::BaseInstalled(rewrite) => {
                self.end_rewrite(now, rewrite, Ok(()), out);
                None
            }
            AofDriverEvent::RewriteFailed(rewrite) => {
                if self.rewrites.is_current(rewrite) {
                    self.rewrite_phase = RewritePhase::Writing;
                }
                self.rewrites.end(now, rewrite, false, !self.is_complete());
                Some(AofEvent::RewriteFailed(rewrite))
            }
            AofDriverEvent::HistoryDeleted => {
                if matches!(self.rewrite_phase, RewritePhase::DeletingHistory) {
                    self.rewrite_phase = RewritePhase::UpdatingManifest;
                }
                Some(AofEvent::HistoryDeleted)
            }
            AofDriverEvent::HistoryKept => {
                if let (RewritePhase::DeletingHistory, Some(rewrite)) =
                    (&self.rewrite_phase, self.rewrites.running_rewrite())
                {
                    self.end_rewrite(now, rewrite, Ok(()), out);
                }
                None
            }
        }
    }

    fn apply_effects(&mut self, now: Instant, effects: Vec<AofEffect>, out: &mut Vec<AofAction>) {
        for effect in effects {
            match effect {
                AofEffect::PublishCommitPoint(offset) => out.push(AofAction::PublishCommitPoint(offset)),
                AofEffect::HoldReplies(holds) => out.push(AofAction::HoldReplies(holds)),
                AofEffect::WriteErrorChanged(error) => out.push(AofAction::WriteErrorChanged(error)),
                AofEffect::BaseNeeded => self.rewrites.is_scheduled = true,
                AofEffect::RewriteEnded { rewrite, outcome } => match outcome {
                    Ok(history) if self.rewrites.is_current(rewrite) && !history.is_empty() => {
                        self.rewrite_phase = RewritePhase::DeletingHistory;
                        out.push(AofAction::DeleteHistory(history));
                    }
                    outcome => self.end_rewrite(now, rewrite, outcome.map(drop), out),
                },
            }
        }
        let is_updated = !self.is_updating_manifest();
        if let (RewritePhase::UpdatingManifest, Some(rewrite), true) =
            (&self.rewrite_phase, self.rewrites.running_rewrite(), is_updated)
        {
            self.end_rewrite(now, rewrite, Ok(()), out);
        }
    }

    fn end_rewrite(
        &mut self,
        now: Instant,
        rewrite: RewriteId,
        outcome: Result<(), BaseInstallError>,
        out: &mut Vec<AofAction>,
    ) {
        if !self.rewrites.is_current(rewrite) {
            return;
        }
        self.rewrite_phase = RewritePhase::Writing;
        if let (Ok(()), Some(file)) = (&outcome, &self.file) {
            self.rewrites.size_after_last_rewrite = file.total_size();
        }
        self.rewrites.end(now, rewrite, outcome.is_ok(), !self.is_complete());
        out.push(AofAction::RewriteEnded { rewrite, outcome });
    }

    /// Adds the data that an operation needs: the bytes to write, or the base. Returns `None` if the log no longer has
    /// the bytes.
    fn prepare_operation(&mut self, log: &Log, operation: FileOperation) -> Option<PendingOperation<B>> {
        let mut bytes = std::mem::take(&mut self.buffer);
        bytes.clear();
        let mut base = None;
        match &operation {
            FileOperation::Write { head, from, len } => {
                bytes.extend_from_slice(head);
                log.read_exact_at(*from, usize::try_from(*len).unwrap_or(usize::MAX), &mut bytes).ok()?;
            }
            FileOperation::InstallBase { rewrite, .. } if self.rewrites.is_current(*rewrite) => {
                if let RewritePhase::Installing { base: ready } = &mut self.rewrite_phase {
                    base = ready.take();
                }
            }
            _ => {}
        }
        let manifest = self.file.as_ref().and_then(|file| file.machine.pending_manifest()).cloned();
        Some(PendingOperation { operation, bytes, base, manifest })
    }

    fn finish_operation(
        &mut self,
        now: Instant,
        outcome: Result<(), OperationError>,
        out: &mut Vec<AofAction>,
    ) {
        let mut effects = Vec::new();
        if let Some(file) = &mut self.file {
            file.machine.complete_operation(now, outcome, &mut effects);
        }
        self.apply_effects(now, effects, out);
    }
}

impl EnabledFile {
    /// Total size of all files in bytes.
    fn total_size(&self) -> u64 {
        self.size_before_increment + self.machine.increment_bytes()
    }

    /// Whether the writer has reached the target of [`AofDriver::stop_writer`].
    fn is_stopped(&self) -> bool {
        let is_reached = |target: SyncTarget| {
            self.machine.has_synced_up_to(target.offset)
                || self.machine.failure_count() > target.failures_before
        };
        self.stop_target.is_some_and(is_reached)
    }

    /// When the pause after a write ends; `None` if a client waits for the next operation.
    fn pause_end(&self, now: Instant) -> Option<Instant> {
        let is_awaited = self.machine.fsync_policy() == FsyncPolicy::Always
            || self.stop_target.is_some()
            || self.machine.is_sync_requested();
        Some(self.paused_until).filter(|until| !is_awaited && now < *until)
    }

    /// The last known end of the log; `None` if the log is not followed or writing fails, because growth then requires
    /// no operation.
    fn wake_offset(&self) -> Option<ReplOffset> {
        let follows = self.machine.written_offset().is_some() && self.machine.error().is_none();
        follows.then(|| self.machine.log_end())
    }

    fn is_updating_manifest(&self) -> bool {
        let is_healthy = self.machine.state() == AofState::Complete && self.machine.error().is_none();
        self.machine.has_deleted_history() && is_healthy
    }
}
