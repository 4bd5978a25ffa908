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
use engine::{Commands, Engine};
use migration::{Establish, Job, JobDirection, JobName, Jobs, SlotMove, SlotMovePart, SlotsOfCommand};
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

use crate::cluster::{Cluster, ClusterWatcher};
use crate::replication::Replication;
use pulling::PullRequests;
pub(crate) use pulling::PullTask;

/// A task that the migration thread is to start.
#[derive(Debug)]
enum Task {
    Export(JobName, SlotMove),
    Import(Establish, Box<DetachedConnection>, mpsc::UnboundedReceiver<DetachedConnection>),
    /// Requests slots from another node (CLUSTER MIGRATION).
    Pull(JobName),
    /// Discards the previous master's imports after this replica was promoted.
    Drop(Vec<Establish>),
}

/// Channels from other threads to the task of a job.
#[derive(Debug, Default)]
struct Way {
    /// Passes a new connection of the source to an import whose connection broke.
    resume: Option<mpsc::UnboundedSender<DetachedConnection>>,
    cancelled: Arc<Notify>,
}

/// The migration jobs of this node, accessible from all threads.
#[derive(Debug)]
pub(crate) struct Migrations {
    engine: Arc<Engine>,
    commands: Arc<Commands>,
    config: Arc<Config>,
    network: Arc<NetworkContext>,
    pauses: Arc<PauseGate>,
    replication: Arc<Replication>,
    durability: Arc<Durability>,
    /// The handle with which imported slots are claimed; `None` outside of cluster mode.
    cluster: Option<Cluster>,
    jobs: Mutex<Jobs>,
    tasks: mpsc::UnboundedSender<Task>,
    inbox: Mutex<Option<mpsc::UnboundedReceiver<Task>>>,
    /// The channels to the running jobs by name.
    ways: Mutex<BTreeMap<JobName, Way>>,
    pulls: Mutex<PullRequests>,
    /// Signalled when a job was added or has ended.
    changed: Notify,
    /// Signalled when a new topology was published.
    rerouted: Notify,
}

const NOT_MASTER: &str = "ERR Slot migration can only be used on primary nodes.";
const OTHERS_VIEW: &str = "ERR Target node does not agree about current slot ownership";

impl ClusterWatcher for Migrations {
    fn topology_published(&self) {
        self.rerouted.notify_waiters();
    }

    fn node_promoted(&self) {
        self.drop_imports();
    }
}

impl Migrations {
    pub(crate) fn new(
        (engine, commands): (Arc<Engine>, Arc<Commands>),
        config: Arc<Config>,
        (network, pauses): (Arc<NetworkContext>, Arc<PauseGate>),
        (replication, durability): (Arc<Replication>, Arc<Durability>),
        cluster: Option<Cluster>,
    ) -> Self {
        let (tasks, inbox) = mpsc::unbounded_channel();
        Self {
            engine,
            commands,
            config,
            network,
            pauses,
            replication,
            durability,
            cluster,
            jobs: Mutex::default(),
            tasks,
            inbox: Mutex::new(Some(inbox)),
            ways: Mutex::default(),
            pulls: Mutex::default(),
            changed: Notify::new(),
            rerouted: Notify::new(),
        }
    }

    pub(crate) fn is_active(&self, operation: JobDirection) -> bool {
        self.jobs.lock().active().any(|job| job.direction == operation)
    }

    pub(crate) fn list(&self) -> Vec<Job> {
        self.jobs.lock().iter().cloned().collect()
    }

    /// Removes finished jobs beyond `cluster-slot-migration-log-max-len`.
    pub(crate) fn trim_log(&self) {
        let most = self.config.get(keys::CLUSTER_SLOT_MIGRATION_LOG_MAX_LEN);
        self.jobs.lock().trim(most);
        self.replication.master_imports.drop_old(most);
    }

    /// Starts an export for each request, or none if one is refused. The error is the complete reply text.
    pub(crate) fn begin_exports(&self, orders: Vec<SlotMove>) -> Result<(), String> {
        self.begin_named(orders.into_iter().map(|order| (new_name(), order)).collect())
    }

