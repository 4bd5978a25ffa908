//! Property tests on a disk that fails, tears writes and loses unsynced data.
//!
//! Each byte of the log is a letter computed from the data's version and the offset. A loader can thus check that the
//! files contain the whole history after the base exactly once.

use std::collections::{BTreeMap, BTreeSet};

use persistence::aof::{AofFile, Manifest, ReplAnnotation};
use proptest::prelude::*;

use super::*;
use crate::machine::AofStateMachine;
use crate::rewrites::RewriteThresholds;
use clock::Instant;
use replication::ReplId;

const FILE_NAME: &str = "a";

/// How an operation on the disk ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OperationResult {
    Succeeds,
    /// The operation failed before completing; it was done partly or not at all.
    FailsEarly,
    /// The operation was done completely, but an error was reported.
    FailsLate,
}

#[derive(Debug, Clone, Copy)]
enum TestEvent {
    /// Clients write this many bytes.
    Append(u8),
    /// A script appends the first number of bytes to the log, and the file gets the second number of other bytes
    /// instead.
    AppendWithFileVersion(u8, u8),
    /// The next operation of the machine starts.
    StartOperation,
    /// The running operation ends with this result.
    FinishOperation(OperationResult),
    Rewrite,
    BaseReady,
    RewriteFails,
    /// The log is trimmed past the part that is not written yet.
    TrimLog,
    /// A full resync replaces the data.
    ReplaceData,
    /// A promotion changes the replication id.
    ChangeReplId,
    Tick(u16),
    RequestSync,
}

#[derive(Debug, Clone, Default)]
struct SimulatedFile {
    /// The bytes that a reader sees, each with a flag that says whether a sync still has to write it.
    visible_bytes: Vec<(u8, bool)>,
    durable_bytes: Vec<u8>,
}

#[derive(Debug, Clone, Default)]
struct SimulatedDisk {
    files: BTreeMap<String, SimulatedFile>,
    /// The manifests that may exist after a power loss: the last one known to be on disk, and those of later failed
    /// attempts.
    manifests: Vec<Option<String>>,
}

/// The position that loading the files restores: the version of the data and the log offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct LoadedPosition {
    data_version: u64,
    offset: u64,
}

struct SimulatedServer {
    machine: AofStateMachine,
    disk: SimulatedDisk,
    /// The version of the current data, which increases with each full resync.
    data_version: u64,
    version_by_repl_id: BTreeMap<String, u64>,
    log_end: ReplPosition,
    previous_history: Option<ReplPosition>,
    /// Offsets of the command boundaries in the log.
    command_ends: BTreeSet<u64>,
    /// The log ranges in place of which the file has other commands, by data version.
    file_versions: BTreeMap<u64, Vec<FileVersion>>,
    /// The first offset that the log still contains.
    log_start: u64,
    now: Instant,
    rewrites: Rewrites,
    /// Snapshot position of the current rewrite.
    rewrite: Option<(RewriteId, LoadedPosition)>,
    base_position: Option<LoadedPosition>,
    operation: Option<(FileOperation, Vec<u8>)>,
    current_file: Option<String>,
    acknowledged_position: Option<LoadedPosition>,
    holds_replies: bool,
    effects: Vec<AofEffect>,
}

fn expected_byte(data_version: u64, offset: u64) -> u8 {
    let mixed = (offset ^ data_version.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x2545_f491_4f6c_dd1d);
    b'a' + ((mixed >> 40) % 26) as u8
}

fn repl_id(number: u64) -> ReplId {
    let mut bytes = [0; 20];
    // Forty zeros are not a replication id, so the number must not be zero.
    bytes[..8].copy_from_slice(&(number + 1).to_le_bytes());
    ReplId::from_random(bytes)
}

impl SimulatedDisk {
    fn named_files(&self) -> BTreeSet<String> {
        let texts = self.manifests.iter().flatten();
        let manifests = texts.map(|text| Manifest::parse(text).expect("it is one"));
        manifests
            .flat_map(|manifest| manifest.files().map(|file| file.name.clone()).collect::<Vec<_>>())
            .collect()
    }

    fn put_manifest(&mut self, text: &str, result: OperationResult) {
        match result {
            OperationResult::Succeeds => self.manifests = vec![Some(text.to_owned())],
            OperationResult::FailsEarly => {}
            OperationResult::FailsLate => self.manifests.push(Some(text.to_owned())),
        }
    }

