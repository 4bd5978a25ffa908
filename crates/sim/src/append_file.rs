//! The thread that writes the append-only file of a simulated process, on a disk that fails, fills up and tears writes.
//! The driver is the production code.

use std::io::{self, Write as _};

use append_only::{
    AofDirectory, AofDriver, CompletedOperation, FileExecutor, FileOperation, PendingOperation,
};
use persistence::Disk as _;

use crate::disk::{OpenFile, SimDisk};

/// The value of `appendfilename`, kept short because traces contain it.
pub(crate) const AOF_NAME: &str = "a";

pub(crate) type SimAofDriver = AofDriver<OpenFile>;

pub(crate) fn aof_directory(disk: &SimDisk) -> AofDirectory<SimDisk> {
    AofDirectory::new(disk.in_folder("appendonlydir/"), AOF_NAME)
}

/// The thread that writes the append-only file. An operation takes simulated time, so other events can happen before it
/// finishes.
pub(crate) struct AofWriter {
    executor: FileExecutor<SimDisk>,
    /// The operation in progress; `None` while the thread is idle.
    pending_operation: Option<PendingOperation<OpenFile>>,
}

impl AofWriter {
    pub(crate) fn new(executor: FileExecutor<SimDisk>) -> Self {
        Self { executor, pending_operation: None }
    }

    pub(crate) fn directory(&self) -> &AofDirectory<SimDisk> {
        self.executor.directory()
    }

    /// Returns the operation in progress, for the trace and the injected bugs.
    pub(crate) fn operation(&self) -> Option<&FileOperation> {
        self.pending_operation.as_ref().map(PendingOperation::operation)
    }

    /// Starts an operation. It takes effect in [`Self::finish`].
    pub(crate) fn begin(&mut self, pending_operation: PendingOperation<OpenFile>) {
        self.pending_operation = Some(pending_operation);
    }

    /// Finishes the operation in progress. Returns `None` if the process dies during the operation.
    pub(crate) fn finish(&mut self) -> Option<CompletedOperation> {
        let completed = self.executor.execute(self.pending_operation.take()?);
        (!self.directory().disk.is_dead()).then_some(completed)
    }

    /// Writes and syncs the base file of a rewrite.
    pub(crate) fn write_base(&self, rdb: &[u8]) -> io::Result<OpenFile> {
        let mut base = self.directory().create_temporary_base()?;
        for piece in rdb.chunks(4096) {
            base.write_all(piece)?;
        }
        self.directory().disk.sync_temp_file(&base)?;
        Ok(base)
    }
}
