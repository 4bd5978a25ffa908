//! Periodic work of the control thread, at each tick ([`AdaptiveTick`](process::adaptive_tick::AdaptiveTick)) or at
//! deadlines of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clock::Millis;
use config::{Config, keys};
use engine::{Client, ClientFlags, ClientKind, Engine, MemoryState, NodeFlags, WorkerStats};
use keyspace::{Keyspace, pool_used_bytes};
use net::context::ClientLimits;
use net::link_pool::LinkPool;
use net::scratch::with_scratch;
use process::rates::RATE_COUNT;
use process::{adaptive_tick, memory, time};
use tokio::sync::Notify;

use crate::housekeeping::Housekeeping;
use crate::housekeeping::totals::{ServerCounter, StatisticsTotals};

/// The maximum time between expiry cycles. With a higher `hz` they run twice per tick.
const EXPIRE_PERIOD: Duration = Duration::from_millis(50);
/// Three durations of an expiry cycle: how long it runs before it yields to workers on the same processor, how long it
/// continues if more keys are due, and how long other work of this thread runs between two cycles.
const EXPIRE_SLICE_DURATION: Duration = Duration::from_micros(500);
const MAX_EXPIRE_CYCLE_DURATION: Duration = Duration::from_millis(4);
const EXPIRE_YIELD_DURATION: Duration = Duration::from_millis(1);
/// The interval at which clients are checked and a part of the keys is aged. All keys are aged within 35 minutes.
const CLIENT_CHECK_PERIOD: Duration = Duration::from_secs(1);
/// The number of steps of memory defragmentation and purging per tick. They cover all memory within 13 seconds.
const PURGE_STEPS_PER_TICK: usize = 4;
/// After a step longer than this many nanoseconds, other tasks of the thread run first.
const LONG_STEP_NANOS: u64 = 100_000;
/// The number of consecutive rounds without changes after which purging stops. The first of them defragments after the
/// last change, and the second returns the freed memory.
const PURGE_ROUNDS_UNCHANGED: usize = 2;
/// The number of ticks without activity after which the server counts as idle.
const IDLE_TICKS: usize = 3;
/// The minimum time in seconds between log lines about command faults.
const FAULT_LOG_INTERVAL_SECONDS: usize = 60;
/// The interval of memory checks while `maxmemory` is set.
const MEMORY_CHECK_PERIOD: Duration = Duration::from_millis(10);
/// The pause for other work of this thread during eviction.
const EVICTION_YIELD_DURATION: Duration = Duration::from_micros(500);

/// Performs the periodic work at each tick, until the server stops.
pub(crate) async fn run_cron(housekeeping: Arc<Housekeeping>, migration_targets: Arc<LinkPool>) {
    let tick = housekeeping.network.tick.clone();
    let (mut looked, mut seconds, mut quiet) = (time::monotonic_now(), 0, 0);
    let (mut counts, mut faults) = (ActivityCounters::default(), FaultLog::default());
    loop {
        let last = tokio::time::Instant::now();
        if quiet >= IDLE_TICKS && can_skip_tick(&housekeeping) {
            tick.drive_idle_tick(last, || ActivityCounters::collect(&housekeeping) == counts).await;
        } else {
            tick.drive_tick(last).await;
        }
        housekeeping.engine.set_wall_clock(time::nanos(), time::unix_micros());
        housekeeping.engine.set_initial_usage(time::now());
        housekeeping.engine.send_invalidations();
        if housekeeping.is_cron_paused.load(Ordering::Relaxed) {
            continue;
        }
        housekeeping.network.worker_pool.update_busy_flag_and_stalls(&housekeeping.engine);
        let (now, clients) = (time::monotonic_now(), housekeeping.engine.clients.list());
        let since = now.since(looked);
        if since + adaptive_tick::TICK_PERIOD / 2 >= CLIENT_CHECK_PERIOD {
            (looked, seconds) = (now, seconds + 1);
            run_each_second(&housekeeping, &clients, since, seconds);
            faults.log_faults(&housekeeping.engine, seconds);
            migration_targets.close_expired(now);
        }
        housekeeping.engine.scheduling.pauses.end_expired(&housekeeping.engine.settings, time::now());
        let before = std::mem::replace(&mut counts, ActivityCounters::collect(&housekeeping));
        quiet = if counts == before { quiet + 1 } else { 0 };
        housekeeping.is_quiet.store(quiet > 0, Ordering::Relaxed);
        housekeeping.rates.sample(now, counts.rates);
    }
}

