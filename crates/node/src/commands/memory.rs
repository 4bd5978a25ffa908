//! MEMORY STATS, DOCTOR, MALLOC-STATS, PURGE.

use keyspace::{Keyspace, pool_use};
use resp::Writer;

use crate::process::memory::{Overhead, Usage, usage};
use crate::server::Server;

/// Below this much, ratios say nothing.
const TOO_LITTLE: usize = 5 << 20;
/// What is worth a remark, as in Redis.
const HIGH: f64 = 1.4;
const HIGH_RSS: f64 = 1.1;
const HIGH_BYTES: usize = 10 << 20;

fn ratio(a: usize, b: usize) -> f64 {
    if b == 0 { 0.0 } else { a as f64 / b as f64 }
}

/// MEMORY STATS
pub(super) fn stats(server: &Server, reply: &mut Writer<'_>) {
    let usage = usage();
    server.memory.note(usage.used);
    let (peak, overhead) = (server.memory.peak(), Overhead::of(server));
    let keyspace = &server.engine.keyspace;
    let keys: usize = (0..keyspace.databases()).map(|db| keyspace.len(db)).sum();
    let databases: Vec<(u16, usize)> = (0..keyspace.databases())
        .filter(|&db| !keyspace.is_empty(db))
        .map(|db| (db, keyspace.overhead_bytes(db)))
        .collect();
    let total = overhead.total() + databases.iter().map(|(_, bytes)| bytes).sum::<usize>();
    let dataset = usage.used.saturating_sub(total);
    let parts = [
        ("peak.allocated", peak),
        ("total.allocated", usage.used),
        ("startup.allocated", overhead.startup),
        ("replication.backlog", overhead.backlog),
        ("clients.slaves", overhead.replicas),
        ("clients.normal", overhead.clients),
    ];
    let numbers = [
        ("overhead.total", total),
        ("keys.count", keys),
        ("keys.bytes-per-key", dataset.checked_div(keys).unwrap_or(0)),
        ("dataset.bytes", dataset),
        ("allocator.allocated", usage.allocated),
        ("allocator.active", usage.active),
        ("allocator.resident", usage.resident),
    ];
    let percentages = [
        ("dataset.percentage", ratio(dataset, usage.used) * 100.0),
        ("peak.percentage", ratio(usage.used, peak) * 100.0),
    ];
    let compared = [
        ("allocator-fragmentation", usage.active, usage.allocated),
        ("allocator-rss", usage.resident, usage.active),
        ("rss-overhead", usage.rss, usage.resident),
    ];
    reply.map(parts.len() + databases.len() + numbers.len() + percentages.len() + 2 * compared.len() + 2);
    for (name, bytes) in parts {
        reply.bulk(name.as_bytes());
        reply.integer(bytes as i64);
    }
    for (db, bytes) in databases {
        reply.bulk(format!("db.{db}").as_bytes());
        // The index of expiry times is six bytes a page, and slots need none of their keys.
        reply.map(1);
        reply.bulk(b"overhead.hashtable.main");
        reply.integer(bytes as i64);
    }
    for (name, bytes) in numbers {
        reply.bulk(name.as_bytes());
        reply.integer(bytes as i64);
    }
    for (name, value) in percentages {
        reply.bulk(name.as_bytes());
        reply.double(value);
    }
    for (name, a, b) in compared {
        reply.bulk(format!("{name}.ratio").as_bytes());
        reply.double(ratio(a, b));
        reply.bulk(format!("{name}.bytes").as_bytes());
        reply.integer(a as i64 - b as i64);
    }
    reply.bulk(b"fragmentation");
    reply.double(ratio(usage.rss, usage.used));
    reply.bulk(b"fragmentation.bytes");
    reply.integer(usage.rss as i64 - usage.used as i64);
}

/// MEMORY DOCTOR
pub(super) fn doctor(server: &Server, reply: &mut Writer<'_>) {
    reply.verbatim(b"txt", report(&usage(), server.memory.peak()).as_bytes());
}

fn report(usage: &Usage, peak: usize) -> String {
    if usage.used < TOO_LITTLE {
        return "Hi Sam, this instance is empty or is using very little memory, my issues detector can't be used in \
                these conditions. Please, leave for your mission on Earth and fill it with some data. The new Sam and \
                I will be back to our programming as soon as I finished rebooting.\n"
            .to_owned();
    }
    let mut found = Vec::new();
    let over = |a: usize, b: usize, limit: f64| ratio(a, b) > limit && a - b > HIGH_BYTES;
    if ratio(peak, usage.used) > 1.5 {
        found.push("Peak memory: much more was used once than is now. What is free goes back to the system by itself.");
    }
    if over(usage.rss, usage.used, HIGH) {
        found.push("High total RSS: the process occupies much more than it uses. MEMORY PURGE gives back what it can.");
    }
    if over(usage.active, usage.allocated, HIGH_RSS) {
        found.push("High allocator fragmentation: what is free lies between what is used.");
    }
    if over(usage.rss, usage.resident, HIGH_RSS) {
        found.push("High process RSS overhead: more is occupied than the allocators know of.");
    }
    if found.is_empty() {
        return "Hi Sam, I can't find any memory issue in your instance. I can only account for what occurs on this \
                base.\n"
            .to_owned();
    }
    let found: String = found.iter().map(|line| format!(" * {line}\n")).collect();
    format!("Sam, I detected a few issues in this Redis instance memory implants:\n\n{found}\n")
}

/// MEMORY MALLOC-STATS
pub(super) fn malloc_stats(reply: &mut Writer<'_>) {
    let (usage, pool) = (usage(), pool_use());
    let text = format!(
        "pool of pages: taken {}, held {}\ngeneral allocator: allocated {}, active {}, resident {}\n",
        pool.taken,
        pool.held,
        usage.allocated - pool.taken.min(usage.allocated),
        usage.active - pool.held.min(usage.active),
        usage.resident - pool.held.min(usage.resident),
    );
    reply.verbatim(b"txt", text.as_bytes());
}

/// MEMORY PURGE: what the cron does within half a minute, at once.
pub(super) async fn purge(server: &Server) {
    let keyspace = server.engine.keyspace.clone();
    // The general allocator gives back by itself, with its own threads.
    let steps = move || (0..Keyspace::PURGE_STEPS).map(|step| keyspace.purge_step(step)).sum::<usize>();
    let given = tokio::task::spawn_blocking(steps).await.unwrap_or(0);
    tracing::debug!("MEMORY PURGE gave {given} bytes back");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_doctor_names_what_is_wrong() {
        let used = 100 << 20;
        let well = Usage { used, allocated: used, active: used, resident: used, rss: used };
        assert!(report(&well, used).starts_with("Hi Sam, I can't find any memory issue"));
        assert!(report(&Usage::default(), 0).starts_with("Hi Sam, this instance is empty"));
        let text = report(&Usage { rss: 2 * used, ..well }, 2 * used);
        assert!(text.starts_with("Sam, I detected a few issues"), "{text}");
        assert_eq!(text.matches(" * ").count(), 3, "{text}");
    }
}
