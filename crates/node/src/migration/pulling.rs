//! CLUSTER MIGRATION: requests slots from other nodes. Performs the actions of [`migration::PullDriver`] and shows the
//! tasks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use clock::Millis;
use config::keys;
use driver::Driver;
use migration::pull::{PullAction, PullEvent, PullOutcome};
use migration::{
    EstablishMessage, JobDirection, JobName, MigrationJob, MigrationProgress, PullDriver, SlotMove,
    SyncSlotsCommand,
};
use net::dialer::Dialer;
use process::time;
use resp::{Value, encode_request, parse_value};
use slot_routing::{NodeId, Slot, SlotSet, Topology};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use super::{MigrationTask, Migrations, random_job_name, topology_if_master, wait_until_deadline};

/// How long a source may take to reply to a request.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of finished tasks that are kept for STATUS.
const MAX_FINISHED_TASKS: usize = 100;
/// The maximum length of a reply in bytes.
const MAX_REPLY_BYTES: usize = 64 * 1024;

/// A task of CLUSTER MIGRATION as STATUS shows it. Unknown times are 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PullTask {
    pub(crate) id: JobName,
    /// Slot ranges, such as `0-10 20-22`.
    pub(crate) slots: String,
    /// The source and the target node; `None` on a replica, which does not know them.
    pub(crate) endpoints: Option<(NodeId, NodeId)>,
    pub(crate) is_import: bool,
    pub(crate) state: &'static str,
    pub(crate) last_error: String,
    pub(crate) retries: u32,
    pub(crate) created_at: Millis,
    pub(crate) started_at: Millis,
    pub(crate) ended_at: Millis,
    /// How long the source paused writes, in milliseconds.
    pub(crate) pause_millis: i64,
    pub(crate) progress: MigrationProgress,
}

impl PullTask {
    fn from_job(job: &MigrationJob) -> Self {
        let ended = if job.is_active { Millis(0) } else { job.updated_at };
        let is_import = job.direction == JobDirection::Import;
        let is_completed = job.state_name == "success";
        let paused = job.paused_at.filter(|_| is_completed && !is_import);
        Self {
            id: job.name,
            slots: job.ranges_text(),
            endpoints: job.source_and_target,
            is_import,
            state: match job.state_name {
                "success" => "completed",
                "cancelled" => "canceled",
                other => other,
            },
            last_error: job.error.clone(),
            retries: 0,
            created_at: job.created_at,
            started_at: job.created_at,
            ended_at: ended,
            pause_millis: paused.map_or(0, |paused| ended.0 - paused.0),
            progress: job.progress,
        }
    }
}

/// A request for slots that another node serves.
#[derive(Debug)]
pub(super) struct PullRequest {
    id: JobName,
    slot_move: SlotMove,
    source: NodeId,
}

/// The entry of a request in the list of tasks.
#[derive(Debug)]
struct PullEntry {
    task: PullTask,
    slots: SlotSet,
    source: NodeId,
    /// The running job that the source has started for this request.
    job: Option<JobName>,
    event_sender: mpsc::UnboundedSender<PullEvent>,
    is_finished: bool,
}

impl PullEntry {
    fn report(&self, event: PullEvent) {
        // A send error means that the request has ended.
        let _ = self.event_sender.send(event);
    }
}

/// The requests of CLUSTER MIGRATION by name.
#[derive(Debug, Default)]
pub(super) struct PullRequests(BTreeMap<JobName, PullEntry>);

impl PullRequests {
    /// Handles a job announced by a source. The job may belong to one of the requests.
    pub(super) fn on_job_announced(&mut self, import: &EstablishMessage) {
        let slots = import.slots();
        let is_for = |entry: &&mut PullEntry| {
            !entry.is_finished && entry.source == import.source && entry.slots == slots
        };
        if let Some(entry) = self.0.values_mut().find(is_for) {
            entry.job = Some(import.name);
            entry.report(PullEvent::MigrationStarted(import.name));
        }
    }

    /// Handles the end of a job, which may belong to one of the requests.
    pub(super) fn on_job_ended(&mut self, job: &MigrationJob) {
        if let Some(entry) = self.0.values_mut().find(|entry| entry.job == Some(job.name)) {
            let result = if job.state_name == "success" { Ok(()) } else { Err(job.error.clone()) };
            (entry.job, entry.task.progress) = (None, job.progress);
            entry.report(PullEvent::MigrationEnded(job.name, result));
        }
    }

    /// Returns the requests that are not finished.
    fn active(&self) -> impl Iterator<Item = &PullEntry> {
        self.0.values().filter(|entry| !entry.is_finished)
    }

    /// Adds a request, and removes the oldest finished requests beyond the maximum.
    fn add(&mut self, entry: PullEntry) {
        self.0.insert(entry.task.id, entry);
        let mut ended: Vec<(Millis, JobName)> = self
            .0
            .values()
            .filter(|entry| entry.is_finished)
            .map(|one| (one.task.created_at, one.task.id))
            .collect();
        ended.sort_unstable_by_key(|(created, _)| std::cmp::Reverse(*created));
        for (_, name) in ended.into_iter().skip(MAX_FINISHED_TASKS) {
            self.0.remove(&name);
        }
    }
}