/// Does the work that is needed only once per second. `second_count` counts the calls; `elapsed` is the time since the
/// previous call.
fn run_each_second(
    housekeeping: &Housekeeping,
    clients: &[Arc<Client>],
    elapsed: Duration,
    second_count: usize,
) {
    age_keys(&housekeeping.engine, second_count);
    housekeeping
        .network
        .stats
        .update_busiest_client(clients, u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX));
    close_idle_clients(&housekeeping.config, clients);
    close_slow_clients(&housekeeping.network.limits, clients, time::now());
    housekeeping.oom_score.apply(&housekeeping.config, housekeeping.replication.is_replica());
    let interval = housekeeping.config.get(keys::TLS_AUTO_RELOAD_INTERVAL).as_secs();
    if interval > 0 && (second_count as u64).is_multiple_of(interval) {
        housekeeping.network.tls.reload_changed(&housekeeping.config);
    }
}

/// Logs internal errors of commands that clients received as error replies, at most once a minute.
#[derive(Default)]
struct FaultLog {
    /// The number of faults that have been logged.
    logged_faults: u64,
    /// The next line is not logged before this second.
    next_second: usize,
}

impl FaultLog {
    fn log_faults(&mut self, engine: &Engine, second: usize) {
        let (faults, count) =
            (&engine.diagnostics.undeclared_keys, engine.diagnostics.undeclared_keys.count());
        if count == self.logged_faults || second < self.next_second {
            return;
        }
        let more = count - self.logged_faults;
        (self.logged_faults, self.next_second) = (count, second + FAULT_LOG_INTERVAL_SECONDS);
        let command = faults.last_command();
        tracing::error!(
            "{more} commands asked for keys that they had not declared and got an error, '{command}' last: a fault of \
             this server, please report it with the command's arguments"
        );
    }
}

/// Returns whether the next tick can be skipped because no deadline must be checked.
fn can_skip_tick(housekeeping: &Housekeeping) -> bool {
    let pauses =
        housekeeping.engine.scheduling.pauses.end_expired(&housekeeping.engine.settings, time::now());
    let busy = housekeeping.engine.settings.node_flags().contains(NodeFlags::BUSY)
        || housekeeping.network.worker_pool.has_stalled_worker();
    pauses.is_none() && !busy && housekeeping.is_memory_purged.load(Ordering::Relaxed)
}

/// Counters of received requests and completed work. If none changes, the server is idle.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct ActivityCounters {
    rates: [u64; RATE_COUNT],
    change_count: u64,
    used_pool_bytes: usize,
}

impl ActivityCounters {
    fn collect(housekeeping: &Housekeeping) -> Self {
        let workers = housekeeping.engine.diagnostics.worker_stats();
        let traffic = StatisticsTotals::sum_traffic(&housekeeping.network);
        let replicated = &housekeeping.replication.stats;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Self {
            rates: [
                workers.iter().map(|worker| worker.calls()).sum(),
                traffic[ServerCounter::InputBytes],
                traffic[ServerCounter::OutputBytes],
                load(&replicated.input_bytes),
                load(&replicated.output_bytes),
                traffic[ServerCounter::Reads],
            ],
            change_count: count_changes(housekeeping),
            used_pool_bytes: pool_used_bytes(),
        }
    }
}

/// Returns a number that changes with each change of the data. A load from disk does not change it, but changes the
/// number of used bytes.
fn count_changes(housekeeping: &Housekeeping) -> u64 {
    let of_worker = |worker: &WorkerStats| {
        let counters =
            [&worker.change_count, &worker.expired_keys, &worker.expired_fields, &worker.evicted_keys];
        counters.into_iter().map(|counter| counter.load(Ordering::Relaxed)).sum::<u64>()
    };
    housekeeping.engine.diagnostics.worker_stats().iter().map(|worker| of_worker(worker)).sum()
}

