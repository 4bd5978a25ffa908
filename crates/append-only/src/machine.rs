//! The state machine of the append-only file.

use std::time::Duration;

use clock::{Instant, Millis};
use persistence::aof::{AofFile, Manifest};
use replication::{FileVersions, ReplId, ReplPosition};
use slot_routing::ReplOffset;

use crate::increment::{Increment, PendingWrite};
use crate::{
    AofEffect, AofEvent, AofSettings, AofState, BaseInstallError, FileOperation, FsyncPolicy, LogEnd,
    LogLoss, OperationError, RewriteId,
};

/// Sync interval of `appendfsync everysec`.
const SYNC_PERIOD: Duration = Duration::from_secs(1);
/// A write counts as delayed if it waits longer than this for a sync. Redis then writes in parallel with the sync.
const SLOW_SYNC_THRESHOLD: Duration = Duration::from_secs(2);
/// Delay before a failed operation is retried.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// While more bytes than this are unwritten, replies to writes wait, regardless of `appendfsync`, until fewer than a
/// quarter of it remain. If the log no longer has the unwritten bytes, the file must start over with a new base.
const MAX_UNWRITTEN_BYTES: u64 = 64 << 20;
/// The id of increments that no rewrite waits for.
const NO_REWRITE: RewriteId = RewriteId(0);

/// The append-only file while it is enabled.
#[derive(Debug)]
pub(crate) struct AofStateMachine {
    settings: AofSettings,
    /// The manifest on disk. After a failed write of the manifest it may also be the previous one; both name files that
    /// contain a prefix of the history.
    manifest: Manifest,
    state: AofState,
    log_end: LogEnd,
    /// Commands that replace ranges of the log in the file and are not synced yet.
    file_versions: FileVersions,
    current_increment: Option<Increment>,
    pending_increment: Option<PendingIncrement>,
    /// Where the next increment begins; `None` once its creation has been attempted.
    next_increment: Option<IncrementStart>,
    pending_base: Option<PendingBase>,
    in_flight: Option<InFlightOperation>,
    /// Whether obsolete files are deleted but still named in the manifest.
    has_deleted_history: bool,
    synced_offset: Option<ReplOffset>,
    last_sync_at: Instant,
    /// When the current sync began, or the last one if none is running.
    sync_started_at: Instant,
    /// Number of syncs that delayed a write, since the last reset.
    delayed_sync_count: u64,
    /// Time of the next attempt after a failed operation. A failed truncation is retried at `truncate_at` instead.
    retry_at: Instant,
    truncate_at: Instant,
    last_error: Option<String>,
    /// Number of failed operations since the start.
    failure_count: u64,
    /// Offset up to which a caller waits for the log to be synced.
    sync_target: Option<ReplOffset>,
    holds_replies: bool,
    /// The commit point that was last published. A commit point that has not changed is not published again.
    published_commit_point: Option<ReplOffset>,
}

/// The position at which an increment is to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct IncrementStart {
    rewrite: RewriteId,
    position: ReplPosition,
    db: Option<u16>,
}

/// An increment whose creation has been attempted. The manifest on disk may name it already.
#[derive(Debug, Clone)]
struct PendingIncrement {
    start: IncrementStart,
    file: AofFile,
    /// The new increment, which is used if the log can still be followed.
    increment_name: Increment,
    is_lost: bool,
}

/// A base that a rewrite is writing.
#[derive(Debug, Clone)]
struct PendingBase {
    rewrite: RewriteId,
    /// The name of the increment that begins at the base's snapshot; `None` until it exists.
    increment: Option<String>,
    /// Whether the base is an RDB file; `None` until the base is written.
    is_rdb: Option<bool>,
}

/// The file operation that is being performed.
#[derive(Debug)]
enum InFlightOperation {
    Write(PendingWrite),
    Sync,
    Truncate,
    BeginIncrement(Manifest),
    InstallBase(RewriteId, Manifest),
    WriteManifest(Manifest),
}

