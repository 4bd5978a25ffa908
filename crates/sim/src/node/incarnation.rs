//! One incarnation of a node, from its start to its death.

use std::sync::{Arc, Mutex, MutexGuard};

use append_only::{
    AofAction, AofDriver, AofSettings, AofStart, AofStatus, FileExecutor, FsyncPolicy, StartPosition,
};
use clock::{Instant, Millis};
use engine::{BackgroundMode, CommandOrigin, EffectLog, NodeFlags, Session};
use persistence::aof::Manifest;
use replication::{Log, ReplPosition};
use slot_routing::ReplOffset;
use snapshot_io::SnapshotState;

use super::running::PipeliningClient;
use super::watching::WatchingClient;
use crate::append_file::{AOF_NAME, AofWriter, SimAofDriver, aof_directory};
use crate::disk::SimDisk;
use crate::executor::{Executor, LoadCommandForwarder, constant_nanos};
use crate::waiting::WaitingClient;
use crate::{RandomSource, clients};

/// The number of log bytes that are retained although no reader needs them.
const BACKLOG_BYTES: u64 = 1 << 14;

/// The current log, and all bytes that it and its predecessors have contained.
#[derive(Debug)]
pub(super) struct LoggedBytes {
    pub(super) log: Log,
    pub(super) history: Vec<u8>,
}

/// The log, which the engine and the simulator share.
#[derive(Debug, Clone)]
pub(super) struct SharedLog(Arc<Mutex<LoggedBytes>>);

impl SharedLog {
    pub(super) fn new(log: Log, history: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(LoggedBytes { log, history })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, LoggedBytes> {
        self.0.lock().expect("no run goes on after a panic")
    }

    pub(super) fn end_offset(&self) -> u64 {
        self.lock().log.position().offset.0
    }
}

impl EffectLog for SharedLog {
    fn has_readers(&self) -> bool {
        self.lock().log.is_open()
    }

    fn append(&self, db: u16, commands: &[u8]) -> ReplOffset {
        let mut logged = self.lock();
        let LoggedBytes { log, history } = &mut *logged;
        let before = log.position().offset;
        let after = log.append(db, commands);
        let len = (after.0 - before.0) as usize;
        log.read_exact_at(before, len, history).expect("it has just been appended");
        after
    }
}

/// The state of a node between its start and its death.
pub(super) struct RunningNode {
    pub(super) executor: Executor,
    pub(super) log: SharedLog,
    pub(super) clients: Vec<PipeliningClient>,
    pub(super) waiters: Vec<WaitingClient>,
    pub(super) watcher: WatchingClient,
    pub(super) aof: SimAofDriver,
    pub(super) writer: AofWriter,
    pub(super) delays_replies: bool,
    pub(super) committed_offset: u64,
    /// The log offsets of writes whose replies are delayed until the next sync.
    pub(super) delayed_replies: Vec<u64>,
}

/// The files that a node found when it started.
pub(super) enum FoundData {
    /// There was no append-only file.
    NoFiles,
    /// An append-only file was loaded. Contains the history position of its end if the file records one.
    Loaded(Option<ReplPosition>),
}

impl RunningNode {
    /// Starts a node and loads its files. `history` is the content of the log before the start. An error means that the
    /// node does not start.
    pub(super) fn start(
        disk: &SimDisk,
        history: &[u8],
        policy: FsyncPolicy,
        now: Instant,
        wall: Millis,
        random: &mut RandomSource,
    ) -> Result<(Self, FoundData), String> {
        let log = SharedLog::new(Log::new(random.random_replication_id(), BACKLOG_BYTES), Vec::new());
        let data = clients::new_executor(Box::new(log.clone()));
        let background = random.pick_random(&[BackgroundMode::Unavailable, BackgroundMode::Offloadable]);
        let folder = aof_directory(disk);
        let settings = AofSettings {
            fsync_policy: policy,
            has_timestamps: random.random_bool(50),
            name: AOF_NAME.to_owned(),
            ..AofSettings::default()
        };
        let manifest = folder.find_manifest().map_err(|error| error.to_string())?;
        let Some(manifest) = manifest else {
            log.lock().log.open(random.random_replication_id());
            let start = StartedFile {
                executor: FileExecutor::new(folder),
                settings,
                manifest: Manifest::default(),
                start_position: StartPosition::NextSnapshot,
            };
            return Ok((Self::new(data, log, start, now, wall, background), FoundData::NoFiles));
        };
        let host = LoadCommandForwarder::with_time(wall);
        let loaded =
            data.loader(&host).run_files(&folder, &manifest, true).map_err(|error| error.to_string())?;
        if let Some(position) = loaded.position {
            let mut logged = log.lock();
            logged.log.adopt_history(position);
            let len = usize::try_from(position.offset.0).unwrap_or(usize::MAX).min(history.len());
            logged.history = history[..len].to_vec();
        }
        let (executor, position) =
            FileExecutor::open(folder, &manifest, loaded.selected_db).map_err(|error| error.to_string())?;
        let start = StartedFile { executor, settings, manifest, start_position: position };
        let incarnation = Self::new(data, log, start, now, wall, background);
        // Writes after the end of the file may have been lost, so the history continues under a new replication id.
        incarnation.log.lock().log.change_id(random.random_replication_id());
        incarnation.executor.engine.settings.set_node_flag(NodeFlags::LOADING, false);
        Ok((incarnation, FoundData::Loaded(loaded.position)))
    }