    fn create(&mut self, name: &str) {
        let is_used = self.files.get(name).is_some_and(|file| !file.visible_bytes.is_empty());
        assert!(!is_used, "{name} is made anew, and has something");
        self.files.insert(name.to_owned(), SimulatedFile::default());
    }

    fn sync(&mut self, name: &str, result: OperationResult) {
        let SimulatedFile { visible_bytes: seen, durable_bytes: durable } =
            self.files.get_mut(name).expect("it is open");
        for (at, (byte, dirty)) in seen.iter_mut().enumerate() {
            if at >= durable.len() {
                // A page that the kernel dropped leaves stale content on the disk.
                durable.push(0);
            }
            if std::mem::take(dirty) && result != OperationResult::FailsEarly {
                durable[at] = *byte;
            }
        }
    }
}

impl SimulatedServer {
    fn new(policy: FsyncPolicy) -> Self {
        let settings = AofSettings {
            fsync_policy: policy,
            has_timestamps: true,
            name: FILE_NAME.to_owned(),
            ..AofSettings::default()
        };
        let now = Instant::from_millis(1000);
        Self {
            machine: AofStateMachine::without_base(settings, Manifest::default(), now),
            disk: SimulatedDisk { manifests: vec![None], ..SimulatedDisk::default() },
            data_version: 0,
            version_by_repl_id: [(repl_id(0).to_string(), 0)].into(),
            log_end: ReplPosition { id: repl_id(0), offset: ReplOffset(0) },
            previous_history: None,
            command_ends: [0].into(),
            file_versions: BTreeMap::new(),
            log_start: 0,
            now,
            rewrites: Rewrites::default(),
            rewrite: None,
            base_position: None,
            operation: None,
            current_file: None,
            acknowledged_position: None,
            holds_replies: false,
            effects: Vec::new(),
        }
    }

    fn current_position(&self) -> LoadedPosition {
        LoadedPosition { data_version: self.data_version, offset: self.log_end.offset.0 }
    }

    fn send_event(&mut self, event: AofEvent) {
        let mut out = Vec::new();
        self.machine.handle(event, &mut out);
        self.apply_effects(out);
    }

    fn apply_effects(&mut self, effects: Vec<AofEffect>) {
        for effect in effects {
            match &effect {
                AofEffect::PublishCommitPoint(offset) => {
                    if self.machine.state() == AofState::Complete {
                        let reached = LoadedPosition { data_version: self.data_version, offset: offset.0 };
                        let before = self
                            .acknowledged_position
                            .filter(|before| before.data_version == self.data_version);
                        self.acknowledged_position = before.max(Some(reached));
                    }
                }
                AofEffect::HoldReplies(holds) => self.holds_replies = *holds,
                AofEffect::WriteErrorChanged(_) => {}
                AofEffect::RewriteEnded { rewrite, outcome } => {
                    let ok = outcome.is_ok();
                    if let Ok(history) = outcome {
                        let named = self.disk.named_files();
                        for name in history {
                            assert!(!named.contains(name), "{name} counts and is deleted");
                            self.disk.files.remove(name);
                        }
                        self.effects.push(effect.clone());
                        self.machine.handle(AofEvent::HistoryDeleted, &mut Vec::new());
                    }
                    self.rewrites.end(self.now, *rewrite, ok, true);
                    self.rewrite = None;
                    self.base_position = None;
                    continue;
                }
                AofEffect::BaseNeeded => {}
            }
            self.effects.push(effect);
        }
    }

    fn log_end(&self) -> LogEnd {
        LogEnd {
            position: self.log_end,
            previous_history: self.previous_history,
            wall_clock: Millis(self.now.as_millis() as i64),
        }
    }

    /// Reports the end of the log to the state machine, after the file versions of the ranges before that end.
    fn advance_log(&mut self) {
        if let Some(from) = self.machine.file_versions_needed_from() {
            let versions = self.file_versions.get(&self.data_version).into_iter().flatten();
            let wanted: Vec<_> = versions.filter(|version| version.from >= from).cloned().collect();
            for version in wanted {
                self.send_event(AofEvent::FileVersionAdded(version));
            }
        }
        self.send_event(AofEvent::LogAdvanced(self.log_end()));
    }

