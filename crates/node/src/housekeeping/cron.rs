//! The periodic work of a server: the control thread does it at each beat of the server's pulse ([`AdaptiveTick`]), or when
//! its time has come.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clock::Millis;
use config::{Config, keys};
use engine::{Client, ClientFlags, ClientKind, Engine, Gate, Room, WorkerStats};
use keyspace::{Keyspace, pool_used_bytes};
use net::context::ClientLimits;
use net::link_pool::LinkPool;
use net::scratch::with_scratch;
use process::rates::RATE_COUNT;
use process::{adaptive_tick, memory, time};
use tokio::sync::Notify;

use crate::housekeeping::Housekeeping;
use crate::housekeeping::totals::{Count, Totals};

/// Keys are looked for whose time has come: twice in a turn of `hz`, and at least this often.
const EXPIRE_PERIOD: Duration = Duration::from_millis(50);
/// How long that may take before workers that share the processor are let first, how long it goes on like that if there
/// is more, and the time left to what else this thread does after that.
const EXPIRE_STINT: Duration = Duration::from_micros(500);
const EXPIRE_CYCLE: Duration = Duration::from_millis(4);
const EXPIRE_REST: Duration = Duration::from_millis(1);
/// Clients are looked at this often, and a share of the keys is aged: all of them within 35 minutes.
const SECOND: Duration = Duration::from_secs(1);
/// The steps of a purge at one beat: memory is tidied and given back everywhere within 13 seconds.
const PURGE_STEPS: usize = 4;
/// After a step that took more nanoseconds others of the thread come first.
const LONG_STEP: u64 = 100_000;
/// So many rounds go by without a change before memory is left as it is: one tidies what the last change left, the next
/// gives back what that freed.
const CALM_ROUNDS: usize = 2;
/// After so many beats at which nothing had come the server is at rest.
const QUIET_BEATS: usize = 3;
/// Faults of commands are logged no more often.
const FAULT_LOG_SECONDS: usize = 60;
/// Memory is looked at this often while it has a limit.
const MEMORY_PERIOD: Duration = Duration::from_millis(10);
/// The time left to what else this thread does while keys are evicted.
const EVICT_REST: Duration = Duration::from_micros(500);

/// Runs until the server stops.
pub(crate) async fn run(house: Arc<Housekeeping>, targets: Arc<LinkPool>) {
    let tick = house.network.tick.clone();
    let (mut looked, mut seconds, mut quiet) = (time::instant(), 0, 0);
    let (mut counts, mut faults) = (Activity::default(), FaultLog::default());
    loop {
        let last = tokio::time::Instant::now();
        if quiet >= QUIET_BEATS && may_rest(&house) {
            tick.drive_idle_tick(last, || Activity::of(&house) == counts).await;
        } else {
            tick.drive_tick(last).await;
        }
        house.engine.set_wall_clock(time::nanos(), time::unix_micros());
        house.engine.set_usage_of_new(time::now());
        house.engine.tell_of_changes();
        if house.cron_paused.load(Ordering::Relaxed) {
            continue;
        }
        house.network.worker_pool.watch_scripts(&house.engine);
        let (now, clients) = (time::instant(), house.engine.clients.all());
        let since = now.since(looked);
        if since + adaptive_tick::TICK_PERIOD / 2 >= SECOND {
            (looked, seconds) = (now, seconds + 1);
            each_second(&house, &clients, since, seconds);
            faults.tell(&house.engine, seconds);
            targets.sweep(now);
        }
        house.engine.pauses.end_overdue(&house.engine.settings, time::now());
        let before = std::mem::replace(&mut counts, Activity::of(&house));
        quiet = if counts == before { quiet + 1 } else { 0 };
        house.is_quiet.store(quiet > 0, Ordering::Relaxed);
        house.rates.sample(now, counts.rates);
    }
}

