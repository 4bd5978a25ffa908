//! Injects an error into every file operation.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use clock::{Instant, Millis};
use replication::{Position, ReplId};
use slot_routing::ReplOffset;

use persistence::Disk;

use super::*;
use crate::{AofEffect, AofEvent, AofSettings, AofState, AppendOnly, FsyncPolicy, LogEnd, RewriteId};

const FILE_NAME: &str = "appendonly.aof";

/// Which operations fail, and how many have run.
#[derive(Debug, Default, Clone)]
struct Faults {
    done: usize,
    first: usize,
    count: usize,
    /// Whether a failing operation takes effect all the same.
    late: bool,
}

#[derive(Debug, Default)]
struct Files {
    content: BTreeMap<String, Rc<RefCell<Vec<u8>>>>,
    faults: Faults,
}

/// An in-memory disk with injected errors.
#[derive(Debug, Default, Clone)]
struct MemoryDisk(Rc<RefCell<Files>>);

/// An open file.
#[derive(Debug)]
struct OpenFile {
    disk: MemoryDisk,
    name: String,
    content: Rc<RefCell<Vec<u8>>>,
}

impl MemoryDisk {
    /// Runs an operation, unless it is its turn to fail.
    fn run_operation<T>(&self, work: impl FnOnce(&mut Files) -> T) -> io::Result<T> {
        let mut files = self.0.borrow_mut();
        files.faults.done += 1;
        let Faults { done, first, count, late } = files.faults;
        let fails = (first..first + count).contains(&done);
        let done = (!fails || late).then(|| work(&mut files));
        done.filter(|_| !fails).ok_or_else(|| io::Error::other("injected"))
    }

    fn opened(&self, name: &str, content: Rc<RefCell<Vec<u8>>>) -> OpenFile {
        OpenFile { disk: self.clone(), name: name.to_owned(), content }
    }

    fn content(&self, name: &str) -> io::Result<Rc<RefCell<Vec<u8>>>> {
        self.0.borrow().content.get(name).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// A copy of the files without further faults.
    fn copy(&self) -> Self {
        let files = self.0.borrow();
        let copy = |(name, file): (&String, &Rc<RefCell<Vec<u8>>>)| {
            (name.clone(), Rc::new(RefCell::new(file.borrow().clone())))
        };
        let content = files.content.iter().map(copy).collect();
        Self(Rc::new(RefCell::new(Files { content, faults: Faults::default() })))
    }
}

impl Disk for MemoryDisk {
    type File = OpenFile;
    type Temporary = OpenFile;
    type Reader = io::Cursor<Vec<u8>>;

    fn exists(&self) -> bool {
        true
    }

    fn create_folder(&self) -> io::Result<()> {
        Ok(())
    }

    fn create(&self, name: &str) -> io::Result<()> {
        self.run_operation(|files| drop(files.content.insert(name.to_owned(), Rc::default())))
    }

    fn append(&self, name: &str) -> io::Result<OpenFile> {
        let content = self.content(name)?;
        self.run_operation(|_| self.opened(name, content))
    }

    fn sync_file(&self, _file: &OpenFile) -> io::Result<()> {
        self.run_operation(|_| ())
    }

    fn overwrite(&self, _name: &str) -> io::Result<()> {
        self.run_operation(|_| ())
    }

    fn truncate_file(&self, file: &OpenFile, len: u64) -> io::Result<()> {
        self.run_operation(|_| file.content.borrow_mut().truncate(len as usize))
    }

    fn temporary_name(&self, file: &OpenFile) -> String {
        file.name.clone()
    }

    fn sync_temporary(&self, _file: &OpenFile) -> io::Result<()> {
        self.run_operation(|_| ())
    }

    fn read(&self, name: &str) -> io::Result<io::Cursor<Vec<u8>>> {
        Ok(io::Cursor::new(self.content(name)?.borrow().clone()))
    }

    fn temporary(&self, suffix: &str) -> io::Result<OpenFile> {
        self.run_operation(|files| {
            let name = format!("{TEMP_PREFIX}{}{suffix}", files.faults.done);
            let content: Rc<RefCell<Vec<u8>>> = Rc::default();
            files.content.insert(name.clone(), content.clone());
            self.opened(&name, content)
        })
    }

