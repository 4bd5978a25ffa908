//! How rewrites stand: which one is under way, when the next is due, how the last ended.
//!
//! There are rewrites also while the file is off, so this is no part of the machine.

use std::time::Duration;

use clock::Instant;

/// After a rewrite that failed, so long until the next by itself.
const RETRY: Duration = Duration::from_secs(5);

/// One rewrite. The same number is never given twice while a server runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RewriteId(pub u64);

/// There is one under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("Background append only file rewriting already in progress")]
pub struct RunningError;

/// When a rewrite is due because the file has grown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Growth {
    /// Bytes of all files.
    pub size: u64,
    /// `auto-aof-rewrite-percentage`
    pub percentage: u64,
    /// `auto-aof-rewrite-min-size`
    pub min_size: u64,
}

/// The rewrites of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewrites {
    running: Option<(RewriteId, Instant)>,
    next: u64,
    last_try: Option<Instant>,
    /// One is to begin as soon as it can.
    pub scheduled: bool,
    /// Whether the last one worked.
    pub last_ok: bool,
    /// How long it took.
    pub last_took: Option<Duration>,
    /// How many worked.
    pub done: u64,
    /// How many have failed since one worked.
    pub failed_in_a_row: u64,
    /// Bytes of all files after the last one, or at the start.
    pub size_after: u64,
}

impl Default for Rewrites {
    fn default() -> Self {
        Self {
            running: None,
            next: 0,
            last_try: None,
            scheduled: false,
            last_ok: true,
            last_took: None,
            done: 0,
            failed_in_a_row: 0,
            size_after: 0,
        }
    }
}

impl Rewrites {
    /// Whether one is under way.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// For how long the one that is under way has been.
    #[must_use]
    pub fn running_for(&self, now: Instant) -> Option<Duration> {
        self.running.map(|(_, since)| now.since(since))
    }

    /// Whether it is this one that is under way: one that was called off is not.
    #[must_use]
    pub fn is_live(&self, rewrite: RewriteId) -> bool {
        self.running.is_some_and(|(running, _)| running == rewrite)
    }

    /// Whether one is to begin by itself.
    #[must_use]
    pub fn is_due(&self, now: Instant, growth: Growth) -> bool {
        let recently = |at| now.since(at) < RETRY;
        if self.is_running() || (!self.last_ok && self.last_try.is_some_and(recently)) {
            return false;
        }
        let grown = growth.size.saturating_sub(self.size_after).saturating_mul(100) / self.size_after.max(1);
        let is_large = growth.percentage > 0 && growth.size > growth.min_size && grown >= growth.percentage;
        self.scheduled || is_large
    }

    /// Begins one.
    ///
    /// # Errors
    /// One is under way.
    pub fn begin(&mut self, now: Instant) -> Result<RewriteId, RunningError> {
        if self.is_running() {
            return Err(RunningError);
        }
        self.next += 1;
        let rewrite = RewriteId(self.next);
        self.running = Some((rewrite, now));
        self.last_try = Some(now);
        self.scheduled = false;
        Ok(rewrite)
    }

    /// One has ended; `needed` says that there has to be another, if it did not work. One that was called off meanwhile
    /// is ignored.
    pub fn end(&mut self, now: Instant, rewrite: RewriteId, ok: bool, needed: bool) {
        if !self.is_live(rewrite) {
            return;
        }
        self.last_took = self.running.take().map(|(_, since)| now.since(since));
        self.last_ok = ok;
        if ok {
            self.done += 1;
            self.failed_in_a_row = 0;
        } else {
            self.failed_in_a_row += 1;
            self.scheduled |= needed;
        }
    }

    /// Nobody wants another base any more: what is under way or scheduled is called off, and the last one's outcome
    /// stands. Says whether one was under way.
    pub fn call_off(&mut self) -> bool {
        self.scheduled = false;
        self.running.take().is_some()
    }
}