    fn apply_event(&mut self, event: TestEvent) {
        match event {
            TestEvent::Append(len) => {
                self.log_end.offset.0 += u64::from(len);
                self.command_ends.insert(self.log_end.offset.0);
                let held_back = self.machine.state() == AofState::Complete;
                assert!(
                    !held_back || self.holds_replies || self.machine.fsync_policy() != FsyncPolicy::Always
                );
            }
            TestEvent::AppendWithFileVersion(len, own) => self.append_with_file_version(len, own),
            TestEvent::StartOperation => self.start_operation(),
            TestEvent::FinishOperation(fate) => self.finish_operation(fate),
            TestEvent::Rewrite => {
                if let Ok(rewrite) = self.rewrites.begin(self.now) {
                    self.advance_log();
                    self.rewrite = Some((rewrite, self.current_position()));
                    self.send_event(AofEvent::SnapshotTaken { rewrite, at: self.log_end, db: Some(0) });
                }
            }
            TestEvent::BaseReady => {
                if let Some((rewrite, cut)) = self.rewrite.filter(|_| self.base_position.is_none()) {
                    self.base_position = Some(cut);
                    self.send_event(AofEvent::BaseReady { rewrite, is_rdb: true });
                }
            }
            TestEvent::RewriteFails => {
                if self.base_position.is_none()
                    && let Some((rewrite, _)) = self.rewrite.take()
                {
                    self.rewrites.end(self.now, rewrite, false, true);
                    self.send_event(AofEvent::RewriteFailed(rewrite));
                }
            }
            TestEvent::TrimLog => {
                if self.machine.first_retained_offset().is_some_and(|from| from < self.log_end.offset) {
                    self.log_start = self.log_end.offset.0;
                    self.send_event(AofEvent::LogLost(LogLoss::Trimmed));
                }
            }
            TestEvent::ReplaceData => self.replace_data(),
            TestEvent::ChangeReplId => {
                let number = self.version_by_repl_id.len() as u64;
                self.version_by_repl_id.insert(repl_id(number).to_string(), self.data_version);
                self.previous_history = Some(self.log_end);
                self.log_end.id = repl_id(number);
            }
            TestEvent::Tick(millis) => {
                self.now += std::time::Duration::from_millis(u64::from(millis));
                self.advance_log();
            }
            TestEvent::RequestSync => {
                self.advance_log();
                self.send_event(AofEvent::SyncRequested);
            }
        }
        self.log_start = self.machine.first_retained_offset().unwrap_or(self.log_end.offset).0;
        self.check_recovery();
    }

    /// Appends `len` bytes to the log; the file gets `own_len` other bytes instead.
    fn append_with_file_version(&mut self, len: u8, version_len: u8) {
        let from = self.log_end.offset;
        self.apply_event(TestEvent::Append(len));
        let commands =
            (0..version_len).map(|index| expected_byte(self.data_version, from.0 + u64::from(index)));
        let commands: Vec<u8> = commands.map(|byte| byte.to_ascii_uppercase()).collect();
        let version = FileVersion { from, to: self.log_end.offset, commands: commands.into() };
        self.file_versions.entry(self.data_version).or_default().push(version);
    }

    /// Replaces the data, as a full resync does.
    fn replace_data(&mut self) {
        self.data_version += 1;
        let number = self.version_by_repl_id.len() as u64;
        self.version_by_repl_id.insert(repl_id(number).to_string(), self.data_version);
        // The offset after the replacement may also exist in the old history.
        self.log_end = ReplPosition { id: repl_id(number), offset: ReplOffset(self.log_end.offset.0 / 2) };
        self.previous_history = None;
        self.command_ends = [self.log_end.offset.0].into();
        self.acknowledged_position = None;
        self.send_event(AofEvent::LogLost(LogLoss::Replaced));
    }

    fn start_operation(&mut self) {
        if self.operation.is_some() {
            return;
        }
        self.advance_log();
        let Some(operation) = self.machine.next_operation(self.now) else {
            let due = self.machine.next_deadline(self.now);
            assert!(due.is_none_or(|due| due > self.now), "nothing is to be done, and is asked for at once");
            return;
        };
        let mut bytes = Vec::new();
        if let FileOperation::Write { head, from, len } = &operation {
            assert!(from.0 >= self.log_start, "the log has let go of {from}");
            assert!(from.0 + len <= self.log_end.offset.0);
            bytes.clone_from(head);
            bytes.extend((from.0..from.0 + len).map(|offset| expected_byte(self.data_version, offset)));
        }
        self.operation = Some((operation, bytes));
    }