    /// Starts an export that the target requested. The target has chosen the job's name.
    pub(crate) fn begin_requested(&self, name: JobName, order: SlotMove) -> Result<(), String> {
        if self.jobs.lock().active().any(|job| job.name == name) {
            return Err("ERR A slot migration by this name is under way".to_owned());
        }
        self.begin_named(vec![(name, order)])
    }

    /// Returns a function that checks each part of a request. The error is a complete reply text. No migration may
    /// start while SETSLOT has marked a slot here as migrating or importing, because both would change that slot's
    /// owner.
    pub(crate) fn order_checks(&self) -> Result<impl Fn(SlotMovePart<'_>) -> Result<(), String>, String> {
        let topology = topology(self)?;
        check_no_manual_moves(&topology)?;
        Ok(move |part: SlotMovePart<'_>| check_part(&topology, &self.jobs.lock(), part))
    }

    fn begin_named(&self, orders: Vec<(JobName, SlotMove)>) -> Result<(), String> {
        let topology = topology(self)?;
        check_no_manual_moves(&topology)?;
        let mut jobs = self.jobs.lock();
        for (_, order) in &orders {
            let slots = order.slots();
            for part in [SlotMovePart::Slots(&slots), SlotMovePart::Target(order.target)] {
                check_part(&topology, &jobs, part).map_err(|error| format!("ERR {error}"))?;
            }
        }
        for (name, order) in orders {
            let ends = Some((topology.myself, order.target));
            add(self, &mut jobs, (name, JobDirection::Export), order.ranges.clone(), ends);
            let slots = jobs.iter().next().map(Job::ranges_text).unwrap_or_default();
            tracing::info!("Slot migration {name} begins: slots {slots} go to {}", order.target);
            // A send error means that the server is stopping, so no migration starts.
            let _ = self.tasks.send(Task::Export(name, order));
        }
        Ok(())
    }

    /// Cancels all exports. Returns false if there were none.
    pub(crate) fn cancel_exports(&self) -> bool {
        self.cancel_jobs(|job| job.direction == JobDirection::Export) > 0
    }

    /// Cancels the matching jobs and returns their number.
    fn cancel_jobs(&self, is_meant: impl Fn(&Job) -> bool) -> usize {
        let (jobs, ways) = (self.jobs.lock(), self.ways.lock());
        let ended = jobs.active().filter(|job| is_meant(job)).filter_map(|job| ways.get(&job.name));
        ended.map(|way| way.cancelled.notify_one()).count()
    }

    /// Records an import that a source announces, if that source may send its slots here. The error is a complete reply
    /// text.
    pub(crate) fn accept_import(&self, import: &Establish) -> Result<(), String> {
        let topology = topology(self)?;
        let slots = import.slots();
        if import.source == topology.myself {
            return Err("ERR Source node is target node itself".to_owned());
        }
        check_no_manual_moves(&topology)?;
        let theirs = |slot: Slot| topology.owner(slot).is_some_and(|owner| owner.id == import.source);
        if !slots.iter().all(theirs) {
            return Err(OTHERS_VIEW.to_owned());
        }
        let mut jobs = self.jobs.lock();
        if let Some((slot, _)) = jobs.busy_slot(&slots) {
            return Err(format!("ERR I am already importing slot {slot}."));
        }
        let ends = Some((import.source, topology.myself));
        add(self, &mut jobs, (import.name, JobDirection::Import), import.ranges.clone(), ends);
        // The job list is unlocked before the pull requests are locked, because other code locks them in the opposite
        // order.
        drop(jobs);
        self.pulls.lock().on_named(import);
        self.changed.notify_waiters();
        Ok(())
    }

    /// Starts an accepted import. If the source's connection could not be taken over, the import fails.
    pub(crate) fn begin_import(&self, import: Establish, connection: std::io::Result<DetachedConnection>) {
        match connection {
            Ok(connection) => {
                let (resume, resumes) = mpsc::unbounded_channel();
                if let Some(way) = self.ways.lock().get_mut(&import.name) {
                    way.resume = import.resumable.then_some(resume);
                }
                drop(self.tasks.send(Task::Import(import, Box::new(connection), resumes)));
            }
            Err(error) => self.end(&import.name, "failed", &error.to_string()),
        }
    }

    /// Returns whether the import with this name can resume over another connection.
    pub(crate) fn is_resumable(&self, name: &JobName) -> bool {
        self.ways.lock().get(name).is_some_and(|way| way.resume.is_some())
    }

    /// Passes a new connection of the source to a resuming import.
    pub(crate) fn resume_import(&self, name: &JobName, connection: DetachedConnection) {
        if let Some(way) = self.ways.lock().get(name)
            && let Some(resume) = &way.resume
        {
            // A send error means that the import has ended. The connection is then closed.
            let _ = resume.send(connection);
        }
    }

    /// Discards the imports contained in loaded data or received from a former master, because they cannot complete.
    pub(crate) fn drop_imports(&self) {
        let left = self.replication.applied_stream.imports.running_imports();
        if !left.is_empty() {
            let _ = self.tasks.send(Task::Drop(left));
        }
    }

    /// Waits until `condition` returns true. The condition is checked again whenever a topology is published.
    pub(crate) async fn when_routed(&self, holds: impl Fn() -> bool) {
        loop {
            let rerouted = self.rerouted.notified();
            tokio::pin!(rerouted);
            rerouted.as_mut().enable();
            if holds() {
                return;
            }
            rerouted.await;
        }
    }

    /// Counts the keys in these slots, excluding those that a running import hides.
    fn keys_in(&self, slots: &SlotSet) -> u64 {
        slots.iter().map(|slot| self.engine.keyspace.keys_in_slot(slot) as u64).sum()
    }

    /// Updates the entry of a job in the job list.
    fn note(&self, name: &JobName, note: impl FnOnce(&mut Job)) {
        if let Some(job) = self.jobs.lock().active_mut(name) {
            note(job);
        }
    }

    fn note_state(&self, name: &JobName, state: &'static str) {
        self.note(name, |job| {
            if job.state != state {
                (job.state, job.updated) = (state, time::now());
                if state == "failover-paused" {
                    job.paused = Some(job.updated);
                }
                tracing::info!("Slot migration {name}: {state}");
            }
        });
    }

    /// Records that a job has ended, and stores its final state and a message for CLUSTER GETSLOTMIGRATIONS.
    fn end(&self, name: &JobName, state: &'static str, message: &str) {
        self.note(name, |job| {
            (job.state, job.updated, job.is_active) = (state, time::now(), false);
            message.clone_into(&mut job.message);
            job.progress.remaining = 0;
        });
        self.trim_log();
        self.ways.lock().remove(name);
        self.changed.notify_waiters();
        tracing::info!("Slot migration {name} finished: {state} {message}");
    }
}

/// Returns the AUTH command to send to other nodes; `None` if no authentication is configured.
fn credentials(values: &Values) -> Option<Vec<u8>> {
    values[keys::MASTERAUTH].as_ref()?;
    let words = [&values[keys::MASTERUSER], &values[keys::MASTERAUTH]];
    let words = words.into_iter().flatten().map(|word| word.as_bytes());
    let words: Vec<&[u8]> = std::iter::once(&b"AUTH"[..]).chain(words).collect();
    let mut wire = Vec::new();
    encode_request(&mut wire, words);
    Some(wire)
}

fn new_name() -> JobName {
    JobName::from_bytes(random_repl_id().as_str().as_bytes()).expect("an identifier is a name")
}

fn add(
    migrations: &Migrations,
    jobs: &mut Jobs,
    (name, operation): (JobName, JobDirection),
    ranges: Vec<(Slot, Slot)>,
    ends: Option<(NodeId, NodeId)>,
) {
    let state = match operation {
        JobDirection::Export => "connecting",
        JobDirection::Import => "waiting-for-ack",
    };
    migrations.ways.lock().insert(name, Way::default());
    let job = Job::new((name, operation), ranges, ends, state, time::now());
    jobs.add(job, migrations.config.get(keys::CLUSTER_SLOT_MIGRATION_LOG_MAX_LEN));
}

/// Returns the current topology. Fails if this node is a replica.
fn topology(migrations: &Migrations) -> Result<Arc<Topology>, String> {
    let topology = migrations.engine.topology.as_ref().map(|topology| topology.load_full());
    let topology = topology.ok_or("ERR This instance has cluster support disabled")?;
    let is_master = !migrations.replication.is_replica();
    is_master.then_some(topology).ok_or_else(|| NOT_MASTER.to_owned())
}

fn check_part(topology: &Topology, jobs: &Jobs, part: SlotMovePart<'_>) -> Result<(), String> {
    match part {
        SlotMovePart::Slots(slots) => {
            let is_mine = |slot: Slot| topology.ownership(slot) == Ownership::Local;
            let mut owners = slots.iter().map(|slot| topology.owner(slot).map(|owner| owner.id));
            let first = owners.next();
            match jobs.busy_slot(slots) {
                _ if owners.any(|owner| Some(owner) != first) => {
                    Err("Requested slots span multiple shards".to_owned())
                }
                _ if !slots.iter().all(is_mine) => Err("Slots are not served by this node.".to_owned()),
                Some((slot, JobDirection::Export)) => Err(format!("I am already migrating slot {slot}.")),
                Some((_, JobDirection::Import)) | None => Ok(()),
            }
        }
        SlotMovePart::Target(target) if topology.member(target).is_none() => {
            Err(format!("Unknown node name: {target}"))
        }
        SlotMovePart::Target(target) if target == topology.myself => {
            Err("Target node can not be this node.".to_owned())
        }
        SlotMovePart::Target(_) => Ok(()),
    }
}

fn check_no_manual_moves(topology: &Topology) -> Result<(), String> {
    match () {
        () if !topology.importing().is_empty() => Err("ERR Slots are being manually imported".to_owned()),
        () if !topology.migrating().is_empty() => Err("ERR Slots are being manually migrated".to_owned()),
        () => Ok(()),
    }
}

/// Returns a function that finds the slots of a command's keys with the command table.
fn slots_of_command(commands: &Arc<Commands>) -> SlotsOfCommand {
    let commands = commands.clone();
    SlotsOfCommand::new(move |args, visit| {
        commands.key_slots(args).unwrap_or_default().into_iter().for_each(visit);
    })
}

/// The maximum number of bytes read from a link at once.
const READ_SIZE: usize = 64 * 1024;

/// The connection between the source and the target of a job.
struct Link {
    reader: ReadHalf<Stream>,
    writer: WriteHalf<Stream>,
}

impl Link {
    fn new(stream: Stream) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        Self { reader, writer }
    }

