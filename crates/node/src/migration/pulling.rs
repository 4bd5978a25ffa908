//! CLUSTER MIGRATION: requests slots from other nodes and tracks the resulting jobs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use clock::Millis;
use config::keys;
use driver::Driver;
use migration::pull::{PullAction, PullEvent, PullOutcome};
use migration::{
    EstablishMessage, JobDirection, JobName, MigrationJob, MigrationProgress, PullStateMachine, SlotMove,
    SyncSlotsCommand,
};
use net::dialer::Dialer;
use process::time;
use resp::{Value, encode_request, parse_value};
use slot_routing::{NodeId, Slot, SlotSet, Topology};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;

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
struct SlotRequest {
    task: PullTask,
    slot_move: SlotMove,
    source: NodeId,
    /// The latest job that the source has started for this request.
    job: Option<JobName>,
    cancel_signal: Arc<Notify>,
    is_finished: bool,
}

#[derive(Debug, Default)]
pub(super) struct PullRequests(BTreeMap<JobName, SlotRequest>);

impl PullRequests {
    /// Handles a job announced by a source. The job may belong to one of the requests.
    pub(super) fn on_job_announced(&mut self, import: &EstablishMessage) {
        let slots = import.slots();
        let is_for = |slot_request: &&mut SlotRequest| {
            !slot_request.is_finished
                && slot_request.source == import.source
                && slot_request.slot_move.slots() == slots
        };
        if let Some(slot_request) = self.0.values_mut().find(is_for) {
            slot_request.job = Some(import.name);
        }
    }

    /// Returns the requests that are not finished.
    fn active(&self) -> impl Iterator<Item = &SlotRequest> {
        self.0.values().filter(|slot_request| !slot_request.is_finished)
    }

    /// Adds a request, and removes the oldest finished requests beyond the maximum.
    fn add(&mut self, slot_request: SlotRequest) {
        self.0.insert(slot_request.task.id, slot_request);
        let mut ended: Vec<(Millis, JobName)> = self
            .0
            .values()
            .filter(|slot_request| slot_request.is_finished)
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
        let waits = |slot_request: &SlotRequest| {
            slot_request.job.is_none() && !slot_request.task.last_error.is_empty()
        };
        if !pulls.active().all(waits) || self.jobs.lock().active().next().is_some() {
            return Err("ERR another ASM task is already in progress".to_owned());
        }
        pulls.active().for_each(|slot_request| slot_request.cancel_signal.notify_one());
        let (id, now) = (random_job_name(), time::now());
        let ends = Some((source, order.target));
        let job = MigrationJob::new(id, JobDirection::Import, order.ranges.clone(), ends, "connecting", now);
        let (shown, cancelled) = (PullTask::from_job(&job), Arc::default());
        pulls.add(SlotRequest {
            task: shown,
            slot_move: order,
            source,
            job: None,
            cancel_signal: cancelled,
            is_finished: false,
        });
        // A send error means that the server is stopping, so no migration starts.
        let _ = self.task_sender.send(MigrationTask::Pull(id));
        Ok(id)
    }

    /// Cancels the named task, or all tasks if `name` is `None`. Returns the number of running tasks that were
    /// cancelled.
    pub(crate) fn cancel_pulls(&self, name: Option<JobName>) -> usize {
        let pulls = self.pull_requests.lock();
        let is_meant = |id: JobName| name.is_none_or(|name| name == id);
        let slot_requests: Vec<&SlotRequest> =
            pulls.active().filter(|slot_request| is_meant(slot_request.task.id)).collect();
        slot_requests.iter().for_each(|slot_request| slot_request.cancel_signal.notify_one());
        let of_demands: Vec<JobName> =
            slot_requests.iter().filter_map(|slot_request| slot_request.job).collect();
        slot_requests.len() + self.cancel_jobs(|job| is_meant(job.name) && !of_demands.contains(&job.name))
    }