    fn finish_operation(&mut self, result: OperationResult) {
        let Some((operation, bytes)) = self.operation.take() else { return };
        self.execute(&operation, &bytes, result);
        self.check_recovery();
        let outcome = match result {
            OperationResult::Succeeds => Ok(()),
            OperationResult::FailsEarly | OperationResult::FailsLate => {
                Err(OperationError::Io("injected".to_owned()))
            }
        };
        let mut out = Vec::new();
        self.machine.complete_operation(self.now, outcome, &mut out);
        self.apply_effects(out);
    }

    fn execute(&mut self, operation: &FileOperation, bytes: &[u8], result: OperationResult) {
        let open = self.current_file.clone();
        let open = || open.clone().expect("one is open");
        match operation {
            FileOperation::Write { .. } => {
                let len = if result == OperationResult::FailsEarly { bytes.len() / 2 } else { bytes.len() };
                let file = self.disk.files.get_mut(&open()).expect("it is there");
                file.visible_bytes.extend(bytes[..len].iter().map(|byte| (*byte, true)));
            }
            FileOperation::Sync => self.disk.sync(&open(), result),
            FileOperation::Truncate(len) => {
                if result != OperationResult::FailsEarly {
                    let file = self.disk.files.get_mut(&open()).expect("it is there");
                    file.visible_bytes.truncate(*len as usize);
                    file.durable_bytes.truncate(*len as usize);
                }
            }
            FileOperation::BeginIncrement { name, manifest } => {
                self.disk.create(name);
                if let Some(text) = manifest {
                    self.disk.put_manifest(text, result);
                }
                if result == OperationResult::Succeeds {
                    self.current_file = Some(name.clone());
                }
            }
            FileOperation::InstallBase { name, manifest, .. } => {
                assert!(!self.disk.named_files().contains(name), "{name} counts and is written over");
                let cut = self.base_position.expect("it is ready");
                let text = format!("{} {}", cut.data_version, cut.offset).into_bytes();
                let seen = text.iter().map(|byte| (*byte, false)).collect();
                self.disk
                    .files
                    .insert(name.clone(), SimulatedFile { visible_bytes: seen, durable_bytes: text });
                self.disk.put_manifest(manifest, result);
            }
            FileOperation::WriteManifest(text) => self.disk.put_manifest(text, result),
        }
    }

    /// Checks that no acknowledged data is lost if the process is killed or power is lost now.
    fn check_recovery(&self) {
        for manifest in &self.disk.manifests {
            for killed in [false, true] {
                let reached = self.load(manifest.as_deref(), killed);
                let wanted =
                    self.acknowledged_position.filter(|_| self.machine.fsync_policy() == FsyncPolicy::Always);
                assert!(
                    wanted.is_none_or(|wanted| reached.is_some_and(|reached| {
                        reached.data_version == wanted.data_version && reached.offset >= wanted.offset
                    })),
                    "{wanted:?} was acknowledged, {reached:?} is there"
                );
                let synced = self.machine.synced_offset();
                let of_data = reached.filter(|reached| reached.data_version == self.data_version);
                assert!(
                    synced.is_none_or(|synced| of_data.is_some_and(|reached| reached.offset >= synced.0)),
                    "{synced:?} is synced"
                );
            }
        }
    }

    /// Returns the position that a server reaches if it starts now and loads the files.
    fn load(&self, manifest: Option<&str>, process_killed: bool) -> Option<LoadedPosition> {
        let manifest = Manifest::parse(manifest?).expect("it is one");
        let content = |name: &str| -> Vec<u8> {
            let file = &self.disk.files.get(name).unwrap_or_else(|| panic!("{name} is named and not there"));
            if process_killed {
                file.visible_bytes.iter().map(|(byte, _)| *byte).collect()
            } else {
                file.durable_bytes.clone()
            }
        };
        let base = String::from_utf8(content(&manifest.base.as_ref()?.name)).expect("a text");
        let (data, offset) = base.split_once(' ').expect("two numbers");
        let mut reached = LoadedPosition {
            data_version: data.parse().expect("a number"),
            offset: offset.parse().expect("a number"),
        };
        let last = manifest.increments.last().map(|file| file.name.clone());
        for file in &manifest.increments {
            let is_last = last.as_ref() == Some(&file.name);
            self.replay(&mut reached, &content(&file.name), is_last);
        }
        Some(reached)
    }

