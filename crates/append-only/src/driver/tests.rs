//! Runs the driver on an in-memory disk: with an error injected into every file operation, and step by step.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::rc::Rc;

use persistence::{Disk, TEMP_PREFIX};
use replication::ReplId;

use super::*;
use crate::{AofDirectory, AofStorage, DirectoryEvent, FileExecutor, FileToLoad};

const FILE_NAME: &str = "appendonly.aof";

/// Which operations fail, and how many operations have run.
#[derive(Debug, Default, Clone)]
struct DiskFaults {
    operation_count: usize,
    first_fault: usize,
    fault_count: usize,
    /// Whether an operation that reports an error has taken effect nevertheless.
    fails_late: bool,
}

#[derive(Debug, Default)]
struct MemoryFiles {
    contents: BTreeMap<String, Rc<RefCell<Vec<u8>>>>,
    faults: DiskFaults,
}

/// An in-memory disk with injected errors.
#[derive(Debug, Default, Clone)]
struct MemoryDisk(Rc<RefCell<MemoryFiles>>);

/// A file of the in-memory disk that is open for writing.
#[derive(Debug)]
struct OpenFile {
    disk: MemoryDisk,
    name: String,
    content: Rc<RefCell<Vec<u8>>>,
}

impl MemoryDisk {
    /// Runs an operation unless the injected faults say that it fails.
    fn run_operation<T>(&self, work: impl FnOnce(&mut MemoryFiles) -> T) -> io::Result<T> {
        let mut files = self.0.borrow_mut();
        files.faults.operation_count += 1;
        let DiskFaults { operation_count: done, first_fault: first, fault_count: count, fails_late: late } =
            files.faults;
        let fails = (first..first + count).contains(&done);
        let done = (!fails || late).then(|| work(&mut files));
        done.filter(|_| !fails).ok_or_else(|| io::Error::other("injected"))
    }

    fn open_file(&self, name: &str, content: Rc<RefCell<Vec<u8>>>) -> OpenFile {
        OpenFile { disk: self.clone(), name: name.to_owned(), content }
    }

    fn content(&self, name: &str) -> io::Result<Rc<RefCell<Vec<u8>>>> {
        self.0.borrow().contents.get(name).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// A copy of the files without further faults.
    fn copy_without_faults(&self) -> Self {
        let files = self.0.borrow();
        let copy = |(name, file): (&String, &Rc<RefCell<Vec<u8>>>)| {
            (name.clone(), Rc::new(RefCell::new(file.borrow().clone())))
        };
        let content = files.contents.iter().map(copy).collect();
        Self(Rc::new(RefCell::new(MemoryFiles { contents: content, faults: DiskFaults::default() })))
    }
}

impl Disk for MemoryDisk {
    type File = OpenFile;
    type TempFile = OpenFile;
    type Reader = io::Cursor<Vec<u8>>;

    fn exists(&self) -> bool {
        true
    }

    fn create_directory(&self) -> io::Result<()> {
        Ok(())
    }

    fn create(&self, name: &str) -> io::Result<()> {
        self.run_operation(|files| drop(files.contents.insert(name.to_owned(), Rc::default())))
    }

    fn open_append(&self, name: &str) -> io::Result<OpenFile> {
        let content = self.content(name)?;
        self.run_operation(|_| self.open_file(name, content))
    }

    fn sync_file(&self, _file: &OpenFile) -> io::Result<()> {
        self.run_operation(|_| ())
    }

    fn rewrite_tail(&self, _name: &str) -> io::Result<()> {
        self.run_operation(|_| ())
    }

    fn truncate_file(&self, file: &OpenFile, len: u64) -> io::Result<()> {
        self.run_operation(|_| file.content.borrow_mut().truncate(len as usize))
    }

    fn temp_file_name(&self, file: &OpenFile) -> String {
        file.name.clone()
    }

    fn sync_temp_file(&self, _file: &OpenFile) -> io::Result<()> {
        self.run_operation(|_| ())
    }

    fn read(&self, name: &str) -> io::Result<io::Cursor<Vec<u8>>> {
        Ok(io::Cursor::new(self.content(name)?.borrow().clone()))
    }

    fn create_temp_file(&self, suffix: &str) -> io::Result<OpenFile> {
        self.run_operation(|files| {
            let name = format!("{TEMP_PREFIX}{}{suffix}", files.faults.operation_count);
            let content: Rc<RefCell<Vec<u8>>> = Rc::default();
            files.contents.insert(name.clone(), content.clone());
            self.open_file(&name, content)
        })
    }