    /// Returns the named task, or all tasks if `name` is `None`, newest first.
    pub(crate) fn list_pull_tasks(&self, name: Option<JobName>) -> Vec<PullTask> {
        let (pulls, jobs) = (self.pull_requests.lock(), self.jobs.lock());
        let task_of = |slot_request: &SlotRequest| {
            let mut shown = slot_request.task.clone();
            let job = slot_request
                .job
                .and_then(|job| jobs.get(&job))
                .filter(|job| job.is_active && !slot_request.is_finished);
            if let Some(job) = job {
                (shown.state, shown.progress) = (PullTask::from_job(job).state, job.progress);
            } else if !slot_request.is_finished && !shown.last_error.is_empty() {
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

/// Runs a request to its end, with retries.
pub(super) async fn run_pull(migrations: Arc<Migrations>, id: JobName) {
    let found = |slot_request: &SlotRequest| {
        (slot_request.slot_move.clone(), slot_request.source, slot_request.cancel_signal.clone())
    };
    let Some((order, source, cancelled)) = migrations.pull_requests.lock().0.get(&id).map(found) else {
        return;
    };
    let (mut pull, mut inputs, mut actions) =
        (PullStateMachine::new(), Vec::new(), vec![PullAction::SendRequest]);
    let mut watched = None;
    loop {
        // Registered before the jobs are checked, so that no change is missed.
        let changed = migrations.jobs_changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        for action in std::mem::take(&mut actions) {
            match action {
                PullAction::SendRequest => {
                    watched = None;
                    let asked =
                        tokio::time::timeout(REPLY_TIMEOUT, request_job(&migrations, &id, &order, source))
                            .await;
                    let asked = asked.unwrap_or_else(|_| Err("The source did not answer".to_owned()));
                    inputs.push(PullEvent::RequestAnswered(asked));
                }
                PullAction::CancelMigration => drop(migrations.cancel_jobs(|job| watched == Some(job.name))),
                PullAction::End(outcome) => return finish_request(&migrations, &id, &pull, outcome),
            }
        }
        inputs.extend(poll_job(&migrations, &id, &mut watched, &order, source));
        if inputs.is_empty() {
            tokio::select! {
                () = changed => {}
                () = cancelled.notified() => inputs.push(PullEvent::Cancel),
                () = wait_until_deadline(pull.next_deadline()) => inputs.push(PullEvent::Deadline),
            }
        }
        for input in std::mem::take(&mut inputs) {
            pull.handle(time::instant(), input, &mut actions);
        }
        if let Some(slot_request) = migrations.pull_requests.lock().0.get_mut(&id) {
            (slot_request.task.retries, slot_request.task.last_error) =
                (pull.retries(), pull.last_error().to_owned());
        }
    }
}

/// Returns the next event of the request's job, if there is one since the last call. `watched` is the running job.
fn poll_job(
    migrations: &Migrations,
    id: &JobName,
    watched: &mut Option<JobName>,
    order: &SlotMove,
    source: NodeId,
) -> Option<PullEvent> {
    let named = migrations.pull_requests.lock().0.get(id).and_then(|slot_request| slot_request.job);
    if named.is_some() && *watched != named {
        *watched = named;
        return Some(PullEvent::MigrationStarted);
    }
    if let Some(job) = *watched {
        let outcome =
            |job: &MigrationJob| if job.state_name == "success" { Ok(()) } else { Err(job.error.clone()) };
        let ended = |job: &MigrationJob| (!job.is_active).then(|| (outcome(job), job.progress));
        let (ended, progress) = migrations.jobs.lock().get(&job).and_then(ended)?;
        *watched = None;
        if let Some(slot_request) = migrations.pull_requests.lock().0.get_mut(id) {
            (slot_request.job, slot_request.task.progress) = (None, progress);
        }
        return Some(PullEvent::MigrationEnded(ended));
    }
    let Ok(topology) = topology_if_master(migrations) else {
        return Some(PullEvent::PermanentFailure("slot migration not allowed on replica.".to_owned()));
    };
    match owner_of(&topology, &order.slots()) {
        Ok(owner) if owner == source || owner == order.target => None,
        _ => Some(PullEvent::PermanentFailure("slots have another owner now".to_owned())),
    }
}

fn finish_request(migrations: &Migrations, id: &JobName, pull: &PullStateMachine, outcome: PullOutcome) {
    let (state, why) = match outcome {
        PullOutcome::Completed => ("completed", String::new()),
        PullOutcome::Cancelled => ("canceled", pull.last_error().to_owned()),
        PullOutcome::Failed(why) => ("failed", why),
    };
    if let Some(slot_request) = migrations.pull_requests.lock().0.get_mut(id) {
        (slot_request.is_finished, slot_request.task.state, slot_request.task.ended_at) =
            (true, state, time::now());
        slot_request.task.last_error.clone_from(&why);
    }
    tracing::info!("Import task {id} {state} {why}");
}

/// Requests that the source start a job. A Valkey node receives an operator's command and chooses the job's name
/// itself.
async fn request_job(
    migrations: &Migrations,
    id: &JobName,
    slot_move: &SlotMove,
    source: NodeId,
) -> Result<(), String> {
    let dialer = Dialer::with_link_tls(&migrations.config, &migrations.network.tls, keys::TLS_CLUSTER);
    let tls = migrations.config.get(keys::TLS_CLUSTER);
    let topology = topology_if_master(migrations)?;
    let endpoint = topology.member(source).map(|member| &member.endpoint);
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