impl Migrations {
    /// Requests these slots from the node that serves them. Returns the name of the task. The error is a complete reply
    /// text, the same as in Redis.
    pub(crate) fn request_slots(&self, ranges: Vec<(Slot, Slot)>) -> Result<JobName, String> {
        let topology =
            topology_if_master(self).map_err(|_| "ERR slot migration not allowed on replica.".to_owned())?;
        if !topology.importing().is_empty() || !topology.migrating().is_empty() {
            return Err("ERR all slot states must be STABLE to start a slot migration task.".to_owned());
        }
        let order = SlotMove { ranges, target: topology.myself };
        let source = owner_of(&topology, &order.slots())?;
        if source == topology.myself {
            return Err("ERR this node is already the owner of the slot range".to_owned());
        }
        let mut pulls = self.pull_requests.lock();
        // A task that waits for its next retry does not block a new request for the same slots.
        let waits = |entry: &PullEntry| entry.job.is_none() && !entry.task.last_error.is_empty();
        if !pulls.active().all(waits) || self.jobs.lock().active_jobs().next().is_some() {
            return Err("ERR another ASM task is already in progress".to_owned());
        }
        pulls.active().for_each(|entry| entry.report(PullEvent::Cancel));
        let (id, now) = (random_job_name(), time::now());
        let ends = Some((source, order.target));
        let job = MigrationJob::new(id, JobDirection::Import, order.ranges.clone(), ends, "connecting", now);
        let (event_sender, events) = mpsc::unbounded_channel();
        pulls.add(PullEntry {
            task: PullTask::from_job(&job),
            slots: order.slots(),
            source,
            job: None,
            event_sender,
            is_finished: false,
        });
        // A send error means that the server is stopping, so no migration starts.
        let _ =
            self.task_sender.send(MigrationTask::Pull(PullRequest { id, slot_move: order, source }, events));
        Ok(id)
    }

    /// Cancels the named task, or all tasks if `name` is `None`. Returns the number of running tasks that were
    /// cancelled.
    pub(crate) fn cancel_pulls(&self, name: Option<JobName>) -> usize {
        let pulls = self.pull_requests.lock();
        let is_meant = |id: JobName| name.is_none_or(|name| name == id);
        let entries: Vec<&PullEntry> = pulls.active().filter(|entry| is_meant(entry.task.id)).collect();
        entries.iter().for_each(|entry| entry.report(PullEvent::Cancel));
        let of_demands: Vec<JobName> = entries.iter().filter_map(|entry| entry.job).collect();
        entries.len() + self.cancel_jobs(|job| is_meant(job.name) && !of_demands.contains(&job.name))
    }

    /// Returns the named task, or all tasks if `name` is `None`, newest first.
    pub(crate) fn list_pull_tasks(&self, name: Option<JobName>) -> Vec<PullTask> {
        let (pulls, jobs) = (self.pull_requests.lock(), self.jobs.lock());
        let task_of = |entry: &PullEntry| {
            let mut shown = entry.task.clone();
            let job =
                entry.job.and_then(|job| jobs.get(&job)).filter(|job| job.is_active && !entry.is_finished);
            if let Some(job) = job {
                (shown.state, shown.progress) = (PullTask::from_job(job).state, job.progress);
            } else if !entry.is_finished && !shown.last_error.is_empty() {
                shown.state = "failed";
            }
            shown
        };
        let mut all: Vec<PullTask> = pulls.0.values().map(task_of).collect();
        let known: Vec<JobName> =
            pulls.0.values().flat_map(|one| [Some(one.task.id), one.job]).flatten().collect();
        all.extend(jobs.iter().filter(|job| !known.contains(&job.name)).map(PullTask::from_job));
        all.retain(|shown| name.is_none_or(|name| name == shown.id));
        all.sort_by_key(|shown| std::cmp::Reverse(shown.created_at));
        all
    }
}

/// Returns the node that serves all of these slots. The error is a complete reply text.
fn owner_of(topology: &Topology, slots: &SlotSet) -> Result<NodeId, String> {
    let mut source = None;
    for slot in slots.iter() {
        let owner = topology.owner(slot).ok_or_else(|| format!("ERR slot has no owner: {slot}"))?;
        if *source.get_or_insert(owner.id) != owner.id {
            return Err("ERR slots belong to different source nodes".to_owned());
        }
    }
    source.ok_or_else(|| "ERR Invalid or out of range slot".to_owned())
}

/// Runs a request to its end.
pub(super) async fn run_pull(
    migrations: Arc<Migrations>,
    request: PullRequest,
    mut events: mpsc::UnboundedReceiver<PullEvent>,
) {
    let (mut driver, mut actions) = PullDriver::new(&request.slot_move, request.source);
    let mut event = None;
    loop {
        // Registered before the topology is read, so that no change is missed.
        let rerouted = migrations.topology_changed.notified();
        tokio::pin!(rerouted);
        rerouted.as_mut().enable();
        for event in event.take().into_iter().chain(topology_event(&migrations)) {
            driver.handle(time::monotonic_now(), event, &mut actions);
            if let Some(outcome) = perform_actions(&migrations, &request, &mut driver, &mut actions).await {
                return finish_request(&migrations, &request.id, &driver, outcome);
            }
        }
        event = tokio::select! {
            () = rerouted => None,
            Some(reported) = events.recv() => Some(reported),
            () = wait_until_deadline(driver.next_deadline()) => Some(PullEvent::Deadline),
        };
    }
}

