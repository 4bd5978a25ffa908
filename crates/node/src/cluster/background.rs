//! Slow work on separate threads, so that the driver never waits for a disk or for the data.
//!
//! One thread writes `nodes.conf` in the order of the requests. Of several queued requests only the last is written,
//! since each contains the whole file. On a full disk it retries, unless `cluster-config-save-behavior` is
//! `best-effort`. The other thread works on the data, one job at a time: it deletes keys of lost slots, deletes all
//! keys, or searches for keys in slots of other nodes. Decisions stay in order: each job has a number or reports its
//! result, and a slot that returns while its keys are being deleted is emptied first
//! ([`BackgroundWorkers::leave_returning`]).

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

use super::store::Store;

/// How often a write is retried while the disk is full.
const DISK_FULL_RETRY: Duration = Duration::from_millis(250);

/// The result of a request.
#[derive(Debug)]
pub(super) enum Done {
    /// The file was written up to and including this request.
    Written(u64, std::io::Result<()>),
    /// All keys were deleted for this command.
    Emptied,
    /// There are keys in these slots of other nodes.
    KeysFound { slots: SlotSet, at_start: bool },
    /// Every write that started before this pause has finished.
    Drained { pause: u64 },
    /// The keys of some slots must not be deleted before a pause is over.
    LeavingPaused,
}

#[derive(Debug)]
struct Order {
    number: u64,
    text: String,
    sync: bool,
}

#[derive(Debug)]
enum Job {
    Leave,
    Empty,
    Look { at_start: bool },
}

/// The interface to both threads.
#[derive(Debug)]
pub(super) struct BackgroundWorkers {
    engine: Arc<Engine>,
    orders: Option<Sender<Order>>,
    writer: Option<JoinHandle<()>>,
    jobs: Sender<Job>,
    leaving: Arc<Mutex<SlotsToEmpty>>,
    done: UnboundedSender<Done>,
}

impl BackgroundWorkers {
    pub(super) fn start(
        engine: Arc<Engine>,
        config: &Arc<Config>,
        store: Store,
        done: UnboundedSender<Done>,
    ) -> Result<Self> {
        let (orders, ordered) = channel();
        let (jobs, asked) = channel();
        let leaving = Arc::<Mutex<SlotsToEmpty>>::default();
        let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let (report, config) = (done.clone(), config.clone());
        let on_failure = move || OnFailure::chosen(&config);
        let writer = named("nodes.conf").spawn(move || write(store, &ordered, &report, &on_failure))?;
        let (data, left, report) = (engine.clone(), leaving.clone(), done.clone());
        named("cluster-data").spawn(move || work(&data, &left, &asked, &report)).context("no thread")?;
        Ok(Self { engine, orders: Some(orders), writer: Some(writer), jobs, leaving, done })
    }

    /// Requests that `text` is written to `nodes.conf`.
    pub(super) fn save(&self, number: u64, text: String, sync: bool) {
        if let Some(orders) = &self.orders {
            // The thread only ends after it has reported an error.
            let _ = orders.send(Order { number, text, sync });
        }
    }

    /// Requests the deletion of the keys in these slots, which other nodes serve.
    pub(super) fn leave(&self, slots: &SlotSet) {
        self.leaving.lock().insert_all(slots);
        self.ask(Job::Leave);
    }

    /// Continues the deletion once all pauses are over.
    pub(super) fn leave_after(&self, pauses: Arc<PauseGate>) {
        let jobs = self.jobs.clone();
        tokio::spawn(async move {
            pauses.wait_until_unpaused().await;
            let _ = jobs.send(Job::Leave);
        });
    }

    /// Requests the deletion of all keys.
    pub(super) fn empty(&self) {
        self.ask(Job::Empty);
    }

    /// Requests a search for keys in slots of other nodes.
    pub(super) fn look_for_keys(&self, at_start: bool) {
        self.ask(Job::Look { at_start });
    }

    /// Returns the slots among `slots` that have keys that are not being deleted. A slot may have been lost during the
    /// search.
    pub(super) fn still_held(&self, slots: &SlotSet) -> SlotSet {
        let leaving = self.leaving.lock();
        let held = |slot: &Slot| !leaving.contains(*slot) && self.engine.keyspace.keys_in_slot(*slot) > 0;
        slots.iter().filter(held).collect()
    }

    /// After a promotion: continues the deletion that the failed master had started.
    pub(super) fn leave_for_master(&self) {
        self.ask(Job::Leave);
    }

    fn ask(&self, job: Job) {
        // The thread runs until the process exits.
        let _ = self.jobs.send(job);
    }

    /// Waits on the thread until all running writes have finished.
    pub(super) fn drain(&self, pause: u64) {
        let (engine, done) = (self.engine.clone(), self.done.clone());
        tokio::task::spawn_blocking(move || {
            engine.wait_for_admitted_commands();
            let _ = done.send(Done::Drained { pause });
        });
    }

    /// Called before `topology` is published: slots that return to this node while their keys are being deleted are
    /// emptied first.
    pub(super) fn leave_returning(&self, topology: &Topology) {
        let Some(before) = self.engine.topology.as_ref().map(|before| before.load_full()) else { return };
        let back = self.leaving.lock().update(&before, topology);
        for slot in back {
            while self.engine.delete_unowned_keys(slot) == RemainingKeys::MaybeMore {}
            self.leaving.lock().remove(slot);
        }
    }
}

