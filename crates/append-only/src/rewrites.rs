//! Tracks rewrites: which one is running, when the next is due, and how the last one ended.
//!
//! Rewrites also happen while the append-only file is disabled, so they are not part of the state machine.

use std::time::Duration;

use clock::Instant;

/// Minimum delay between a failed rewrite and the next automatic one.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Identifies a rewrite. Ids are never reused while the server runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RewriteId(pub u64);

/// A rewrite cannot be started because another one is running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("Background append only file rewriting already in progress")]
pub struct RewriteRunningError;

/// The size of the files and the thresholds for an automatic rewrite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RewriteThresholds {
    /// Total size of all files in bytes.
    pub(crate) size: u64,
    /// Growth in percent since the last rewrite (`auto-aof-rewrite-percentage`); 0 disables automatic rewrites.
    pub(crate) percentage: u64,
    /// Minimum size of the files in bytes (`auto-aof-rewrite-min-size`).
    pub(crate) min_size: u64,
}

/// The running rewrite of a server and the results of earlier ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewrites {
    running_rewrite: Option<(RewriteId, Instant)>,
    next_id: u64,
    last_attempt_at: Option<Instant>,
    /// Whether a rewrite is to start as soon as possible.
    pub is_scheduled: bool,
    /// Whether the last rewrite succeeded; true before the first one.
    pub was_last_successful: bool,
    /// Duration of the last rewrite; `None` before the first one.
    pub last_duration: Option<Duration>,
    /// Number of successful rewrites since the start or the last reset.
    pub success_count: u64,
    /// Number of failures since the last success.
    pub consecutive_failures: u64,
    /// Total size of all files after the last rewrite, or at the start.
    pub size_after_last_rewrite: u64,
}

impl Default for Rewrites {
    fn default() -> Self {
        Self {
            running_rewrite: None,
            next_id: 0,
            last_attempt_at: None,
            is_scheduled: false,
            was_last_successful: true,
            last_duration: None,
            success_count: 0,
            consecutive_failures: 0,
            size_after_last_rewrite: 0,
        }
    }
}

impl Rewrites {
    /// Returns whether a rewrite is running and has not been cancelled.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.running_rewrite.is_some()
    }

    /// The rewrite that is running; `None` once it is cancelled.
    pub(crate) fn running_rewrite(&self) -> Option<RewriteId> {
        self.running_rewrite.map(|(rewrite, _)| rewrite)
    }

    /// How long the current rewrite has been running; `None` if none is running.
    #[must_use]
    pub fn running_time(&self, now: Instant) -> Option<Duration> {
        self.running_rewrite.map(|(_, since)| now.since(since))
    }

    /// Returns whether `rewrite` is running and has not been cancelled.
    #[must_use]
    pub fn is_current(&self, rewrite: RewriteId) -> bool {
        self.running_rewrite.is_some_and(|(running, _)| running == rewrite)
    }

    /// Whether an automatic rewrite should start.
    #[must_use]
    pub(crate) fn is_due(&self, now: Instant, thresholds: RewriteThresholds) -> bool {
        let recently = |at| now.since(at) < RETRY_DELAY;
        if self.is_running() || (!self.was_last_successful && self.last_attempt_at.is_some_and(recently)) {
            return false;
        }
        let grown = thresholds.size.saturating_sub(self.size_after_last_rewrite).saturating_mul(100)
            / self.size_after_last_rewrite.max(1);
        let is_large = thresholds.percentage > 0
            && thresholds.size > thresholds.min_size
            && grown >= thresholds.percentage;
        self.is_scheduled || is_large
    }

    /// Starts a rewrite.
    ///
    /// # Errors
    /// A rewrite is already running.
    pub(crate) fn begin(&mut self, now: Instant) -> Result<RewriteId, RewriteRunningError> {
        if self.is_running() {
            return Err(RewriteRunningError);
        }
        self.next_id += 1;
        let rewrite = RewriteId(self.next_id);
        self.running_rewrite = Some((rewrite, now));
        self.last_attempt_at = Some(now);
        self.is_scheduled = false;
        Ok(rewrite)
    }

    /// Records the end of a rewrite. If `retries` is set, a failed rewrite is scheduled again. Cancelled rewrites are
    /// ignored.
    pub(crate) fn end(&mut self, now: Instant, rewrite: RewriteId, has_succeeded: bool, will_retry: bool) {
        if !self.is_current(rewrite) {
            return;
        }
        self.last_duration = self.running_rewrite.take().map(|(_, since)| now.since(since));
        self.was_last_successful = has_succeeded;
        if has_succeeded {
            self.success_count += 1;
            self.consecutive_failures = 0;
        } else {
            self.consecutive_failures += 1;
            self.is_scheduled |= will_retry;
        }
    }

    /// Cancels the running or scheduled rewrite, without changing the result of the last one. Returns whether one was
    /// running.
    pub(crate) fn cancel(&mut self) -> bool {
        self.is_scheduled = false;
        self.running_rewrite.take().is_some()
    }
}
