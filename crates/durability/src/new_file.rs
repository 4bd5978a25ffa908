//! A file that is being written whole: a snapshot's, or a base of the append-only file.

use std::io::{self, Write};

/// So many bytes are written before they are brought to the disk: as many as in Redis.
const SYNC_STEP: usize = 4 << 20;

/// A file that takes no more once whoever wants it calls that off.
pub(super) struct NewFile<'a> {
    pub(super) file: tempfile::NamedTempFile,
    is_called_off: &'a dyn Fn() -> bool,
    /// Whether what was written is brought to the disk every few megabytes, not all of it at the end.
    by_steps: bool,
    /// Bytes that may not be on the disk yet.
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
            return Err(io::Error::other("called off"));
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
