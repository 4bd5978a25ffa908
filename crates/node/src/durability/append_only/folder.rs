//! The folder of an append-only file (`appenddirname`): its manifest, and the files that it names.
//!
//! Which of them is made when, and what the manifest says then, is the machine's business; each operation here leaves
//! the manifest as it was, or as it is to be, whatever fails on the way.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use append_only::{Failure, Operation};
use config::{Config, keys};
use persistence::aof::{Manifest, ManifestError, NamedFile};

/// Names of what is being written.
const TEMP_PREFIX: &str = "temp-";
/// Longer than any manifest.
const MOST_BYTES: u64 = 16 << 20;

/// Does something with a file. In tests it may fail, having done it or not.
fn op<T>(work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    #[cfg(test)]
    return tests::faulty(work);
    #[cfg(not(test))]
    work()
}

/// Why the files cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilesError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Manifest(#[from] ManifestError),
}

/// The folder, which may not be there yet.
#[derive(Debug, Clone)]
pub(super) struct Folder {
    path: PathBuf,
    /// The value of `appendfilename`.
    name: String,
}

/// How many bytes there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) base: u64,
    pub(super) all: u64,
}

/// An increment to go on with, at its end.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) file: File,
    pub(super) bytes: u64,
}

impl Folder {
    pub(super) fn new(config: &Config) -> io::Result<Self> {
        let path = std::path::absolute(&*config.get(keys::APPENDDIRNAME))?;
        Ok(Self { path, name: config.get(keys::APPENDFILENAME).to_string() })
    }

    /// The files that are there; `None` if there are none. The single file beside the folder that a version before
    /// Redis 7 left is taken in as base.
    pub(super) fn find(&self) -> Result<Option<Manifest>, FilesError> {
        if !self.path.is_dir() && !Path::new(&self.name).is_file() {
            return Ok(None);
        }
        std::fs::create_dir_all(&self.path)?;
        self.remove_temporary();
        self.read()
    }

    /// The same of a folder that is there, and in which another thread may be writing a base.
    pub(super) fn read(&self) -> Result<Option<Manifest>, FilesError> {
        let old = Path::new(&self.name);
        let manifest = match File::open(self.manifest_path()) {
            Ok(file) if file.metadata()?.len() > MOST_BYTES => return Err(ManifestError::TooMany.into()),
            Ok(file) => {
                let manifest = Manifest::parse(&io::read_to_string(file)?)?;
                if manifest.base.as_ref().is_some_and(|base| base.name == self.name)
                    && !self.path_of(&self.name).exists()
                    && old.is_file()
                {
                    // The process that took it in died before it was moved.
                    self.move_old_file()?;
                }
                manifest
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && old.is_file() => {
                self.take_in_old_file()?
            }
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
        std::fs::rename(&self.name, self.path_of(&self.name))?;
        self.sync()?;
        let folder = self.path.file_name().unwrap_or_default().display();
        tracing::info!(
            "Successfully migrated an old-style AOF file ({}) into the AOF directory ({folder}).",
            self.name
        );
        Ok(())
    }

    /// Deletes what is history in `manifest`, which is the one on the disk.
    pub(super) fn forget_history(&self, mut manifest: Manifest) -> Result<Manifest, FilesError> {
        if !manifest.history.is_empty() {
            let names: Vec<String> = manifest.history.iter().map(|file| file.name.clone()).collect();
            if self.delete(&names) {
                manifest.history.clear();
                self.put_manifest(&manifest.text())?;
            }
        }
        Ok(manifest)
    }

    /// The value of `appendfilename`.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    fn manifest_path(&self) -> PathBuf {
        self.path.join(format!("{}.manifest", self.name))
    }

    pub(super) fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The files to be loaded, in order, and whether each is a base.
    pub(super) fn to_load(&self, manifest: &Manifest) -> Vec<(PathBuf, bool)> {
        let base = manifest.base.iter().map(|file| (self.path_of(&file.name), true));
        base.chain(manifest.increments.iter().map(|file| (self.path_of(&file.name), false))).collect()
    }

    /// Bytes of the base, and of all files that count.
    pub(super) fn sizes(&self, manifest: &Manifest) -> Sizes {
        let len = |file: &NamedFile| std::fs::metadata(self.path_of(&file.name)).map_or(0, |data| data.len());
        let base = manifest.base.as_ref().map_or(0, len);
        Sizes { base, all: base + manifest.increments.iter().map(len).sum::<u64>() }
    }

    /// The last increment, if there is one. Bytes that a killed process had not synced are brought to the disk: from
    /// now on they count as synced.
    pub(super) fn last_increment(&self, manifest: &Manifest) -> io::Result<Option<Open>> {
        let Some(last) = manifest.increments.last() else { return Ok(None) };
        let file = OpenOptions::new().append(true).open(self.path_of(&last.name))?;
        file.sync_data()?;
        let bytes = file.metadata()?.len();
        Ok(Some(Open { file, bytes }))
    }

    /// An empty file, which the manifest names, if it is to.
    pub(super) fn begin_increment(&self, name: &str, manifest: Option<&str>) -> io::Result<File> {
        std::fs::create_dir_all(&self.path)?;
        let path = self.path_of(name);
        let mut options = OpenOptions::new();
        // Left behind by a process that died before it was in the manifest.
        drop(op(|| options.create(true).write(true).truncate(true).open(&path))?);
        let file = op(|| OpenOptions::new().append(true).open(&path))?;
        match manifest {
            Some(text) => self.put_manifest(text)?,
            None => self.sync()?,
        }
        Ok(file)
    }

    /// A file for the next base.
    pub(super) fn temporary_base(&self) -> io::Result<tempfile::NamedTempFile> {
        std::fs::create_dir_all(&self.path)?;
        let mut builder = tempfile::Builder::new();
        builder.prefix(TEMP_PREFIX).suffix(".base").permissions(std::fs::Permissions::from_mode(0o666));
        op(|| builder.tempfile_in(&self.path))
    }

    /// `file`, which is on the disk, is the base from now on.
    pub(super) fn put_base(
        &self,
        file: tempfile::NamedTempFile,
        name: &str,
        manifest: &str,
    ) -> io::Result<()> {
        op(|| Ok(file.persist(self.path_of(name))?))?;
        self.put_manifest(manifest)
    }

    /// Deletes files; says whether all are gone. A file that cannot be deleted is tried again at the next start.
    pub(super) fn delete(&self, names: &[String]) -> bool {
        let gone = |name: &&String| {
            let path = self.path_of(name);
            match op(|| std::fs::remove_file(&path)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!("{} is left behind: {error}", path.display());
                    false
                }
                _ => true,
            }
        };
        names.iter().filter(gone).count() == names.len()
    }

