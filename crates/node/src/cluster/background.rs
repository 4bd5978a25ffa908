//! Slow work on separate threads, so that the driver never waits for a disk or for slot locks.
//!
//! One thread writes `nodes.conf` in the order of the requests. Of several queued requests only the last is written,
//! since each contains the whole file. On a full disk it retries, unless `cluster-config-save-behavior` is
//! `best-effort`. The other thread works on the data, one job at a time: it deletes keys of lost slots, deletes all
//! keys, or searches for keys in slots of other nodes. The order of the driver's decisions is preserved: each job has a
//! number or reports its result, and a slot that returns while its keys are being deleted is emptied first
//! ([`BackgroundWorkers::empty_returning_slots`]).

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result};
use config::{Config, keys};
use engine::{Engine, RemainingKeys};
use net::pauses::PauseGate;
use parking_lot::Mutex;
use slot_routing::{Slot, SlotSet, SlotsToEmpty, Topology, is_owned_elsewhere};
use tokio::sync::mpsc::UnboundedSender;

use super::nodes_file::NodesFile;

/// How often a write is retried while the disk is full.
const DISK_FULL_RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// A result that a background thread reports to the driver.
#[derive(Debug)]
pub(super) enum JobResult {
    /// `nodes.conf` was written for the request with this number and for all earlier ones, or the write failed.
    NodesFileWritten(u64, std::io::Result<()>),
    /// All keys were deleted, as the state machine had requested.
    KeysDeleted,
    /// These slots belong to other nodes but have keys here.
    StrayKeysFound { slots: SlotSet, at_start: bool },
    /// Every write that started before this pause has finished.
    WritesFinished { pause: u64 },
    /// Deletion of lost slots stopped because CLIENT PAUSE forbids it; see `resume_deletion_after`.
    DeletionPaused,
}

#[derive(Debug)]
struct SaveRequest {
    number: u64,
    text: String,
    sync: bool,
}

#[derive(Debug)]
enum DataJob {
    DeleteLostSlots,
    DeleteAllKeys,
    FindStrayKeys { at_start: bool },
}

/// Sends requests to the two background threads.
#[derive(Debug)]
pub(super) struct BackgroundWorkers {
    engine: Arc<Engine>,
    save_requests: Option<Sender<SaveRequest>>,
    writer_thread: Option<JoinHandle<()>>,
    job_sender: Sender<DataJob>,
    slots_to_empty: Arc<Mutex<SlotsToEmpty>>,
    result_sender: UnboundedSender<JobResult>,
}

impl BackgroundWorkers {
    pub(super) fn start(
        engine: Arc<Engine>,
        config: &Arc<Config>,
        nodes_file: NodesFile,
        results: UnboundedSender<JobResult>,
    ) -> Result<Self> {
        let (orders, ordered) = channel();
        let (jobs, asked) = channel();
        let leaving = Arc::<Mutex<SlotsToEmpty>>::default();
        let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let (report, config) = (results.clone(), config.clone());
        let on_failure = move || SaveFailurePolicy::from_config(&config);
        let writer = named("nodes.conf")
            .spawn(move || run_nodes_file_writer(nodes_file, &ordered, &report, &on_failure))?;
        let (data, left, report) = (engine.clone(), leaving.clone(), results.clone());
        named("cluster-data")
            .spawn(move || run_data_jobs(&data, &left, &asked, &report))
            .context("no thread")?;
        Ok(Self {
            engine,
            save_requests: Some(orders),
            writer_thread: Some(writer),
            job_sender: jobs,
            slots_to_empty: leaving,
            result_sender: results,
        })
    }

    pub(super) fn request_save(&self, number: u64, text: String, must_sync: bool) {
        if let Some(orders) = &self.save_requests {
            // The thread ends only after it has reported a write error, so a lost request needs no report.
            let _ = orders.send(SaveRequest { number, text, sync: must_sync });
        }
    }

    /// Requests that the keys in `slots` be deleted, because other nodes serve these slots now.
    pub(super) fn delete_slot_keys(&self, slots: &SlotSet) {
        self.slots_to_empty.lock().insert_all(slots);
        self.queue_job(DataJob::DeleteLostSlots);
    }

    /// Continues the deletion once all pauses are over.
    pub(super) fn resume_deletion_after(&self, pauses: Arc<PauseGate>) {
        let jobs = self.job_sender.clone();
        tokio::spawn(async move {
            pauses.wait_until_unpaused().await;
            let _ = jobs.send(DataJob::DeleteLostSlots);
        });
    }

