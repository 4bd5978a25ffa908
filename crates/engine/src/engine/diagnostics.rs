//! What the server measures: statistics of the worker threads, logs of slow commands, latency events, and hot keys.

use std::sync::Arc;

use parking_lot::Mutex;
use slot_routing::Slot;

use super::Worker;
use crate::command_log::CommandLogs;
use crate::histogram::Distribution;
use crate::hot_keys::HotKeys;
use crate::latency::LatencyMonitor;
use crate::slot_costs::{SlotCost, SlotCostBaseline};
use crate::slot_waits::SlotWaits;
use crate::stats::{ErrorCodes, WorkerStats};
use crate::undeclared_keys::UndeclaredKeys;

/// What the server measures, for INFO, LATENCY, SLOWLOG, HOTKEYS and CLUSTER SLOT-STATS.
#[derive(Debug, Default)]
pub struct Diagnostics {
    /// Logs of slow commands and large requests and replies.
    pub command_logs: CommandLogs,
    /// The latency monitor (LATENCY).
    pub latency: LatencyMonitor,
    /// The most expensive and most used keys (HOTKEYS).
    pub hot_keys: HotKeys,
    /// How long commands waited for slot locks (INFO, LATENCY).
    pub slot_waits: SlotWaits,
    /// Counts handlers that accessed undeclared keys.
    pub undeclared_keys: UndeclaredKeys,
    /// The counters of each running worker thread.
    workers: Mutex<Vec<Arc<WorkerStats>>>,
    error_codes: Arc<ErrorCodes>,
    slot_cost_baseline: SlotCostBaseline,
}

impl Diagnostics {
    /// Creates the counters of one more worker thread; also returns the number of worker threads.
    pub(super) fn add_worker(&self, command_count: usize) -> (Arc<WorkerStats>, usize) {
        let stats = Arc::new(WorkerStats::new(command_count, self.error_codes.clone()));
        let mut workers = self.workers.lock();
        workers.push(stats.clone());
        (stats, workers.len())
    }

    /// Removes the counters of a thread that has ended.
    pub(crate) fn remove_worker(&self, worker: &Worker) {
        let mut workers = self.workers.lock();
        workers.retain(|stats| !Arc::ptr_eq(stats, &worker.stats));
        self.slot_cost_baseline.retain_ended_worker_costs(&worker.stats.slot_costs);
    }

    /// Returns the counters of all threads.
    #[must_use]
    pub fn worker_stats(&self) -> Vec<Arc<WorkerStats>> {
        self.workers.lock().clone()
    }

    /// Returns the execution times of a command, summed over all threads.
    #[must_use]
    pub fn command_latency(&self, index: usize) -> Distribution {
        let mut all = Distribution::default();
        for worker in self.workers.lock().iter() {
            all.add(&worker.commands[index].latency);
        }
        all
    }

    /// Returns the costs of the given slots, summed over all threads.
    pub fn slot_costs(&self, slots: &[Slot]) -> Vec<SlotCost> {
        let workers = self.workers.lock();
        self.slot_cost_baseline.costs(&workers.iter().map(|worker| &worker.slot_costs), slots)
    }

    /// Resets the cost counters of the given slots.
    pub fn reset_slot_costs(&self, slots: impl Iterator<Item = Slot>) {
        let workers = self.workers.lock();
        self.slot_cost_baseline.reset(&workers.iter().map(|worker| &worker.slot_costs), slots);
    }
}