    fn rename(&self, file: OpenFile, name: &str) -> io::Result<()> {
        self.run_operation(|files| {
            let content = files.contents.remove(&file.name).expect("it is there");
            files.contents.insert(name.to_owned(), content);
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.run_operation(|files| files.contents.remove(name)).map(drop)
    }

    fn list_names(&self) -> io::Result<Vec<String>> {
        Ok(self.0.borrow().contents.keys().cloned().collect())
    }

    fn len(&self, name: &str) -> io::Result<u64> {
        Ok(self.content(name)?.borrow().len() as u64)
    }

    fn truncate(&self, name: &str, len: u64) -> io::Result<()> {
        let content = self.content(name)?;
        self.run_operation(|_| content.borrow_mut().truncate(len as usize))
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.run_operation(|_| ())
    }

    fn is_abandoned_temp_file(&self, _name: &str) -> bool {
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
            files.contents.remove(&self.name);
        }
    }
}

/// Returns the data that a server starting now would load, without annotations. The function works on a copy of the
/// disk, because loading removes files.
fn load_data(disk: &MemoryDisk) -> Option<String> {
    let folder = AofDirectory::new(disk.copy_without_faults(), FILE_NAME);
    let manifest = folder.find_manifest().unwrap()?;
    let read = |file: FileToLoad| io::read_to_string(folder.disk.read(&file.name).unwrap()).unwrap();
    let text: String = folder.files_to_load(&manifest).into_iter().map(read).collect();
    Some(text.split_inclusive("\r\n").filter(|line| !line.starts_with('#')).collect())
}

/// A server with its acknowledged writes. The data is a growing string, and the log is the same string.
struct TestServer {
    disk: MemoryDisk,
    executor: FileExecutor<MemoryDisk>,
    driver: AofDriver<OpenFile>,
    now: Instant,
    log: Log,
    data: String,
    acknowledged_len: usize,
    /// The actions that the driver has returned so far, except commit points.
    actions: Vec<AofAction>,
}

impl TestServer {
    fn new(policy: FsyncPolicy, faults: DiskFaults) -> Self {
        let disk = MemoryDisk::default();
        disk.0.borrow_mut().faults = faults;
        let folder = AofDirectory::new(disk.clone(), FILE_NAME);
        let id = ReplId::from_random([7; 20]);
        let mut server = Self {
            disk,
            executor: FileExecutor::new(folder),
            driver: AofDriver::default(),
            now: Instant::from_millis(1),
            log: Log::new(id, 0),
            data: String::new(),
            acknowledged_len: 0,
            actions: Vec::new(),
        };
        server.log.open(id);
        let start = AofStart {
            settings: AofSettings {
                fsync_policy: policy,
                name: FILE_NAME.to_owned(),
                ..AofSettings::default()
            },
            manifest: Manifest::default(),
            start_position: StartPosition::NextSnapshot,
            sizes: AofSizes { base_bytes: 0, total_bytes: 0 },
        };
        let mut out = Vec::new();
        server.driver.start(start, &mut server.log, server.now, Millis(0), &mut out);
        server.perform_actions(out);
        server
    }

    fn status(&self) -> AofStatus {
        self.driver.status().expect("the file is enabled")
    }

    /// Checks that all acknowledged data would be loaded exactly once and in order if power were lost now.
    fn check_recovery(&self) {
        if self.driver.is_complete() {
            let found = load_data(&self.disk).unwrap();
            assert!(self.data.starts_with(&found), "{found:?} of {:?}", self.data);
            assert!(
                found.len() >= self.acknowledged_len,
                "{found:?}, {} acknowledged",
                self.acknowledged_len
            );
        }
    }

    fn send_event(&mut self, event: AofDriverEvent<OpenFile>) {
        let mut out = Vec::new();
        self.driver.handle(&mut self.log, self.now, Millis(0), event, &mut out);
        self.perform_actions(out);
    }

    fn perform_actions(&mut self, actions: Vec<AofAction>) {
        for action in actions {
            match &action {
                AofAction::PublishCommitPoint(offset) => {
                    if self.driver.is_complete() {
                        self.acknowledged_len = self.acknowledged_len.max(offset.0 as usize);
                    }
                    continue;
                }
                AofAction::DeleteHistory(history) => match self.executor.directory().delete_files(history) {
                    true => self.send_event(AofDriverEvent::HistoryDeleted),
                    false => self.send_event(AofDriverEvent::HistoryKept),
                },
                _ => {}
            }
            self.actions.push(action);
        }
    }

