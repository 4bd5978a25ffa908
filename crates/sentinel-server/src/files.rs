//! The files of a sentinel: the configuration file, and the journal of votes beside it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use config::{ReplaceMethod, replace_atomically, replace_content};
use consensus::journal;
use sentinel::{FileWrite, SavedJournal};

pub(super) struct Files {
    config_file: PathBuf,
    journal_path: PathBuf,
    journal_file: File,
    journal_len: u64,
}

impl Files {
    /// Opens the journal that belongs to this configuration file. A torn write at its end is truncated. Fails if the
    /// journal is damaged elsewhere.
    pub(super) fn open(config: PathBuf) -> Result<(Self, SavedJournal)> {
        let path = journal_path(&config);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error).with_context(|| format!("can't read '{}'", path.display())),
        };
        let read = journal::read_journal(&bytes)
            .with_context(|| format!("the journal '{}' is damaged", path.display()))?;
        if read.intact_bytes < bytes.len() {
            tracing::warn!("cut {} torn bytes off the journal", bytes.len() - read.intact_bytes);
        }
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| format!("can't write '{}'", path.display()))?;
        let mut len = read.intact_bytes as u64;
        file.set_len(len)?;
        if len == 0 {
            file.write_all(&journal::encode_header())?;
            len = journal::encode_header().len() as u64;
        }
        io::Seek::seek(&mut file, io::SeekFrom::End(0))?;
        file.sync_all()?;
        sync_folder(&path)?;
        Ok((
            Self { config_file: config, journal_path: path, journal_file: file, journal_len: len },
            SavedJournal { groups: read.groups, bytes: len },
        ))
    }

    /// Writes to the journal or the configuration file, and syncs the file.
    pub(super) fn write(&mut self, write: &FileWrite) -> io::Result<()> {
        match write {
            FileWrite::AppendJournal(records) => self.append(&journal::encode_frame(records)),
            FileWrite::ReplaceJournal(groups) => {
                let groups = groups.iter().map(|(name, saved)| (name.as_str(), saved));
                self.replace(&journal::encode_journal(groups))
            }
            FileWrite::Config(text) => self.write_config(text).map(drop),
        }
    }

    /// The current size of the journal in bytes.
    pub(super) fn journal_bytes(&self) -> u64 {
        self.journal_len
    }

    fn append(&mut self, frame: &[u8]) -> io::Result<()> {
        self.journal_file.write_all(frame)?;
        self.journal_file.sync_data()?;
        self.journal_len += frame.len() as u64;
        Ok(())
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        replace_atomically(&self.journal_path, bytes)?;
        self.journal_file = OpenOptions::new().append(true).open(&self.journal_path)?;
        self.journal_len = bytes.len() as u64;
        Ok(())
    }

    /// Atomically replaces the configuration file.
    pub(super) fn write_config(&self, text: &[u8]) -> io::Result<ReplaceMethod> {
        replace_content(&self.config_file, text)
    }

    /// Makes writes to the journal fail as on a full disk.
    #[cfg(test)]
    pub(super) fn fill_disk(&mut self) {
        self.journal_file = OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
    }

    pub(super) fn config_path(&self) -> &Path {
        &self.config_file
    }
}

/// Returns the path of the journal. It is beside the configuration file, or in the working directory if that directory
/// is not writable.
fn journal_path(config: &Path) -> PathBuf {
    let mut name = config.as_os_str().to_owned();
    name.push(".raft");
    let beside = PathBuf::from(name);
    let opened = OpenOptions::new().create(true).truncate(false).write(true).open(&beside);
    let refused = |error: &io::Error| {
        matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
    };
    match opened {
        Err(error) if refused(&error) && !beside.exists() => {
            tracing::warn!("{} cannot be made: {error}. The journal is in dir", beside.display());
            beside.file_name().map_or(beside.clone(), PathBuf::from)
        }
        // Opening the file reports any other error.
        _ => beside,
    }
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use consensus::{GroupChange, GroupRecord, Term};

    use super::*;

    fn vote_record(term: u64) -> FileWrite {
        let ballot = GroupChange::Ballot { term: Term(term), vote: 9, commit: 0 };
        FileWrite::AppendJournal(vec![GroupRecord { group: "mymaster".into(), changes: vec![ballot] }])
    }

    #[test]
    fn votes_survive_a_restart_and_torn_writes_are_truncated() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("sentinel.conf");
        let (mut files, saved) = Files::open(config.clone()).unwrap();
        assert!(saved.groups.is_empty());
        files.write(&vote_record(1)).unwrap();
        files.write(&vote_record(2)).unwrap();
        let journal = folder.path().join("sentinel.conf.raft");
        let whole = fs::read(&journal).unwrap();
        fs::write(&journal, &whole[..whole.len() - 1]).unwrap();
        let (mut files, saved) = Files::open(config.clone()).unwrap();
        assert_eq!(saved.groups["mymaster"].term, Term(1));
        files.write(&vote_record(3)).unwrap();
        let (mut files, saved) = Files::open(config.clone()).unwrap();
        assert_eq!(saved.groups["mymaster"].term, Term(3));
        files.write(&FileWrite::ReplaceJournal(saved.groups)).unwrap();
        files.write(&vote_record(4)).unwrap();
        assert_eq!(Files::open(config).unwrap().1.groups["mymaster"].term, Term(4));
    }

    #[test]
    fn journal_damaged_in_the_middle_prevents_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("sentinel.conf");
        let (mut files, _) = Files::open(config.clone()).unwrap();
        files.write(&vote_record(1)).unwrap();
        files.write(&vote_record(2)).unwrap();
        let journal = folder.path().join("sentinel.conf.raft");
        let mut bytes = fs::read(&journal).unwrap();
        bytes[20] ^= 1;
        fs::write(&journal, bytes).unwrap();
        let error = Files::open(config).err().expect("a vote may be lost");
        assert!(format!("{error:#}").contains("byte 12: a damaged frame before intact ones"), "{error:#}");
    }
}