    pub(super) fn delete_all_keys(&self) {
        self.queue_job(DataJob::DeleteAllKeys);
    }

    /// Requests a search for keys in slots that other nodes serve.
    pub(super) fn find_stray_keys(&self, at_start: bool) {
        self.queue_job(DataJob::FindStrayKeys { at_start });
    }

    /// Returns those of `slots` that have keys and are not being emptied. Slots that were lost during the search are
    /// being emptied.
    pub(super) fn slots_with_remaining_keys(&self, slots: &SlotSet) -> SlotSet {
        let leaving = self.slots_to_empty.lock();
        let held = |slot: &Slot| !leaving.contains(*slot) && self.engine.keyspace.keys_in_slot(*slot) > 0;
        slots.iter().filter(held).collect()
    }

    /// Called after a promotion: continues the deletion of lost slots that the failed master had started.
    pub(super) fn continue_master_deletion(&self) {
        self.queue_job(DataJob::DeleteLostSlots);
    }

    fn queue_job(&self, job: DataJob) {
        // A send cannot fail, because the thread runs until the process exits.
        let _ = self.job_sender.send(job);
    }

    /// Waits on a helper thread until all running writes have finished, then reports [`JobResult::WritesFinished`].
    pub(super) fn wait_for_running_writes(&self, pause: u64) {
        let (engine, done) = (self.engine.clone(), self.result_sender.clone());
        tokio::task::spawn_blocking(move || {
            engine.wait_for_admitted_commands();
            let _ = done.send(JobResult::WritesFinished { pause });
        });
    }

    /// Empties slots that return to this node while their keys are being deleted. Called before `topology` is
    /// published.
    pub(super) fn empty_returning_slots(&self, topology: &Topology) {
        let Some(before) = self.engine.topology.as_ref().map(|before| before.load_full()) else { return };
        let back = self.slots_to_empty.lock().update(&before, topology);
        for slot in back {
            while self.engine.delete_unowned_keys(slot) == RemainingKeys::MaybeMore {}
            self.slots_to_empty.lock().remove(slot);
        }
    }
}

impl Drop for BackgroundWorkers {
    /// Waits for the writer thread, so that the last request is on disk before the server exits.
    fn drop(&mut self) {
        self.save_requests = None;
        if self.writer_thread.take().is_some_and(|writer| writer.join().is_err()) {
            tracing::error!("the thread that writes nodes.conf panicked");
        }
    }
}

/// What happens if `nodes.conf` cannot be written (`cluster-config-save-behavior`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SaveFailurePolicy {
    /// The server exits; on a full disk it waits for space. It never announces state that a restart would forget.
    Exit,
    /// The server continues. A restart may forget votes and slots.
    Continue,
}

impl SaveFailurePolicy {
    fn from_config(config: &Config) -> Self {
        match config.get(keys::CLUSTER_CONFIG_SAVE_BEHAVIOR) {
            "best-effort" => Self::Continue,
            _ => Self::Exit,
        }
    }
}

fn run_nodes_file_writer(
    mut nodes_file: NodesFile,
    requests: &Receiver<SaveRequest>,
    results: &UnboundedSender<JobResult>,
    failure_policy: &impl Fn() -> SaveFailurePolicy,
) {
    let mut latest = requests.recv().ok();
    while let Some(order) = latest.take() {
        let (order, ended) = latest_request(order, requests);
        match nodes_file.write(&order.text, order.sync) {
            Err(error) if ended => tracing::warn!("can't update cluster config file: {error}"),
            Err(error) if failure_policy() == SaveFailurePolicy::Continue => {
                tracing::warn!(
                    "Cluster config updated even though writing the cluster config file to disk failed: {error}"
                );
                drop(results.send(JobResult::NodesFileWritten(order.number, Ok(()))));
            }
            // On a full disk, retry: the state must be on disk before it is announced.
            Err(error) if is_disk_full(&error) => {
                tracing::warn!("can't update cluster config file: {error}; trying again");
                let waited = requests.recv_timeout(DISK_FULL_RETRY_INTERVAL);
                let sync = order.sync;
                latest =
                    Some(waited.map_or(order, |newer| SaveRequest { sync: sync || newer.sync, ..newer }));
                continue;
            }
            Err(error) => {
                drop(results.send(JobResult::NodesFileWritten(order.number, Err(error))));
                return;
            }
            Ok(()) => drop(results.send(JobResult::NodesFileWritten(order.number, Ok(())))),
        }
        // Closing the last handle of a replaced file frees its blocks, which can take longer than the write.
        nodes_file.close_replaced_files();
        latest = requests.recv().ok();
    }
}

