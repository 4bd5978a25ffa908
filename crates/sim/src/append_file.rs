//! The append-only file of a simulated process: the real state machine, and its files on a disk
//! that fails, fills up and tears writes.

use std::io::{self, Write as _};

use append_only::{
    AofDirectory, AofEffect, AofEvent, AppendOnly, FileExecutor, FileOperation, OperationError,
    RetainedCursor, RewriteId, Rewrites,
};
use clock::{Instant, Millis};
use persistence::Disk as _;
use replication::Log;

use crate::disk::{Opened, SimDisk};

/// The value of `appendfilename`.
pub(crate) const AOF_NAME: &str = "a";

/// Opens the file's folder on `disk`.
pub(crate) fn folder(disk: &SimDisk) -> AofDirectory<SimDisk> {
    AofDirectory::new(disk.folder("appendonlydir/"), AOF_NAME)
}

/// A rewrite in progress.
#[derive(Debug)]
pub(crate) struct Rewrite {
    pub(crate) id: RewriteId,
    /// The base file, once it is written.
    pub(crate) base: Option<Opened>,
}

/// The append-only file of a running process.
pub(crate) struct AppendFile {
    pub(crate) machine: AppendOnly,
    pub(crate) rewrites: Rewrites,
    pub(crate) rewrite: Option<Rewrite>,
    cursor: RetainedCursor,
    executor: FileExecutor<SimDisk>,
    /// The operation in progress and the bytes that it writes.
    operation: Option<(FileOperation, Vec<u8>)>,
}

impl AppendFile {
    /// Continues the given machine, with `file` as its open increment if it has one.
    pub(crate) fn new(machine: AppendOnly, folder: AofDirectory<SimDisk>, file: Option<Opened>) -> Self {
        Self {
            machine,
            rewrites: Rewrites::default(),
            rewrite: None,
            cursor: RetainedCursor::default(),
            executor: FileExecutor { folder, file },
            operation: None,
        }
    }

    pub(crate) fn folder(&self) -> &AofDirectory<SimDisk> {
        &self.executor.folder
    }

    /// Passes the current log end, then `input`, to the machine.
    pub(crate) fn tell(
        &mut self,
        log: &mut Log,
        wall: Millis,
        input: Option<AofEvent>,
        out: &mut Vec<AofEffect>,
    ) {
        self.cursor.report_log(&mut self.machine, log, wall, out);
        if let Some(input) = input {
            self.machine.handle(input, out);
        }
        self.cursor.retain(&self.machine, log);
    }

    /// Returns the operation in progress.
    pub(crate) fn operation(&self) -> Option<&FileOperation> {
        self.operation.as_ref().map(|(operation, _)| operation)
    }

    /// Starts the next operation of the writer thread, if there is one.
    pub(crate) fn begin_operation(
        &mut self,
        log: &mut Log,
        (now, wall): (Instant, Millis),
        out: &mut Vec<AofEffect>,
    ) {
        self.cursor.report_log(&mut self.machine, log, wall, out);
        let operation = self.machine.next_operation(now);
        self.cursor.retain(&self.machine, log);
        self.operation = operation.map(|operation| {
            let mut bytes = Vec::new();
            if let FileOperation::Write { head, from, len } = &operation {
                bytes.clone_from(head);
                let len = usize::try_from(*len).unwrap_or(usize::MAX);
                log.read_exact_at(*from, len, &mut bytes).expect("the log keeps what is to be written");
            }
            (operation, bytes)
        });
    }

    /// Finishes the operation in progress and returns its error, if any. Has no further effect if
    /// the process dies during the operation.
    pub(crate) fn end_operation(&mut self, now: Instant, out: &mut Vec<AofEffect>) -> Option<String> {
        let (operation, bytes) = self.operation.take()?;
        let base = match &operation {
            FileOperation::InstallBase { rewrite, .. } => {
                let ready = self.rewrite.as_mut().filter(|under_way| under_way.id == *rewrite);
                ready.and_then(|under_way| under_way.base.take())
            }
            _ => None,
        };
        let outcome = self.executor.execute(operation, &bytes, base);
        if self.executor.folder.disk.is_dead() {
            return None;
        }
        let error = match &outcome {
            Err(OperationError::Io(error)) => Some(error.clone()),
            _ => None,
        };
        self.machine.done(now, outcome, out);
        error
    }

    /// Writes and syncs the base file of a rewrite.
    pub(crate) fn write_base(&self, rdb: &[u8]) -> io::Result<Opened> {
        let mut base = self.executor.folder.temporary_base()?;
        for piece in rdb.chunks(4096) {
            base.write_all(piece)?;
        }
        self.executor.folder.disk.sync_temporary(&base)?;
        Ok(base)
    }

    /// Finishes a rewrite; with `ok` its base file becomes valid.
    pub(crate) fn end_rewrite(&mut self, now: Instant, rewrite: RewriteId, ok: bool) {
        self.rewrite.take_if(|under_way| under_way.id == rewrite);
        self.rewrites.end(now, rewrite, ok, true);
    }
}
