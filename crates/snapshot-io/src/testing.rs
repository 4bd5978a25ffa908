//! A load host for unit tests.

use crate::host::{LoadEvent, LoadHost};

/// A load host that ignores all reports. Its clock does not advance.
pub(crate) struct NoopHost;

impl LoadHost for NoopHost {
    fn now(&self) -> clock::Millis {
        clock::Millis(1_700_000_000_000)
    }

    fn nanos_clock(&self) -> fn() -> u64 {
        || 0
    }

    fn on_load_started(&self, _total: u64) {}

    fn report_progress(&self, _read: u64, _keys: u64) {}

    fn on_used_memory(&self, _bytes: u64) {}

    fn on_key_read(&self) {}

    fn report_event(&self, _event: LoadEvent<'_>) {}
}