/// Suspends this thread whenever DEBUG SLEEP requests it. Never returns.
pub(crate) async fn run_sleep_requests(housekeeping: Arc<Housekeeping>) {
    loop {
        housekeeping.sleep_request.sleep_when_requested().await;
    }
}

/// Returns free memory to the system in small steps, until two rounds have passed without changes. Never returns.
pub(crate) async fn run_memory_purge(housekeeping: Arc<Housekeeping>) {
    let keyspace = &housekeeping.engine.keyspace;
    let data = || (count_changes(&housekeeping), pool_used_bytes());
    // An empty keyspace has no memory to return, so purging starts only after the first change.
    let (mut step, mut calm, mut seen) = (0, PURGE_ROUNDS_UNCHANGED, data());
    loop {
        housekeeping.network.tick.wait_for_tick().await;
        let is_purged = calm >= PURGE_ROUNDS_UNCHANGED && data() == seen;
        housekeeping.is_memory_purged.store(is_purged, Ordering::Relaxed);
        if is_purged {
            continue;
        }
        for _ in 0..PURGE_STEPS_PER_TICK {
            let begun = time::nanos();
            keyspace.purge_step(step);
            step = (step + 1) % Keyspace::PURGE_STEPS;
            if time::nanos().saturating_sub(begun) > LONG_STEP_NANOS {
                tokio::task::yield_now().await;
            }
        }
        if step == 0 {
            let before = std::mem::replace(&mut seen, data());
            calm = if seen == before { calm + 1 } else { 0 };
        }
    }
}

/// Deletes expired keys in cycles. A cycle takes at most a few milliseconds however many keys are due, and does not
/// block workers. Remaining keys are deleted in the next cycle.
pub(crate) async fn run_active_expiry(housekeeping: Arc<Housekeeping>) {
    let sooner = Arc::new(Notify::new());
    let ring = sooner.clone();
    housekeeping.engine.keyspace.on_earlier_expiry(move || ring.notify_one());
    loop {
        let more = run_expiry_cycle(&housekeeping);
        let rest =
            if more { EXPIRE_YIELD_DURATION } else { expire_period(housekeeping.config.get(keys::HZ)) };
        wait_until_due(&housekeeping, &sooner, tokio::time::Instant::now() + rest).await;
    }
}

/// Runs one expiry cycle. Returns whether more keys are due.
pub(crate) fn run_expiry_cycle(housekeeping: &Housekeeping) -> bool {
    let end = time::monotonic_now() + MAX_EXPIRE_CYCLE_DURATION;
    let mut more = !housekeeping.is_cron_paused.load(Ordering::Relaxed) && run_expiry_slice(housekeeping);
    while more && time::monotonic_now() < end {
        std::thread::yield_now();
        more = run_expiry_slice(housekeeping);
    }
    housekeeping.expiry_stats.timed_out_cycles.fetch_add(u64::from(more), Ordering::Relaxed);
    more
}

