//! Executes commands with the real engine and keyspace on one simulated command thread.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use clock::Millis;
use config::EvictionPolicy;
use engine::{
    BackgroundMode, CapturedKey, CommandError, CommandOrigin, CommandSet, DispatchStatus, EffectLog, Engine,
    OffloadReason, PipelinedRequests, ReleaseResult, Session, UnblockReason, WaitEnd, Worker,
};
use keyspace::Keyspace;
use persistence::{Dialect, RdbInfo, UsageFormat, WriteOptions};
use replication::ReplPosition;
use resp::{Args, Batch, ParseLimits, Parser};
use slot_routing::{SlotSet, Topology};
use snapshot_io::{LoadEvent, LoadHost, Loader, SnapshotState, WriteObserver};

/// A real engine, its command table, and one thread that executes commands.
pub(crate) struct Executor {
    pub(crate) engine: Engine,
    pub(crate) commands: Arc<CommandSet>,
    worker: Worker,
}

impl Executor {
    /// Creates an executor that serves these slots and databases. A topology enables cluster mode.
    pub(crate) fn new(
        slots: &SlotSet,
        databases: u16,
        topology: Option<Topology>,
        log: Box<dyn EffectLog>,
    ) -> Self {
        let commands = Arc::new(CommandSet::new(::commands::server_registry()));
        let catalogue = commands.registry().catalogue();
        let engine = Engine::new(catalogue, Keyspace::with_only_slots(1, databases, slots), topology, log);
        engine.init_slot_ownership();
        engine.settings.permissions.debug_command.set(config::AllowedClients::Yes);
        let worker = engine.new_worker(constant_nanos);
        Self { engine, commands, worker }
    }

    pub(crate) fn loader<'a>(&'a self, host: &'a dyn LoadHost) -> Loader<'a> {
        let Self { engine, commands, .. } = self;
        Loader { engine, commands, store_threads: 1, verify_checksum: true, max_deletion_bytes: 0, host }
    }

    /// Executes requests up to the first one that a pause blocks. Requests that must run in the background are
    /// completed before any other client's requests.
    pub(crate) fn run(
        &mut self,
        session: &mut Session,
        wall_time: Millis,
        buffer: Vec<u8>,
    ) -> (RequestProgress, ExecutionStop) {
        let mut running = RequestProgress::from_buffer(buffer);
        session.set_time_slice_end(u64::MAX);
        let stop = loop {
            match self.continue_execution(session, wall_time, &mut running) {
                ExecutionStop::NeedsBackground => {
                    session.set_background(BackgroundMode::Offloaded(OffloadReason::SlowCommand));
                }
                stop => break stop,
            }
        };
        return_from_background(session);
        (running, stop)
    }

    /// Executes the remaining requests until they end or something interrupts them.
    pub(crate) fn continue_execution(
        &mut self,
        session: &mut Session,
        wall_time: Millis,
        progress: &mut RequestProgress,
    ) -> ExecutionStop {
        while progress.next_index < progress.batch.len() {
            let RequestProgress {
                buffer,
                batch,
                next_index: next,
                replies,
                unanswered_count: unanswered,
                failure,
                ..
            } = progress;
            let requests = PipelinedRequests { buffer, batch, first_pending: *next };
            let dispatcher = self.commands.dispatcher(&self.engine);
            let (after, flow) = dispatcher.run(&mut self.worker, session, wall_time, requests, replies);
            *next = after;
            *failure = failure
                .take()
                .or_else(|| self.worker.take_failures().into_iter().next().map(|failure| failure.error));
            match flow {
                DispatchStatus::Node(_) => (*next, *unanswered) = (after + 1, *unanswered + 1),
                DispatchStatus::Paused => return ExecutionStop::Paused,
                DispatchStatus::Blocked => break,
                DispatchStatus::Offload(_) => return ExecutionStop::NeedsBackground,
                DispatchStatus::TimeSliceOver => return ExecutionStop::TimeSliceOver,
                DispatchStatus::Done | DispatchStatus::Close => {}
            }
        }
        ExecutionStop::Finished
    }

    /// Executes one command that does not come from a client.
    pub(crate) fn run_command(&mut self, db: u16, wall_time: Millis, words: &[impl AsRef<str>]) -> Vec<u8> {
        let mut session = Session::new(0, CommandOrigin::Client, true);
        session.select(db);
        self.run_on_session(&mut session, wall_time, words)
    }

    /// Executes one command of a client and returns its reply.
    pub(crate) fn run_on_session(
        &mut self,
        session: &mut Session,
        wall_time: Millis,
        words: &[impl AsRef<str>],
    ) -> Vec<u8> {
        let mut request = Vec::new();
        resp::encode_request(&mut request, words.iter().map(|word| word.as_ref().as_bytes()));
        self.run(session, wall_time, request).0.replies
    }

    /// Unblocks a client whose reply is ready or whose timeout has passed. Returns the reply, or `None` if the command
    /// must run again and a pause blocks it.
    pub(crate) fn end_wait(
        &mut self,
        session: &mut Session,
        wall_time: Millis,
        reason: UnblockReason,
    ) -> Option<Vec<u8>> {
        let mut reply = Vec::new();
        let dispatcher = self.commands.dispatcher(&self.engine);
        match dispatcher.end_wait(&mut self.worker, session, wall_time, reason, &mut reply) {
            WaitEnd::Replied => Some(reply),
            WaitEnd::Retry => self.retry(session, wall_time),
        }
    }