/// Looks after the clients and all else that need not be seen to at each beat; `seconds` counts the calls, and the last
/// was `since` ago.
fn each_second(house: &Housekeeping, clients: &[Arc<Client>], since: Duration, seconds: usize) {
    age(&house.engine, seconds);
    house.network.stats.update_busiest_client(clients, u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
    close_idle(&house.config, clients);
    close_slow(&house.network.limits, clients, time::now());
    house.oom_score.apply(&house.config, house.replication.is_replica());
    let interval = house.config.get(keys::TLS_AUTO_RELOAD_INTERVAL).as_secs();
    if interval > 0 && (seconds as u64).is_multiple_of(interval) {
        house.network.tls.reload_changed(&house.config);
    }
}

/// Logs faults of commands that clients have got as errors, at most once a minute.
#[derive(Default)]
struct FaultLog {
    /// How many have been logged.
    told: u64,
    /// The second from which on the next may be logged.
    next: usize,
}

impl FaultLog {
    fn tell(&mut self, engine: &Engine, second: usize) {
        let (faults, count) = (&engine.undeclared_keys, engine.undeclared_keys.count());
        if count == self.told || second < self.next {
            return;
        }
        let more = count - self.told;
        (self.told, self.next) = (count, second + FAULT_LOG_SECONDS);
        let command = faults.last();
        tracing::error!(
            "{more} commands asked for keys that they had not declared and got an error, '{command}' last: a fault of \
             this server, please report it with the command's arguments"
        );
    }
}

/// Whether nothing has an end that is to be seen at a beat.
fn may_rest(house: &Housekeeping) -> bool {
    let pauses = house.engine.pauses.end_overdue(&house.engine.settings, time::now());
    let busy =
        house.engine.settings.gate().contains(Gate::BUSY) || house.network.worker_pool.has_stalled_worker();
    pauses.is_none() && !busy && house.is_purged.load(Ordering::Relaxed)
}

/// How much has come and been done so far.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Activity {
    rates: [u64; RATE_COUNT],
    changes: u64,
    taken: usize,
}

impl Activity {
    fn of(house: &Housekeeping) -> Self {
        let workers = house.engine.worker_stats();
        let traffic = Totals::of_traffic(&house.network);
        let replicated = &house.replication.stats;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Self {
            rates: [
                workers.iter().map(|worker| worker.calls()).sum(),
                traffic[Count::InputBytes],
                traffic[Count::OutputBytes],
                load(&replicated.input_bytes),
                load(&replicated.output_bytes),
                traffic[Count::Reads],
            ],
            changes: changes(house),
            taken: pool_used_bytes(),
        }
    }
}

/// How often the data has changed. A load shows in the memory that it takes.
fn changes(house: &Housekeeping) -> u64 {
    let of_worker = |worker: &WorkerStats| {
        let counters = [&worker.changes, &worker.expired_keys, &worker.expired_fields, &worker.evicted_keys];
        counters.into_iter().map(|counter| counter.load(Ordering::Relaxed)).sum::<u64>()
    };
    house.engine.worker_stats().iter().map(|worker| of_worker(worker)).sum()
}

/// Has this thread stand still whenever DEBUG SLEEP says so. Never returns.
pub(crate) async fn stand_still(house: Arc<Housekeeping>) {
    loop {
        house.standstill.next().await;
    }
}

/// Gives free memory back to the system, a little at a time, until two rounds have gone by in which nothing changed.
/// Never returns.
pub(crate) async fn purge(house: Arc<Housekeeping>) {
    let keyspace = &house.engine.keyspace;
    let data = || (changes(&house), pool_used_bytes());
    // A keyspace that has no keys yet has nothing to give back.
    let (mut step, mut calm, mut seen) = (0, CALM_ROUNDS, data());
    loop {
        house.network.tick.wait_for_tick().await;
        let is_purged = calm >= CALM_ROUNDS && data() == seen;
        house.is_purged.store(is_purged, Ordering::Relaxed);
        if is_purged {
            continue;
        }
        for _ in 0..PURGE_STEPS {
            let begun = time::nanos();
            keyspace.purge_step(step);
            step = (step + 1) % Keyspace::PURGE_STEPS;
            if time::nanos().saturating_sub(begun) > LONG_STEP {
                tokio::task::yield_now().await;
            }
        }
        if step == 0 {
            let before = std::mem::replace(&mut seen, data());
            calm = if seen == before { calm + 1 } else { 0 };
        }
    }
}

/// Deletes keys whose time has come. However many keys are due, no cycle is longer than a few milliseconds, and threads
/// that answer commands do not wait for its end; the rest of the keys are gone on with at once.
pub(crate) async fn expire(house: Arc<Housekeeping>) {
    let sooner = Arc::new(Notify::new());
    let ring = sooner.clone();
    house.engine.keyspace.on_earlier_expiry(move || ring.notify_one());
    loop {
        let more = expire_some(&house);
        let rest = if more { EXPIRE_REST } else { expire_period(house.config.get(keys::HZ)) };
        until_due(&house, &sooner, tokio::time::Instant::now() + rest).await;
    }
}

/// One cycle; says whether there is more.
pub(crate) fn expire_some(house: &Housekeeping) -> bool {
    let end = time::instant() + EXPIRE_CYCLE;
    let mut more = !house.cron_paused.load(Ordering::Relaxed) && expire_for_a_stint(house);
    while more && time::instant() < end {
        std::thread::yield_now();
        more = expire_for_a_stint(house);
    }
    house.expiry.capped.fetch_add(u64::from(more), Ordering::Relaxed);
    more
}