    fn next_step(&mut self) -> WriterStep<OpenFile> {
        let mut out = Vec::new();
        let step = self.driver.next_step(&mut self.log, self.now, Millis(0), &mut out);
        self.perform_actions(out);
        step
    }

    /// Performs the next operation and returns its name.
    fn run_step(&mut self) -> Option<String> {
        let WriterStep::Run(pending) = self.next_step() else { return None };
        let name = format!("{:?}", pending.operation());
        let completed = self.executor.execute(pending);
        let mut out = Vec::new();
        self.driver.complete(self.now, completed, &mut out);
        self.perform_actions(out);
        self.check_recovery();
        name.split([' ', '(']).next().map(str::to_owned)
    }

    /// Runs the writer until it has nothing to do. Returns the names of the operations.
    fn run_until_idle(&mut self) -> Vec<String> {
        let (mut idle, mut names) = (0, Vec::new());
        while idle < 3 {
            self.now += Duration::from_secs(2);
            match self.run_step() {
                Some(name) => {
                    idle = 0;
                    names.push(name);
                }
                None => idle += 1,
            }
        }
        names
    }

    fn append(&mut self, text: &str) {
        self.data += text;
        self.log.append_control(text.as_bytes());
    }

    fn write(&mut self, text: &str) {
        self.append(text);
        self.run_until_idle();
    }

    fn take_snapshot(&mut self) -> (RewriteId, String) {
        let rewrite = self.driver.begin_rewrite(self.now).expect("no other rewrite is running");
        self.send_event(AofDriverEvent::SnapshotTaken { rewrite, db: None });
        (rewrite, self.data.clone())
    }

    fn write_base(&mut self, rewrite: RewriteId, data: &str) {
        let folder = self.executor.directory();
        let base = folder.create_temporary_base().and_then(|mut base| {
            base.write_all(data.as_bytes())?;
            folder.disk.sync_temp_file(&base)?;
            Ok(base)
        });
        self.send_event(match base {
            Ok(base) => AofDriverEvent::BaseWritten { rewrite, base, is_rdb: true },
            Err(_) => AofDriverEvent::RewriteFailed(rewrite),
        });
    }

