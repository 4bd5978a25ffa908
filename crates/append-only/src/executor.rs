//! Performs file operations. An operation can be completed only by performing it.

use std::io::{self, Write as _};

use persistence::aof::Manifest;

use crate::directory::{AofDirectory, AofSizes};
use crate::storage::{AofStorage, DirectoryEvent};
use crate::{FileOperation, OperationError};

/// An operation to perform, with everything that it needs. `B` is the type of a base's temporary file.
#[derive(Debug)]
pub struct PendingOperation<B> {
    pub(crate) operation: FileOperation,
    /// The bytes of a write: its head, followed by the bytes from the log.
    pub(crate) bytes: Vec<u8>,
    /// The base to install; `None` if its rewrite was cancelled, or if the operation installs no base.
    pub(crate) base: Option<B>,
    /// The manifest after the operation, if the operation changes it.
    pub(crate) manifest: Option<Manifest>,
}

impl<B> PendingOperation<B> {
    /// Returns which operation to perform, without its data.
    #[must_use]
    pub fn operation(&self) -> &FileOperation {
        &self.operation
    }
}

/// An operation that was performed, and its result.
#[derive(Debug)]
pub struct CompletedOperation {
    pub(crate) bytes: Vec<u8>,
    pub(crate) is_write: bool,
    pub(crate) outcome: Result<(), OperationError>,
    /// The sizes of the files, if the operation changed the manifest.
    pub(crate) sizes: Option<AofSizes>,
}

impl CompletedOperation {
    /// Returns the error text, or `None` if the operation succeeded.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        match &self.outcome {
            Err(OperationError::Io(error)) => Some(error),
            Err(OperationError::LogLost(_)) | Ok(()) => None,
        }
    }
}

/// The position at which the driver starts to follow the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartPosition {
    /// The driver starts at the snapshot of the next rewrite, because the existing files hold older data. The rewrite
    /// is scheduled.
    NextSnapshot,
    /// The driver starts after the base, which is the only file.
    Base {
        /// The database that is selected in the master's stream at this position.
        db: u16,
    },
    /// The driver starts at the end of the last increment.
    Increment {
        /// The size of that increment in bytes.
        bytes: u64,
    },
}

/// Performs the operations of [`AofDriver`](crate::AofDriver) in a directory.
#[derive(Debug)]
pub struct FileExecutor<D: AofStorage> {
    directory: AofDirectory<D>,
    /// The increment that is being written; `None` before the first operation.
    current_file: Option<D::File>,
}

impl<D: AofStorage> FileExecutor<D> {
    /// Starts without files. The first operation creates an increment.
    #[must_use]
    pub fn new(directory: AofDirectory<D>) -> Self {
        Self { directory, current_file: None }
    }

    /// Continues the files of `manifest` after they were loaded. `db` is the database that was selected at their end.
    ///
    /// # Errors
    /// A system call failed.
    pub fn open(
        directory: AofDirectory<D>,
        manifest: &Manifest,
        db: u16,
    ) -> io::Result<(Self, StartPosition)> {
        let last = directory.open_last_increment(manifest)?;
        let position = match &last {
            Some(last) => StartPosition::Increment { bytes: last.bytes },
            None => StartPosition::Base { db },
        };
        Ok((Self { directory, current_file: last.map(|last| last.file) }, position))
    }

    /// The directory in which the operations are performed.
    #[must_use]
    pub fn directory(&self) -> &AofDirectory<D> {
        &self.directory
    }

    /// Performs an operation. An operation that fails may have been done partly or completely.
    pub fn execute(&mut self, pending_operation: PendingOperation<D::TempFile>) -> CompletedOperation {
        let PendingOperation { operation, bytes, base, manifest } = pending_operation;
        let is_write = matches!(operation, FileOperation::Write { .. });
        let done = self.perform(operation, &bytes, base);
        let sizes = manifest.filter(|_| done.is_ok()).map(|manifest| self.directory.sizes(&manifest));
        let outcome = done.map_err(|error| OperationError::Io(error_text(&error)));
        CompletedOperation { bytes, is_write, outcome, sizes }
    }

    fn perform(
        &mut self,
        operation: FileOperation,
        bytes: &[u8],
        base_file: Option<D::TempFile>,
    ) -> io::Result<()> {
        match operation {
            FileOperation::Write { .. } => self.with_open_file(|_, file| file.write_all(bytes)),
            FileOperation::Sync => self.with_open_file(|disk, file| disk.sync_file(file)),
            FileOperation::Truncate(len) => self.with_open_file(|disk, file| disk.truncate_file(file, len)),
            FileOperation::BeginIncrement { name, manifest } => {
                self.current_file = Some(self.directory.begin_increment(&name, manifest.as_deref())?);
                self.directory.disk.report(DirectoryEvent::IncrementCreated(&name));
                Ok(())
            }
            FileOperation::InstallBase { name, manifest, .. } => {
                let base = base_file.ok_or_else(|| io::Error::other("the rewrite was cancelled"))?;
                let temporary = self.directory.disk.temp_file_name(&base);
                self.directory.install_base(base, &name, &manifest)?;
                let (temporary, name) = (temporary.as_str(), name.as_str());
                self.directory.disk.report(DirectoryEvent::BaseInstalled { temporary, name });
                Ok(())
            }
            FileOperation::WriteManifest(text) => self.directory.write_manifest(&text),
        }
    }

    fn with_open_file(&mut self, work: impl FnOnce(&D, &mut D::File) -> io::Result<()>) -> io::Result<()> {
        let file = self.current_file.as_mut().ok_or_else(|| io::Error::other("no increment is open"))?;
        work(&self.directory.disk, file)
    }
}

/// Formats an error as Redis users know it, without error number and path.
fn error_text(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}
