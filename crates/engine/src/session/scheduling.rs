//! On which worker a session's commands run, and for how long.

use super::Session;

/// Where the slow commands of a session run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BackgroundMode {
    /// Slow commands run on the connection's own worker, because there is no background worker.
    #[default]
    Unavailable,
    /// Slow commands move the connection to a background worker ([`crate::DispatchStatus::SlowCommand`]).
    Offloadable,
    /// The connection is on a background worker, where slow commands run in place.
    OnBackgroundWorker,
    /// The connection is on the background worker reserved for waiting for locked slots.
    OnWaitWorker,
}

impl BackgroundMode {
    /// Returns whether a slow command moves the connection to another worker.
    pub(crate) fn can_leave(self) -> bool {
        match self {
            Self::Offloadable | Self::OnWaitWorker => true,
            Self::OnBackgroundWorker | Self::Unavailable => false,
        }
    }
}

/// The worker and the time slice of a session.
#[derive(Debug)]
pub(super) struct Scheduling {
    background: BackgroundMode,
    /// End of the session's time slice, in nanoseconds of the worker's clock.
    time_slice_end: u64,
}

impl Default for Scheduling {
    fn default() -> Self {
        Self { background: BackgroundMode::default(), time_slice_end: u64::MAX }
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
