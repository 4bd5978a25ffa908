//! The append-only file of a simulated process: the real machine, and the files that it has written on a disk that
//! fails, fills and tears.

use std::io::{self, Write as _};

use append_only::{
    AofDirectory, AofEffect, AofEvent, AppendOnly, FileExecutor, FileOperation, OperationError,
    RetainedCursor, RewriteId, Rewrites,
};
use clock::{Instant, Millis};
use persistence::Disk as _;
use replication::Log;

use crate::disk::{Opened, SimDisk};

/// As the configuration calls it.
pub(crate) const NAME: &str = "a";

/// The folder of the file on a disk.
pub(crate) fn folder(disk: &SimDisk) -> AofDirectory<SimDisk> {
    AofDirectory::new(disk.folder("appendonlydir/"), NAME)
}

/// A rewrite that is under way.
#[derive(Debug)]
pub(crate) struct Rewrite {
    pub(crate) id: RewriteId,
    /// Its base, once that is written.
    pub(crate) base: Option<Opened>,
}

/// The file of a process that runs.
pub(crate) struct AppendFile {
    pub(crate) machine: AppendOnly,
    pub(crate) rewrites: Rewrites,
    pub(crate) rewrite: Option<Rewrite>,
    cursor: RetainedCursor,
    executor: FileExecutor<SimDisk>,
    /// The operation that is being done, with the bytes that it writes.
    operation: Option<(FileOperation, Vec<u8>)>,
}

impl AppendFile {
    /// One whose machine goes on with this open file, or with none.
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

    /// Tells the machine how long the log is, and something else.
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

    /// The operation that is being done.
    pub(crate) fn operation(&self) -> Option<&FileOperation> {
        self.operation.as_ref().map(|(operation, _)| operation)
    }

    /// The thread that writes begins an operation, if there is one.
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
                log.peek(*from, len, &mut bytes).expect("the log keeps what is to be written");
            }
            (operation, bytes)
        });
    }

    /// The operation is done, as well as it goes. Returns the error; nothing more happens if the process dies in it.
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

    /// Writes the base of a rewrite, and brings it to the disk.
    pub(crate) fn write_base(&self, rdb: &[u8]) -> io::Result<Opened> {
        let mut base = self.executor.folder.temporary_base()?;
        for piece in rdb.chunks(4096) {
            base.write_all(piece)?;
        }
        self.executor.folder.disk.sync_temporary(&base)?;
        Ok(base)
    }

    /// A rewrite has ended; `ok`: its base counts.
    pub(crate) fn end_rewrite(&mut self, now: Instant, rewrite: RewriteId, ok: bool) {
        self.rewrite.take_if(|under_way| under_way.id == rewrite);
        self.rewrites.end(now, rewrite, ok, true);
    }
}