    fn replay(&self, position: &mut LoadedPosition, bytes: &[u8], may_be_torn: bool) {
        let mut rest = bytes;
        // Bytes of file versions since the last known position; `None` while the position is known.
        let mut own: Option<Vec<u8>> = None;
        while let [first, ..] = rest {
            match first {
                b'#' => {
                    let Some(end) = rest.iter().position(|byte| *byte == b'\n') else { break };
                    if let Some(place) = ReplAnnotation::parse(&rest[..=end]) {
                        self.apply_annotation(position, &place, &mut own);
                    }
                    rest = &rest[end + 1..];
                }
                b'*' => match rest.windows(3).position(|end| end == b"0\r\n") {
                    Some(end) => rest = &rest[end + 3..],
                    None => break,
                },
                b'A'..=b'Z' => {
                    own.as_mut().expect("the position is unknown in a version").push(*first);
                    rest = &rest[1..];
                }
                b'a'..=b'z' => {
                    let is_replaced =
                        |version: &FileVersion| (version.from.0..version.to.0).contains(&position.offset);
                    assert!(
                        !self
                            .file_versions
                            .get(&position.data_version)
                            .is_some_and(|all| all.iter().any(is_replaced))
                    );
                    assert_eq!(
                        *first,
                        expected_byte(position.data_version, position.offset),
                        "at {position:?}"
                    );
                    position.offset += 1;
                    rest = &rest[1..];
                }
                _ => break,
            }
        }
        assert!(rest.is_empty() || may_be_torn, "torn, and something follows");
    }

    fn apply_annotation(
        &self,
        position: &mut LoadedPosition,
        annotation: &ReplAnnotation,
        own_commands: &mut Option<Vec<u8>>,
    ) {
        if annotation.history == ReplId::NONE.to_string() {
            *own_commands = Some(Vec::new());
            return;
        }
        if let Some(own) = own_commands.take() {
            let mut wanted = Vec::new();
            for version in self.file_versions.get(&position.data_version).into_iter().flatten() {
                if version.from.0 >= position.offset && version.to.0 <= annotation.offset {
                    assert_eq!(version.from.0, position.offset, "versions follow each other");
                    position.offset = version.to.0;
                    wanted.extend_from_slice(&version.commands);
                }
            }
            assert_eq!(own, wanted);
        }
        assert_eq!(annotation.offset, position.offset, "it follows from what was before");
        assert_eq!(self.version_by_repl_id.get(&annotation.history), Some(&position.data_version));
        let is_end =
            self.command_ends.contains(&position.offset) || position.data_version != self.data_version;
        assert!(is_end, "an annotation within a command");
    }

    /// Stops injecting faults and checks that the files are complete after another rewrite.
    fn recover_and_verify(&mut self) {
        for _ in 0..3 {
            self.run_until_idle();
            self.apply_event(TestEvent::BaseReady);
            self.run_until_idle();
            self.apply_event(TestEvent::Rewrite);
        }
        self.run_until_idle();
        assert_eq!((self.machine.state(), self.machine.error()), (AofState::Complete, None));
        self.apply_event(TestEvent::RequestSync);
        self.run_until_idle();
        assert_eq!(self.machine.synced_offset(), Some(self.log_end.offset), "all of it in the end");
        assert_eq!(self.load(self.disk.manifests[0].as_deref(), false), Some(self.current_position()));
        assert!(self.disk.files.len() <= 6 + self.disk.named_files().len(), "{:?}", self.disk.files.keys());
    }

    fn run_until_idle(&mut self) {
        for _ in 0..20 {
            self.apply_event(TestEvent::Tick(1500));
            self.apply_event(TestEvent::StartOperation);
            self.apply_event(TestEvent::FinishOperation(OperationResult::Succeeds));
        }
    }
}

/// Creates an enabled file with a base and some writes.
fn server_with_a_base(fsync_policy: FsyncPolicy) -> SimulatedServer {
    let mut server = SimulatedServer::new(fsync_policy);
    server.apply_event(TestEvent::Rewrite);
    server.run_until_idle();
    server.apply_event(TestEvent::BaseReady);
    server.run_until_idle();
    assert_eq!(server.machine.state(), AofState::Complete);
    server
}

