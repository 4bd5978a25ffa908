//! Atomic slot migration: runs the state machines of the `migration` crate.
//!
//! On the source and on the target, each job has a task on the migration thread, which performs the actions of the
//! job's driver. [`export`] reads the snapshot and the log. [`import`] executes the received commands; the keys stay
//! hidden until the slots are claimed ([`durability::stream::imports`]).

mod export;
mod import;
mod pulling;

use std::collections::BTreeMap;
use std::future::pending;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use clock::Instant;
use config::{Config, Values, keys};
use durability::Durability;
use durability::stream::random_repl_id;
use engine::{CommandSet, Engine};
use migration::pull::PullEvent;
use migration::{
    EstablishMessage, JobDirection, JobName, MigrationJob, MigrationJobs, SlotMove, SlotMoveElement,
};
use net::context::NetworkContext;
use net::detached_connection::DetachedConnection;
use net::pauses::PauseGate;
use net::transport::Stream;
use parking_lot::Mutex;
use process::stop_signal::StopSignal;
use process::time;
use resp::encode_request;
use slot_routing::{NodeId, Ownership, Slot, SlotSet, Topology};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{Notify, mpsc};

use crate::cluster::{ClusterHandle, ClusterWatcher};
use crate::replication::Replication;
pub(crate) use pulling::PullTask;
use pulling::{PullRequest, PullRequests};

/// A task that the migration thread is to start.
#[derive(Debug)]
enum MigrationTask {
    Export(JobName, SlotMove),
    Import(EstablishMessage, Box<DetachedConnection>, mpsc::UnboundedReceiver<DetachedConnection>),
    /// Requests slots from another node (CLUSTER MIGRATION).
    Pull(PullRequest, mpsc::UnboundedReceiver<PullEvent>),
    /// Discards the previous master's imports after this replica was promoted.
    DropImports(Vec<EstablishMessage>),
}

/// Channels from other threads to the task of a job.
#[derive(Debug, Default)]
struct JobChannels {
    /// Passes a new connection of the source to an import whose connection broke.
    resume_sender: Option<mpsc::UnboundedSender<DetachedConnection>>,
    cancel_signal: Arc<Notify>,
}

/// The parts of the server that migrations use.
pub(crate) struct MigrationContext {
    pub(crate) engine: Arc<Engine>,
    pub(crate) commands: Arc<CommandSet>,
    pub(crate) config: Arc<Config>,
    pub(crate) network: Arc<NetworkContext>,
    pub(crate) pause_gate: Arc<PauseGate>,
    pub(crate) replication: Arc<Replication>,
    pub(crate) durability: Arc<Durability>,
    /// `None` outside of cluster mode.
    pub(crate) cluster: Option<ClusterHandle>,
}

/// The migration jobs of this node, accessible from all threads.
#[derive(Debug)]
pub(crate) struct Migrations {
    engine: Arc<Engine>,
    commands: Arc<CommandSet>,
    config: Arc<Config>,
    network: Arc<NetworkContext>,
    pause_gate: Arc<PauseGate>,
    replication: Arc<Replication>,
    durability: Arc<Durability>,
    /// The handle with which imported slots are claimed; `None` outside of cluster mode.
    cluster: Option<ClusterHandle>,
    jobs: Mutex<MigrationJobs>,
    task_sender: mpsc::UnboundedSender<MigrationTask>,
    task_receiver: Mutex<Option<mpsc::UnboundedReceiver<MigrationTask>>>,
    /// The channels to the running jobs by name.
    job_channels: Mutex<BTreeMap<JobName, JobChannels>>,
    pull_requests: Mutex<PullRequests>,
    /// Signalled when a new topology was published.
    topology_changed: Notify,
}

const NOT_MASTER_ERROR: &str = "ERR Slot migration can only be used on primary nodes.";
const OWNERSHIP_MISMATCH_ERROR: &str = "ERR Target node does not agree about current slot ownership";