    fn new(
        executor: Executor,
        log: SharedLog,
        file: StartedFile,
        now: Instant,
        wall: Millis,
        background: BackgroundMode,
    ) -> Self {
        if background == BackgroundMode::Offloadable {
            // With threshold zero, every command counts as slow.
            executor.engine.scheduling.long_commands.set_threshold(0);
            executor.engine.settings.set_node_flag(NodeFlags::BACKGROUND, true);
        }
        let StartedFile { executor: file_executor, settings, manifest, start_position: position } = file;
        let sizes = file_executor.directory().sizes(&manifest);
        let start = AofStart { settings, manifest, start_position: position, sizes };
        let (mut aof, mut actions) = (AofDriver::default(), Vec::new());
        aof.start(start, &mut log.lock().log, now, wall, &mut actions);
        let mut incarnation = Self {
            executor,
            log,
            clients: (1..3).map(|id| PipeliningClient::new(id, background)).collect(),
            waiters: (3..5).map(|id| WaitingClient::new(new_session(id, background))).collect(),
            watcher: WatchingClient::new(5, background),
            aof,
            writer: AofWriter::new(file_executor),
            delays_replies: false,
            committed_offset: 0,
            delayed_replies: Vec::new(),
        };
        for action in actions {
            incarnation.perform_action(&action);
        }
        incarnation
    }

    /// Performs an action that concerns only the node.
    pub(super) fn perform_action(&mut self, action: &AofAction) {
        match action {
            AofAction::PublishCommitPoint(offset) => self.committed_offset = offset.0,
            AofAction::HoldReplies(holds) => self.delays_replies = *holds,
            AofAction::WriteErrorChanged(error) => {
                self.executor.engine.settings.set_node_flag(NodeFlags::AOF_FAILED, error.is_some());
            }
            AofAction::SyncDelayed | AofAction::DeleteHistory(_) | AofAction::RewriteEnded { .. } => {}
        }
    }

    /// Returns the status of the append-only file as INFO would report it.
    pub(super) fn aof_status(&self) -> AofStatus {
        self.aof.status().expect("it is always enabled")
    }

    /// Returns a snapshot of the data, and its position in the history.
    pub(super) fn take_snapshot(&self) -> (SnapshotState, ReplPosition) {
        let at_cut = || {
            let mut logged = self.log.lock();
            logged.log.reset_selected_db();
            logged.log.position()
        };
        snapshot_io::take_snapshot(&self.executor.engine, constant_nanos, at_cut)
            .0
            .expect("few snapshots are under way")
    }
}

fn new_session(id: u64, background: BackgroundMode) -> Session {
    let mut session = Session::new(id, CommandOrigin::Client, true);
    session.set_background(background);
    session
}

/// The append-only file of a node that starts.
struct StartedFile {
    executor: FileExecutor<SimDisk>,
    settings: AofSettings,
    manifest: Manifest,
    start_position: StartPosition,
}
