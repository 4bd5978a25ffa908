//! A file being written from start to end: a snapshot, or a base of the append-only file.

use std::io::{self, Write};

/// Number of bytes between syncs, as in Redis.
const SYNC_STEP: usize = 4 << 20;

/// A file whose writes fail after cancellation.
pub(super) struct NewFile<'a> {
    pub(super) file: tempfile::NamedTempFile,
    is_called_off: &'a dyn Fn() -> bool,
    /// Whether to sync every few megabytes instead of once at the end.
    by_steps: bool,
    /// Bytes written since the last sync.
    unsynced: usize,
}

impl<'a> NewFile<'a> {
    pub(super) fn new(
        file: tempfile::NamedTempFile,
        by_steps: bool,
        is_called_off: &'a dyn Fn() -> bool,
    ) -> Self {
        Self { file, is_called_off, by_steps, unsynced: 0 }
    }
}

impl Write for NewFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.is_called_off)() {
            return Err(io::Error::other("cancelled"));
        }
        let count = self.file.write(bytes)?;
        self.unsynced += count;
        if self.by_steps && self.unsynced >= SYNC_STEP {
            self.file.as_file().sync_data()?;
            self.unsynced = 0;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
