//! Server-wide counters: sums over all threads since the last CONFIG RESETSTAT.
//!
//! A counter is written only by its own thread, so CONFIG RESETSTAT does not change the counters. It records the
//! current sums, which are later subtracted.

use std::collections::BTreeMap;
use std::ops::Index;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::Engine;
use net::context::NetworkContext;
use parking_lot::Mutex;

use crate::housekeeping::Housekeeping;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerCounter {
    Commands,
    KeyspaceHits,
    KeyspaceMisses,
    ExpiredKeys,
    ExpiredFields,
    EvictedKeys,
    ErrorReplies,
    Connections,
    RejectedConnections,
    InputBytes,
    OutputBytes,
    Reads,
    Writes,
    QueryLimitDisconnections,
    OutputLimitDisconnections,
    EvictedClients,
}

const COUNTER_COUNT: usize = ServerCounter::EvictedClients as usize + 1;

/// The counters of one command, summed over all threads.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CommandTotals {
    pub(crate) call_count: u64,
    pub(crate) total_nanos: u64,
    pub(crate) rejected_count: u64,
    pub(crate) failed_count: u64,
}

/// The sums at one moment, or the difference between two moments.
#[derive(Debug, Clone, Default)]
pub(crate) struct StatisticsTotals {
    counters: [u64; COUNTER_COUNT],
    /// The counters of each command, indexed by its number in the command table.
    pub(crate) commands: Vec<CommandTotals>,
    /// The number of error replies by error code, such as `WRONGTYPE`.
    pub(crate) errors: BTreeMap<String, u64>,
}

impl Index<ServerCounter> for StatisticsTotals {
    type Output = u64;

    fn index(&self, counter: ServerCounter) -> &u64 {
        &self.counters[counter as usize]
    }
}

impl StatisticsTotals {
    /// Sums the counters since startup.
    pub(crate) fn sum_threads(engine: &Engine, network: &NetworkContext) -> Self {
        let mut totals = Self::sum_traffic(network);
        totals.commands.resize(::commands::server_registry().commands().len(), CommandTotals::default());
        let mut add = |count: ServerCounter, value: &AtomicU64| {
            totals.counters[count as usize] += value.load(Ordering::Relaxed);
        };
        let workers = engine.diagnostics.worker_stats();
        for worker in &workers {
            add(ServerCounter::KeyspaceHits, &worker.keyspace_hits);
            add(ServerCounter::KeyspaceMisses, &worker.keyspace_misses);
            add(ServerCounter::ExpiredKeys, &worker.expired_keys);
            add(ServerCounter::ExpiredFields, &worker.expired_fields);
            add(ServerCounter::EvictedKeys, &worker.evicted_keys);
            add(ServerCounter::ErrorReplies, &worker.error_replies);
        }
        let stats = &network.stats;
        add(ServerCounter::Connections, &stats.connections_received);
        add(ServerCounter::RejectedConnections, &stats.connections_rejected);
        add(ServerCounter::QueryLimitDisconnections, &stats.query_limit_disconnections);
        add(ServerCounter::OutputLimitDisconnections, &stats.output_limit_disconnections);
        totals.counters[ServerCounter::EvictedClients as usize] += engine.clients.evicted_count();
        for worker in &workers {
            for (total, stats) in totals.commands.iter_mut().zip(worker.commands.iter()) {
                total.call_count += stats.calls.load(Ordering::Relaxed);
                total.total_nanos += stats.nanos.load(Ordering::Relaxed);
                total.rejected_count += stats.rejected_calls.load(Ordering::Relaxed);
                total.failed_count += stats.failed_calls.load(Ordering::Relaxed);
            }
        }
        for (code, count) in workers.iter().flat_map(|worker| worker.error_counts()) {
            *totals.errors.entry(code).or_default() += count;
        }
        totals.counters[ServerCounter::Commands as usize] =
            totals.commands.iter().map(|command| command.call_count).sum();
        totals
    }

    /// Sums the network traffic of client connections only.
    pub(crate) fn sum_traffic(network: &NetworkContext) -> Self {
        let mut totals = Self::default();
        for traffic in network.traffic.lock().iter() {
            let counters = [
                (ServerCounter::InputBytes, &traffic.bytes_read),
                (ServerCounter::OutputBytes, &traffic.bytes_written),
                (ServerCounter::Reads, &traffic.reads),
                (ServerCounter::Writes, &traffic.writes),
            ];
            for (count, value) in counters {
                totals.counters[count as usize] += value.load(Ordering::Relaxed);
            }
        }
        totals
    }

    fn since_baseline(mut self, base: &Self) -> Self {
        for (value, base) in self.counters.iter_mut().zip(base.counters) {
            *value = value.saturating_sub(base);
        }
        for (command, base) in self.commands.iter_mut().zip(&base.commands) {
            command.call_count = command.call_count.saturating_sub(base.call_count);
            command.total_nanos = command.total_nanos.saturating_sub(base.total_nanos);
            command.rejected_count = command.rejected_count.saturating_sub(base.rejected_count);
            command.failed_count = command.failed_count.saturating_sub(base.failed_count);
        }
        self
    }
}

/// The totals at the last CONFIG RESETSTAT.
#[derive(Debug, Default)]
pub(crate) struct StatisticsBaseline(Mutex<StatisticsTotals>);

impl Housekeeping {
    /// Returns the counters since the last CONFIG RESETSTAT.
    pub(crate) fn totals_since_reset(&self) -> StatisticsTotals {
        StatisticsTotals::sum_threads(&self.engine, &self.network).since_baseline(&self.baseline.0.lock())
    }

    /// Restarts all counters at zero (CONFIG RESETSTAT).
    pub(crate) fn reset_totals(&self) {
        let mut now = StatisticsTotals::sum_threads(&self.engine, &self.network);
        // Workers drop their error codes, so that new codes can be counted.
        now.errors.clear();
        *self.baseline.0.lock() = now;
        self.event_loop_time.reset();
        self.engine.diagnostics.reset_slot_costs(slot_routing::Slot::all());
        self.engine.diagnostics.worker_stats().iter().for_each(|worker| worker.reset());
        self.engine.diagnostics.slot_waits.reset();
        self.engine.scripting.scripts.evicted.store(0, Ordering::Relaxed);
        self.engine.memory.budget.reset_over_limit(process::time::nanos());
        self.rates.reset();
        self.expiry_stats.spent_nanos.store(0, Ordering::Relaxed);
        self.expiry_stats.timed_out_cycles.store(0, Ordering::Relaxed);
        self.replication.stats.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reset_restarts_the_counters() {
        let with = |hits, calls| {
            let mut totals = StatisticsTotals::default();
            totals.counters[ServerCounter::KeyspaceHits as usize] = hits;
            totals.commands.push(CommandTotals { call_count: calls, ..CommandTotals::default() });
            totals
        };
        let shown = with(10, 7).since_baseline(&with(4, 2));
        assert_eq!((shown[ServerCounter::KeyspaceHits], shown.commands[0].call_count), (6, 5));
        let before_any_reset = with(10, 7).since_baseline(&StatisticsTotals::default());
        assert_eq!(
            (before_any_reset[ServerCounter::KeyspaceHits], before_any_reset.commands[0].call_count),
            (10, 7)
        );
    }
}
