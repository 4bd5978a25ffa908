//! A simulated disk that fails, runs full, tears writes, and forgets what was not synced.
//!
//! A prefix of each file's bytes is durable. After a power failure none, some or all of the later bytes remain. Bytes
//! whose sync failed are lost: a later sync reports success, but the disk then contains zeros. Changes of a directory
//! (create, rename, remove) become durable, in order, when the directory is synced. After a power failure the first few
//! unsynced changes remain.
//!
//! An operation can fail after performing none, some or all of its work, and the process can die during an operation.
//! From then on nothing reaches the disk until the restart.

use std::cell::{Ref, RefCell, RefMut};
use std::collections::BTreeMap;
use std::io::{self, Cursor, Write};
use std::path::PathBuf;
use std::rc::Rc;

use append_only::{AofStorage, DirectoryEvent};
use persistence::{Disk, TEMP_PREFIX};

use crate::{InjectedBug, RandomSource};

/// How a process ends, which decides what survives on its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessDeath {
    /// The process was killed; data that it passed to the kernel survives.
    Killed,
    /// The machine lost power; only synced data is sure to survive.
    PowerCut,
}

/// A change of a directory. A power failure can undo it until the directory is synced.
#[derive(Debug, Clone)]
enum DirectoryChange {
    Insert(String, usize),
    Remove(String),
}

impl DirectoryChange {
    /// Returns the name of the file that the change affects.
    fn name(&self) -> &str {
        let (Self::Insert(name, _) | Self::Remove(name)) = self;
        name
    }
}

type DirectoryNames = BTreeMap<String, usize>;

#[derive(Debug, Default, Clone)]
struct File {
    readable_bytes: Vec<u8>,
    durable_bytes: Vec<u8>,
    /// Byte ranges that are lost because their sync failed.
    unsynced_ranges: Vec<(usize, usize)>,
}

#[derive(Debug)]
struct DiskState {
    files: Vec<File>,
    names: DirectoryNames,
    durable_names: DirectoryNames,
    /// Directory changes that are not durable yet, in their order.
    unsynced_changes: Vec<DirectoryChange>,
    random: RandomSource,
    injected_bug: Option<InjectedBug>,
    /// The probability that an operation fails, in percent.
    failure_percent: u32,
    is_full: bool,
    /// The number of operations until the process dies; `None` if no death is planned.
    operations_until_death: Option<usize>,
    is_dead: bool,
    temp_file_count: u64,
}

/// A directory on a simulated node's disk.
#[derive(Debug, Clone)]
pub(crate) struct SimDisk {
    state: Rc<RefCell<DiskState>>,
    /// The directory, as a prefix of the names of its files.
    folder: &'static str,
}

/// A file opened for writing. It stays the same file when it is renamed.
#[derive(Debug)]
pub(crate) struct OpenFile {
    disk: SimDisk,
    name: String,
    file_index: usize,
}

/// How an operation ends, drawn at random.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OperationOutcome {
    Succeeds,
    /// The operation fails before it is complete. It may have done a part of its work.
    FailsEarly,
    /// The operation completes but reports an error.
    FailsLate,
}

impl SimDisk {
    pub(crate) fn new(random: RandomSource, injected_bug: Option<InjectedBug>) -> Self {
        let state = DiskState {
            files: Vec::new(),
            names: DirectoryNames::new(),
            durable_names: DirectoryNames::new(),
            unsynced_changes: Vec::new(),
            random,
            injected_bug,
            failure_percent: 0,
            is_full: false,
            operations_until_death: None,
            is_dead: false,
            temp_file_count: 0,
        };
        Self { state: Rc::new(RefCell::new(state)), folder: "" }
    }

    /// Returns another directory of the same disk.
    pub(crate) fn in_folder(&self, folder: &'static str) -> Self {
        Self { state: self.state.clone(), folder }
    }

    fn full_name(&self, name: &str) -> String {
        format!("{}{name}", self.folder)
    }