    /// Reads some bytes. Returns no bytes at the end of the connection, and waits for ever if there is no link.
    async fn read(link: &mut Option<Self>) -> io::Result<Vec<u8>> {
        let Some(link) = link else { return pending().await };
        let mut bytes = Vec::with_capacity(READ_SIZE);
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
async fn next_wakeup(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep(at.since(time::instant())).await,
        None => pending().await,
    }
}

/// Starts the migration thread.
pub(crate) fn spawn(migrations: &Arc<Migrations>, stopping: StopSignal) -> std::io::Result<JoinHandle<()>> {
    let migrations = migrations.clone();
    std::thread::Builder::new().name("slot-migration".to_owned()).spawn(move || {
        net::scratch::install_scratch(&migrations.engine, &migrations.network);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a thread that cannot get its event loop cannot serve anybody");
        runtime.block_on(async move {
            tokio::select! {
                () = run(migrations) => {}
                () = stopping.stopped() => {}
            }
        });
        runtime.shutdown_background();
    })
}

async fn run(migrations: Arc<Migrations>) {
    let inbox = migrations.inbox.lock().take();
    let mut inbox = inbox.expect("one thread takes the jobs");
    while let Some(task) = inbox.recv().await {
        let migrations = migrations.clone();
        match task {
            Task::Export(name, order) => drop(tokio::spawn(export::run(migrations, name, order))),
            Task::Import(import, connection, resumes) => {
                drop(tokio::spawn(import::run(migrations, import, *connection, resumes)));
            }
            Task::Pull(name) => drop(tokio::spawn(pulling::run(migrations, name))),
            Task::Drop(imports) => drop(tokio::spawn(async move {
                for left in imports {
                    let why = Err("A failover occurred during slot import".to_owned());
                    import::drop_keys(&migrations, &left, &why).await;
                }
            })),
        }
    }
}
