//! Work that takes long, on threads of its own: the driver never waits for a disk, nor for the data.
//!
//! One thread writes `nodes.conf`, in the order in which that was asked for (of several that wait, the last alone: each
//! is the whole file); on a full disk it goes on trying, unless `cluster-config-save-behavior` is `best-effort`. Another goes through the data, one job after another: it
//! deletes the rest of slots that others serve, deletes everything, or looks for keys in slots that are not this
//! node's. Decisions stay in order: each job is numbered or says what it has done, and a slot that comes back while it
//! is being left is left first ([`BackgroundWorkers::leave_returning`]).

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result};
use config::{Config, keys};
use engine::{Engine, Left};
use net::pauses::PauseGate;
use parking_lot::Mutex;
use slot_routing::{Slot, SlotSet, SlotsToEmpty, Topology, is_owned_elsewhere};
use tokio::sync::mpsc::UnboundedSender;

use super::store::Store;

/// How often a file is tried again for which the disk has no room.
const WAIT_FOR_ROOM: Duration = Duration::from_millis(250);

/// An order that was carried out.
#[derive(Debug)]
pub(super) enum Done {
    /// The file was written, up to and with this order.
    Written(u64, std::io::Result<()>),
    /// Everything was deleted, for this command.
    Emptied,
    /// These slots are others', and there are keys in them.
    KeysFound { slots: SlotSet, at_start: bool },
    /// No write is under way any more that began before this pause.
    Drained { pause: u64 },
    /// Some slots are left in part: the rest may not be deleted before a pause is over.
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

/// The way to both threads.
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

    /// Has `text` written as the content of `nodes.conf`.
    pub(super) fn save(&self, number: u64, text: String, sync: bool) {
        if let Some(orders) = &self.orders {
            // The thread ends with an error only after it has said so.
            let _ = orders.send(Order { number, text, sync });
        }
    }

    /// Has what is here of these slots deleted; others serve them by now.
    pub(super) fn leave(&self, slots: &SlotSet) {
        self.leaving.lock().insert_all(slots);
        self.ask(Job::Leave);
    }

    /// Goes on with that, once no pause holds.
    pub(super) fn leave_after(&self, pauses: Arc<PauseGate>) {
        let jobs = self.jobs.clone();
        tokio::spawn(async move {
            pauses.wait_until_unpaused().await;
            let _ = jobs.send(Job::Leave);
        });
    }

    /// Has everything deleted.
    pub(super) fn empty(&self) {
        self.ask(Job::Empty);
    }

    /// Has it looked whether there are keys in slots that are not this node's.
    pub(super) fn look_for_keys(&self, at_start: bool) {
        self.ask(Job::Look { at_start });
    }

    /// Those of `slots` that have keys and are not being left: when it was looked for keys, a slot may just have
    /// been lost.
    pub(super) fn still_held(&self, slots: &SlotSet) -> SlotSet {
        let leaving = self.leaving.lock();
        let held = |slot: &Slot| !leaving.contains(*slot) && self.engine.keyspace.keys_in_slot(*slot) > 0;
        slots.iter().filter(held).collect()
    }

    /// This node is the master now: goes on with what its master was leaving when it died.
    pub(super) fn leave_for_master(&self) {
        self.ask(Job::Leave);
    }

    fn ask(&self, job: Job) {
        // It ends with the process only.
        let _ = self.jobs.send(job);
    }

    /// Waits, elsewhere, until no write is under way any more.
    pub(super) fn drain(&self, pause: u64) {
        let (engine, done) = (self.engine.clone(), self.done.clone());
        tokio::task::spawn_blocking(move || {
            engine.drain();
            let _ = done.send(Done::Drained { pause });
        });
    }

    /// Before `topology` is published: what comes back to this node of the slots that it is leaving is left first.
    pub(super) fn leave_returning(&self, topology: &Topology) {
        let Some(before) = self.engine.topology.as_ref().map(|before| before.load_full()) else { return };
        let back = self.leaving.lock().update(&before, topology);
        for slot in back {
            while self.engine.leave_slot(slot) == Left::Some {}
            self.leaving.lock().remove(slot);
        }
    }
}

impl Drop for BackgroundWorkers {
    /// The last order is written before the server ends.
    fn drop(&mut self) {
        self.orders = None;
        if self.writer.take().is_some_and(|writer| writer.join().is_err()) {
            tracing::error!("the thread that writes nodes.conf panicked");
        }
    }
}

/// The consequence of a `nodes.conf` that cannot be written (`cluster-config-save-behavior`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnFailure {
    /// The server ends; on a full disk it waits for room. Nothing is promised that a restart forgets.
    End,
    /// The server goes on as if it had been written. A restart may forget votes and slots.
    GoOn,
}

impl OnFailure {
    fn chosen(config: &Config) -> Self {
        match config.get(keys::CLUSTER_CONFIG_SAVE_BEHAVIOR) {
            "best-effort" => Self::GoOn,
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
            Err(error) if on_failure() == OnFailure::GoOn => {
                tracing::warn!(
                    "Cluster config updated even though writing the cluster config file to disk failed: {error}"
                );
                drop(done.send(Done::Written(order.number, Ok(()))));
            }
            // A state that must be on disk before it is told waits until there is room; nothing is promised meanwhile.
            Err(error) if is_full(&error) => {
                tracing::warn!("can't update cluster config file: {error}; trying again");
                let waited = orders.recv_timeout(WAIT_FOR_ROOM);
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
        // The last one to close a file gives its blocks back, which can take longer than all of a write.
        store.close_replaced();
        latest = orders.recv().ok();
    }
}

/// The last of the orders that wait, which is the whole file; and whether there will be no more.
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
                if leave(engine, leaving) == Left::Paused {
                    let _ = done.send(Done::LeavingPaused);
                }
            }
            Job::Empty => {
                engine.forget_everything();
                let _ = done.send(Done::Emptied);
            }
            Job::Look { at_start } => {
                let slots = keys_of_others(engine);
                if !slots.is_empty() {
                    let _ = done.send(Done::KeysFound { slots, at_start });
                }
            }
        }
    }
}

/// Deletes until nothing is left, or a pause forbids it.
fn leave(engine: &Engine, leaving: &Mutex<SlotsToEmpty>) -> Left {
    loop {
        let Some(slot) = leaving.lock().first() else { return Left::Nothing };
        let mut is_told = false;
        while leaving.lock().contains(slot) {
            match engine.leave_slot(slot) {
                Left::Some if !is_told => {
                    is_told = true;
                    tell_of_deletion(engine, slot);
                }
                Left::Some => {}
                Left::Paused => return Left::Paused,
                Left::Nothing => leaving.lock().remove(slot),
            }
        }
    }
}

/// In Valkey's words, which its tests and tools look for.
fn tell_of_deletion(engine: &Engine, slot: Slot) {
    let Some(topology) = engine.topology.as_ref().map(|topology| topology.load_full()) else { return };
    let (me, shard) = (topology.myself, topology.member(topology.myself).map(|member| member.shard));
    let shard = shard.map(|shard| shard.to_string()).unwrap_or_default();
    tracing::info!("Deleting keys in dirty slot {slot} on node {me} () in shard {shard}");
}

/// The slots with keys that neither this node nor its master serves, nor are on their way here.
fn keys_of_others(engine: &Engine) -> SlotSet {
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

    /// The server ended with the first change that could not be written, whatever was configured.
    #[test]
    fn best_effort_goes_on_without_the_file() {
        for (on_failure, goes_on) in [(OnFailure::GoOn, true), (OnFailure::End, false)] {
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
