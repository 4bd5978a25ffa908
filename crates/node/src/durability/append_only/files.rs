//! The folder of an append-only file (`appenddirname`): its manifest, and the files that it names.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use config::Config;
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

/// The files of an append-only file, as its manifest has them.
#[derive(Debug)]
pub(super) struct Files {
    folder: PathBuf,
    /// What `appendfilename` says.
    name: String,
    pub(super) manifest: Manifest,
    /// Whether what the manifest names is the data. Not until the first base is written.
    whole: bool,
}

impl Files {
    /// No file yet.
    pub(super) fn none(config: &Config) -> io::Result<Self> {
        let folder = std::path::absolute(config.text("appenddirname"))?;
        Ok(Self { folder, name: config.text("appendfilename"), manifest: Manifest::default(), whole: false })
    }

    /// Those that are there; `None` if there are none. What a version before Redis 7 left, one file beside the RDB, is
    /// taken in as base.
    pub(super) fn find(config: &Config) -> Result<Option<Self>, FilesError> {
        Self::none(config)?.found()
    }

    fn found(self) -> Result<Option<Self>, FilesError> {
        let mut files = self;
        if !files.folder.is_dir() && !Path::new(&files.name).is_file() {
            return Ok(None);
        }
        std::fs::create_dir_all(&files.folder)?;
        files.remove_temporary();
        match File::open(files.manifest_path()) {
            Ok(file) if file.metadata()?.len() > MOST_BYTES => return Err(ManifestError::TooMany.into()),
            Ok(file) => files.manifest = Manifest::parse(&io::read_to_string(file)?)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if !Path::new(&files.name).is_file() {
                    return Ok(None);
                }
                files.take_in_old_file()?;
            }
            Err(error) => return Err(error.into()),
        }
        files.whole = true;
        files.delete_history()?;
        Ok(Some(files))
    }

    fn take_in_old_file(&mut self) -> io::Result<()> {
        tracing::info!("Taking {} into the folder {}", self.name, self.folder.display());
        let base = NamedFile { name: self.name.clone(), seq: 1 };
        self.manifest.replace_base(base, "");
        // The manifest first: whoever dies in between finds the file missing, and where it is.
        self.write_manifest()?;
        std::fs::rename(&self.name, self.path(&self.name))?;
        self.sync_folder()
    }

    fn manifest_path(&self) -> PathBuf {
        self.folder.join(format!("{}.manifest", self.name))
    }

    /// Whether what the manifest names is the data.
    pub(super) fn is_whole(&self) -> bool {
        self.whole
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The files to be loaded, in order, and whether each is a base.
    pub(super) fn to_load(&self) -> Vec<(PathBuf, bool)> {
        let base = self.manifest.base.iter().map(|file| (self.path(&file.name), true));
        base.chain(self.manifest.increments.iter().map(|file| (self.path(&file.name), false))).collect()
    }

    /// Bytes of the base, and of all files that count.
    pub(super) fn sizes(&self) -> (u64, u64) {
        let len = |file: &NamedFile| std::fs::metadata(self.path(&file.name)).map_or(0, |data| data.len());
        let base = self.manifest.base.as_ref().map_or(0, len);
        (base, base + self.manifest.increments.iter().map(len).sum::<u64>())
    }

    /// The increment to go on with, if there is one, at its end.
    pub(super) fn last_increment(&self) -> io::Result<Option<File>> {
        let last = self.manifest.increments.last();
        last.map(|file| OpenOptions::new().append(true).open(self.path(&file.name))).transpose()
    }

    /// Begins another increment; gives its name, and the file.
    pub(super) fn begin_increment(&mut self) -> io::Result<(String, File)> {
        std::fs::create_dir_all(&self.folder)?;
        let mut manifest = self.manifest.clone();
        let name = manifest.begin_increment(&self.name);
        // Left behind by who died before it was in the manifest.
        let mut options = OpenOptions::new();
        drop(op(|| options.create(true).write(true).truncate(true).open(self.path(&name)))?);
        let file = op(|| OpenOptions::new().append(true).open(self.path(&name)))?;
        let before = std::mem::replace(&mut self.manifest, manifest);
        if self.whole
            && let Err(error) = self.write_manifest()
        {
            self.manifest = before;
            return Err(error);
        }
        Ok((name, file))
    }

    /// What is in the increments so far does not go with what will follow: they count no more once there is another
    /// base.
    pub(super) fn begin_anew(&mut self) {
        self.whole = false;
    }

    /// A file for the next base.
    pub(super) fn temporary_base(&self) -> io::Result<tempfile::NamedTempFile> {
        std::fs::create_dir_all(&self.folder)?;
        let mut builder = tempfile::Builder::new();
        builder.prefix(TEMP_PREFIX).suffix(".base").permissions(std::fs::Permissions::from_mode(0o666));
        op(|| builder.tempfile_in(&self.folder))
    }

    /// `file`, which is on the disk, is the base from now on; the increments from `first` on follow it.
    pub(super) fn put_base(
        &mut self,
        file: tempfile::NamedTempFile,
        rdb: bool,
        first: &str,
    ) -> io::Result<()> {
        let base = self.manifest.next_base(&self.name, rdb);
        op(|| Ok(file.persist(self.path(&base.name))?))?;
        let mut manifest = self.manifest.clone();
        manifest.replace_base(base, first);
        let before = std::mem::replace(&mut self.manifest, manifest);
        if let Err(error) = self.write_manifest() {
            self.manifest = before;
            return Err(error);
        }
        self.whole = true;
        self.delete_history()
    }

    /// Deletes what was replaced. A file that cannot be deleted is tried again at the next start.
    fn delete_history(&mut self) -> io::Result<()> {
        if self.manifest.history.is_empty() {
            return Ok(());
        }
        let paths: Vec<PathBuf> = self.manifest.history.iter().map(|file| self.path(&file.name)).collect();
        let gone = |path: &PathBuf| match op(|| std::fs::remove_file(path)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!("{} is left behind: {error}", path.display());
                false
            }
            _ => true,
        };
        if paths.iter().filter(|path| !gone(path)).count() == 0 {
            self.manifest.history.clear();
        }
        self.write_manifest()
    }

    /// Beside the old one and renamed over it, so that one of them is there whatever happens.
    fn write_manifest(&self) -> io::Result<()> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(TEMP_PREFIX).suffix(".manifest").permissions(std::fs::Permissions::from_mode(0o666));
        let mut file = op(|| builder.tempfile_in(&self.folder))?;
        op(|| file.write_all(self.manifest.text().as_bytes()))?;
        op(|| file.as_file().sync_all())?;
        op(|| Ok(file.persist(self.manifest_path())?))?;
        self.sync_folder()
    }

    fn sync_folder(&self) -> io::Result<()> {
        op(|| File::open(&self.folder)?.sync_all())
    }

    /// Removes what a server that was killed left half written.
    fn remove_temporary(&self) {
        let files = std::fs::read_dir(&self.folder).into_iter().flatten().filter_map(Result::ok);
        for file in files.filter(|file| file.file_name().to_string_lossy().starts_with(TEMP_PREFIX)) {
            if std::fs::remove_file(file.path()).is_ok() {
                tracing::warn!("Removed {}, which was never finished.", file.path().display());
            }
        }
    }
}

#[cfg(test)]
mod tests;
