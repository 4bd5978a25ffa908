//! What happens by itself: the control thread does it every tenth of a second.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clock::Millis;
use config::{Config, keys};
use engine::{Client, ClientFlags, ClientKind, Engine, Room};
use keyspace::{Usage, pool_taken};
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval};

use crate::commands::LinkPool;
use crate::net::door::Limits;
use crate::net::worker::with_scratch;
use crate::process::housekeeping::Housekeeping;
use crate::process::memory;
use crate::process::totals::{Count, Totals};

/// Keys are looked for whose time has come: twice in a turn of `hz`, and at least this often.
const EXPIRE_PERIOD: Duration = Duration::from_millis(50);
/// How long that may take before workers that share the processor are let first, how long it goes on like that if there
/// is more, and the time left to what else this thread does after that.
const EXPIRE_STINT: Duration = Duration::from_micros(500);
const EXPIRE_CYCLE: Duration = Duration::from_millis(4);
const EXPIRE_REST: Duration = Duration::from_millis(1);
/// Clients are looked at every so many turns.
pub(crate) const TURNS_A_SECOND: usize = 10;
const PERIOD: Duration = Duration::from_millis(100);
/// Memory is tidied and given back this often, everywhere within 13 seconds.
const PURGE_PERIOD: Duration = Duration::from_millis(25);
/// Every so many turns a share of the keys is aged: all of them within 41 minutes.
const AGE_TURNS: usize = 12;
/// Memory is looked at this often while it has a limit.
const MEMORY_PERIOD: Duration = Duration::from_millis(10);
/// The time left to what else this thread does while keys are evicted.
const EVICT_REST: Duration = Duration::from_micros(500);

/// Runs until the server stops.
pub(crate) async fn run(house: Arc<Housekeeping>, targets: Arc<LinkPool>) {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut turn, mut looked) = (0, crate::process::time::nanos());
    loop {
        ticks.tick().await;
        turn += 1;
        house.engine.set_wall_clock(crate::process::time::nanos(), crate::process::time::unix_micros());
        tell_new_keys(&house.engine);
        house.engine.tell_of_changes();
        if house.cron_paused.load(Ordering::Relaxed) {
            continue;
        }
        house.door.listeners.watch_scripts(&house.engine);
        if turn % AGE_TURNS == 0 {
            age(&house.engine, turn / AGE_TURNS);
        }
        if turn % TURNS_A_SECOND == 0 {
            let clients = house.engine.clients.all();
            let now = crate::process::time::nanos();
            house.door.network.look_for_busiest(&clients, now.saturating_sub(looked));
            looked = now;
            close_idle(&house.config, &clients);
            close_slow(&house.door.limits, &clients, crate::process::time::now());
            house.oom_score.settle(&house.config, house.replication.is_replica());
            targets.sweep(crate::process::time::instant());
            let interval = house.config.get(keys::TLS_AUTO_RELOAD_INTERVAL).as_secs();
            if interval > 0 && ((turn / TURNS_A_SECOND) as u64).is_multiple_of(interval) {
                house.door.tls.reload_changed(&house.config);
            }
        }
        let now = crate::process::time::instant();
        house.engine.pauses.settle(&house.engine.settings, crate::process::time::now());
        count_replicas(&house.engine, &house.engine.clients.all());
        let totals = Totals::sum(&house.engine, &house.door);
        let replicated = &house.replication.stats;
        let counts = [
            totals[Count::Commands],
            totals[Count::InputBytes],
            totals[Count::OutputBytes],
            replicated.input_bytes.load(Ordering::Relaxed),
            replicated.output_bytes.load(Ordering::Relaxed),
            totals[Count::Reads],
        ];
        house.rates.sample(now, counts);
    }
}

/// Has this thread stand still whenever DEBUG SLEEP says so. Never returns.
pub(crate) async fn stand_still(house: Arc<Housekeeping>) {
    loop {
        house.standstill.next().await;
    }
}

/// Gives back to the system what lies free, a little at a time. Never returns.
pub(crate) async fn purge(engine: Arc<Engine>) {
    let mut ticks = interval(PURGE_PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for step in 0.. {
        ticks.tick().await;
        engine.keyspace.purge_step(step);
    }
}

/// Deletes keys whose time has come. However many keys are due, no cycle is longer than a few milliseconds, and those
/// who answer commands do not wait for its end; what is left is gone on with at once.
pub(crate) async fn expire(house: Arc<Housekeeping>) {
    loop {
        let end = crate::process::time::instant() + EXPIRE_CYCLE;
        let mut more = !house.cron_paused.load(Ordering::Relaxed) && expire_for_a_stint(&house);
        while more && crate::process::time::instant() < end {
            std::thread::yield_now();
            more = expire_for_a_stint(&house);
        }
        house.expiry.capped.fetch_add(u64::from(more), Ordering::Relaxed);
        tokio::time::sleep(if more { EXPIRE_REST } else { expire_period(house.config.get(keys::HZ)) }).await;
    }
}

/// Says whether there is more.
fn expire_for_a_stint(house: &Housekeeping) -> bool {
    let (begun, now) = (crate::process::time::nanos(), crate::process::time::now());
    let more = with_scratch(|scratch| house.engine.expire_cycle(&mut scratch.worker, now, EXPIRE_STINT));
    let nanos = crate::process::time::nanos().saturating_sub(begun);
    house.expiry.nanos.fetch_add(nanos, Ordering::Relaxed);
    house.engine.latency.sample("expire-cycle", now, nanos);
    more
}

/// A key must be gone within a tenth of a second of its time, so a low `hz` does not make this rare.
fn expire_period(hz: u32) -> Duration {
    Duration::from_micros(500_000 / u64::from(hz.max(1))).min(EXPIRE_PERIOD)
}

/// Drops large values that were deleted, on a thread that nobody waits for.
pub(crate) async fn empty_bin(engine: Arc<Engine>) {
    let filled = Arc::new(Notify::new());
    let ring = filled.clone();
    engine.bin.call_when_filled(move || ring.notify_one());
    loop {
        let engine = engine.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || engine.bin.empty()).await {
            tracing::warn!("Deleted values were not dropped: {error}");
        }
        filled.notified().await;
    }
}

