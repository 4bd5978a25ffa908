//! Slots that move in one piece: the shell around the machines of the crate `migration`.
//!
//! Each job has a task on a thread of its own, on either side: [`export`] sends what the slots hold, by a snapshot, and
//! then the log as far as it is about them ([`filter`]); [`import`] runs what comes, hidden until the slots are claimed
//! ([`durability::stream::imports`]).

mod export;
mod filter;
mod import;
mod pulling;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;

use config::{Config, Values, keys};
use durability::Durability;
use durability::stream::random_repl_id;
use engine::{Commands, Engine};
use migration::{Establish, Job, JobDirection, JobName, Jobs, SlotMove, SlotMovePart};
use net::context::NetworkContext;
use net::detached_connection::DetachedConnection;
use net::pauses::PauseGate;
use parking_lot::Mutex;
use process::stop_signal::StopSignal;
use process::time;
use resp::encode_request;
use slot_routing::{NodeId, Ownership, Slot, SlotSet, Topology};
use tokio::sync::{Notify, mpsc};

use crate::cluster::{Cluster, Watcher};
use crate::replication::Replication;
pub(crate) use pulling::Pulled;
use pulling::Pulls;

/// A job for the thread.
#[derive(Debug)]
enum Task {
    Export(JobName, SlotMove),
    Import(Establish, Box<DetachedConnection>, mpsc::UnboundedReceiver<DetachedConnection>),
    /// Asks another node for slots.
    Pull(JobName),
    /// This node is the master now, and its master's imports have come to nothing.
    Drop(Vec<Establish>),
}

/// The way to the task of a job.
#[derive(Debug, Default)]
struct Way {
    /// Takes other links of the source, of an import that goes on with them.
    resume: Option<mpsc::UnboundedSender<DetachedConnection>>,
    cancelled: Arc<Notify>,
}

/// The jobs of this node.
#[derive(Debug)]
pub(crate) struct Migrations {
    engine: Arc<Engine>,
    commands: Arc<Commands>,
    config: Arc<Config>,
    network: Arc<NetworkContext>,
    pauses: Arc<PauseGate>,
    replication: Arc<Replication>,
    durability: Arc<Durability>,
    /// The cluster that slots are claimed from.
    cluster: Option<Cluster>,
    jobs: Mutex<Jobs>,
    tasks: mpsc::UnboundedSender<Task>,
    inbox: Mutex<Option<mpsc::UnboundedReceiver<Task>>>,
    /// The ways to the jobs that are under way.
    ways: Mutex<BTreeMap<JobName, Way>>,
    pulls: Mutex<Pulls>,
    /// A job was named or has ended.
    changed: Notify,
    /// Another topology was published.
    rerouted: Notify,
}

const NOT_MASTER: &str = "ERR Slot migration can only be used on primary nodes.";
const OTHERS_VIEW: &str = "ERR Target node does not agree about current slot ownership";

impl Watcher for Migrations {
    fn republished(&self) {
        self.rerouted.notify_waiters();
    }