impl AofStateMachine {
    /// Creates the state for files that cannot be continued: nothing is written until a rewrite takes its snapshot.
    /// `manifest` names files with older data.
    #[must_use]
    pub(crate) fn without_base(settings: AofSettings, manifest: Manifest, now: Instant) -> Self {
        let end = ReplPosition { id: ReplId::NONE, offset: ReplOffset(0) };
        Self {
            settings,
            manifest,
            state: AofState::NoBase,
            log_end: LogEnd { position: end, previous_history: None, wall_clock: Millis(0) },
            file_versions: FileVersions::default(),
            current_increment: None,
            pending_increment: None,
            next_increment: None,
            pending_base: None,
            in_flight: None,
            has_deleted_history: false,
            synced_offset: None,
            last_sync_at: now,
            retry_at: now,
            sync_started_at: now,
            delayed_sync_count: 0,
            truncate_at: now,
            last_error: None,
            failure_count: 0,
            sync_target: None,
            holds_replies: false,
            published_commit_point: None,
        }
    }

    /// Continues the last increment of `manifest`, which has `bytes` bytes and ends at the end of the log.
    #[must_use]
    pub(crate) fn continue_increment(
        settings: AofSettings,
        manifest: Manifest,
        bytes: u64,
        log: LogEnd,
        now: Instant,
    ) -> Self {
        let at = log.position.offset;
        Self {
            state: AofState::Complete,
            log_end: log,
            current_increment: Some(Increment::for_existing_file(bytes, at)),
            synced_offset: Some(at),
            ..Self::without_base(settings, manifest, now)
        }
    }

    /// Continues after the base of `manifest`, which has no increments and ends at the end of the log. The first
    /// operation creates an increment. `db` is the database selected by the master's stream.
    #[must_use]
    pub(crate) fn with_base(
        settings: AofSettings,
        manifest: Manifest,
        log: LogEnd,
        db: u16,
        now: Instant,
    ) -> Self {
        let (state, synced) = (AofState::Complete, Some(log.position.offset));
        let mut machine = Self {
            state,
            log_end: log,
            synced_offset: synced,
            ..Self::without_base(settings, manifest, now)
        };
        // The first increment is reserved at once. A rewrite that takes its snapshot before this increment exists must
        // wait.
        machine.reserve_increment(IncrementStart {
            rewrite: NO_REWRITE,
            position: log.position,
            db: Some(db),
        });
        machine
    }

    /// Returns whether the files contain the current data.
    #[must_use]
    pub(crate) fn state(&self) -> AofState {
        self.state
    }

    /// The manifest as it is on disk, as far as is known.
    #[must_use]
    pub(crate) fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Log offset up to which the files are synced; `None` while they are not complete.
    #[must_use]
    pub(crate) fn synced_offset(&self) -> Option<ReplOffset> {
        self.synced_offset
    }

    /// Log offset up to which the file is written; `None` while the log is not followed.
    #[must_use]
    pub(crate) fn written_offset(&self) -> Option<ReplOffset> {
        self.current_increment.as_ref().map(|open| open.written_extent.log_mark.offset)
    }

    /// Size of the current increment in bytes.
    #[must_use]
    pub(crate) fn increment_bytes(&self) -> u64 {
        self.current_increment.as_ref().map_or(0, |open| open.written_extent.bytes)
    }

    /// The manifest after the running operation, if the operation changes it.
    #[must_use]
    pub(crate) fn pending_manifest(&self) -> Option<&Manifest> {
        match self.in_flight.as_ref()? {
            InFlightOperation::BeginIncrement(manifest)
            | InFlightOperation::InstallBase(_, manifest)
            | InFlightOperation::WriteManifest(manifest) => Some(manifest),
            InFlightOperation::Write(_) | InFlightOperation::Sync | InFlightOperation::Truncate => None,
        }
    }