    /// Runs a rewrite, and writes `text_meanwhile` during it. Returns whether the rewrite succeeded.
    fn rewrite(&mut self, text_written_meanwhile: &str) -> bool {
        let done = self.driver.rewrites().success_count;
        let (rewrite, data) = self.take_snapshot();
        self.write(text_written_meanwhile);
        self.write_base(rewrite, &data);
        self.run_until_idle();
        assert!(!self.driver.rewrites().is_running());
        self.driver.rewrites().success_count > done
    }
}

/// Enables the file, writes, and rewrites until three rewrites have succeeded. Returns the number of operations.
fn run_with_faults(faults: DiskFaults) -> usize {
    let what = format!("{faults:?}");
    let count = faults.fault_count;
    let mut server = TestServer::new(FsyncPolicy::Always, faults);
    let (mut number, mut done) = (0, 0);
    while done < 3 {
        number += 1;
        assert!(number < 50, "{what}: errors end");
        done += usize::from(server.rewrite(&format!("[during {number}]\r\n")));
        server.write(&format!("[after {number}]\r\n"));
    }
    assert_eq!(load_data(&server.disk).as_ref(), Some(&server.data), "{what}");
    assert_eq!(server.acknowledged_len, server.data.len(), "{what}");
    let left = server.disk.list_names().unwrap().len();
    // A base without a manifest entry, or a file that could not be deleted, may stay until the next start.
    assert!(left <= 3 + 2 * count, "{what}: {left} files");
    server.disk.0.borrow().faults.operation_count
}

#[test]
fn data_survives_an_error_in_any_file_operation() {
    let operations = run_with_faults(DiskFaults::default());
    assert!(operations > 20, "{operations}");
    for first in 1..=operations + 3 {
        for count in [1, 2, 5] {
            for late in [false, true] {
                run_with_faults(DiskFaults {
                    operation_count: 0,
                    first_fault: first,
                    fault_count: count,
                    fails_late: late,
                });
            }
        }
    }
}

#[test]
fn rewrite_ends_after_its_obsolete_files_are_removed_from_the_manifest() {
    let mut server = TestServer::new(FsyncPolicy::Always, DiskFaults::default());
    assert!(server.rewrite(""));
    server.write("[first]\r\n");
    server.actions.clear();
    let (rewrite, data) = server.take_snapshot();
    server.append("[second]\r\n");
    // The increment of the snapshot begins only after the previous increment is complete and synced.
    assert_eq!(server.run_until_idle(), ["BeginIncrement", "Write", "Sync"]);
    server.write_base(rewrite, &data);
    let WriterStep::Run(install) = server.next_step() else { panic!("the base is installed at once") };
    let completed = server.executor.execute(install);
    let mut out = Vec::new();
    server.driver.complete(server.now, completed, &mut out);
    let [AofAction::DeleteHistory(history)] = out.as_slice() else { panic!("{out:?}") };
    assert_eq!(history.len(), 2, "the base and the increment before the rewrite");
    assert!(server.driver.rewrites().is_running());
    server.perform_actions(out);
    assert!(server.driver.is_updating_manifest());
    assert_eq!(server.run_step().as_deref(), Some("WriteManifest"));
    assert_eq!(server.actions.last(), Some(&AofAction::RewriteEnded { rewrite, outcome: Ok(()) }));
    assert_eq!(server.driver.obsolete_files(), Vec::<String>::new());
    assert_eq!(server.status().size, server.driver.rewrites().size_after_last_rewrite);
}

#[test]
fn writes_are_batched_unless_a_client_waits() {
    let mut server = TestServer::new(FsyncPolicy::EverySecond, DiskFaults::default());
    assert!(server.rewrite(""));
    server.append("[first]\r\n");
    assert_eq!(server.run_step().as_deref(), Some("Write"));
    server.append("[second]\r\n");
    let pause = server.now + WRITE_PAUSE;
    let step = server.next_step();
    assert!(
        matches!(step, WriterStep::Wait { until: Some(until), wake_past_offset: None } if until == pause)
    );
    let target = server.driver.request_sync(&mut server.log, server.now, Millis(0), &mut Vec::new());
    assert_eq!(server.driver.sync_result(target), None);
    assert_eq!([(); 3].map(|()| server.run_step().unwrap()), ["Sync", "Write", "Sync"]);
    assert_eq!(server.driver.sync_result(target), Some(Ok(())));
}

#[test]
fn cancelled_rewrite_installs_nothing() {
    let mut server = TestServer::new(FsyncPolicy::Always, DiskFaults::default());
    assert!(server.rewrite(""));
    let before = load_data(&server.disk);
    let (rewrite, data) = server.take_snapshot();
    assert!(server.driver.cancel_rewrite());
    server.actions.clear();
    server.write_base(rewrite, &data);
    server.run_until_idle();
    assert_eq!(server.actions, []);
    assert_eq!(load_data(&server.disk), before);
    assert!(server.rewrite(""), "the next one is not disturbed");
}

#[test]
fn writer_stops_after_the_log_is_synced() {
    let mut server = TestServer::new(FsyncPolicy::Never, DiskFaults::default());
    assert!(server.rewrite(""));
    server.append("[last]\r\n");
    server.driver.stop_writer(&mut server.log, server.now, Millis(0), &mut Vec::new());
    // The first bytes of the new increment are not synced yet.
    assert_eq!([(); 3].map(|()| server.run_step().unwrap()), ["Sync", "Write", "Sync"]);
    assert!(matches!(server.next_step(), WriterStep::Stop));
    server.driver.disable(&mut server.log);
    assert_eq!(server.driver.status(), None);
    assert_eq!(load_data(&server.disk).as_ref(), Some(&server.data));
}

#[test]
fn stopping_writer_gives_up_after_an_error() {
    let mut server = TestServer::new(FsyncPolicy::Never, DiskFaults::default());
    assert!(server.rewrite(""));
    server.append("[lost]\r\n");
    let first = server.disk.0.borrow().faults.operation_count + 1;
    server.disk.0.borrow_mut().faults =
        DiskFaults { operation_count: first - 1, first_fault: first, fault_count: 1, fails_late: false };
    server.driver.stop_writer(&mut server.log, server.now, Millis(0), &mut Vec::new());
    assert_eq!(server.run_step().as_deref(), Some("Sync"));
    assert!(matches!(server.next_step(), WriterStep::Stop));
}