impl ClusterWatcher for Migrations {
    fn on_topology_published(&self) {
        self.topology_changed.notify_waiters();
    }

    fn on_node_promoted(&self) {
        self.drop_imports();
    }
}

impl Migrations {
    pub(crate) fn new(context: MigrationContext) -> Self {
        let (tasks, inbox) = mpsc::unbounded_channel();
        let MigrationContext {
            engine,
            commands,
            config,
            network,
            pause_gate,
            replication,
            durability,
            cluster,
        } = context;
        Self {
            engine,
            commands,
            config,
            network,
            pause_gate,
            replication,
            durability,
            cluster,
            jobs: Mutex::default(),
            task_sender: tasks,
            task_receiver: Mutex::new(Some(inbox)),
            job_channels: Mutex::default(),
            pull_requests: Mutex::default(),
            topology_changed: Notify::new(),
        }
    }

    pub(crate) fn is_active(&self, operation: JobDirection) -> bool {
        self.jobs.lock().active_jobs().any(|job| job.direction == operation)
    }

    pub(crate) fn list_jobs(&self) -> Vec<MigrationJob> {
        self.jobs.lock().iter().cloned().collect()
    }

    /// Removes finished jobs beyond `cluster-slot-migration-log-max-len`.
    pub(crate) fn trim_finished_jobs(&self) {
        let most = self.config.get(keys::CLUSTER_SLOT_MIGRATION_LOG_MAX_LEN);
        self.jobs.lock().trim_ended_jobs(most);
        self.replication.master_imports.truncate_to_newest(most);
    }

    /// Starts an export for each request, or none if one is refused. The error is the complete reply text.
    pub(crate) fn begin_exports(&self, requests: Vec<SlotMove>) -> Result<(), String> {
        self.begin_named_exports(requests.into_iter().map(|order| (random_job_name(), order)).collect())
    }

    /// Starts an export that the target requested. The target has chosen the job's name.
    pub(crate) fn begin_requested_export(&self, name: JobName, request: SlotMove) -> Result<(), String> {
        if self.jobs.lock().active_jobs().any(|job| job.name == name) {
            return Err("ERR A slot migration by this name is under way".to_owned());
        }
        self.begin_named_exports(vec![(name, request)])
    }

