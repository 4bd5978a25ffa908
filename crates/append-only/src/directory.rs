//! The directory of an append-only file: the manifest and the files it names.
//!
//! The state machine decides when to create files and what the manifest contains. Each operation here is atomic: after
//! a failure the manifest is either the old one or the new one.

use std::io::{self, Read as _, Write};

use persistence::TEMP_PREFIX;
use persistence::aof::{AofFile, Manifest, ManifestError};

use crate::storage::{AofStorage, DirectoryEvent};

/// Maximum size of a manifest in bytes; a larger one is invalid.
const MAX_MANIFEST_BYTES: u64 = 16 << 20;

/// Why the files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AofFilesError {
    /// A system call failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The manifest cannot be parsed.
    #[error("{0}")]
    Manifest(#[from] ManifestError),
}

/// The append-only directory, which may not exist yet.
#[derive(Debug, Clone)]
pub struct AofDirectory<D> {
    /// The storage that holds the files.
    pub disk: D,
    /// The prefix of all file names (`appendfilename`).
    file_name_prefix: String,
    history: HistoryPolicy,
}

/// Whether obsolete files are deleted (`aof-disable-auto-gc`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HistoryPolicy {
    /// Obsolete files are deleted at once.
    #[default]
    Delete,
    /// Obsolete files and their entries in the manifest are kept.
    Keep,
}

/// The sizes of the append-only files in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AofSizes {
    /// Size of the base; 0 if there is none.
    pub base_bytes: u64,
    /// Size of the base and all increments that the manifest names.
    pub total_bytes: u64,
}

/// The increment to which new commands are appended.
#[derive(Debug)]
pub(crate) struct OpenIncrement<F> {
    pub(crate) file: F,
    /// Current size of the file in bytes.
    pub(crate) bytes: u64,
}

/// A file to load at startup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileToLoad {
    /// Name of the file within the directory.
    pub name: String,
    /// Whether the file is the base.
    pub is_base: bool,
    /// Whether the file is the last one, which may end in the middle of a command.
    pub is_last: bool,
}

impl<D: AofStorage> AofDirectory<D> {
    /// Creates a handle on the directory. `name` is the value of `appendfilename`.
    #[must_use]
    pub fn new(disk: D, name: &str) -> Self {
        Self { disk, file_name_prefix: name.to_owned(), history: HistoryPolicy::default() }
    }

    /// Sets whether obsolete files are deleted or kept.
    #[must_use]
    pub fn with_history_policy(self, history: HistoryPolicy) -> Self {
        Self { history, ..self }
    }

    /// Reads the manifest; `None` if there are no files. A single file left by a version before Redis 7 is adopted as
    /// base. Also removes temporary files.
    ///
    /// # Errors
    /// The manifest is invalid, or a system call failed.
    pub fn find_manifest(&self) -> Result<Option<Manifest>, AofFilesError> {
        if !self.disk.exists() && !self.disk.has_legacy_file(&self.file_name_prefix) {
            return Ok(None);
        }
        self.disk.create_directory()?;
        self.remove_temporary_files();
        self.read_manifest()
    }