/// Creates a file that consists of a base only, like an adopted file of an old version.
fn server_with_only_a_base(policy: FsyncPolicy) -> SimulatedServer {
    let mut server = server_with_a_base(policy);
    server.apply_event(TestEvent::Append(20));
    let name = "old".to_owned();
    let text = format!("{} {}", server.data_version, server.log_end.offset).into_bytes();
    let seen = text.iter().map(|byte| (*byte, false)).collect();
    let mut manifest = Manifest::default();
    manifest.replace_base(AofFile { name: name.clone(), seq: 1 }, "");
    server.disk = SimulatedDisk {
        files: [(name, SimulatedFile { visible_bytes: seen, durable_bytes: text })].into(),
        manifests: vec![Some(manifest.to_text())],
    };
    let settings = AofSettings { fsync_policy: policy, name: FILE_NAME.to_owned(), ..AofSettings::default() };
    server.machine = AofStateMachine::with_base(settings, manifest, server.log_end(), 0, server.now);
    (server.current_file, server.acknowledged_position) = (None, None);
    server.send_event(AofEvent::Configured(AofSettings {
        fsync_policy: policy,
        name: FILE_NAME.to_owned(),
        ..AofSettings::default()
    }));
    server
}

/// Acknowledged writes must be in an increment that the manifest names.
#[test]
fn base_without_increment_gets_one_before_any_acknowledgement() {
    let mut server = server_with_only_a_base(FsyncPolicy::Always);
    assert!(server.holds_replies);
    server.apply_event(TestEvent::Append(3));
    server.apply_event(TestEvent::Rewrite);
    server.run_until_idle();
    assert_eq!(server.machine.synced_offset(), Some(server.log_end.offset));
    assert_eq!(server.load(server.disk.manifests[0].as_deref(), false), Some(server.current_position()));
    assert_eq!(server.machine.manifest().increments.len(), 2, "the rewrite's comes behind it");
}

/// A rewrite takes its snapshot while the increment of a failed rewrite is being created. The writes between the two
/// snapshots were acknowledged, so the new increment must contain them.
#[test]
fn snapshot_waits_while_an_earlier_increment_is_created() {
    let mut server = server_with_a_base(FsyncPolicy::Always);
    server.apply_event(TestEvent::Append(5));
    server.apply_event(TestEvent::Rewrite);
    for _ in 0..10 {
        server.apply_event(TestEvent::StartOperation);
        if matches!(server.operation, Some((FileOperation::BeginIncrement { .. }, _))) {
            break;
        }
        server.apply_event(TestEvent::FinishOperation(OperationResult::Succeeds));
    }
    server.apply_event(TestEvent::RewriteFails);
    server.apply_event(TestEvent::Append(7));
    server.apply_event(TestEvent::Rewrite);
    server.run_until_idle();
    assert_eq!(server.machine.synced_offset(), Some(server.log_end.offset));
    assert_eq!(server.load(server.disk.manifests[0].as_deref(), false), Some(server.current_position()));
    assert_eq!(server.machine.manifest().increments.len(), 3);
}

/// A rewrite fails after its manifest reached the disk. The next rewrite must not reuse the name of that base, or the
/// increment named by that manifest would be loaded twice.
#[test]
fn base_of_a_rewrite_that_failed_late_is_never_overwritten() {
    let mut server = SimulatedServer::new(FsyncPolicy::Always);
    server.apply_event(TestEvent::Rewrite);
    server.run_until_idle();
    server.apply_event(TestEvent::Append(50));
    server.run_until_idle();
    server.apply_event(TestEvent::BaseReady);
    server.apply_event(TestEvent::StartOperation);
    assert!(
        matches!(server.operation, Some((FileOperation::InstallBase { .. }, _))),
        "{:?}",
        server.operation
    );
    server.apply_event(TestEvent::FinishOperation(OperationResult::FailsLate));
    server.apply_event(TestEvent::Rewrite);
    server.run_until_idle();
    server.apply_event(TestEvent::BaseReady);
    server.run_until_idle();
    assert_eq!(
        server.machine.manifest().to_text(),
        "file a.2.base.rdb seq 2 type b\nfile a.2.incr.aof seq 2 type i\n"
    );
    server.recover_and_verify();
}

#[test]
fn file_without_a_base_neither_delays_replies_nor_counts_as_synced() {
    let mut server = SimulatedServer::new(FsyncPolicy::Always);
    server.apply_event(TestEvent::Append(9));
    server.apply_event(TestEvent::Rewrite);
    server.run_until_idle();
    assert!(!server.holds_replies);
    assert_eq!(server.machine.synced_offset(), None);
    server.apply_event(TestEvent::BaseReady);
    server.run_until_idle();
    assert!(server.holds_replies);
    assert_eq!(server.machine.synced_offset(), Some(ReplOffset(9)));
}

