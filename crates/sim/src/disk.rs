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
    Name(String, usize),
    Remove(String),
}

impl DirectoryChange {
    /// Returns the name of the file that the change affects.
    fn name(&self) -> &str {
        let (Self::Name(name, _) | Self::Remove(name)) = self;
        name
    }
}

type DirectoryNames = BTreeMap<String, usize>;

#[derive(Debug, Default, Clone)]
struct File {
    readable: Vec<u8>,
    durable: Vec<u8>,
    /// Byte ranges that are lost because their sync failed.
    unsynced_ranges: Vec<(usize, usize)>,
}

#[derive(Debug)]
struct State {
    files: Vec<File>,
    names: DirectoryNames,
    durable: DirectoryNames,
    /// Directory changes that are not durable yet, in their order.
    changes: Vec<DirectoryChange>,
    random: RandomSource,
    injected_bug: Option<InjectedBug>,
    /// The probability that an operation fails, in percent.
    is_failing: u32,
    is_full: bool,
    /// The number of operations until the process dies; `None` if no death is planned.
    operations_until_death: Option<usize>,
    is_dead: bool,
    temporaries: u64,
}

/// A directory on a simulated node's disk.
#[derive(Debug, Clone)]
pub(crate) struct SimDisk {
    state: Rc<RefCell<State>>,
    /// The directory, as a prefix of the names of its files.
    folder: &'static str,
}

/// A file opened for writing. It stays the same file when it is renamed.
#[derive(Debug)]
pub(crate) struct OpenFile {
    disk: SimDisk,
    name: String,
    file: usize,
}

/// How an operation ends, drawn at random.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OperationFate {
    Succeeds,
    /// The operation fails before it is complete. It may have done a part of its work.
    FailsEarly,
    /// The operation completes but reports an error.
    FailsLate,
}

impl SimDisk {
    pub(crate) fn new(random: RandomSource, injected_bug: Option<InjectedBug>) -> Self {
        let state = State {
            files: Vec::new(),
            names: DirectoryNames::new(),
            durable: DirectoryNames::new(),
            changes: Vec::new(),
            random,
            injected_bug,
            is_failing: 0,
            is_full: false,
            operations_until_death: None,
            is_dead: false,
            temporaries: 0,
        };
        Self { state: Rc::new(RefCell::new(state)), folder: "" }
    }

    /// Returns another directory of the same disk.
    pub(crate) fn folder(&self, folder: &'static str) -> Self {
        Self { state: self.state.clone(), folder }
    }

    fn full_name(&self, name: &str) -> String {
        format!("{}{name}", self.folder)
    }

    fn state(&self) -> RefMut<'_, State> {
        self.state.borrow_mut()
    }

    fn borrow_state(&self) -> Ref<'_, State> {
        self.state.borrow()
    }

    /// Sets the probability that an operation fails, in percent.
    pub(crate) fn set_failing(&self, percent: u32) {
        self.state().is_failing = percent;
    }

    /// Makes the disk full, or frees its space again.
    pub(crate) fn set_full(&self, full: bool) {
        self.state().is_full = full;
    }

    /// Makes the process die after this number of operations; `None` cancels an earlier call.
    pub(crate) fn set_death(&self, operations: Option<usize>) {
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
        early: impl FnOnce(&mut State),
        all: impl FnOnce(&mut State) -> T,
    ) -> io::Result<T> {
        let state = &mut *self.state();
        let (fate, error) = state.draw_fate(needs_room)?;
        match fate {
            OperationFate::Succeeds => Ok(all(state)),
            OperationFate::FailsEarly => {
                early(state);
                Err(io::Error::other(error))
            }
            OperationFate::FailsLate => {
                all(state);
                Err(io::Error::other(error))
            }
        }
    }

    fn find_file(&self, name: &str) -> io::Result<usize> {
        let found = self.borrow_state().names.get(&self.full_name(name)).copied();
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn open(&self, name: &str, file: usize) -> OpenFile {
        OpenFile { disk: self.clone(), name: name.to_owned(), file }
    }

    fn sync_content(&self, file: usize, lies: bool) -> io::Result<()> {
        let early = |state: &mut State| {
            // If the process dies during the sync, its written pages stay in the kernel and are not lost.
            if !state.is_dead {
                let file = &mut state.files[file];
                let range = (file.durable.len(), file.readable.len());
                file.unsynced_ranges.push(range);
            }
        };
        self.run_operation(false, early, |state| {
            if !lies {
                state.files[file].sync();
            }
        })
    }

    fn cut_content(&self, file: usize, len: u64) -> io::Result<()> {
        let cut = |state: &mut State| state.files[file].cut_back(len as usize);
        self.run_operation(false, |_| (), cut)
    }
}

impl State {
    /// Draws how the next operation ends, with the error text if it fails.
    fn draw_fate(&mut self, needs_room: bool) -> io::Result<(OperationFate, &'static str)> {
        if self.is_dead {
            return Err(io::Error::other("dead"));
        }
        let failed = |random: &mut RandomSource| {
            if random.percent(50) { OperationFate::FailsEarly } else { OperationFate::FailsLate }
        };
        if let Some(left) = &mut self.operations_until_death {
            if *left == 0 {
                self.is_dead = true;
                return Ok((failed(&mut self.random), "dead"));
            }
            *left -= 1;
        }
        if needs_room && self.is_full {
            return Ok((OperationFate::FailsEarly, "No space left on device"));
        }
        if self.is_failing > 0 && self.random.percent(self.is_failing) {
            return Ok((failed(&mut self.random), "Input/output error"));
        }
        Ok((OperationFate::Succeeds, ""))
    }

    fn add_file(&mut self) -> usize {
        self.files.push(File::default());
        self.files.len() - 1
    }