impl Drop for BackgroundWorkers {
    /// The last request is written before the server exits.
    fn drop(&mut self) {
        self.orders = None;
        if self.writer.take().is_some_and(|writer| writer.join().is_err()) {
            tracing::error!("the thread that writes nodes.conf panicked");
        }
    }
}

/// What happens if `nodes.conf` cannot be written (`cluster-config-save-behavior`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnFailure {
    /// The server exits; on a full disk it waits for space. It never announces state that a restart would forget.
    End,
    /// The server continues. A restart may forget votes and slots.
    Continue,
}

impl OnFailure {
    fn chosen(config: &Config) -> Self {
        match config.get(keys::CLUSTER_CONFIG_SAVE_BEHAVIOR) {
            "best-effort" => Self::Continue,
            _ => Self::End,
        }
    }
}

fn write(
    mut store: Store,
    orders: &Receiver<Order>,
    done: &UnboundedSender<Done>,
    on_failure: &impl Fn() -> OnFailure,
) {
    let mut latest = orders.recv().ok();
    while let Some(order) = latest.take() {
        let (order, ended) = newest(order, orders);
        match store.write(&order.text, order.sync) {
            Err(error) if ended => tracing::warn!("can't update cluster config file: {error}"),
            Err(error) if on_failure() == OnFailure::Continue => {
                tracing::warn!(
                    "Cluster config updated even though writing the cluster config file to disk failed: {error}"
                );
                drop(done.send(Done::Written(order.number, Ok(()))));
            }
            // State that must be persisted before it is announced waits for space on the disk.
            Err(error) if is_full(&error) => {
                tracing::warn!("can't update cluster config file: {error}; trying again");
                let waited = orders.recv_timeout(DISK_FULL_RETRY);
                let sync = order.sync;
                latest = Some(waited.map_or(order, |newer| Order { sync: sync || newer.sync, ..newer }));
                continue;
            }
            Err(error) => {
                drop(done.send(Done::Written(order.number, Err(error))));
                return;
            }
            Ok(()) => drop(done.send(Done::Written(order.number, Ok(())))),
        }
        // Closing the last handle of a replaced file frees its blocks, which can take longer than the write.
        store.close_replaced();
        latest = orders.recv().ok();
    }
}

/// Returns the last queued request, and whether there will be no more.
fn newest(mut order: Order, orders: &Receiver<Order>) -> (Order, bool) {
    loop {
        match orders.try_recv() {
            Ok(newer) => order = Order { sync: order.sync || newer.sync, ..newer },
            Err(why) => return (order, why == TryRecvError::Disconnected),
        }
    }
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

fn work(engine: &Engine, leaving: &Mutex<SlotsToEmpty>, jobs: &Receiver<Job>, done: &UnboundedSender<Done>) {
    while let Ok(job) = jobs.recv() {
        match job {
            Job::Leave => {
                if leave(engine, leaving) == RemainingKeys::Paused {
                    let _ = done.send(Done::LeavingPaused);
                }
            }
            Job::Empty => {
                engine.clear_all_unlogged();
                let _ = done.send(Done::Emptied);
            }
            Job::Look { at_start } => {
                let slots = slots_with_foreign_keys(engine);
                if !slots.is_empty() {
                    let _ = done.send(Done::KeysFound { slots, at_start });
                }
            }
        }
    }
}

/// Deletes keys until none are left or a pause forbids it.
fn leave(engine: &Engine, leaving: &Mutex<SlotsToEmpty>) -> RemainingKeys {
    loop {
        let Some(slot) = leaving.lock().first() else { return RemainingKeys::None };
        let mut is_told = false;
        while leaving.lock().contains(slot) {
            match engine.delete_unowned_keys(slot) {
                RemainingKeys::MaybeMore if !is_told => {
                    is_told = true;
                    log_deletion(engine, slot);
                }
                RemainingKeys::MaybeMore => {}
                RemainingKeys::Paused => return RemainingKeys::Paused,
                RemainingKeys::None => leaving.lock().remove(slot),
            }
        }
    }
}

/// Logs in Valkey's words, which its tests and tools search for.
fn log_deletion(engine: &Engine, slot: Slot) {
    let Some(topology) = engine.topology.as_ref().map(|topology| topology.load_full()) else { return };
    let (me, shard) = (topology.myself, topology.member(topology.myself).map(|member| member.shard));
    let shard = shard.map(|shard| shard.to_string()).unwrap_or_default();
    tracing::info!("Deleting keys in dirty slot {slot} on node {me} () in shard {shard}");
}

/// Returns slots with keys that neither this node nor its master serves or imports.
fn slots_with_foreign_keys(engine: &Engine) -> SlotSet {
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

    /// The server used to exit with `best-effort` too.
    #[test]
    fn best_effort_continues_without_the_file() {
        for (on_failure, goes_on) in [(OnFailure::Continue, true), (OnFailure::End, false)] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("deep").join("nodes.conf");
            std::fs::create_dir(path.parent().unwrap()).unwrap();
            let (store, _) = Store::open(&path).unwrap();
            std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
            let (orders, ordered) = channel();
            let (report, mut done) = unbounded_channel();
            let writer = std::thread::spawn(move || write(store, &ordered, &report, &|| on_failure));
            for number in [1, 2] {
                let order = Order { number, text: format!("{number}\n"), sync: true };
                let taken = orders.send(order).is_ok();
                assert!(taken || !goes_on);
                match done.blocking_recv() {
                    Some(Done::Written(written, outcome)) => {
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