#[test]
fn lost_log_bytes_are_acknowledged_only_after_a_new_base() {
    let mut server = server_with_a_base(FsyncPolicy::Always);
    server.apply_event(TestEvent::Append(9));
    server.apply_event(TestEvent::TrimLog);
    assert_eq!(server.machine.state(), AofState::Behind);
    server.apply_event(TestEvent::Rewrite);
    server.run_until_idle();
    assert!(server.holds_replies);
    assert_ne!(server.effects.last(), Some(&AofEffect::PublishCommitPoint(ReplOffset(9))));
    server.apply_event(TestEvent::BaseReady);
    server.run_until_idle();
    assert_eq!(
        server.effects.iter().rfind(|effect| matches!(effect, AofEffect::PublishCommitPoint(_))),
        Some(&AofEffect::PublishCommitPoint(ReplOffset(9)))
    );
}

#[test]
fn everysec_syncs_once_per_second_except_during_rewrites() {
    let mut server = server_with_a_base(FsyncPolicy::EverySecond);
    let spares =
        AofSettings { no_fsync_on_rewrite: true, name: FILE_NAME.to_owned(), ..AofSettings::default() };
    server.send_event(AofEvent::Configured(spares));
    server.apply_event(TestEvent::Append(1));
    server.apply_event(TestEvent::Tick(10));
    let next = |server: &mut SimulatedServer| {
        server.apply_event(TestEvent::StartOperation);
        let operation = server.operation.as_ref().map(|(operation, _)| operation.clone());
        server.apply_event(TestEvent::FinishOperation(OperationResult::Succeeds));
        operation
    };
    assert!(matches!(next(&mut server), Some(FileOperation::Write { .. })));
    assert_eq!(next(&mut server), Some(FileOperation::Sync), "the last was long ago");
    server.apply_event(TestEvent::Append(1));
    assert!(matches!(next(&mut server), Some(FileOperation::Write { .. })));
    assert_eq!(next(&mut server), None);
    assert!(server.machine.next_deadline(server.now).is_some());
    server.apply_event(TestEvent::Tick(1000));
    assert_eq!(next(&mut server), Some(FileOperation::Sync));
    server.apply_event(TestEvent::Rewrite);
    server.run_until_idle();
    server.apply_event(TestEvent::Append(1));
    server.apply_event(TestEvent::Tick(5000));
    assert!(matches!(next(&mut server), Some(FileOperation::Write { .. })));
    assert_eq!(next(&mut server), None, "the rewrite has the disk to itself");
    server.apply_event(TestEvent::RequestSync);
    assert_eq!(next(&mut server), Some(FileOperation::Sync), "whoever asks has it all the same");
}

#[test]
fn slow_syncs_are_counted_as_delays() {
    let mut server = server_with_a_base(FsyncPolicy::EverySecond);
    let mut sync_for = |millis, appended| {
        server.apply_event(TestEvent::Append(1));
        server.apply_event(TestEvent::Tick(1000));
        server.apply_event(TestEvent::StartOperation);
        server.apply_event(TestEvent::FinishOperation(OperationResult::Succeeds));
        server.apply_event(TestEvent::StartOperation);
        assert!(matches!(server.operation, Some((FileOperation::Sync, _))));
        server.apply_event(TestEvent::Append(appended));
        server.apply_event(TestEvent::Tick(millis));
        server.apply_event(TestEvent::FinishOperation(OperationResult::Succeeds));
        server.run_until_idle();
        server.machine.delayed_sync_count()
    };
    assert_eq!(sync_for(1900, 5), 0, "two seconds are no delay yet");
    assert_eq!(sync_for(3000, 0), 0, "nothing waited for it");
    assert_eq!(sync_for(3000, 5), 1);
    server.machine.reset_delayed_sync_count();
    assert_eq!(server.machine.delayed_sync_count(), 0);
}

/// A base is installed although there is always something to write.
#[test]
fn base_is_installed_under_a_steady_stream_of_writes() {
    let mut server = server_with_a_base(FsyncPolicy::EverySecond);
    server.apply_event(TestEvent::Rewrite);
    server.run_until_idle();
    server.apply_event(TestEvent::BaseReady);
    for _ in 0..4 {
        server.apply_event(TestEvent::Append(1));
        server.apply_event(TestEvent::StartOperation);
        server.apply_event(TestEvent::FinishOperation(OperationResult::Succeeds));
    }
    assert_eq!(server.machine.manifest().increments.len(), 1);
    assert!(server.machine.manifest().history.is_empty());
}