    fn state(&self) -> RefMut<'_, DiskState> {
        self.state.borrow_mut()
    }

    fn borrow_state(&self) -> Ref<'_, DiskState> {
        self.state.borrow()
    }

    /// Sets the probability that an operation fails, in percent.
    pub(crate) fn set_failure_rate(&self, percent: u32) {
        self.state().failure_percent = percent;
    }

    /// Makes the disk full, or frees its space again.
    pub(crate) fn set_full(&self, is_full: bool) {
        self.state().is_full = is_full;
    }

    /// Makes the process die after this number of operations; `None` cancels an earlier call.
    pub(crate) fn schedule_death(&self, operations: Option<usize>) {
        self.state().operations_until_death = operations;
    }

    /// Returns whether the process has died.
    pub(crate) fn is_dead(&self) -> bool {
        self.borrow_state().is_dead
    }

    /// Restarts the process after its death.
    pub(crate) fn restart(&self, death: ProcessDeath) {
        let state = &mut *self.state();
        (state.is_dead, state.operations_until_death) = (false, None);
        if death == ProcessDeath::PowerCut {
            state.lose_power();
        }
    }

    /// Performs an operation with a randomly drawn end. `perform_part` performs the part of the operation that precedes
    /// a failure.
    fn run_operation<T>(
        &self,
        needs_room: bool,
        perform_part: impl FnOnce(&mut DiskState),
        perform_all: impl FnOnce(&mut DiskState) -> T,
    ) -> io::Result<T> {
        let state = &mut *self.state();
        let (fate, error) = state.draw_operation_outcome(needs_room)?;
        match fate {
            OperationOutcome::Succeeds => Ok(perform_all(state)),
            OperationOutcome::FailsEarly => {
                perform_part(state);
                Err(io::Error::other(error))
            }
            OperationOutcome::FailsLate => {
                perform_all(state);
                Err(io::Error::other(error))
            }
        }
    }

    fn find_file(&self, name: &str) -> io::Result<usize> {
        let found = self.borrow_state().names.get(&self.full_name(name)).copied();
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn open(&self, name: &str, file_index: usize) -> OpenFile {
        OpenFile { disk: self.clone(), name: name.to_owned(), file_index }
    }

    fn sync_content(&self, file_index: usize, is_skipped: bool) -> io::Result<()> {
        let early = |state: &mut DiskState| {
            // If the process dies during the sync, its written pages stay in the kernel and are not lost.
            if !state.is_dead {
                let file = &mut state.files[file_index];
                let range = (file.durable_bytes.len(), file.readable_bytes.len());
                file.unsynced_ranges.push(range);
            }
        };
        self.run_operation(false, early, |state| {
            if !is_skipped {
                state.files[file_index].sync();
            }
        })
    }

    fn truncate_content(&self, file_index: usize, len: u64) -> io::Result<()> {
        let cut = |state: &mut DiskState| state.files[file_index].truncate_to(len as usize);
        self.run_operation(false, |_| (), cut)
    }
}

impl DiskState {
    /// Draws how the next operation ends, with the error text if it fails.
    fn draw_operation_outcome(&mut self, needs_room: bool) -> io::Result<(OperationOutcome, &'static str)> {
        if self.is_dead {
            return Err(io::Error::other("dead"));
        }
        let failed = |random: &mut RandomSource| {
            if random.random_bool(50) { OperationOutcome::FailsEarly } else { OperationOutcome::FailsLate }
        };
        if let Some(left) = &mut self.operations_until_death {
            if *left == 0 {
                self.is_dead = true;
                return Ok((failed(&mut self.random), "dead"));
            }
            *left -= 1;
        }
        if needs_room && self.is_full {
            return Ok((OperationOutcome::FailsEarly, "No space left on device"));
        }
        if self.failure_percent > 0 && self.random.random_bool(self.failure_percent) {
            return Ok((failed(&mut self.random), "Input/output error"));
        }
        Ok((OperationOutcome::Succeeds, ""))
    }

    fn add_file(&mut self) -> usize {
        self.files.push(File::default());
        self.files.len() - 1
    }

    fn record_change(&mut self, change: DirectoryChange) {
        apply_change(&mut self.names, &change);
        self.unsynced_changes.push(change);
    }

    fn lose_power(&mut self) {
        let kept = self.random.random_below(self.unsynced_changes.len() + 1);
        for change in self.unsynced_changes.drain(..).take(kept) {
            apply_change(&mut self.durable_names, &change);
        }
        self.names = self.durable_names.clone();
        for file in &mut self.files {
            let lost = file.readable_bytes.len().saturating_sub(file.durable_bytes.len());
            if lost > 0 && file.unsynced_ranges.is_empty() {
                let more = self.random.random_below(lost + 1);
                let end = file.durable_bytes.len() + more;
                file.durable_bytes = file.readable_bytes[..end].to_vec();
            }
            file.unsynced_ranges.clear();
            file.readable_bytes = file.durable_bytes.clone();
        }
    }
}

fn apply_change(names: &mut DirectoryNames, change: &DirectoryChange) {
    match change {
        DirectoryChange::Insert(name, file) => {
            names.retain(|_, named| named != file);
            names.insert(name.clone(), *file);
        }
        DirectoryChange::Remove(name) => drop(names.remove(name)),
    }
}

impl File {
    fn sync(&mut self) {
        self.durable_bytes.clone_from(&self.readable_bytes);
        for (from, to) in &self.unsynced_ranges {
            let end = (*to).min(self.durable_bytes.len());
            self.durable_bytes[(*from).min(end)..end].fill(0);
        }
        self.unsynced_ranges.clear();
    }

    fn truncate_to(&mut self, len: usize) {
        self.readable_bytes.truncate(len);
        self.durable_bytes.truncate(len);
        for range in &mut self.unsynced_ranges {
            *range = (range.0.min(len), range.1.min(len));
        }
        self.unsynced_ranges.retain(|(from, to)| from < to);
    }
}