    /// Reads the manifest like [`Self::find_manifest`], but for an existing directory in which another thread may be writing a
    /// base.
    ///
    /// # Errors
    /// The manifest is invalid, or a system call failed.
    pub fn read_manifest(&self) -> Result<Option<Manifest>, AofFilesError> {
        let manifest_name = self.manifest_name();
        let has_old = self.disk.has_legacy_file(&self.file_name_prefix);
        let manifest = match self.disk.read(&manifest_name) {
            Ok(file) => {
                if self.disk.len(&manifest_name)? > MAX_MANIFEST_BYTES {
                    return Err(ManifestError::TooManyFiles.into());
                }
                let manifest = Manifest::parse(&io::read_to_string(file.take(MAX_MANIFEST_BYTES))?)?;
                if manifest.base.as_ref().is_some_and(|base| base.name == self.file_name_prefix)
                    && self.disk.len(&self.file_name_prefix).is_err()
                    && has_old
                {
                    // An earlier process died after adopting the file and before moving it.
                    self.move_legacy_file()?;
                }
                manifest
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && has_old => self.adopt_legacy_file()?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        self.delete_history(manifest).map(Some)
    }

    fn adopt_legacy_file(&self) -> io::Result<Manifest> {
        let mut manifest = Manifest::default();
        manifest.replace_base(AofFile { name: self.file_name_prefix.clone(), seq: 1 }, "");
        // The manifest is written before the move: after a crash in between, the file is still found outside the
        // directory.
        self.write_manifest(&manifest.to_text())?;
        self.move_legacy_file()?;
        Ok(manifest)
    }

    fn move_legacy_file(&self) -> io::Result<()> {
        self.disk.move_in_legacy_file(&self.file_name_prefix)?;
        self.disk.sync_directory()?;
        self.disk.report(DirectoryEvent::AdoptedLegacyFile(&self.file_name_prefix));
        Ok(())
    }

    /// Deletes obsolete files and their entries in `manifest`, which is the current one. Does nothing if obsolete files
    /// are kept.
    ///
    /// # Errors
    /// The shortened manifest cannot be written.
    pub fn delete_history(&self, mut manifest: Manifest) -> Result<Manifest, AofFilesError> {
        if !manifest.history.is_empty() && self.history == HistoryPolicy::Delete {
            let names: Vec<String> = manifest.history.iter().map(|file| file.name.clone()).collect();
            if self.delete_files(&names) {
                manifest.history.clear();
                self.write_manifest(&manifest.to_text())?;
            }
        }
        Ok(manifest)
    }

    /// The prefix of all file names (`appendfilename`).
    #[must_use]
    pub fn file_name_prefix(&self) -> &str {
        &self.file_name_prefix
    }

    fn manifest_name(&self) -> String {
        format!("{}.manifest", self.file_name_prefix)
    }

    /// Returns the files to load, the base first.
    #[must_use]
    pub fn files_to_load(&self, manifest: &Manifest) -> Vec<FileToLoad> {
        let base = manifest.base.iter().map(|file| (file, true));
        let files = base.chain(manifest.increments.iter().map(|file| (file, false)));
        let to_load = |(file, is_base): (&AofFile, bool)| FileToLoad {
            name: file.name.clone(),
            is_base,
            is_last: false,
        };
        let mut files: Vec<FileToLoad> = files.map(to_load).collect();
        if let Some(last) = files.last_mut() {
            last.is_last = true;
        }
        files
    }

    /// Returns the sizes of the files that `manifest` names.
    #[must_use]
    pub fn sizes(&self, manifest: &Manifest) -> AofSizes {
        let len = |file: &AofFile| self.disk.len(&file.name).unwrap_or(0);
        let base = manifest.base.as_ref().map_or(0, len);
        AofSizes { base_bytes: base, total_bytes: base + manifest.increments.iter().map(len).sum::<u64>() }
    }

    /// Opens the last increment, if there is one, and syncs both the file and the directory. A killed process may have
    /// left bytes unsynced, or it may have renamed the manifest without syncing the directory; a power cut would then
    /// restore the previous manifest.
    ///
    /// # Errors
    /// A system call failed.
    pub(crate) fn open_last_increment(
        &self,
        manifest: &Manifest,
    ) -> io::Result<Option<OpenIncrement<D::File>>> {
        let Some(last) = manifest.increments.last() else { return Ok(None) };
        let file = self.disk.open_append(&last.name)?;
        self.disk.rewrite_tail(&last.name)?;
        self.disk.sync_file(&file)?;
        self.disk.sync_directory()?;
        let bytes = self.disk.len(&last.name)?;
        Ok(Some(OpenIncrement { file, bytes }))
    }

    /// Creates an empty increment file named `name`, and writes `manifest`, if given, which names that file.
    pub(crate) fn begin_increment(&self, name: &str, manifest_text: Option<&str>) -> io::Result<D::File> {
        self.disk.create_directory()?;
        // A process that died before writing the manifest may have left a file of this name.
        self.disk.create(name)?;
        let file = self.disk.open_append(name)?;
        match manifest_text {
            Some(text) => self.write_manifest(text)?,
            None => self.disk.sync_directory()?,
        }
        Ok(file)
    }

    /// Creates a temporary file for a new base.
    ///
    /// # Errors
    /// A system call failed.
    pub fn create_temporary_base(&self) -> io::Result<D::TempFile> {
        self.disk.create_directory()?;
        self.disk.create_temp_file(".base")
    }

    /// Installs `file`, which must be synced, as the new base.
    ///
    /// # Errors
    /// A system call failed. The manifest on disk is then either the old or the new one.
    pub fn install_base(&self, file: D::TempFile, name: &str, manifest_text: &str) -> io::Result<()> {
        self.disk.rename(file, name)?;
        self.write_manifest(manifest_text)
    }

    /// Deletes files, unless obsolete files are kept. Returns whether all of the files are gone; the next start tries
    /// to delete the remaining ones.
    #[must_use]
    pub fn delete_files(&self, names: &[String]) -> bool {
        if self.history == HistoryPolicy::Keep {
            return false;
        }
        let gone = |name: &&String| match self.disk.remove(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                self.disk.report(DirectoryEvent::DeleteFailed(name, &error));
                false
            }
            _ => true,
        };
        names.iter().filter(gone).count() == names.len()
    }

    /// Writes a new file and renames it over the old manifest, so that one of them always exists.
    pub(crate) fn write_manifest(&self, text: &str) -> io::Result<()> {
        let mut file = self.disk.create_temp_file(".manifest")?;
        file.write_all(text.as_bytes())?;
        self.disk.sync_temp_file(&file)?;
        self.disk.rename(file, &self.manifest_name())?;
        self.disk.sync_directory()
    }

    /// Removes temporary files left by a killed server.
    fn remove_temporary_files(&self) {
        for name in self.disk.list_names().unwrap_or_default() {
            if name.starts_with(TEMP_PREFIX) && self.disk.remove(&name).is_ok() {
                self.disk.report(DirectoryEvent::RemovedTemporary(&name));
            }
        }
    }
}
