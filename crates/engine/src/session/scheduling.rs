//! On which worker a session's commands run, and for how long.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Session;
use crate::outcome::OffloadReason;

/// Where the slow commands of a session run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BackgroundMode {
    /// Slow commands run on the connection's own worker, because there is no background worker.
    #[default]
    Unavailable,
    /// Slow commands move the connection to a background worker ([`crate::DispatchStatus::Offload`]).
    Offloadable,
    /// The connection has moved to the background worker for commands with this reason.
    Offloaded(OffloadReason),
}

impl BackgroundMode {
    /// Returns whether a slow command moves the connection to another worker.
    pub(crate) fn can_be_offloaded(self) -> bool {
        match self {
            Self::Offloadable | Self::Offloaded(OffloadReason::SlotsLocked) => true,
            Self::Offloaded(OffloadReason::SlowCommand | OffloadReason::AllSlotsLocked)
            | Self::Unavailable => false,
        }
    }

    /// Returns whether the connection is on a background worker for slow commands.
    #[inline]
    pub(crate) fn is_on_slow_worker(self) -> bool {
        self == Self::Offloaded(OffloadReason::SlowCommand)
    }
}

/// The worker and the time slice of a session.
#[derive(Debug)]
pub(super) struct Scheduling {
    background: BackgroundMode,
    /// End of the session's time slice, in nanoseconds of the worker's clock.
    time_slice_end: u64,
    /// Time in nanoseconds of the worker's clock at which the next command began to wait for slots, if it has already
    /// given up such a wait; otherwise 0. Atomic only because handlers share the session.
    slot_wait_start: AtomicU64,
}

impl Default for Scheduling {
    fn default() -> Self {
        Self {
            background: BackgroundMode::default(),
            time_slice_end: u64::MAX,
            slot_wait_start: AtomicU64::new(0),
        }
    }
}

impl Session {
    /// Returns where slow commands run.
    #[must_use]
    #[inline]
    pub fn background(&self) -> BackgroundMode {
        self.scheduling.background
    }

    /// Sets where slow commands run.
    pub fn set_background(&mut self, background: BackgroundMode) {
        self.scheduling.background = background;
    }

    /// Takes the start of an unfinished wait for slots, which the next command continues.
    #[inline]
    pub(crate) fn take_slot_wait_start(&self) -> Option<u64> {
        let start = self.scheduling.slot_wait_start.load(Ordering::Relaxed);
        if start == 0 {
            return None;
        }
        self.scheduling.slot_wait_start.store(0, Ordering::Relaxed);
        Some(start)
    }

    /// Stores the start of a wait for slots that is continued later, perhaps on another worker.
    pub(crate) fn set_slot_wait_start(&self, start: Option<u64>) {
        self.scheduling.slot_wait_start.store(start.unwrap_or(0), Ordering::Relaxed);
    }

    /// Returns the end of the session's time slice on the worker's clock, after which other sessions run first.
    #[must_use]
    #[inline(always)]
    pub fn time_slice_end(&self) -> u64 {
        self.scheduling.time_slice_end
    }

    /// Sets the end of the time slice, in nanoseconds of the worker's clock.
    #[inline]
    pub fn set_time_slice_end(&mut self, end: u64) {
        self.scheduling.time_slice_end = end;
    }
}