    /// Runs a client's command again whose wait has ended without a reply. Returns the reply, or `None` while a pause
    /// blocks the command. Until there is a reply, no other request of the client may run.
    pub(crate) fn retry(&mut self, session: &mut Session, wall: Millis) -> Option<Vec<u8>> {
        let mut reply = Vec::new();
        let dispatcher = self.commands.dispatcher(&self.engine);
        let status = loop {
            match dispatcher.retry(&mut self.worker, session, wall, &mut reply) {
                DispatchStatus::Offload(_) => {
                    session.set_background(BackgroundMode::Offloaded(OffloadReason::SlowCommand));
                }
                status => break status,
            }
        };
        return_from_background(session);
        (status != DispatchStatus::Paused).then_some(reply)
    }

    /// Returns a digest of all keys, their values, and all functions.
    pub(crate) fn digest(&mut self, wall_time: Millis) -> String {
        let mut text = self.run_command(0, wall_time, &["DEBUG", "DIGEST"]);
        text.extend(self.run_command(0, wall_time, &["FUNCTION", "LIST"]));
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Simulates memory pressure: evicts everything that the policy permits.
    pub(crate) fn evict_keys(&mut self, wall_time: Millis, policy: EvictionPolicy) {
        self.engine.settings.eviction.store(policy, 5, 10, true);
        self.engine.limit_memory(1);
        self.engine.evict_if_over_limit(&mut self.worker, wall_time);
        self.engine.limit_memory(0);
    }

    /// Deletes a key of database 0 if it still has its captured value.
    pub(crate) fn release_migrated_key(
        &self,
        name: &[u8],
        wall_time: Millis,
        captured_key: &CapturedKey,
    ) -> Result<ReleaseResult, CommandError> {
        self.engine.release_key(&self.worker, 0, name, wall_time, captured_key)
    }

    pub(crate) fn expire_keys(&mut self, wall_time: Millis) {
        self.engine.run_expiry_cycle(&mut self.worker, wall_time, Duration::from_secs(1));
    }
}

/// Passes commands to the simulator while a file is loaded. Progress reports are ignored.
pub(crate) struct LoadCommandForwarder<'a> {
    pub(crate) now: Millis,
    /// Called for each command that the engine does not execute itself.
    pub(crate) on_command: &'a dyn Fn(Args<'_>),
}

impl LoadCommandForwarder<'_> {
    pub(crate) fn with_time(now: Millis) -> Self {
        Self { now, on_command: &|_| () }
    }
}

impl LoadHost for LoadCommandForwarder<'_> {
    fn now(&self) -> Millis {
        self.now
    }

    fn on_unexecuted_command(&self, args: Args<'_>) {
        (self.on_command)(args);
    }

    fn nanos_clock(&self) -> fn() -> u64 {
        constant_nanos
    }

    fn on_load_started(&self, _total: u64) {}

    fn report_progress(&self, _bytes_read: u64, _keys: u64) {}

    fn on_used_memory(&self, _bytes: u64) {}

    fn on_key_read(&self) {}

    fn report_event(&self, _event: LoadEvent<'_>) {}
}

/// Writes an RDB file. Its auxiliary fields contain the position of the snapshot in its history.
pub(crate) fn write_rdb(
    state: SnapshotState,
    position: ReplPosition,
    wall: Millis,
    aof_base: bool,
    slot_states: &str,
    steps: &mut dyn WriteObserver,
) -> io::Result<Vec<u8>> {
    let options = WriteOptions {
        compress: true,
        checksum: true,
        usage_format: UsageFormat::None,
        dialect: Dialect::Redis,
    };
    let id = position.id;
    let info = RdbInfo {
        version: resp::REDIS_VERSION,
        created_at: wall,
        used_memory: 0,
        replication_position: Some((id.as_str().as_bytes(), position.offset.0, 0)),
        is_aof_base: aof_base,
        slot_states,
    };
    let mut out = Vec::new();
    snapshot_io::write_rdb(state, options, &info, steps, &mut out)?;
    Ok(out)
}

/// Returns a constant time, so that no command times out.
pub(crate) fn constant_nanos() -> u64 {
    0
}

/// The requests of one network read, and the progress of their execution.
pub(crate) struct RequestProgress {
    pub(crate) buffer: Vec<u8>,
    pub(crate) batch: Batch,
    /// Whether the buffer ended at the end of a request.
    pub(crate) is_complete: bool,
    /// The index of the next request to execute.
    pub(crate) next_index: usize,
    pub(crate) replies: Vec<u8>,
    /// The number of executed requests that have no reply yet.
    pub(crate) unanswered_count: usize,
    /// The first error of a command that another node sent in a stream.
    pub(crate) failure: Option<String>,
}

/// Why the execution of requests stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExecutionStop {
    /// All requests have been executed.
    Finished,
    /// The next request must run in the background, because it may take long or its slots are locked.
    NeedsBackground,
    /// The time slice is used up.
    TimeSliceOver,
    /// A pause blocks the next request until it ends.
    Paused,
}

impl RequestProgress {
    /// Parses all complete requests in a buffer.
    pub(crate) fn from_buffer(mut buffer: Vec<u8>) -> Self {
        let mut batch = Batch::default();
        let parsed = Parser::new().parse(&mut buffer, &mut batch, &ParseLimits::default());
        let is_whole = parsed.error.is_none() && parsed.consumed_bytes == buffer.len();
        Self {
            buffer,
            batch,
            is_complete: is_whole,
            next_index: 0,
            replies: Vec::new(),
            unanswered_count: 0,
            failure: None,
        }
    }
}

/// Takes a session back from the background thread, if the session is there.
pub(crate) fn return_from_background(session: &mut Session) {
    if session.background() == BackgroundMode::Offloaded(OffloadReason::SlowCommand) {
        session.set_background(BackgroundMode::Offloadable);
    }
}