/// Says what a key that is made from now on has as its age or its count of uses.
pub(crate) fn tell_new_keys(engine: &Engine) {
    let now = crate::process::time::now();
    let usage = if engine.settings.lfu().is_some() { Usage::lfu(now) } else { Usage::lru(now) };
    usage.set_of_new();
}

/// Brings the ages of a share of the keys up to date, before their clocks come round.
fn age(engine: &Engine, step: usize) {
    let (now, lfu) = (crate::process::time::now(), engine.settings.lfu());
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
    let now = crate::process::time::now();
    for client in clients {
        let exempt = client.kind() != ClientKind::Normal || client.flags().contains(ClientFlags::BLOCKED);
        if !exempt && client.idle(now) > limit {
            tracing::debug!("Closing idle client {}", client.link.address);
            client.kill();
        }
    }
}

/// Cuts off the clients for which more than the soft limit has waited for too long. Nobody else may hear of them:
/// they neither send nor read.
fn close_slow(limits: &Limits, clients: &[Arc<Client>], now: Millis) {
    for client in clients {
        let since = client.over_soft_limit.load(Ordering::Relaxed);
        if since > 0 && limits.output_of(client).lasts_too_long(since, now) {
            client.overflow();
        }
    }
}

/// Watches the memory in use: its peak, and its limits.
pub(crate) async fn watch_memory(house: Arc<Housekeeping>) {
    loop {
        check_memory(&house);
        let evicts = house.engine.budget.is_limited() && make_room(&house);
        evict_clients(&house);
        let clients = house.door.limits.clients_memory.load(Ordering::Relaxed);
        let limited = house.engine.budget.is_limited() || clients > 0;
        let period = if limited { MEMORY_PERIOD } else { PERIOD };
        tokio::time::sleep(if evicts { EVICT_REST } else { period }).await;
    }
}

/// Takes note of what the allocator says, which knows what no worker does.
pub(crate) fn check_memory(house: &Housekeeping) {
    let before = house.engine.budget.heap();
    let heap = memory::heap();
    house.memory.note(heap + pool_taken());
    house.engine.budget.measured(before, heap);
}

/// What waits to be sent to replicas does not count against `maxmemory`.
fn count_replicas(engine: &Engine, clients: &[Arc<Client>]) {
    let replicas = clients.iter().filter(|client| client.kind() == ClientKind::Replica);
    engine.budget.set_not_counted(replicas.map(|client| client.bytes()).sum());
}

/// Evicts keys for a moment, if more memory is in use than may be; says whether there are more to go.
fn make_room(house: &Housekeeping) -> bool {
    let now = crate::process::time::now();
    with_scratch(|scratch| house.engine.make_room(&mut scratch.worker, now)) == Room::Evicting
}

/// Closes clients, those that take most first, until the others take no more than `maxmemory-clients`.
fn evict_clients(house: &Housekeeping) {
    let limit = house.door.limits.clients_memory.load(Ordering::Relaxed);
    if limit == 0 {
        return;
    }
    let clients = house.engine.clients.all();
    let counted = |client: &&Arc<Client>| {
        matches!(client.kind(), ClientKind::Normal | ClientKind::PubSub) && !client.is_killed()
    };
    let mut sizes: Vec<(usize, &Arc<Client>)> =
        clients.iter().filter(counted).map(|client| (client.bytes(), client)).collect();
    let mut total: usize = sizes.iter().map(|(bytes, _)| bytes).sum();
    sizes.sort_unstable_by_key(|(bytes, _)| *bytes);
    while let Some((bytes, client)) = sizes.pop().filter(|_| total > limit) {
        if !client.flags().contains(ClientFlags::NO_EVICT) {
            tracing::info!(
                "Evicting client id={} addr={}, which takes {bytes} bytes",
                client.id,
                client.link.address
            );
            house.door.network.evicted_clients.fetch_add(1, Ordering::Relaxed);
            client.kill();
            total -= bytes;
        }
    }
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
