//! The files of an append-only file: its manifest, and those that it names.
//!
//! Which of them is made when, and what the manifest says then, is the machine's business; each operation here leaves
//! the manifest as it was, or as it is to be, whatever fails on the way.

use std::io::{self, Read as _, Write};

use persistence::TEMP_PREFIX;
use persistence::aof::{Manifest, ManifestError, NamedFile};

use crate::place::{Place, Told};
use crate::{Failure, Operation};

/// Longer than any manifest.
const MOST_BYTES: u64 = 16 << 20;

/// Why the files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// The error that the system reports.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The manifest is none.
    #[error("{0}")]
    Manifest(#[from] ManifestError),
}

/// The folder, which may not be there yet.
#[derive(Debug, Clone)]
pub struct Folder<D> {
    /// Its files.
    pub disk: D,
    /// The value of `appendfilename`.
    name: String,
    history: History,
}

/// Whether files that are replaced are deleted (`aof-disable-auto-gc`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum History {
    /// As soon as the manifest calls them so.
    #[default]
    IsDeleted,
    /// They stay, and stay in the manifest.
    IsKept,
}

/// How many bytes there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Of the base.
    pub base: u64,
    /// Of all files that count.
    pub all: u64,
}

/// An increment to go on with, at its end.
#[derive(Debug)]
pub struct Open<F> {
    /// The file.
    pub file: F,
    /// How many bytes it has.
    pub bytes: u64,
}

/// A file to be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToLoad {
    /// Its name.
    pub name: String,
    /// Whether it is the base.
    pub is_base: bool,
    /// Whether it is the last.
    pub is_last: bool,
}

impl<D: Place> Folder<D> {
    /// `name` is the value of `appendfilename`.
    #[must_use]
    pub fn new(disk: D, name: &str) -> Self {
        Self { disk, name: name.to_owned(), history: History::default() }
    }

    /// The same folder, in which history is deleted or kept.
    #[must_use]
    pub fn with_history(self, history: History) -> Self {
        Self { history, ..self }
    }

    /// The files that are there; `None` if there are none. The single file beside the folder that a version before
    /// Redis 7 left is taken in as base.
    ///
    /// # Errors
    /// The manifest is none, or the system reports an error.
    pub fn find(&self) -> Result<Option<Manifest>, FilesError> {
        if !self.disk.is_there() && !self.disk.has_beside(&self.name) {
            return Ok(None);
        }
        self.disk.make()?;
        self.remove_temporary();
        self.read()
    }

    /// The same of a folder that is there, and in which another thread may be writing a base.
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
                    // The process that took it in died before it was moved.
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
        // The manifest first: after a crash in between, the file is found beside the folder.
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

    /// Deletes what is history in `manifest`, which is the one on the disk, unless it is kept.
    ///
    /// # Errors
    /// The manifest without it could not be written.
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

    /// The files to be loaded, in order.
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

    /// How many bytes there are.
    #[must_use]
    pub fn sizes(&self, manifest: &Manifest) -> Sizes {
        let len = |file: &NamedFile| self.disk.len(&file.name).unwrap_or(0);
        let base = manifest.base.as_ref().map_or(0, len);
        Sizes { base, all: base + manifest.increments.iter().map(len).sum::<u64>() }
    }

    /// The last increment, if there is one. Bytes and names that a killed process had not synced, or could not, are brought
    /// to the disk: from now on they count as synced. It may have been killed between the renaming of the manifest that names
    /// this file and the folder's sync; a power cut would bring back the manifest before it.
    ///
    /// # Errors
    /// The error that the system reports.
    pub fn last_increment(&self, manifest: &Manifest) -> io::Result<Option<Open<D::File>>> {
        let Some(last) = manifest.increments.last() else { return Ok(None) };
        let file = self.disk.append(&last.name)?;
        self.disk.write_again(&last.name)?;
        self.disk.sync_file(&file)?;
        self.disk.sync()?;
        let bytes = self.disk.len(&last.name)?;
        Ok(Some(Open { file, bytes }))
    }

    /// An empty file, which the manifest names, if it is to.
    fn begin_increment(&self, name: &str, manifest: Option<&str>) -> io::Result<D::File> {
        self.disk.make()?;
        // A file of this name was left behind by a process that died before it was in the manifest.
        self.disk.create(name)?;
        let file = self.disk.append(name)?;
        match manifest {
            Some(text) => self.put_manifest(text)?,
            None => self.disk.sync()?,
        }
        Ok(file)
    }

    /// A file for the next base.
    ///
    /// # Errors
    /// The error that the system reports.
    pub fn temporary_base(&self) -> io::Result<D::Temporary> {
        self.disk.make()?;
        self.disk.temporary(".base")
    }

    /// `file`, which is on the disk, is the base from now on.
    ///
    /// # Errors
    /// The error that the system reports: then the manifest on the disk is this one or the one before.
    pub fn put_base(&self, file: D::Temporary, name: &str, manifest: &str) -> io::Result<()> {
        self.disk.rename(file, name)?;
        self.put_manifest(manifest)
    }

    /// Deletes files, unless history is kept; says whether all are gone. A file that cannot be deleted is tried again at the next start.
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

    /// Beside the old one and renamed over it, so that one of them is there whatever happens.
    fn put_manifest(&self, text: &str) -> io::Result<()> {
        let mut file = self.disk.temporary(".manifest")?;
        file.write_all(text.as_bytes())?;
        self.disk.sync_temporary(&file)?;
        self.disk.rename(file, &self.manifest_name())?;
        self.disk.sync()
    }

    /// Removes what a server that was killed left half written.
    fn remove_temporary(&self) {
        for name in self.disk.list().unwrap_or_default() {
            if name.starts_with(TEMP_PREFIX) && self.disk.remove(&name).is_ok() {
                self.disk.tell(Told::RemovedUnfinished(&name));
            }
        }
    }
}

/// Does the machine's operations.
#[derive(Debug)]
pub struct Hands<D: Place> {
    /// The folder.
    pub folder: Folder<D>,
    /// The increment that is written to.
    pub file: Option<D::File>,
}

impl<D: Place> Hands<D> {
    /// Does one. Of a write, `bytes` are its head and what it takes of the log; `base` is the file to be put.
    ///
    /// # Errors
    /// It was not done, or not all of it, or nobody knows.
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
                None => Err(io::Error::other("the rewrite was called off")),
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

/// The text of a system error as users of Redis read it: without its number, and without a path.
fn text_of(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