    /// Returns a function that checks each part of a request. The error is a complete reply text. No migration may
    /// start while SETSLOT has marked a slot here as migrating or importing, because both would change that slot's
    /// owner.
    pub(crate) fn request_checks(
        &self,
    ) -> Result<impl Fn(SlotMoveElement<'_>) -> Result<(), String>, String> {
        let topology = topology_if_master(self)?;
        check_no_manual_moves(&topology)?;
        Ok(move |part: SlotMoveElement<'_>| check_request_part(&topology, &self.jobs.lock(), part))
    }

    fn begin_named_exports(&self, requests: Vec<(JobName, SlotMove)>) -> Result<(), String> {
        let topology = topology_if_master(self)?;
        check_no_manual_moves(&topology)?;
        let mut jobs = self.jobs.lock();
        for (_, order) in &requests {
            let slots = order.slots();
            for part in [SlotMoveElement::Slots(&slots), SlotMoveElement::Target(order.target)] {
                check_request_part(&topology, &jobs, part).map_err(|error| format!("ERR {error}"))?;
            }
        }
        for (name, order) in requests {
            let ends = Some((topology.myself, order.target));
            add_job(self, &mut jobs, name, JobDirection::Export, order.ranges.clone(), ends);
            let slots = jobs.iter().next().map(MigrationJob::ranges_text).unwrap_or_default();
            tracing::info!("Slot migration {name} begins: slots {slots} go to {}", order.target);
            // A send error means that the server is stopping, so no migration starts.
            let _ = self.task_sender.send(MigrationTask::Export(name, order));
        }
        Ok(())
    }

    /// Cancels all exports. Returns false if there were none.
    pub(crate) fn cancel_exports(&self) -> bool {
        self.cancel_jobs(|job| job.direction == JobDirection::Export) > 0
    }

    /// Cancels the matching jobs and returns their number.
    fn cancel_jobs(&self, is_selected: impl Fn(&MigrationJob) -> bool) -> usize {
        let (jobs, ways) = (self.jobs.lock(), self.job_channels.lock());
        let ended = jobs.active_jobs().filter(|job| is_selected(job)).filter_map(|job| ways.get(&job.name));
        ended.map(|way| way.cancel_signal.notify_one()).count()
    }

    /// Records an import that a source announces, if that source may send its slots here. The error is a complete reply
    /// text.
    pub(crate) fn accept_import(&self, import: &EstablishMessage) -> Result<(), String> {
        let topology = topology_if_master(self)?;
        let slots = import.slots();
        if import.source == topology.myself {
            return Err("ERR Source node is target node itself".to_owned());
        }
        check_no_manual_moves(&topology)?;
        let theirs = |slot: Slot| topology.owner(slot).is_some_and(|owner| owner.id == import.source);
        if !slots.iter().all(theirs) {
            return Err(OWNERSHIP_MISMATCH_ERROR.to_owned());
        }
        let mut jobs = self.jobs.lock();
        if let Some((slot, _)) = jobs.find_busy_slot(&slots) {
            return Err(format!("ERR I am already importing slot {slot}."));
        }
        let ends = Some((import.source, topology.myself));
        add_job(self, &mut jobs, import.name, JobDirection::Import, import.ranges.clone(), ends);
        // The job list is unlocked before the pull requests are locked, because other code locks them in the opposite
        // order.
        drop(jobs);
        self.pull_requests.lock().on_job_announced(import);
        Ok(())
    }

    /// Starts an accepted import. If the source's connection could not be taken over, the import fails.
    pub(crate) fn begin_import(
        &self,
        import: EstablishMessage,
        connection: std::io::Result<DetachedConnection>,
    ) {
        match connection {
            Ok(connection) => {
                let (resume, resumes) = mpsc::unbounded_channel();
                if let Some(way) = self.job_channels.lock().get_mut(&import.name) {
                    way.resume_sender = import.is_resumable.then_some(resume);
                }
                drop(self.task_sender.send(MigrationTask::Import(import, Box::new(connection), resumes)));
            }
            Err(error) => self.end_job(&import.name, "failed", &error.to_string()),
        }
    }

    /// Returns whether the import with this name can resume over another connection.
    pub(crate) fn is_resumable(&self, name: &JobName) -> bool {
        self.job_channels.lock().get(name).is_some_and(|way| way.resume_sender.is_some())
    }

    /// Passes a new connection of the source to a resuming import.
    pub(crate) fn resume_import(&self, name: &JobName, connection: DetachedConnection) {
        if let Some(way) = self.job_channels.lock().get(name)
            && let Some(resume) = &way.resume_sender
        {
            // A send error means that the import has ended. The connection is then closed.
            let _ = resume.send(connection);
        }
    }

    /// Discards the imports contained in loaded data or received from a former master, because they cannot complete.
    pub(crate) fn drop_imports(&self) {
        let left = self.replication.applied_stream.imports.running_imports();
        if !left.is_empty() {
            let _ = self.task_sender.send(MigrationTask::DropImports(left));
        }
    }

    /// Waits until `condition` returns true. The condition is checked again whenever a topology is published.
    pub(crate) async fn wait_for_topology(&self, condition: impl Fn() -> bool) {
        loop {
            let rerouted = self.topology_changed.notified();
            tokio::pin!(rerouted);
            rerouted.as_mut().enable();
            if condition() {
                return;
            }
            rerouted.await;
        }
    }

    /// Counts the keys in these slots, excluding those that a running import hides.
    fn count_keys(&self, slots: &SlotSet) -> u64 {
        slots.iter().map(|slot| self.engine.keyspace.keys_in_slot(slot) as u64).sum()
    }

    /// Updates the entry of a job in the job list.
    fn update_job(&self, name: &JobName, update: impl FnOnce(&mut MigrationJob)) {
        if let Some(job) = self.jobs.lock().active_job_mut(name) {
            update(job);
        }
    }

    fn set_job_state(&self, name: &JobName, state: &'static str) {
        self.update_job(name, |job| {
            if job.state_name != state {
                (job.state_name, job.updated_at) = (state, time::now());
                if state == "failover-paused" {
                    job.paused_at = Some(job.updated_at);
                }
                tracing::info!("Slot migration {name}: {state}");
            }
        });
    }

    /// Records that a job has ended, and stores its final state and a message for CLUSTER GETSLOTMIGRATIONS.
    fn end_job(&self, name: &JobName, state: &'static str, message: &str) {
        let mut ended = None;
        self.update_job(name, |job| {
            (job.state_name, job.updated_at, job.is_active) = (state, time::now(), false);
            message.clone_into(&mut job.error);
            job.progress.remaining_bytes = 0;
            ended = Some(job.clone());
        });
        if let Some(job) = ended {
            self.pull_requests.lock().on_job_ended(&job);
        }
        self.trim_finished_jobs();
        self.job_channels.lock().remove(name);
        tracing::info!("Slot migration {name} finished: {state} {message}");
    }
}

/// Returns the AUTH command to send to other nodes; `None` if no authentication is configured.
fn auth_command(values: &Values) -> Option<Vec<u8>> {
    values[keys::MASTERAUTH].as_ref()?;
    let words = [&values[keys::MASTERUSER], &values[keys::MASTERAUTH]];
    let words = words.into_iter().flatten().map(|word| word.as_bytes());
    let words: Vec<&[u8]> = std::iter::once(&b"AUTH"[..]).chain(words).collect();
    let mut wire = Vec::new();
    encode_request(&mut wire, words);
    Some(wire)
}

fn random_job_name() -> JobName {
    JobName::from_bytes(random_repl_id().as_str().as_bytes()).expect("an identifier is a name")
}

fn add_job(
    migrations: &Migrations,
    jobs: &mut MigrationJobs,
    name: JobName,
    operation: JobDirection,
    ranges: Vec<(Slot, Slot)>,
    ends: Option<(NodeId, NodeId)>,
) {
    let state = match operation {
        JobDirection::Export => "connecting",
        JobDirection::Import => "waiting-for-ack",
    };
    migrations.job_channels.lock().insert(name, JobChannels::default());
    let job = MigrationJob::new(name, operation, ranges, ends, state, time::now());
    jobs.add(job, migrations.config.get(keys::CLUSTER_SLOT_MIGRATION_LOG_MAX_LEN));
}

/// Returns the current topology. Fails if this node is a replica.
fn topology_if_master(migrations: &Migrations) -> Result<Arc<Topology>, String> {
    let topology = migrations.engine.topology.as_ref().map(|topology| topology.load_full());
    let topology = topology.ok_or("ERR This instance has cluster support disabled")?;
    let is_master = !migrations.replication.is_replica();
    is_master.then_some(topology).ok_or_else(|| NOT_MASTER_ERROR.to_owned())
}

fn check_request_part(
    topology: &Topology,
    jobs: &MigrationJobs,
    part: SlotMoveElement<'_>,
) -> Result<(), String> {
    match part {
        SlotMoveElement::Slots(slots) => {
            let is_mine = |slot: Slot| topology.ownership(slot) == Ownership::Local;
            let mut owners = slots.iter().map(|slot| topology.owner(slot).map(|owner| owner.id));
            let first = owners.next();
            match jobs.find_busy_slot(slots) {
                _ if owners.any(|owner| Some(owner) != first) => {
                    Err("Requested slots span multiple shards".to_owned())
                }
                _ if !slots.iter().all(is_mine) => Err("Slots are not served by this node.".to_owned()),
                Some((slot, JobDirection::Export)) => Err(format!("I am already migrating slot {slot}.")),
                Some((_, JobDirection::Import)) | None => Ok(()),
            }
        }
        SlotMoveElement::Target(target) if topology.member(target).is_none() => {
            Err(format!("Unknown node name: {target}"))
        }
        SlotMoveElement::Target(target) if target == topology.myself => {
            Err("Target node can not be this node.".to_owned())
        }
        SlotMoveElement::Target(_) => Ok(()),
    }
}

fn check_no_manual_moves(topology: &Topology) -> Result<(), String> {
    match () {
        () if !topology.importing().is_empty() => Err("ERR Slots are being manually imported".to_owned()),
        () if !topology.migrating().is_empty() => Err("ERR Slots are being manually migrated".to_owned()),
        () => Ok(()),
    }
}

/// The maximum number of bytes read from a link at once.
const READ_BUFFER_SIZE: usize = 64 * 1024;

/// The connection between the source and the target of a job.
struct MigrationLink {
    reader: ReadHalf<Stream>,
    writer: WriteHalf<Stream>,
}

impl MigrationLink {
    fn new(stream: Stream) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        Self { reader, writer }
    }