    /// The text of the current write error; `None` if the last operation succeeded.
    #[must_use]
    pub(crate) fn error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    /// When the file is synced (`appendfsync`).
    #[must_use]
    pub(crate) fn fsync_policy(&self) -> FsyncPolicy {
        self.settings.fsync_policy
    }

    /// Whether a caller waits for the whole log to be synced.
    #[must_use]
    pub(crate) fn is_sync_requested(&self) -> bool {
        self.sync_target.is_some()
    }

    /// The last known end of the log.
    #[must_use]
    pub(crate) fn log_end(&self) -> ReplOffset {
        self.log_end.position.offset
    }

    /// Number of failed operations since the start.
    #[must_use]
    pub(crate) fn failure_count(&self) -> u64 {
        self.failure_count
    }

    /// Number of syncs since [`Self::reset_delayed_sync_count`] that delayed a write.
    #[must_use]
    pub(crate) fn delayed_sync_count(&self) -> u64 {
        self.delayed_sync_count
    }

    /// Resets the number of syncs that delayed a write (CONFIG RESETSTAT).
    pub(crate) fn reset_delayed_sync_count(&mut self) {
        self.delayed_sync_count = 0;
    }

    /// The oldest log offset that is still needed. Bytes that are written but not synced may have to be written again.
    #[must_use]
    pub(crate) fn first_retained_offset(&self) -> Option<ReplOffset> {
        let beginning = self.pending_increment.as_ref().filter(|beginning| !beginning.is_lost);
        let open = self.current_increment.as_ref().map(|open| open.synced_extent.log_mark.offset);
        open.or(beginning.map(|beginning| beginning.start.position.offset))
            .or(self.next_increment.map(|next| next.position.offset))
    }

    /// The log offset from which on the state machine needs the file versions; `None` if it does not follow the log.
    #[must_use]
    pub(crate) fn file_versions_needed_from(&self) -> Option<ReplOffset> {
        let retained = self.first_retained_offset()?;
        Some(self.file_versions.end_offset().map_or(retained, |end| end.max(retained)))
    }

    /// Whether any commands that replace a range of the log remain to be written or synced.
    #[must_use]
    pub(crate) fn has_file_versions(&self) -> bool {
        !self.file_versions.is_empty()
    }

    /// Returns whether no operation is running and the current increment, if there is one, is synced up to `at`.
    #[must_use]
    pub(crate) fn has_synced_up_to(&self, at: ReplOffset) -> bool {
        let is_all =
            self.current_increment.as_ref().is_none_or(|open| open.synced_extent.log_mark.offset >= at);
        is_all && self.pending_increment.is_none() && self.in_flight.is_none()
    }

    /// Whether deleted files are still to be removed from the manifest.
    #[must_use]
    pub(crate) fn has_deleted_history(&self) -> bool {
        self.has_deleted_history || matches!(self.in_flight, Some(InFlightOperation::WriteManifest(_)))
    }

    /// Handles an event and appends the resulting effects to `out`.
    pub(crate) fn handle(&mut self, event: AofEvent, out: &mut Vec<AofEffect>) {
        match event {
            AofEvent::LogAdvanced(log) => self.log_end = log,
            AofEvent::FileVersionAdded(version) => self.file_versions.add(version),
            AofEvent::LogLost(lost) => self.on_log_lost(lost, out),
            AofEvent::SnapshotTaken { rewrite, at, db } => {
                self.log_end.position = at;
                // A start reserved earlier belongs to a failed rewrite. The current increment simply continues past
                // that position.
                self.next_increment = Some(IncrementStart { rewrite, position: at, db });
                self.pending_base = Some(PendingBase { rewrite, increment: None, is_rdb: None });
            }
            AofEvent::BaseReady { rewrite, is_rdb: rdb } => match &mut self.pending_base {
                Some(base) if base.rewrite == rewrite => base.is_rdb = Some(rdb),
                _ => out.push(AofEffect::RewriteEnded { rewrite, outcome: Err(BaseInstallError::LogLost) }),
            },
            AofEvent::RewriteFailed(rewrite) => {
                self.pending_base.take_if(|base| base.rewrite == rewrite);
                self.next_increment.take_if(|next| next.rewrite == rewrite);
            }
            AofEvent::HistoryDeleted => self.has_deleted_history = !self.manifest.history.is_empty(),
            AofEvent::Configured(settings) => self.settings = settings,
            AofEvent::SyncRequested => {
                self.sync_target =
                    Some(self.log_end.position.offset).filter(|end| !self.has_synced_up_to(*end));
                (self.retry_at, self.truncate_at) = (Instant::ORIGIN, Instant::ORIGIN);
            }
        }
        self.update_reply_hold(out);
        self.publish_commit_point(out);
    }