    fn promoted(&self) {
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

    /// Whether a job of this kind is under way.
    pub(crate) fn is_active(&self, operation: JobDirection) -> bool {
        self.jobs.lock().active().any(|job| job.direction == operation)
    }

    /// All jobs that are known, the newest first.
    pub(crate) fn list(&self) -> Vec<Job> {
        self.jobs.lock().iter().cloned().collect()
    }

    /// Keeps as many jobs that have ended as `cluster-slot-migration-log-max-len` says now.
    pub(crate) fn trim_log(&self) {
        let most = self.config.get(keys::CLUSTER_SLOT_MIGRATION_LOG_MAX_LEN);
        self.jobs.lock().trim(most);
        self.replication.master_imports.trim(most);
    }

    /// Has the slots moved, all or none of these orders. An error is the whole text of the reply.
    pub(crate) fn begin_exports(&self, orders: Vec<SlotMove>) -> Result<(), String> {
        self.begin_named(orders.into_iter().map(|order| (new_name(), order)).collect())
    }

    /// Has slots moved to a node that asked for them, and has named the job.
    pub(crate) fn begin_requested(&self, name: JobName, order: SlotMove) -> Result<(), String> {
        if self.jobs.lock().active().any(|job| job.name == name) {
            return Err("ERR A slot migration by this name is under way".to_owned());
        }
        self.begin_named(vec![(name, order)])
    }

    /// Says of the parts of an order whether they can be carried out. An error here is the whole text of the reply: no
    /// order can be, while SETSLOT has any slot on the move here, since its marks and a job would decide over one slot.
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
            // While the server stops nothing moves any more.
            let _ = self.tasks.send(Task::Export(name, order));
        }
        Ok(())
    }

    /// Ends all exports; says whether there was any.
    pub(crate) fn cancel_exports(&self) -> bool {
        self.cancel_jobs(|job| job.direction == JobDirection::Export) > 0
    }

    /// Ends the jobs that are meant, and says how many those are.
    fn cancel_jobs(&self, is_meant: impl Fn(&Job) -> bool) -> usize {
        let (jobs, ways) = (self.jobs.lock(), self.ways.lock());
        let ended = jobs.active().filter(|job| is_meant(job)).filter_map(|job| ways.get(&job.name));
        ended.map(|way| way.cancelled.notify_one()).count()
    }

    /// Takes down a job that a source has named, if it may send its slots here. An error is the whole text of the reply.
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
        // Taken before the jobs elsewhere.
        drop(jobs);
        self.pulls.lock().on_named(import);
        self.changed.notify_waiters();
        Ok(())
    }

    /// Takes the connection of the source for a job that was accepted; an error is why it cannot be had.
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

    /// Whether an import by this name goes on with another link.
    pub(crate) fn is_resumable(&self, name: &JobName) -> bool {
        self.ways.lock().get(name).is_some_and(|way| way.resume.is_some())
    }

    /// Takes another connection of the source for an import that goes on with it.
    pub(crate) fn resume_import(&self, name: &JobName, connection: DetachedConnection) {
        if let Some(way) = self.ways.lock().get(name)
            && let Some(resume) = &way.resume
        {
            // One that has ended meanwhile closes it.
            let _ = resume.send(connection);
        }
    }

    /// This node is the master of data that another made, or that was loaded: imports that are under way in it have
    /// come to nothing.
    pub(crate) fn drop_imports(&self) {
        let left = self.replication.applied.imports.running();
        if !left.is_empty() {
            let _ = self.tasks.send(Task::Drop(left));
        }
    }

    /// Returns when a topology is published for which this holds.
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

    /// How many keys these slots have; none where they are hidden.
    fn keys_in(&self, slots: &SlotSet) -> u64 {
        slots.iter().map(|slot| self.engine.keyspace.keys_in_slot(slot) as u64).sum()
    }

    /// Takes down what a job is at.
    fn note(&self, name: &JobName, note: impl FnOnce(&mut Job)) {
        if let Some(job) = self.jobs.lock().active_mut(name) {
            note(job);
        }
    }

    /// A job is in this state.
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

    /// A job has ended.
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

/// The words by which a node logs in at another, if it does.
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

/// The topology of a master.
fn topology(migrations: &Migrations) -> Result<Arc<Topology>, String> {
    let topology = migrations.engine.topology.as_ref().map(|topology| topology.load_full());
    let topology = topology.ok_or("ERR This instance has cluster support disabled")?;
    let is_master = !migrations.replication.is_replica();
    is_master.then_some(topology).ok_or_else(|| NOT_MASTER.to_owned())
}

fn check_part(topology: &Topology, jobs: &Jobs, part: SlotMovePart<'_>) -> Result<(), String> {
    match part {
        SlotMovePart::Slots(slots) => {
            let is_mine = |slot: Slot| topology.ownership(slot) == Ownership::Mine;
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

/// Whether the shard of `node` serves all these slots.
fn serves(topology: &Topology, node: NodeId, slots: &SlotSet) -> bool {
    let Some(shard) = topology.member(node).map(|member| member.shard) else { return false };
    slots.iter().all(|slot| topology.owner(slot).is_some_and(|owner| owner.shard == shard))
}

/// Starts the thread of the jobs.
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
