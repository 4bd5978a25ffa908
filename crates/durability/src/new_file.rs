//! A file being written from start to end: a snapshot, or a base of the append-only file.

use std::io::{self, Write};

/// Number of bytes between syncs, as in Redis.
const SYNC_INTERVAL_BYTES: usize = 4 << 20;

/// A file whose writes fail once the save or rewrite is cancelled.
pub(super) struct NewFile<'a> {
    pub(super) file: tempfile::NamedTempFile,
    is_cancelled: &'a dyn Fn() -> bool,
    /// Whether to sync every few megabytes instead of once at the end.
    sync_incrementally: bool,
    /// Number of bytes written since the last sync.
    unsynced_bytes: usize,
}

impl<'a> NewFile<'a> {
    pub(super) fn new(
        file: tempfile::NamedTempFile,
        sync_incrementally: bool,
        is_cancelled: &'a dyn Fn() -> bool,
    ) -> Self {
        Self { file, is_cancelled, sync_incrementally, unsynced_bytes: 0 }
    }
}

impl Write for NewFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.is_cancelled)() {
            return Err(io::Error::other("cancelled"));
        }
        let count = self.file.write(bytes)?;
        self.unsynced_bytes += count;
        if self.sync_incrementally && self.unsynced_bytes >= SYNC_INTERVAL_BYTES {
            self.file.as_file().sync_data()?;
            self.unsynced_bytes = 0;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