/// Waits until a key has expired and the time `earliest` has been reached.
async fn wait_until_due(housekeeping: &Housekeeping, wake_up: &Notify, earliest_start: tokio::time::Instant) {
    loop {
        let left =
            housekeeping.engine.keyspace.next_expiry().map(|due| due.0.saturating_sub(time::now().0).max(0));
        let due = async {
            match left {
                Some(left) => {
                    let at = tokio::time::Instant::now() + Duration::from_millis(left.unsigned_abs());
                    tokio::time::sleep_until(at.max(earliest_start)).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => return,
            () = wake_up.notified() => {}
        }
    }
}

/// Runs a short part of an expiry cycle. Returns whether more keys are due.
fn run_expiry_slice(housekeeping: &Housekeeping) -> bool {
    let (begun, now) = (time::nanos(), time::now());
    let more = with_scratch(|scratch| {
        housekeeping.engine.run_expiry_cycle(&mut scratch.worker, now, EXPIRE_SLICE_DURATION)
    });
    let nanos = time::nanos().saturating_sub(begun);
    housekeeping.expiry_stats.spent_nanos.fetch_add(nanos, Ordering::Relaxed);
    housekeeping.engine.diagnostics.latency.record_if_slow("expire-cycle", now, nanos);
    more
}

/// Returns the time between expiry cycles. Keys must be deleted within 100 ms after they expire, even with a low `hz`.
fn expire_period(hz: u32) -> Duration {
    Duration::from_micros(500_000 / u64::from(hz.max(1))).min(EXPIRE_PERIOD)
}

/// Frees large deleted values on a background thread.
pub(crate) async fn free_deleted_values(engine: Arc<Engine>) {
    let filled = Arc::new(Notify::new());
    let ring = filled.clone();
    engine.memory.lazy_free.call_when_non_empty(move || ring.notify_one());
    loop {
        let engine = engine.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || engine.memory.lazy_free.free_all()).await {
            tracing::warn!("Deleted values were not dropped: {error}");
        }
        filled.notified().await;
    }
}

/// Updates the stored access times of a part of the keys, before the clocks of these times wrap around.
fn age_keys(engine: &Engine, step: usize) {
    let (now, lfu) = (time::now(), engine.settings.eviction.lfu());
    engine.keyspace.age_usage_step(step, &mut |usage| match lfu {
        None => usage.aged_lru(now),
        Some(settings) => usage.aged_lfu(now, settings),
    });
}

/// Closes connections that have been idle for longer than `timeout`.
fn close_idle_clients(config: &Config, clients: &[Arc<Client>]) {
    let limit = config.get(keys::TIMEOUT);
    if limit.is_zero() {
        return;
    }
    let limit = i64::try_from(limit.as_millis()).unwrap_or(i64::MAX);
    let now = time::now();
    for client in clients {
        let waits = client.flags().contains(ClientFlags::BLOCKED) || client.is_in_background();
        let exempt = waits || client.kind() != ClientKind::Normal;
        if !exempt && client.idle_millis(now) > limit {
            tracing::debug!("Closing idle client {}", client.connection.address);
            client.kill();
        }
    }
}

/// Closes clients that have exceeded the soft output limit for too long. Such clients neither send nor read, so no
/// other check would notice them.
fn close_slow_clients(limits: &ClientLimits, clients: &[Arc<Client>], now: Millis) {
    for client in clients {
        let since = client.over_soft_limit_since.load(Ordering::Relaxed);
        if since > 0 && limits.output_limit_for(client).is_soft_limit_exceeded(since, now) {
            client.close_for_output_limit();
        }
    }
}

/// Records the peak of memory usage and enforces the memory limits.
pub(crate) async fn monitor_memory(housekeeping: Arc<Housekeeping>) {
    loop {
        // An idle server's memory changes little, and querying the allocator takes time.
        if housekeeping.engine.memory.budget.is_limited() || !housekeeping.is_quiet.load(Ordering::Relaxed) {
            check_memory(&housekeeping);
        }
        housekeeping.engine.evict_clients();
        let evicts = housekeeping.engine.memory.budget.is_limited() && evict_keys(&housekeeping);
        let limited = housekeeping.engine.memory.budget.is_checked_per_command();
        match (evicts, limited && !housekeeping.network.tick.is_idle()) {
            (true, _) => tokio::time::sleep(EVICTION_YIELD_DURATION).await,
            (false, true) => tokio::time::sleep(MEMORY_CHECK_PERIOD).await,
            (false, false) => housekeeping.network.tick.wait_for_tick().await,
        }
    }
}

/// Reads the allocator's statistics, which include memory that workers do not count.
pub(crate) fn check_memory(housekeeping: &Housekeeping) {
    let heap = housekeeping.engine.memory.budget.measure(memory::ALLOCATOR_STATS.total_bytes);
    housekeeping.memory_tracker.record_peak(heap + pool_used_bytes());
}

/// Evicts keys for a short time if memory usage exceeds `maxmemory`. Returns whether more keys must be evicted.
fn evict_keys(housekeeping: &Housekeeping) -> bool {
    let now = time::now();
    with_scratch(|scratch| housekeeping.engine.evict_if_over_limit(&mut scratch.worker, now))
        == MemoryState::Evicting
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiry_runs_more_often_with_high_hz_and_has_a_minimum_rate() {
        for (hz, millis) in [(1, 50), (10, 50), (100, 5), (500, 1)] {
            assert_eq!(expire_period(hz), Duration::from_millis(millis), "hz {hz}");
        }
    }
}