fn topology_event(migrations: &Migrations) -> Option<PullEvent> {
    let topology = migrations.engine.topology.as_ref()?.load_full();
    Some(PullEvent::Topology { topology, is_replica: migrations.replication.is_replica() })
}

/// Performs the actions and those that result from them. Returns how the request has ended, if it has.
async fn perform_actions(
    migrations: &Migrations,
    request: &PullRequest,
    driver: &mut PullDriver,
    actions: &mut Vec<PullAction>,
) -> Option<PullOutcome> {
    while !actions.is_empty() {
        for action in std::mem::take(actions) {
            match action {
                PullAction::SendRequest => {
                    let reply = tokio::time::timeout(REPLY_TIMEOUT, request_job(migrations, request)).await;
                    let reply = reply.unwrap_or_else(|_| Err("The source did not answer".to_owned()));
                    driver.handle(time::monotonic_now(), PullEvent::RequestAnswered(reply), actions);
                }
                PullAction::CancelMigration(name) => {
                    migrations.cancel_jobs(|job| job.name == name);
                }
                PullAction::End(outcome) => return Some(outcome),
            }
        }
    }
    if let Some(entry) = migrations.pull_requests.lock().0.get_mut(&request.id) {
        (entry.task.retries, entry.task.last_error) = (driver.retry_count(), driver.last_error().to_owned());
    }
    None
}

fn finish_request(migrations: &Migrations, id: &JobName, driver: &PullDriver, outcome: PullOutcome) {
    let (state, why) = match outcome {
        PullOutcome::Completed => ("completed", String::new()),
        PullOutcome::Cancelled => ("canceled", driver.last_error().to_owned()),
        PullOutcome::Failed(why) => ("failed", why),
    };
    if let Some(entry) = migrations.pull_requests.lock().0.get_mut(id) {
        (entry.is_finished, entry.task.state, entry.task.ended_at) = (true, state, time::now());
        entry.task.retries = driver.retry_count();
        entry.task.last_error.clone_from(&why);
    }
    tracing::info!("Import task {id} {state} {why}");
}

/// Requests that the source start a job. A Valkey node receives an operator's command and chooses the job's name
/// itself.
async fn request_job(migrations: &Migrations, request: &PullRequest) -> Result<(), String> {
    let PullRequest { id, slot_move, source } = request;
    let dialer = Dialer::with_link_tls(&migrations.config, &migrations.network.tls, keys::TLS_CLUSTER);
    let tls = migrations.config.get(keys::TLS_CLUSTER);
    let topology = topology_if_master(migrations)?;
    let endpoint = topology.member(*source).map(|member| &member.endpoint);
    let endpoint = endpoint.ok_or("the source is not known")?;
    let address = (endpoint.ip.as_str(), endpoint.node_port(tls));
    let timeout = migrations.config.get(keys::CLUSTER_NODE_TIMEOUT);
    let mut stream = dialer.dial(address, timeout).await.map_err(|error| error.to_string())?;
    let mut call = async |wire: Vec<u8>| -> Result<Value, String> {
        stream.write_all(&wire).await.map_err(|error| error.to_string())?;
        let mut received = Vec::new();
        loop {
            match parse_value(&received) {
                Ok(Some((value, _))) => return Ok(value),
                Ok(None) if received.len() <= MAX_REPLY_BYTES => {}
                Ok(None) | Err(_) => return Err("malformed reply from the source node".to_owned()),
            }
            let read = stream.read_buf(&mut received).await.map_err(|error| error.to_string())?;
            if read == 0 {
                return Err("The source closed the connection".to_owned());
            }
        }
    };
    if let Some(credentials) = super::auth_command(&migrations.config.values())
        && let Value::Error(text) = call(credentials).await?
    {
        return Err(text);
    }
    let answer = match call(SyncSlotsCommand::Request(*id, slot_move.clone()).to_resp()).await? {
        Value::Error(text) if text == "ERR syntax error" => call(encode_migrate_slots(slot_move)).await?,
        answer => answer,
    };
    match answer {
        Value::Error(text) => Err(text),
        _ => Ok(()),
    }
}

/// Encodes CLUSTER MIGRATESLOTS as an operator would send it.
fn encode_migrate_slots(slot_move: &SlotMove) -> Vec<u8> {
    let slots = slot_move.ranges.iter().flat_map(|(first, last)| [first.to_string(), last.to_string()]);
    let head = ["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE"].map(str::to_owned).into_iter();
    let words: Vec<String> =
        head.chain(slots).chain(["NODE".to_owned(), slot_move.target.to_string()]).collect();
    let mut wire = Vec::new();
    encode_request(&mut wire, words.iter().map(String::as_bytes));
    wire
}