    /// Beside the old one and renamed over it, so that one of them is there whatever happens.
    pub(super) fn put_manifest(&self, text: &str) -> io::Result<()> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(TEMP_PREFIX).suffix(".manifest").permissions(std::fs::Permissions::from_mode(0o666));
        let mut file = op(|| builder.tempfile_in(&self.path))?;
        op(|| file.write_all(text.as_bytes()))?;
        op(|| file.as_file().sync_all())?;
        op(|| Ok(file.persist(self.manifest_path())?))?;
        self.sync()
    }

    fn sync(&self) -> io::Result<()> {
        op(|| File::open(&self.path)?.sync_all())
    }

    /// Removes what a server that was killed left half written.
    fn remove_temporary(&self) {
        let files = std::fs::read_dir(&self.path).into_iter().flatten().filter_map(Result::ok);
        for file in files.filter(|file| file.file_name().to_string_lossy().starts_with(TEMP_PREFIX)) {
            if std::fs::remove_file(file.path()).is_ok() {
                tracing::warn!("Removed {}, which was never finished.", file.path().display());
            }
        }
    }
}

/// Does the machine's operations.
#[derive(Debug)]
pub(super) struct Hands {
    pub(super) folder: Folder,
    /// The increment that is written to.
    pub(super) file: Option<File>,
}

impl Hands {
    /// Does one. Of a write, `bytes` are its head and what it takes of the log; `base` is the file to be put.
    pub(super) fn carry_out(
        &mut self,
        operation: Operation,
        bytes: &[u8],
        base: Option<tempfile::NamedTempFile>,
    ) -> Result<(), Failure> {
        let done = match operation {
            Operation::Write { .. } => self.open().and_then(|file| op(|| file.write_all(bytes))),
            Operation::Sync => self.open().and_then(|file| op(|| file.sync_data())),
            Operation::CutBack(len) => self.open().and_then(|file| op(|| file.set_len(len))),
            Operation::BeginIncrement { name, manifest } => {
                let begun = self.folder.begin_increment(&name, manifest.as_deref());
                if begun.is_ok() {
                    tracing::info!("Creating AOF incr file {name}");
                }
                begun.map(|file| self.file = Some(file))
            }
            Operation::PutBase { name, manifest, .. } => match base {
                Some(file) => {
                    let temporary = file.path().file_name().unwrap_or_default().to_owned();
                    let put = self.folder.put_base(file, &name, &manifest);
                    if put.is_ok() {
                        let temporary = temporary.display();
                        tracing::info!(
                            "Successfully renamed the temporary AOF base file {temporary} into {name}"
                        );
                    }
                    put
                }
                None => Err(io::Error::other("the rewrite was called off")),
            },
            Operation::PutManifest(text) => self.folder.put_manifest(&text),
        };
        done.map_err(|error| Failure::Io(text_of(&error)))
    }

    fn open(&mut self) -> io::Result<&mut File> {
        self.file.as_mut().ok_or_else(|| io::Error::other("no increment is open"))
    }
}

/// The text of a system error as users of Redis read it: without its number, and without a path.
fn text_of(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