#[test]
fn increment_begins_with_its_timestamp() {
    let mut server = server_with_a_base(FsyncPolicy::Always);
    server.apply_event(TestEvent::Append(1));
    server.run_until_idle();
    let name = &server.machine.manifest().increments[0].name;
    let text = String::from_utf8(server.disk.files[name].durable_bytes.clone()).unwrap();
    assert!(text.starts_with("#TS:"), "{text}");
    assert_eq!(text.matches("#REPL:").count(), 1, "{text}");
}

/// A file torn within commands that the log does not contain must not lead to a wrong offset after loading.
#[test]
fn loading_yields_no_position_inside_commands_that_only_the_file_contains() {
    let mut server = server_with_a_base(FsyncPolicy::Always);
    let policy = FsyncPolicy::Always;
    let plain = AofSettings { fsync_policy: policy, name: FILE_NAME.to_owned(), ..AofSettings::default() };
    server.send_event(AofEvent::Configured(plain));
    server.apply_event(TestEvent::Append(2));
    server.apply_event(TestEvent::AppendWithFileVersion(3, 4));
    server.apply_event(TestEvent::AppendWithFileVersion(5, 0));
    server.apply_event(TestEvent::Append(1));
    server.run_until_idle();
    let name = &server.machine.manifest().increments[0].name;
    let text = String::from_utf8(server.disk.files[name].durable_bytes.clone()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let bytes = |range: std::ops::Range<u64>| -> String {
        range.map(|offset| char::from(expected_byte(0, offset))).collect()
    };
    let tail = [
        format!("{}#REPL:{} 0", bytes(0..2), ReplId::NONE),
        format!("{}#REPL:{} 10", bytes(2..6).to_uppercase(), repl_id(0)),
        bytes(10..11),
    ];
    assert_eq!(lines[lines.len() - 3..], tail, "{text}");
    assert_eq!(server.acknowledged_position, Some(LoadedPosition { data_version: 0, offset: 11 }));
    assert!(!server.machine.has_file_versions());
}

#[test]
fn cancelled_rewrite_is_ignored() {
    let mut rewrites = Rewrites::default();
    let now = Instant::from_millis(1);
    let first = rewrites.begin(now).unwrap();
    assert_eq!(rewrites.begin(now), Err(RewriteRunningError));
    assert!(rewrites.cancel());
    let second = rewrites.begin(now).unwrap();
    rewrites.end(now, first, true, false);
    assert!(rewrites.is_current(second) && rewrites.success_count == 0);
    rewrites.end(now, second, false, true);
    assert!(
        rewrites.is_scheduled
            && !rewrites.is_due(now, RewriteThresholds { size: 0, percentage: 0, min_size: 0 })
    );
    let later = now + std::time::Duration::from_secs(6);
    assert!(rewrites.is_due(later, RewriteThresholds { size: 0, percentage: 0, min_size: 0 }));
}

fn events() -> impl Strategy<Value = Vec<TestEvent>> {
    let fate = prop_oneof![4 => Just(OperationResult::Succeeds), 1 => Just(OperationResult::FailsEarly), 1 => Just(OperationResult::FailsLate)];
    let event = prop_oneof![
        12 => Just(TestEvent::StartOperation),
        12 => fate.prop_map(TestEvent::FinishOperation),
        5 => (1..9_u8).prop_map(TestEvent::Append),
        3 => (1..9_u8, 0..9_u8).prop_map(|(len, own)| TestEvent::AppendWithFileVersion(len, own)),
        3 => Just(TestEvent::Rewrite),
        3 => Just(TestEvent::BaseReady),
        2 => Just(TestEvent::RewriteFails),
        3 => (1..2000_u16).prop_map(TestEvent::Tick),
        1 => Just(TestEvent::TrimLog),
        1 => Just(TestEvent::ReplaceData),
        1 => Just(TestEvent::ChangeReplId),
        1 => Just(TestEvent::RequestSync),
    ];
    proptest::collection::vec(event, 1..150)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn acknowledged_writes_are_recovered_exactly_once_after_any_fault(
        events in events(), begins in 0..3_u8, everysec in any::<bool>(),
    ) {
        let policy = if everysec { FsyncPolicy::EverySecond } else { FsyncPolicy::Always };
        let mut server = match begins {
            0 => server_with_a_base(policy),
            1 => server_with_only_a_base(policy),
            _ => SimulatedServer::new(policy),
        };
        for event in events {
            server.apply_event(event);
        }
        server.recover_and_verify();
    }
}
