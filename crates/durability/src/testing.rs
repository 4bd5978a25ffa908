//! A node's durability state for tests, with a real engine and real files in a folder of its own.

use std::path::Path;
use std::sync::Arc;

use clock::Millis;
use config::Config;
use engine::{CommandOrigin, CommandSet, Engine, NodeFlags, PipelinedRequests, Session, Worker};
use keyspace::Keyspace;
use migration::{EstablishMessage, JobName};
use parking_lot::{Mutex, MutexGuard};
use resp::{Batch, ParseLimits, Parser};
use slot_routing::{NodeId, ReplOffset, Slot};

use crate::append_only::UnfinishedAofPolicy;
use crate::stream::{EngineLogHandle, SharedLog, StreamHandles};
use crate::{Durability, append_only, saving};

/// A server's files are in the process's current directory, so only one test at a time may use it.
static CURRENT_DIRECTORY: Mutex<()> = Mutex::new(());

/// An empty folder that is the current directory until the test ends.
pub(crate) struct TestFolder {
    folder: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl TestFolder {
    pub(crate) fn enter() -> Self {
        let turn = CURRENT_DIRECTORY.lock();
        let folder = tempfile::tempdir().unwrap();
        std::env::set_current_dir(folder.path()).unwrap();
        Self { folder, _turn: turn }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// A server without sockets whose files are in the current directory.
pub(crate) struct TestServer {
    pub(crate) durability: Arc<Durability>,
    worker: Worker,
    session: Session,
}

impl TestServer {
    /// Creates a server that has not loaded its files yet.
    pub(crate) fn new(parameters: &[(&str, &str)]) -> Self {
        let config = Config::default();
        for (name, value) in parameters {
            set_parameter(&config, name, value);
        }
        let log = SharedLog::new(1 << 20);
        let commands = CommandSet::new(::commands::server_registry());
        let catalogue = commands.registry().catalogue();
        let engine =
            Engine::new(catalogue, Keyspace::new(7, 2), None, Box::new(EngineLogHandle(log.clone())));
        let worker = engine.new_worker(process::time::nanos);
        let stream = StreamHandles {
            log,
            applied: Arc::default(),
            commit_point: Arc::default(),
            synced_log: tokio::sync::watch::Sender::default(),
        };
        let durability = Durability::new(Arc::new(engine), Arc::new(commands), Arc::new(config), stream);
        Self {
            durability: Arc::new(durability),
            worker,
            session: Session::new(1, CommandOrigin::Client, true),
        }
    }

    /// Creates a server and loads its files.
    pub(crate) fn start(parameters: &[(&str, &str)]) -> Self {
        let server = Self::new(parameters);
        server.load().unwrap();
        server
    }

    /// Loads the files, as a starting server does.
    pub(crate) fn load(&self) -> anyhow::Result<Option<ReplOffset>> {
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        let found = runtime.block_on(saving::load_at_start(&self.durability))?;
        self.set_flag(NodeFlags::LOADING, false);
        Ok(found)
    }

    /// Syncs and closes the append-only file.
    pub(crate) fn stop(&self) {
        append_only::sync_all_data(&self.durability, UnfinishedAofPolicy::AbortShutdown).unwrap();
        self.durability.append_only.disable();
    }

    pub(crate) fn set(&self, name: &str, value: &str) {
        set_parameter(&self.durability.config, name, value);
    }

    pub(crate) fn set_flag(&self, flag: NodeFlags, is_set: bool) {
        self.durability.engine.settings.set_node_flag(flag, is_set);
    }

    pub(crate) fn has_flag(&self, flag: NodeFlags) -> bool {
        self.durability.engine.settings.node_flags().contains(flag)
    }

    /// Opens the replication log.
    pub(crate) fn open_log(&self) {
        self.durability.log.open(&mut self.durability.log.lock());
    }

    /// Runs a command at the current time, and returns its reply without line ends.
    pub(crate) fn run(&mut self, line: &str) -> String {
        let (mut input, mut batch, mut reply) =
            (format!("{line}\r\n").into_bytes(), Batch::default(), Vec::new());
        let limits = ParseLimits { is_authenticated: true, ..ParseLimits::default() };
        Parser::new().parse(&mut input, &mut batch, &limits);
        self.durability.commands.dispatcher(&self.durability.engine).run(
            &mut self.worker,
            &mut self.session,
            process::time::now(),
            PipelinedRequests { buffer: &input, batch: &batch, first_pending: 0 },
            &mut reply,
        );
        String::from_utf8(reply).unwrap().replace("\r\n", "")
    }

    /// Returns a field of INFO's Persistence section.
    pub(crate) fn info(&self, name: &str) -> String {
        let mut text = String::new();
        saving::write_persistence_info(&self.durability, &mut text);
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.unwrap_or_else(|| panic!("INFO has no field {name}")).to_owned()
    }
}

fn set_parameter(config: &Config, name: &str, value: &str) {
    let words: Vec<String> = value.split(' ').map(str::to_owned).collect();
    config.load(name, &words).unwrap();
}

/// Returns an import of the slots of these keys.
pub(crate) fn import_of_keys(number: u8, keys: &[&str]) -> EstablishMessage {
    let slots = keys.iter().map(|key| Slot::of_key(key.as_bytes()));
    EstablishMessage {
        source: NodeId::from_random([1; 20]),
        name: JobName::from_random([number; 20]),
        ranges: slots.map(|slot| (slot, slot)).collect(),
        is_resumable: false,
    }
}

/// Waits until a time in the wall clock has passed.
pub(crate) fn wait_until_past(time: Millis) {
    while process::time::now() <= time {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