impl Disk for SimDisk {
    type File = OpenFile;
    type TempFile = OpenFile;
    type Reader = Cursor<Vec<u8>>;

    fn exists(&self) -> bool {
        true
    }

    fn create_directory(&self) -> io::Result<()> {
        Ok(())
    }

    fn create(&self, name: &str) -> io::Result<()> {
        self.run_operation(
            true,
            |_| (),
            |state| match state.names.get(&self.full_name(name)).copied() {
                Some(file) => state.files[file].truncate_to(0),
                None => {
                    let file = state.add_file();
                    state.record_change(DirectoryChange::Insert(self.full_name(name), file));
                }
            },
        )
    }

    fn open_append(&self, name: &str) -> io::Result<OpenFile> {
        let file = self.find_file(name)?;
        self.run_operation(false, |_| (), |_| self.open(name, file))
    }

    fn sync_file(&self, file: &OpenFile) -> io::Result<()> {
        let lies = self.borrow_state().injected_bug == Some(InjectedBug::EarlySync);
        self.sync_content(file.file_index, lies)
    }

    fn rewrite_tail(&self, name: &str) -> io::Result<()> {
        let file = self.find_file(name)?;
        self.run_operation(false, |_| (), |state| state.files[file].unsynced_ranges.clear())
    }

    fn truncate_file(&self, file: &OpenFile, len: u64) -> io::Result<()> {
        self.truncate_content(file.file_index, len)
    }

    fn read(&self, name: &str) -> io::Result<Cursor<Vec<u8>>> {
        let file = self.find_file(name)?;
        let mut content = self.borrow_state().files[file].readable_bytes.clone();
        if self.borrow_state().injected_bug == Some(InjectedBug::CorruptedReads)
            && let Some(at) = content.windows(2).position(|two| two == b"v1")
        {
            content[at + 1] = b'x';
        }
        Ok(Cursor::new(content))
    }

    fn create_temp_file(&self, suffix: &str) -> io::Result<OpenFile> {
        self.run_operation(
            true,
            |_| (),
            |state| {
                state.temp_file_count += 1;
                let name = format!("{TEMP_PREFIX}{}{suffix}", state.temp_file_count);
                let file = state.add_file();
                state.record_change(DirectoryChange::Insert(self.full_name(&name), file));
                self.open(&name, file)
            },
        )
    }

    fn temp_file_name(&self, file: &OpenFile) -> String {
        file.name.clone()
    }

    fn sync_temp_file(&self, file: &OpenFile) -> io::Result<()> {
        let lies = match self.borrow_state().injected_bug {
            Some(InjectedBug::UnsyncedBase) => file.name.ends_with(".base"),
            Some(InjectedBug::UnsyncedSave) => file.name.ends_with(".rdb"),
            _ => false,
        };
        self.sync_content(file.file_index, lies)
    }

    fn rename(&self, file: OpenFile, name: &str) -> io::Result<()> {
        let change = DirectoryChange::Insert(self.full_name(name), file.file_index);
        self.run_operation(false, |_| (), |state| state.record_change(change))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.find_file(name)?;
        self.run_operation(
            false,
            |_| (),
            |state| state.record_change(DirectoryChange::Remove(self.full_name(name))),
        )
    }

    fn list_names(&self) -> io::Result<Vec<String>> {
        let state = self.borrow_state();
        Ok(state.names.keys().filter_map(|name| name.strip_prefix(self.folder)).map(str::to_owned).collect())
    }

    fn len(&self, name: &str) -> io::Result<u64> {
        let file = self.find_file(name)?;
        Ok(self.borrow_state().files[file].readable_bytes.len() as u64)
    }

    fn truncate(&self, name: &str, len: u64) -> io::Result<()> {
        if self.borrow_state().injected_bug == Some(InjectedBug::UntruncatedTail) {
            return Ok(());
        }
        let file = self.find_file(name)?;
        self.truncate_content(file, len)?;
        self.sync_content(file, false)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.run_operation(
            false,
            |_| (),
            |state| {
                for change in
                    state.unsynced_changes.extract_if(.., |change| change.name().starts_with(self.folder))
                {
                    apply_change(&mut state.durable_names, &change);
                }
            },
        )
    }

    fn is_abandoned_temp_file(&self, _name: &str) -> bool {
        true
    }

    fn path_of(&self, name: &str) -> PathBuf {
        name.into()
    }
}

impl AofStorage for SimDisk {
    fn has_legacy_file(&self, _name: &str) -> bool {
        false
    }

    fn move_in_legacy_file(&self, _name: &str) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn report(&self, _event: DirectoryEvent<'_>) {}
}

impl Write for OpenFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let file = self.file_index;
        let part = |state: &mut DiskState| {
            let len = state.random.random_below(bytes.len() + 1);
            state.files[file].readable_bytes.extend_from_slice(&bytes[..len]);
        };
        self.disk.run_operation(true, part, |state| {
            state.files[file].readable_bytes.extend_from_slice(bytes);
            bytes.len()
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
