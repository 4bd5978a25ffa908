//! The directory of an append-only file: the manifest and the files it names.
//!
//! The state machine decides when to create files and what the manifest contains. Each operation here is atomic: after
//! a failure the manifest is either the old one or the new one.

use std::io::{self, Read as _, Write};

use persistence::TEMP_PREFIX;
use persistence::aof::{Manifest, ManifestError, NamedFile};

use crate::place::{Place, Told};
use crate::{Failure, Operation};

/// Upper bound for the size of a manifest.
const MOST_BYTES: u64 = 16 << 20;

/// Why the files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// A system error.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The manifest is invalid.
    #[error("{0}")]
    Manifest(#[from] ManifestError),
}

/// The append-only directory, which may not exist yet.
#[derive(Debug, Clone)]
pub struct Folder<D> {
    /// The storage that holds the files.
    pub disk: D,
    /// The value of `appendfilename`.
    name: String,
    history: History,
}

/// Whether obsolete files are deleted (`aof-disable-auto-gc`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum History {
    /// Delete them as soon as they are obsolete.
    #[default]
    IsDeleted,
    /// Keep the files and their entries in the manifest.
    IsKept,
}

/// File sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Size of the base.
    pub base: u64,
    /// Size of all current files.
    pub all: u64,
}

/// An increment that is open for appending.
#[derive(Debug)]
pub struct Open<F> {
    /// The open file.
    pub file: F,
    /// Current size in bytes.
    pub bytes: u64,
}

/// A file to load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToLoad {
    /// File name.
    pub name: String,
    /// Whether the file is the base.
    pub is_base: bool,
    /// Whether the file is the last one, which may end in the middle of a command.
    pub is_last: bool,
}

impl<D: Place> Folder<D> {
    /// Creates a handle on the directory. `name` is the value of `appendfilename`.
    #[must_use]
    pub fn new(disk: D, name: &str) -> Self {
        Self { disk, name: name.to_owned(), history: History::default() }
    }

    /// Sets whether obsolete files are deleted or kept.
    #[must_use]
    pub fn with_history(self, history: History) -> Self {
        Self { history, ..self }
    }

    /// Reads the manifest; `None` if there are no files. A single file left by a version before Redis 7 is adopted as
    /// base. Also removes temporary files.
    ///
    /// # Errors
    /// The manifest is invalid, or a system call failed.
    pub fn find(&self) -> Result<Option<Manifest>, FilesError> {
        if !self.disk.is_there() && !self.disk.has_beside(&self.name) {
            return Ok(None);
        }
        self.disk.make()?;
        self.remove_temporary();
        self.read()
    }

    /// Like [`Self::find`] for an existing directory in which another thread may be writing a base.
    ///
    /// # Errors
    /// As [`Self::find`].
    pub fn read(&self) -> Result<Option<Manifest>, FilesError> {
        let manifest_name = self.manifest_name();
        let has_old = self.disk.has_beside(&self.name);
        let manifest = match self.disk.read(&manifest_name) {
            Ok(file) => {
                if self.disk.len(&manifest_name)? > MOST_BYTES {
                    return Err(ManifestError::TooMany.into());
                }
                let manifest = Manifest::parse(&io::read_to_string(file.take(MOST_BYTES))?)?;
                if manifest.base.as_ref().is_some_and(|base| base.name == self.name)
                    && self.disk.len(&self.name).is_err()
                    && has_old
                {
                    // The process that adopted the file died before moving it.
                    self.move_old_file()?;
                }
                manifest
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && has_old => self.take_in_old_file()?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        self.forget_history(manifest).map(Some)
    }

    fn take_in_old_file(&self) -> io::Result<Manifest> {
        let mut manifest = Manifest::default();
        manifest.replace_base(NamedFile { name: self.name.clone(), seq: 1 }, "");
        // Written before the move: after a crash in between, the file is still found outside the directory.
        self.put_manifest(&manifest.text())?;
        self.move_old_file()?;
        Ok(manifest)
    }

    fn move_old_file(&self) -> io::Result<()> {
        self.disk.move_in(&self.name)?;
        self.disk.sync()?;
        self.disk.tell(Told::TookIn(&self.name));
        Ok(())
    }

    /// Deletes obsolete files and their entries in `manifest`, which is the current one, unless they are kept.
    ///
    /// # Errors
    /// The shortened manifest cannot be written.
    pub fn forget_history(&self, mut manifest: Manifest) -> Result<Manifest, FilesError> {
        if !manifest.history.is_empty() && self.history == History::IsDeleted {
            let names: Vec<String> = manifest.history.iter().map(|file| file.name.clone()).collect();
            if self.delete(&names) {
                manifest.history.clear();
                self.put_manifest(&manifest.text())?;
            }
        }
        Ok(manifest)
    }

    /// The value of `appendfilename`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    fn manifest_name(&self) -> String {
        format!("{}.manifest", self.name)
    }

    /// The files to load, in order.
    #[must_use]
    pub fn to_load(&self, manifest: &Manifest) -> Vec<ToLoad> {
        let base = manifest.base.iter().map(|file| (file, true));
        let files = base.chain(manifest.increments.iter().map(|file| (file, false)));
        let to_load =
            |(file, is_base): (&NamedFile, bool)| ToLoad { name: file.name.clone(), is_base, is_last: false };
        let mut files: Vec<ToLoad> = files.map(to_load).collect();
        if let Some(last) = files.last_mut() {
            last.is_last = true;
        }
        files
    }

    /// The sizes of the files named by `manifest`.
    #[must_use]
    pub fn sizes(&self, manifest: &Manifest) -> Sizes {
        let len = |file: &NamedFile| self.disk.len(&file.name).unwrap_or(0);
        let base = manifest.base.as_ref().map_or(0, len);
        Sizes { base, all: base + manifest.increments.iter().map(len).sum::<u64>() }
    }

    /// Opens the last increment, if there is one, and syncs both file and directory. A killed process may have left
    /// bytes unsynced, or it may have renamed the manifest without syncing the directory, in which case a power cut
    /// would restore the previous manifest.
    ///
    /// # Errors
    /// A system call failed.
    pub fn last_increment(&self, manifest: &Manifest) -> io::Result<Option<Open<D::File>>> {
        let Some(last) = manifest.increments.last() else { return Ok(None) };
        let file = self.disk.append(&last.name)?;
        self.disk.write_again(&last.name)?;
        self.disk.sync_file(&file)?;
        self.disk.sync()?;
        let bytes = self.disk.len(&last.name)?;
        Ok(Some(Open { file, bytes }))
    }

    /// Creates an empty increment and writes the manifest that names it, if given.
    fn begin_increment(&self, name: &str, manifest: Option<&str>) -> io::Result<D::File> {
        self.disk.make()?;
        // A file of this name may be left from a process that died before it wrote the manifest.
        self.disk.create(name)?;
        let file = self.disk.append(name)?;
        match manifest {
            Some(text) => self.put_manifest(text)?,
            None => self.disk.sync()?,
        }
        Ok(file)
    }

    /// Creates a temporary file for a new base.
    ///
    /// # Errors
    /// A system call failed.
    pub fn temporary_base(&self) -> io::Result<D::Temporary> {
        self.disk.make()?;
        self.disk.temporary(".base")
    }

    /// Installs `file`, which must be synced, as the new base.
    ///
    /// # Errors
    /// A system call failed. The manifest on disk is then either the old or the new one.
    pub fn put_base(&self, file: D::Temporary, name: &str, manifest: &str) -> io::Result<()> {
        self.disk.rename(file, name)?;
        self.put_manifest(manifest)
    }

    /// Deletes files, unless obsolete files are kept. Returns whether all are gone; the others are tried again at the
    /// next start.
    #[must_use]
    pub fn delete(&self, names: &[String]) -> bool {
        if self.history == History::IsKept {
            return false;
        }
        let gone = |name: &&String| match self.disk.remove(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                self.disk.tell(Told::LeftBehind(name, &error));
                false
            }
            _ => true,
        };
        names.iter().filter(gone).count() == names.len()
    }