/// Returns when a key's time has come, but not before `earliest`.
async fn until_due(house: &Housekeeping, sooner: &Notify, earliest: tokio::time::Instant) {
    loop {
        let left = house.engine.keyspace.next_due().map(|due| due.0.saturating_sub(time::now().0).max(0));
        let due = async {
            match left {
                Some(left) => {
                    let at = tokio::time::Instant::now() + Duration::from_millis(left.unsigned_abs());
                    tokio::time::sleep_until(at.max(earliest)).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => return,
            () = sooner.notified() => {}
        }
    }
}

/// Says whether there is more.
fn expire_for_a_stint(house: &Housekeeping) -> bool {
    let (begun, now) = (time::nanos(), time::now());
    let more = with_scratch(|scratch| house.engine.expire_cycle(&mut scratch.worker, now, EXPIRE_STINT));
    let nanos = time::nanos().saturating_sub(begun);
    house.expiry.nanos.fetch_add(nanos, Ordering::Relaxed);
    house.engine.latency.sample("expire-cycle", now, nanos);
    more
}

/// A key must be gone within a tenth of a second of its time, so a low `hz` does not make this rare.
fn expire_period(hz: u32) -> Duration {
    Duration::from_micros(500_000 / u64::from(hz.max(1))).min(EXPIRE_PERIOD)
}

/// Drops large values that were deleted, on a background thread.
pub(crate) async fn empty_bin(engine: Arc<Engine>) {
    let filled = Arc::new(Notify::new());
    let ring = filled.clone();
    engine.lazy_free.call_when_filled(move || ring.notify_one());
    loop {
        let engine = engine.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || engine.lazy_free.empty()).await {
            tracing::warn!("Deleted values were not dropped: {error}");
        }
        filled.notified().await;
    }
}

/// Brings the ages of a share of the keys up to date, before their clocks come round.
fn age(engine: &Engine, step: usize) {
    let (now, lfu) = (time::now(), engine.settings.lfu());
    engine.keyspace.age_step(step, &mut |usage| match lfu {
        None => usage.aged_lru(now),
        Some(settings) => usage.aged_lfu(now, settings),
    });
}

/// Closes the connections that have said nothing for as long as `timeout` says.
fn close_idle(config: &Config, clients: &[Arc<Client>]) {
    let limit = config.get(keys::TIMEOUT);
    if limit.is_zero() {
        return;
    }
    let limit = i64::try_from(limit.as_millis()).unwrap_or(i64::MAX);
    let now = time::now();
    for client in clients {
        let waits = client.flags().contains(ClientFlags::BLOCKED) || client.is_in_background();
        let exempt = waits || client.kind() != ClientKind::Normal;
        if !exempt && client.idle(now) > limit {
            tracing::debug!("Closing idle client {}", client.link.address);
            client.kill();
        }
    }
}

/// Cuts off the clients for which more than the soft limit has waited for too long. No other check may find them: they
/// neither send nor read.
fn close_slow(limits: &ClientLimits, clients: &[Arc<Client>], now: Millis) {
    for client in clients {
        let since = client.over_soft_limit.load(Ordering::Relaxed);
        if since > 0 && limits.output_limit_for(client).is_soft_limit_exceeded(since, now) {
            client.overflow();
        }
    }
}

/// Watches the memory in use: its peak, and its limits.
pub(crate) async fn watch_memory(house: Arc<Housekeeping>) {
    loop {
        // The memory of an idle server changes little, and it takes the allocator some time to tell.
        if house.engine.budget.is_limited() || !house.is_quiet.load(Ordering::Relaxed) {
            check_memory(&house);
        }
        house.engine.evict_clients();
        let evicts = house.engine.budget.is_limited() && make_room(&house);
        let limited = house.engine.budget.is_watched();
        match (evicts, limited && !house.network.tick.is_idle()) {
            (true, _) => tokio::time::sleep(EVICT_REST).await,
            (false, true) => tokio::time::sleep(MEMORY_PERIOD).await,
            (false, false) => house.network.tick.wait_for_tick().await,
        }
    }
}

/// Takes note of what the allocator says, which knows what no worker does.
pub(crate) fn check_memory(house: &Housekeeping) {
    let heap = house.engine.budget.measure(memory::HEAP.of_all);
    house.memory.record(heap + pool_used_bytes());
}

/// Evicts keys for a moment, if more memory is in use than may be; says whether there are more to go.
fn make_room(house: &Housekeeping) -> bool {
    let now = time::now();
    with_scratch(|scratch| house.engine.make_room(&mut scratch.worker, now)) == Room::Evicting
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_high_hz_looks_for_due_keys_more_often_and_a_low_one_not_less() {
        for (hz, millis) in [(1, 50), (10, 50), (100, 5), (500, 1)] {
            assert_eq!(expire_period(hz), Duration::from_millis(millis), "hz {hz}");
        }
    }
}