    fn change(&mut self, change: DirectoryChange) {
        apply(&mut self.names, &change);
        self.changes.push(change);
    }

    fn lose_power(&mut self) {
        let kept = self.random.below(self.changes.len() + 1);
        for change in self.changes.drain(..).take(kept) {
            apply(&mut self.durable, &change);
        }
        self.names = self.durable.clone();
        for file in &mut self.files {
            let lost = file.readable.len().saturating_sub(file.durable.len());
            if lost > 0 && file.unsynced_ranges.is_empty() {
                let more = self.random.below(lost + 1);
                let end = file.durable.len() + more;
                file.durable = file.readable[..end].to_vec();
            }
            file.unsynced_ranges.clear();
            file.readable = file.durable.clone();
        }
    }
}

fn apply(names: &mut DirectoryNames, change: &DirectoryChange) {
    match change {
        DirectoryChange::Name(name, file) => {
            names.retain(|_, named| named != file);
            names.insert(name.clone(), *file);
        }
        DirectoryChange::Remove(name) => drop(names.remove(name)),
    }
}

impl File {
    fn sync(&mut self) {
        self.durable.clone_from(&self.readable);
        for (from, to) in &self.unsynced_ranges {
            let end = (*to).min(self.durable.len());
            self.durable[(*from).min(end)..end].fill(0);
        }
        self.unsynced_ranges.clear();
    }

    fn cut_back(&mut self, len: usize) {
        self.readable.truncate(len);
        self.durable.truncate(len);
        for range in &mut self.unsynced_ranges {
            *range = (range.0.min(len), range.1.min(len));
        }
        self.unsynced_ranges.retain(|(from, to)| from < to);
    }
}

impl Disk for SimDisk {
    type File = OpenFile;
    type Temporary = OpenFile;
    type Reader = Cursor<Vec<u8>>;

    fn exists(&self) -> bool {
        true
    }

    fn create_folder(&self) -> io::Result<()> {
        Ok(())
    }

    fn create(&self, name: &str) -> io::Result<()> {
        self.run_operation(
            true,
            |_| (),
            |state| match state.names.get(&self.full_name(name)).copied() {
                Some(file) => state.files[file].cut_back(0),
                None => {
                    let file = state.add_file();
                    state.change(DirectoryChange::Name(self.full_name(name), file));
                }
            },
        )
    }

    fn append(&self, name: &str) -> io::Result<OpenFile> {
        let file = self.find_file(name)?;
        self.run_operation(false, |_| (), |_| self.open(name, file))
    }

    fn sync_file(&self, file: &OpenFile) -> io::Result<()> {
        let lies = self.borrow_state().injected_bug == Some(InjectedBug::EarlySync);
        self.sync_content(file.file, lies)
    }

    fn overwrite(&self, name: &str) -> io::Result<()> {
        let file = self.find_file(name)?;
        self.run_operation(false, |_| (), |state| state.files[file].unsynced_ranges.clear())
    }

    fn truncate_file(&self, file: &OpenFile, len: u64) -> io::Result<()> {
        self.cut_content(file.file, len)
    }

    fn read(&self, name: &str) -> io::Result<Cursor<Vec<u8>>> {
        let file = self.find_file(name)?;
        let mut content = self.borrow_state().files[file].readable.clone();
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
                state.temporaries += 1;
                let name = format!("{TEMP_PREFIX}{}{suffix}", state.temporaries);
                let file = state.add_file();
                state.change(DirectoryChange::Name(self.full_name(&name), file));
                self.open(&name, file)
            },
        )
    }

    fn temporary_name(&self, file: &OpenFile) -> String {
        file.name.clone()
    }

    fn sync_temporary(&self, file: &OpenFile) -> io::Result<()> {
        let lies = match self.borrow_state().injected_bug {
            Some(InjectedBug::UnsyncedBase) => file.name.ends_with(".base"),
            Some(InjectedBug::UnsyncedSave) => file.name.ends_with(".rdb"),
            _ => false,
        };
        self.sync_content(file.file, lies)
    }

    fn rename(&self, file: OpenFile, name: &str) -> io::Result<()> {
        let change = DirectoryChange::Name(self.full_name(name), file.file);
        self.run_operation(false, |_| (), |state| state.change(change))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.find_file(name)?;
        self.run_operation(false, |_| (), |state| state.change(DirectoryChange::Remove(self.full_name(name))))
    }

    fn list_names(&self) -> io::Result<Vec<String>> {
        let state = self.borrow_state();
        Ok(state.names.keys().filter_map(|name| name.strip_prefix(self.folder)).map(str::to_owned).collect())
    }

    fn len(&self, name: &str) -> io::Result<u64> {
        let file = self.find_file(name)?;
        Ok(self.borrow_state().files[file].readable.len() as u64)
    }

    fn truncate(&self, name: &str, len: u64) -> io::Result<()> {
        if self.borrow_state().injected_bug == Some(InjectedBug::UntruncatedTail) {
            return Ok(());
        }
        let file = self.find_file(name)?;
        self.cut_content(file, len)?;
        self.sync_content(file, false)
    }

    fn sync(&self) -> io::Result<()> {
        self.run_operation(
            false,
            |_| (),
            |state| {
                for change in state.changes.extract_if(.., |change| change.name().starts_with(self.folder)) {
                    apply(&mut state.durable, &change);
                }
            },
        )
    }

    fn is_abandoned_temporary(&self, _name: &str) -> bool {
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
        let file = self.file;
        let part = |state: &mut State| {
            let len = state.random.below(bytes.len() + 1);
            state.files[file].readable.extend_from_slice(&bytes[..len]);
        };
        self.disk.run_operation(true, part, |state| {
            state.files[file].readable.extend_from_slice(bytes);
            bytes.len()
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