    fn rename(&self, file: OpenFile, name: &str) -> io::Result<()> {
        self.run_operation(|files| {
            let content = files.content.remove(&file.name).expect("it is there");
            files.content.insert(name.to_owned(), content);
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.run_operation(|files| files.content.remove(name)).map(drop)
    }

    fn list_names(&self) -> io::Result<Vec<String>> {
        Ok(self.0.borrow().content.keys().cloned().collect())
    }

    fn len(&self, name: &str) -> io::Result<u64> {
        Ok(self.content(name)?.borrow().len() as u64)
    }

    fn truncate(&self, name: &str, len: u64) -> io::Result<()> {
        let content = self.content(name)?;
        self.run_operation(|_| content.borrow_mut().truncate(len as usize))
    }

    fn sync(&self) -> io::Result<()> {
        self.run_operation(|_| ())
    }

    fn is_abandoned_temporary(&self, _name: &str) -> bool {
        true
    }

    fn path_of(&self, name: &str) -> PathBuf {
        name.into()
    }
}

impl AofStorage for MemoryDisk {
    fn has_legacy_file(&self, _name: &str) -> bool {
        false
    }

    fn move_in_legacy_file(&self, _name: &str) -> io::Result<()> {
        Ok(())
    }

    fn report(&self, _event: DirectoryEvent<'_>) {}
}

impl Write for OpenFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.disk.run_operation(|_| self.content.borrow_mut().extend_from_slice(bytes)).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for OpenFile {
    /// Unnamed temporary files disappear when dropped.
    fn drop(&mut self) {
        if self.name.starts_with(TEMP_PREFIX)
            && let Ok(mut files) = self.disk.0.try_borrow_mut()
        {
            files.content.remove(&self.name);
        }
    }
}

/// Returns the data that a server starting now would load, without annotations. Works on a copy, because loading
/// removes files.
fn loaded(disk: &MemoryDisk) -> Option<String> {
    let folder = AofDirectory::new(disk.copy(), FILE_NAME);
    let manifest = folder.find().unwrap()?;
    let read = |file: FileToLoad| io::read_to_string(folder.disk.read(&file.name).unwrap()).unwrap();
    let text: String = folder.files_to_load(&manifest).into_iter().map(read).collect();
    Some(text.split_inclusive("\r\n").filter(|line| !line.starts_with('#')).collect())
}

/// A server with its acknowledged writes. The data is a growing string, and the log is the same string.
struct TestServer {
    disk: MemoryDisk,
    hands: FileExecutor<MemoryDisk>,
    machine: AppendOnly,
    now: Instant,
    log: String,
    acknowledged: usize,
    rewrite: RewriteId,
    base: Option<OpenFile>,
    rewritten: Option<bool>,
}

impl TestServer {
    fn new(faults: Faults) -> Self {
        let disk = MemoryDisk::default();
        disk.0.borrow_mut().faults = faults;
        let settings =
            AofSettings { policy: FsyncPolicy::Always, name: FILE_NAME.to_owned(), ..AofSettings::default() };
        let now = Instant::from_millis(1);
        let machine = AppendOnly::without_base(settings, Manifest::default(), now);
        let hands = FileExecutor { folder: AofDirectory::new(disk.clone(), FILE_NAME), file: None };
        let (log, rewrite) = (String::new(), RewriteId(0));
        Self { disk, hands, machine, now, log, acknowledged: 0, rewrite, base: None, rewritten: None }
    }

    /// Power may be lost at any moment. All acknowledged data must be loaded then, once and in order.
    fn check(&self) {
        if self.machine.state() == AofState::Complete {
            let found = loaded(&self.disk).unwrap();
            assert!(self.log.starts_with(&found), "{found:?} of {:?}", self.log);
            assert!(found.len() >= self.acknowledged, "{found:?}, {} acknowledged", self.acknowledged);
        }
    }

    fn end(&self) -> Position {
        Position { id: ReplId::from_random([7; 20]), offset: ReplOffset(self.log.len() as u64) }
    }

    fn send_event(&mut self, input: AofEvent) {
        let mut effects = Vec::new();
        self.machine.handle(input, &mut effects);
        self.apply_effects(effects);
    }

    fn done(&mut self, outcome: Result<(), OperationError>) {
        let mut effects = Vec::new();
        self.machine.done(self.now, outcome, &mut effects);
        self.apply_effects(effects);
        self.check();
    }

    fn apply_effects(&mut self, effects: Vec<AofEffect>) {
        for effect in effects {
            match effect {
                AofEffect::PublishCommitPoint(offset) if self.machine.state() == AofState::Complete => {
                    self.acknowledged = self.acknowledged.max(offset.0 as usize);
                }
                AofEffect::RewriteEnded { rewrite, outcome } if rewrite == self.rewrite => {
                    self.rewritten = Some(outcome.is_ok());
                    if outcome.is_ok_and(|history| self.hands.folder.delete(&history)) {
                        self.machine.handle(AofEvent::HistoryDeleted, &mut Vec::new());
                    }
                }
                _ => {}
            }
        }
    }

    /// Runs the writer until it has nothing to do.
    fn run_until_idle(&mut self) {
        let mut idle = 0;
        while idle < 3 {
            self.now += Duration::from_secs(2);
            self.send_event(AofEvent::LogAdvanced(LogEnd {
                end: self.end(),
                previous: None,
                wall: Millis(0),
            }));
            let Some(operation) = self.machine.next_operation(self.now) else {
                idle += 1;
                continue;
            };
            idle = 0;
            let mut bytes = Vec::new();
            if let FileOperation::Write { head, from, len } = &operation {
                bytes.clone_from(head);
                bytes.extend_from_slice(&self.log.as_bytes()[from.0 as usize..(from.0 + len) as usize]);
            }
            let base =
                if matches!(operation, FileOperation::InstallBase { .. }) { self.base.take() } else { None };
            let outcome = self.hands.execute(operation, &bytes, base);
            self.done(outcome);
        }
    }

    fn write(&mut self, text: &str) {
        self.log += text;
        self.run_until_idle();
    }

    /// Runs a rewrite, with the writes `meanwhile` during it. Returns whether it succeeded.
    fn rewrite(&mut self, meanwhile: &str) -> bool {
        self.rewrite.0 += 1;
        self.rewritten = None;
        let (rewrite, cut) = (self.rewrite, self.log.clone());
        self.send_event(AofEvent::SnapshotTaken { rewrite, at: self.end(), db: None });
        self.write(meanwhile);
        let base = self.hands.folder.temporary_base().and_then(|mut base| {
            base.write_all(cut.as_bytes())?;
            self.hands.folder.disk.sync_temporary(&base)?;
            Ok(base)
        });
        match base {
            Ok(base) => {
                self.base = Some(base);
                self.send_event(AofEvent::BaseReady { rewrite, rdb: true });
            }
            Err(_) => self.send_event(AofEvent::RewriteFailed(rewrite)),
        }
        self.run_until_idle();
        self.rewritten == Some(true)
    }
}

/// Enables the file, writes, and rewrites until three rewrites have succeeded. Returns the number of operations.
fn run(faults: Faults) -> usize {
    let what = format!("{faults:?}");
    let count = faults.count;
    let mut server = TestServer::new(faults);
    let (mut number, mut done) = (0, 0);
    while done < 3 {
        number += 1;
        assert!(number < 50, "{what}: errors end");
        done += usize::from(server.rewrite(&format!("[during {number}]\r\n")));
        server.write(&format!("[after {number}]\r\n"));
    }
    assert_eq!(loaded(&server.disk).as_ref(), Some(&server.log), "{what}");
    assert_eq!(server.acknowledged, server.log.len(), "{what}");
    let left = server.disk.list_names().unwrap().len();
    // A base without manifest entry, or a file that could not be deleted, may stay until the next start.
    assert!(left <= 3 + 2 * count, "{what}: {left} files");
    server.disk.0.borrow().faults.done
}

#[test]
fn data_survives_an_error_in_any_file_operation() {
    let operations = run(Faults::default());
    assert!(operations > 20, "{operations}");
    for first in 1..=operations + 3 {
        for count in [1, 2, 5] {
            for late in [false, true] {
                run(Faults { done: 0, first, count, late });
            }
        }
    }
}