    /// Writes a new file and renames it over the old manifest, so that one of them always exists.
    fn put_manifest(&self, text: &str) -> io::Result<()> {
        let mut file = self.disk.temporary(".manifest")?;
        file.write_all(text.as_bytes())?;
        self.disk.sync_temporary(&file)?;
        self.disk.rename(file, &self.manifest_name())?;
        self.disk.sync()
    }

    /// Removes temporary files left by a killed server.
    fn remove_temporary(&self) {
        for name in self.disk.list().unwrap_or_default() {
            if name.starts_with(TEMP_PREFIX) && self.disk.remove(&name).is_ok() {
                self.disk.tell(Told::RemovedUnfinished(&name));
            }
        }
    }
}

/// Performs the state machine's file operations.
#[derive(Debug)]
pub struct Hands<D: Place> {
    /// The directory.
    pub folder: Folder<D>,
    /// The increment that is being written.
    pub file: Option<D::File>,
}

impl<D: Place> Hands<D> {
    /// Performs an operation. For a write, `bytes` are its head followed by the bytes from the log; for a new base,
    /// `base` is its temporary file.
    ///
    /// # Errors
    /// The operation failed. Some or all of it may have been done.
    pub fn carry_out(
        &mut self,
        operation: Operation,
        bytes: &[u8],
        base: Option<D::Temporary>,
    ) -> Result<(), Failure> {
        let done = match operation {
            Operation::Write { .. } => self.with_open(|_, file| file.write_all(bytes)),
            Operation::Sync => self.with_open(|disk, file| disk.sync_file(file)),
            Operation::CutBack(len) => self.with_open(|disk, file| disk.cut_file(file, len)),
            Operation::BeginIncrement { name, manifest } => {
                let begun = self.folder.begin_increment(&name, manifest.as_deref());
                if begun.is_ok() {
                    self.folder.disk.tell(Told::Begun(&name));
                }
                begun.map(|file| self.file = Some(file))
            }
            Operation::PutBase { name, manifest, .. } => match base {
                Some(file) => {
                    let temporary = self.folder.disk.temporary_name(&file);
                    let put = self.folder.put_base(file, &name, &manifest);
                    if put.is_ok() {
                        self.folder.disk.tell(Told::Based { temporary: &temporary, name: &name });
                    }
                    put
                }
                None => Err(io::Error::other("the rewrite was cancelled")),
            },
            Operation::PutManifest(text) => self.folder.put_manifest(&text),
        };
        done.map_err(|error| Failure::Io(text_of(&error)))
    }

    fn with_open(&mut self, work: impl FnOnce(&D, &mut D::File) -> io::Result<()>) -> io::Result<()> {
        let file = self.file.as_mut().ok_or_else(|| io::Error::other("no increment is open"))?;
        work(&self.folder.disk, file)
    }
}

/// The error text as Redis users know it: without error number and path.
fn text_of(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