    /// Reads some bytes. Returns no bytes at the end of the connection, and waits for ever if there is no link.
    async fn read(link: &mut Option<Self>) -> io::Result<Vec<u8>> {
        let Some(link) = link else { return pending().await };
        let mut bytes = Vec::with_capacity(READ_BUFFER_SIZE);
        link.reader.read_buf(&mut bytes).await?;
        Ok(bytes)
    }

    /// Sends bytes. Drops the link if it is broken or accepts nothing within `timeout`, and returns whether it was
    /// dropped.
    async fn write(link: &mut Option<Self>, bytes: &[u8], timeout: Duration) -> bool {
        let Some(open) = link else { return false };
        let written = tokio::time::timeout(timeout, open.writer.write_all(bytes)).await;
        let is_broken = !matches!(written, Ok(Ok(())));
        if is_broken {
            *link = None;
        }
        is_broken
    }
}

/// Waits until `deadline`, or for ever if there is none.
async fn wait_until_deadline(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep(at.since(time::monotonic_now())).await,
        None => pending().await,
    }
}

/// Starts the migration thread.
pub(crate) fn spawn_migration_thread(
    migrations: &Arc<Migrations>,
    stop_signal: StopSignal,
) -> std::io::Result<JoinHandle<()>> {
    let migrations = migrations.clone();
    std::thread::Builder::new().name("slot-migration".to_owned()).spawn(move || {
        net::scratch::install_scratch(&migrations.engine, &migrations.network);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a thread that cannot get its event loop cannot serve anybody");
        runtime.block_on(async move {
            tokio::select! {
                () = run_migration_thread(migrations) => {}
                () = stop_signal.wait_until_stopped() => {}
            }
        });
        runtime.shutdown_background();
    })
}

async fn run_migration_thread(migrations: Arc<Migrations>) {
    let inbox = migrations.task_receiver.lock().take();
    let mut inbox = inbox.expect("one thread takes the jobs");
    while let Some(task) = inbox.recv().await {
        let migrations = migrations.clone();
        match task {
            MigrationTask::Export(name, order) => {
                drop(tokio::spawn(export::run_export(migrations, name, order)));
            }
            MigrationTask::Import(import, connection, resumes) => {
                drop(tokio::spawn(import::run_import(migrations, import, *connection, resumes)));
            }
            MigrationTask::Pull(request, events) => {
                drop(tokio::spawn(pulling::run_pull(migrations, request, events)));
            }
            MigrationTask::DropImports(imports) => drop(tokio::spawn(async move {
                for left in imports {
                    let why = Err("A failover occurred during slot import".to_owned());
                    import::finish_import(&migrations, &left, &why).await;
                }
            })),
        }
    }
}