    /// Starts and returns the next file operation; `None` while one is running or if nothing is to be done.
    pub(crate) fn next_operation(&mut self, now: Instant) -> Option<FileOperation> {
        if self.in_flight.is_some() {
            return None;
        }
        let (in_flight, operation) = self.choose_operation(now)?;
        if matches!(in_flight, InFlightOperation::Sync) {
            self.sync_started_at = now;
        }
        self.in_flight = Some(in_flight);
        Some(operation)
    }

    /// When to call [`Self::next_operation`] again if no event comes first. The time is later than `now` if no
    /// operation is due.
    #[must_use]
    pub(crate) fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let open = self.current_increment.as_ref();
        let truncate = open.filter(|open| open.may_be_torn).map(|_| self.truncate_at);
        // A retry time in the past is ignored: the data was replaced, so nothing is left to retry.
        let retry = self.last_error.as_ref().map(|_| self.retry_at).filter(|at| *at > now);
        let everysec = self.settings.fsync_policy == FsyncPolicy::EverySecond;
        let sync = open.filter(|open| everysec && !open.is_synced()).map(|_| self.last_sync_at + SYNC_PERIOD);
        // A due sync is postponed while syncs are suspended during a rewrite (`no-appendfsync-on-rewrite`).
        let sync = sync.filter(|sync| !self.is_sync_suspended() || *sync > now);
        truncate.or(retry).or(sync)
    }

    /// Completes the running operation. A failed operation may have been done partly or completely.
    ///
    /// # Panics
    /// If no operation is running, which is a bug in the driver.
    pub(crate) fn complete_operation(
        &mut self,
        now: Instant,
        outcome: Result<(), OperationError>,
        out: &mut Vec<AofEffect>,
    ) {
        let in_flight = self.in_flight.take().expect("an operation was being done");
        match outcome {
            Err(OperationError::LogLost(lost)) => self.on_log_lost(lost, out),
            Err(OperationError::Io(error)) => self.on_operation_done(now, in_flight, Err(error), out),
            Ok(()) => self.on_operation_done(now, in_flight, Ok(()), out),
        }
        self.sync_target = self.sync_target.filter(|end| !self.has_synced_up_to(*end));
        self.update_reply_hold(out);
        self.publish_commit_point(out);
    }

    fn on_operation_done(
        &mut self,
        now: Instant,
        in_flight: InFlightOperation,
        outcome: Result<(), String>,
        out: &mut Vec<AofEffect>,
    ) {
        match in_flight {
            InFlightOperation::Write(write) => self.on_written(now, &write, outcome, out),
            InFlightOperation::Sync => self.on_synced(now, outcome, out),
            InFlightOperation::Truncate => self.on_truncated(now, outcome, out),
            InFlightOperation::BeginIncrement(manifest) => {
                self.on_increment_begun(now, manifest, outcome, out);
            }
            InFlightOperation::InstallBase(rewrite, manifest) => {
                self.on_base_installed(rewrite, manifest, outcome, out);
            }
            InFlightOperation::WriteManifest(manifest) => {
                if outcome.is_ok() {
                    self.manifest = manifest;
                }
            }
        }
    }

    fn choose_operation(&mut self, now: Instant) -> Option<(InFlightOperation, FileOperation)> {
        if let Some(open) = self.current_increment.as_ref().filter(|open| open.may_be_torn) {
            let operation = (InFlightOperation::Truncate, FileOperation::Truncate(open.written_extent.bytes));
            return (now >= self.truncate_at).then_some(operation);
        }
        if self.last_error.is_some() && now < self.retry_at {
            return None;
        }
        // Installing a base and writing the manifest are rare, and a steady stream of writes must not starve them.
        if let Some(put) = self.install_base().or_else(|| self.write_manifest()) {
            return Some(put);
        }
        // Once the next increment may exist, the current one must end where the next begins, and must be synced.
        if let Some(open) = self.current_increment.as_ref().filter(|_| self.pending_increment.is_none()) {
            let until = self.increment_end();
            // Pending writes are performed before the next sync, so that it covers everything written during the
            // previous sync.
            let write =
                open.next_write(&self.log_end, &self.file_versions, until, self.settings.has_timestamps);
            let is_end = write.is_none() && self.next_increment.is_some();
            if !open.is_synced() && (is_end || self.is_sync_due(now)) {
                return Some((InFlightOperation::Sync, FileOperation::Sync));
            }
            if let Some(write) = write {
                let operation = write.to_operation();
                return Some((InFlightOperation::Write(write), operation));
            }
        }
        self.begin_increment()
    }

    /// Log offset at which the current increment must end: the start of the next increment if one is reserved, at most
    /// the end of the log.
    fn increment_end(&self) -> ReplOffset {
        self.next_increment.map_or(self.log_end.position.offset, |next| {
            next.position.offset.min(self.log_end.position.offset)
        })
    }

    fn is_sync_due(&self, now: Instant) -> bool {
        match self.settings.fsync_policy {
            _ if self.sync_target.is_some() => true,
            FsyncPolicy::Always => true,
            FsyncPolicy::EverySecond => {
                now.since(self.last_sync_at) >= SYNC_PERIOD && !self.is_sync_suspended()
            }
            FsyncPolicy::Never => false,
        }
    }

    fn is_sync_suspended(&self) -> bool {
        self.settings.no_fsync_on_rewrite && self.pending_base.is_some() && self.sync_target.is_none()
    }

    /// Creates the next increment. The current one is complete and synced at this point.
    fn begin_increment(&mut self) -> Option<(InFlightOperation, FileOperation)> {
        if self.pending_increment.is_none() {
            let cut = self.next_increment.take()?;
            self.reserve_increment(cut);
        }
        let file = self.pending_increment.as_ref()?.file.clone();
        let mut manifest = self.manifest.clone();
        manifest.append_increment(file.clone());
        // Before there is a base, the manifest must continue to name the older data.
        let text = (self.state == AofState::Complete).then(|| manifest.to_text());
        let operation = FileOperation::BeginIncrement { name: file.name, manifest: text };
        Some((InFlightOperation::BeginIncrement(manifest), operation))
    }

    fn reserve_increment(&mut self, increment_start: IncrementStart) {
        let file = self.manifest.reserve_increment(&self.settings.name);
        let stamp = self.settings.has_timestamps.then_some(self.log_end.wall_clock.secs());
        let increment = Increment::new_at_position(increment_start.position, increment_start.db, stamp);
        self.pending_increment = Some(PendingIncrement {
            start: increment_start,
            file,
            increment_name: increment,
            is_lost: false,
        });
    }

    fn install_base(&mut self) -> Option<(InFlightOperation, FileOperation)> {
        let PendingBase { rewrite, increment: Some(first), is_rdb: Some(rdb) } = self.pending_base.clone()?
        else {
            return None;
        };
        let base = self.manifest.reserve_base(&self.settings.name, rdb);
        let mut manifest = self.manifest.clone();
        manifest.replace_base(base.clone(), &first);
        let operation = FileOperation::InstallBase { rewrite, name: base.name, manifest: manifest.to_text() };
        Some((InFlightOperation::InstallBase(rewrite, manifest), operation))
    }

    fn write_manifest(&mut self) -> Option<(InFlightOperation, FileOperation)> {
        // In any other state the manifest has increments that must not be named before their base is installed.
        if self.state != AofState::Complete || !std::mem::take(&mut self.has_deleted_history) {
            return None;
        }
        let mut manifest = self.manifest.clone();
        manifest.history.clear();
        let text = manifest.to_text();
        Some((InFlightOperation::WriteManifest(manifest), FileOperation::WriteManifest(text)))
    }

    fn on_written(
        &mut self,
        now: Instant,
        pending_write: &PendingWrite,
        outcome: Result<(), String>,
        out: &mut Vec<AofEffect>,
    ) {
        // The log was lost during the write, so the file that was written to is no longer used.
        let Some(open) = &mut self.current_increment else { return };
        match outcome {
            Ok(()) => {
                open.record_write(pending_write);
                self.clear_error(out);
            }
            Err(error) => {
                open.may_be_torn = true;
                self.record_failure(now, error, out);
            }
        }
    }

    fn on_synced(&mut self, now: Instant, outcome: Result<(), String>, out: &mut Vec<AofEffect>) {
        self.last_sync_at = now;
        let Some(open) = &mut self.current_increment else { return };
        let waits = self.log_end.position.offset > open.written_extent.log_mark.offset;
        let is_delay = self.settings.fsync_policy == FsyncPolicy::EverySecond
            && waits
            && now.since(self.sync_started_at) > SLOW_SYNC_THRESHOLD;
        self.delayed_sync_count += u64::from(is_delay);
        match outcome {
            Ok(()) => {
                open.synced_extent = open.written_extent;
                self.file_versions.forget_before(open.synced_extent.log_mark.offset);
                self.clear_error(out);
            }
            Err(error) => {
                open.rewind_to_synced();
                self.record_failure(now, error, out);
            }
        }
    }

    fn on_truncated(&mut self, now: Instant, outcome: Result<(), String>, out: &mut Vec<AofEffect>) {
        match (outcome, &mut self.current_increment) {
            (Ok(()), Some(open)) => open.may_be_torn = false,
            (Ok(()), None) => {}
            (Err(error), _) => {
                self.truncate_at = now + RETRY_DELAY;
                self.record_failure(now, error, out);
            }
        }
    }

    fn on_increment_begun(
        &mut self,
        now: Instant,
        manifest: Manifest,
        outcome: Result<(), String>,
        out: &mut Vec<AofEffect>,
    ) {
        match outcome {
            Err(error) => {
                // The creation is retried, unless the log was lost. In that case the name of the file is never used.
                self.pending_increment.take_if(|beginning| beginning.is_lost);
                self.record_failure(now, error, out);
            }
            Ok(()) => {
                self.manifest = manifest;
                self.clear_error(out);
                let begun = self.pending_increment.take().filter(|beginning| !beginning.is_lost);
                let Some(PendingIncrement { start: cut, file, increment_name: increment, .. }) = begun else {
                    return;
                };
                self.current_increment = Some(increment);
                if let Some(base) = self.pending_base.as_mut().filter(|base| base.rewrite == cut.rewrite) {
                    base.increment = Some(file.name);
                }
            }
        }
    }

    fn on_base_installed(
        &mut self,
        rewrite: RewriteId,
        manifest: Manifest,
        outcome: Result<(), String>,
        out: &mut Vec<AofEffect>,
    ) {
        let base = self.pending_base.take_if(|base| base.rewrite == rewrite);
        if outcome.is_ok() {
            self.manifest = manifest;
        }
        let outcome = match (outcome, base) {
            (Err(error), _) => Err(BaseInstallError::Io(error)),
            (Ok(()), None) => Err(BaseInstallError::LogLost),
            (Ok(()), Some(_)) => {
                self.state = AofState::Complete;
                Ok(self.manifest.history.iter().map(|file| file.name.clone()).collect())
            }
        };
        out.push(AofEffect::RewriteEnded { rewrite, outcome });
    }

    /// Gives up the current files, because a new base is needed for the data that follows.
    fn on_log_lost(&mut self, loss: LogLoss, out: &mut Vec<AofEffect>) {
        self.current_increment = None;
        self.next_increment = None;
        self.file_versions.clear();
        match (&mut self.pending_increment, &self.in_flight) {
            (Some(beginning), Some(InFlightOperation::BeginIncrement(_))) => beginning.is_lost = true,
            (beginning, _) => *beginning = None,
        }
        self.state = match (loss, self.state) {
            (LogLoss::Trimmed, AofState::Complete | AofState::Behind) => AofState::Behind,
            (LogLoss::Trimmed, AofState::NoBase) => AofState::NoBase,
            (LogLoss::Replaced, _) => {
                self.synced_offset = None;
                AofState::NoBase
            }
        };
        let is_being_put = matches!(self.in_flight, Some(InFlightOperation::InstallBase(..)));
        if let Some(base) = self.pending_base.take().filter(|base| base.is_rdb.is_some() && !is_being_put) {
            out.push(AofEffect::RewriteEnded {
                rewrite: base.rewrite,
                outcome: Err(BaseInstallError::LogLost),
            });
        }
        out.push(AofEffect::BaseNeeded);
    }

    /// Announces the offset up to which replies to writes may be sent.
    fn publish_commit_point(&mut self, out: &mut Vec<AofEffect>) {
        let open = self
            .current_increment
            .as_ref()
            .map(|open| (open.written_extent.log_mark.offset, open.synced_extent.log_mark.offset));
        let commit = match (self.state, open) {
            (AofState::Complete, Some((written, synced))) => {
                self.synced_offset = Some(synced);
                if self.settings.fsync_policy == FsyncPolicy::Always { synced } else { written }
            }
            (AofState::NoBase, Some((written, _))) => written,
            // Without a base, replies do not wait for the file.
            (AofState::NoBase, None) => self.log_end.position.offset,
            (AofState::Behind, _) | (AofState::Complete, None) => return,
        };
        if self.published_commit_point.replace(commit) != Some(commit) {
            out.push(AofEffect::PublishCommitPoint(commit));
        }
    }

    /// Decides whether replies to writes must wait: always under `always`, and while the disk cannot keep up.
    fn update_reply_hold(&mut self, out: &mut Vec<AofEffect>) {
        let behind = self
            .written_offset()
            .map_or(0, |written| self.log_end.position.offset.0.saturating_sub(written.0));
        let behind = behind + self.file_versions.command_bytes();
        let most = if self.holds_replies { MAX_UNWRITTEN_BYTES / 4 } else { MAX_UNWRITTEN_BYTES };
        let holds = match self.state {
            AofState::Complete => self.settings.fsync_policy == FsyncPolicy::Always || behind > most,
            AofState::Behind => true,
            AofState::NoBase => behind > most,
        };
        if holds != self.holds_replies {
            self.holds_replies = holds;
            out.push(AofEffect::HoldReplies(holds));
        }
    }

    fn clear_error(&mut self, out: &mut Vec<AofEffect>) {
        if self.last_error.take().is_some() {
            out.push(AofEffect::WriteErrorChanged(None));
        }
    }

    fn record_failure(&mut self, now: Instant, error: String, out: &mut Vec<AofEffect>) {
        self.retry_at = now + RETRY_DELAY;
        self.failure_count += 1;
        if self.last_error.as_ref() != Some(&error) {
            out.push(AofEffect::WriteErrorChanged(Some(error.clone())));
            self.last_error = Some(error);
        }
    }
}