/// Returns the newest of `request` and the queued requests, and whether the queue is closed.
fn latest_request(mut request: SaveRequest, requests: &Receiver<SaveRequest>) -> (SaveRequest, bool) {
    loop {
        match requests.try_recv() {
            Ok(newer) => request = SaveRequest { sync: request.sync || newer.sync, ..newer },
            Err(why) => return (request, why == TryRecvError::Disconnected),
        }
    }
}

fn is_disk_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

fn run_data_jobs(
    engine: &Engine,
    slots_to_empty: &Mutex<SlotsToEmpty>,
    jobs: &Receiver<DataJob>,
    results: &UnboundedSender<JobResult>,
) {
    while let Ok(job) = jobs.recv() {
        match job {
            DataJob::DeleteLostSlots => {
                if delete_lost_slots(engine, slots_to_empty) == RemainingKeys::Paused {
                    let _ = results.send(JobResult::DeletionPaused);
                }
            }
            DataJob::DeleteAllKeys => {
                engine.clear_all_unlogged();
                let _ = results.send(JobResult::KeysDeleted);
            }
            DataJob::FindStrayKeys { at_start } => {
                let slots = unowned_slots_with_keys(engine);
                if !slots.is_empty() {
                    let _ = results.send(JobResult::StrayKeysFound { slots, at_start });
                }
            }
        }
    }
}

/// Deletes keys of lost slots until none are left or a pause forbids the deletion.
fn delete_lost_slots(engine: &Engine, slots_to_empty: &Mutex<SlotsToEmpty>) -> RemainingKeys {
    loop {
        let Some(slot) = slots_to_empty.lock().first() else { return RemainingKeys::None };
        let mut is_told = false;
        while slots_to_empty.lock().contains(slot) {
            match engine.delete_unowned_keys(slot) {
                RemainingKeys::MaybeMore if !is_told => {
                    is_told = true;
                    log_deletion(engine, slot);
                }
                RemainingKeys::MaybeMore => {}
                RemainingKeys::Paused => return RemainingKeys::Paused,
                RemainingKeys::None => slots_to_empty.lock().remove(slot),
            }
        }
    }
}

/// Logs the deletion with Valkey's message, which Valkey's tests and tools search for.
fn log_deletion(engine: &Engine, slot: Slot) {
    let Some(topology) = engine.topology.as_ref().map(|topology| topology.load_full()) else { return };
    let (me, shard) = (topology.myself, topology.member(topology.myself).map(|member| member.shard));
    let shard = shard.map(|shard| shard.to_string()).unwrap_or_default();
    tracing::info!("Deleting keys in dirty slot {slot} on node {me} () in shard {shard}");
}

/// Returns the slots that have keys although neither this node nor its master serves or imports them.
fn unowned_slots_with_keys(engine: &Engine) -> SlotSet {
    let keyspace = &engine.keyspace;
    let others = |slot: &Slot| {
        keyspace.keys_in_slot(*slot) > 0 && is_owned_elsewhere(keyspace.lock(*slot).ownership())
    };
    Slot::all().filter(others).collect()
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    /// Regression test: the server used to exit after a failed save even with `best-effort`.
    #[test]
    fn best_effort_continues_after_failed_save() {
        for (on_failure, goes_on) in [(SaveFailurePolicy::Continue, true), (SaveFailurePolicy::Exit, false)] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("deep").join("nodes.conf");
            std::fs::create_dir(path.parent().unwrap()).unwrap();
            let (store, _) = NodesFile::open(&path).unwrap();
            std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
            let (orders, ordered) = channel();
            let (report, mut done) = unbounded_channel();
            let writer =
                std::thread::spawn(move || run_nodes_file_writer(store, &ordered, &report, &|| on_failure));
            for number in [1, 2] {
                let order = SaveRequest { number, text: format!("{number}\n"), sync: true };
                let taken = orders.send(order).is_ok();
                assert!(taken || !goes_on);
                match done.blocking_recv() {
                    Some(JobResult::NodesFileWritten(written, outcome)) => {
                        assert_eq!((written, outcome.is_ok()), (number, goes_on));
                    }
                    other => assert!(other.is_none() && number == 2 && !goes_on, "{other:?}"),
                }
            }
            drop(orders);
            writer.join().unwrap();
        }
    }
}
