//! MEMORY STATS, DOCTOR, MALLOC-STATS and PURGE.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::Context;
use keyspace::{DatabaseSize, Keyspace, pool_usage};
use process::memory::{MemoryUsage, memory_usage};
use resp::Writer;

use super::ShellResult;
use crate::housekeeping::Housekeeping;
use crate::housekeeping::overhead::MemoryOverhead;

/// MEMORY DOCTOR makes no report below this many used bytes, because ratios would be meaningless.
const MIN_SIGNIFICANT_SIZE: usize = 5 << 20;
/// Thresholds of MEMORY DOCTOR as in Redis: two ratios and a difference in bytes.
const HIGH_RATIO: f64 = 1.4;
const HIGH_RSS_RATIO: f64 = 1.1;
const HIGH_DIFFERENCE_BYTES: usize = 10 << 20;

fn safe_ratio(numerator: usize, denominator: usize) -> f64 {
    if denominator == 0 { 0.0 } else { numerator as f64 / denominator as f64 }
}

/// The value of a field in MEMORY STATS.
enum MemoryStatValue {
    Integer(i64),
    Float(f64),
    /// Bytes used by a database in addition to its keys and values.
    Database(i64),
}

impl From<usize> for MemoryStatValue {
    fn from(bytes: usize) -> Self {
        Self::Integer(bytes as i64)
    }
}

pub(super) fn reply_memory_stats(housekeeping: &Housekeeping, context: &mut Context<'_>) {
    let (sizes, overheads) = (context.database_sizes(), context.database_overheads());
    let (figures, reply) = (collect_memory_stats(housekeeping, &sizes, &overheads), &mut context.reply);
    reply.map(figures.len());
    for (name, figure) in figures {
        reply.bulk(name.as_bytes());
        match figure {
            MemoryStatValue::Integer(number) => reply.integer(number),
            MemoryStatValue::Float(number) => reply.double(number),
            MemoryStatValue::Database(bytes) => {
                // There is no separate table of expiry times, so its overhead is zero.
                reply.map(2);
                reply.bulk(b"overhead.hashtable.main");
                reply.integer(bytes);
                reply.bulk(b"overhead.hashtable.expires");
                reply.integer(0);
            }
        }
    }
}

fn collect_memory_stats(
    housekeeping: &Housekeeping,
    sizes: &[DatabaseSize],
    overheads: &[usize],
) -> Vec<(String, MemoryStatValue)> {
    let usage = memory_usage();
    housekeeping.memory_tracker.record_peak(usage.used_bytes);
    let (peak, overhead) = (housekeeping.memory_tracker.peak_bytes(), MemoryOverhead::measure(housekeeping));
    let keys: usize = sizes.iter().map(|size| size.keys).sum();
    let in_use = (0..).zip(sizes.iter().zip(overheads)).filter(|(_, (size, _))| size.keys > 0);
    let databases: Vec<(u16, usize)> = in_use.map(|(db, (_, bytes))| (db, *bytes)).collect();
    let total = overhead.total_bytes() + databases.iter().map(|(_, bytes)| bytes).sum::<usize>();
    let dataset = usage.used_bytes.saturating_sub(total);
    let mut figures: Vec<(String, MemoryStatValue)> = Vec::new();
    let mut add = |name: &str, figure: MemoryStatValue| figures.push((name.to_owned(), figure));
    add("peak.allocated", peak.into());
    add("total.allocated", usage.used_bytes.into());
    add("startup.allocated", overhead.startup_bytes.into());
    add("replication.backlog", overhead.backlog_bytes.into());
    // Replicas and targets of slot migrations read directly from the log, so they need no buffer.
    add("replicas.repl.buffer", MemoryStatValue::Integer(0));
    add("clients.slaves", overhead.replica_bytes.into());
    add("clients.normal", overhead.client_bytes.into());
    add("cluster.links", housekeeping.network.stats.bus_queued_bytes.load(Ordering::Relaxed).into());
    for name in ["cluster.slot_import", "cluster.slot_export", "aof.buffer"] {
        add(name, MemoryStatValue::Integer(0));
    }
    let scripts = &housekeeping.engine.scripting.scripts;
    add("lua.caches", scripts.bytes().into());
    add("functions.caches", scripts.functions.bytes().into());
    let index: usize = databases.iter().map(|(_, bytes)| bytes).sum();
    for (db, bytes) in databases {
        add(&format!("db.{db}"), MemoryStatValue::Database(bytes as i64));
    }
    // Hash tables grow in place, so the lookup tables are the whole index.
    add("overhead.db.hashtable.lut", index.into());
    add("overhead.db.hashtable.rehashing", MemoryStatValue::Integer(0));
    add("overhead.total", total.into());
    add("db.dict.rehashing.count", MemoryStatValue::Integer(0));
    add("keys.count", keys.into());
    add("keys.bytes-per-key", dataset.checked_div(keys).unwrap_or(0).into());
    add("dataset.bytes", dataset.into());
    add("dataset.percentage", MemoryStatValue::Float(safe_ratio(dataset, usage.used_bytes) * 100.0));
    add("peak.percentage", MemoryStatValue::Float(safe_ratio(usage.used_bytes, peak) * 100.0));
    add("allocator.allocated", usage.allocated_bytes.into());
    add("allocator.active", usage.active_bytes.into());
    add("allocator.resident", usage.resident_bytes.into());
    add("allocator.muzzy", MemoryStatValue::Integer(0));
    for (ratio_name, bytes_name, a, b) in [
        (
            "allocator-fragmentation.ratio",
            "allocator-fragmentation.bytes",
            usage.active_bytes,
            usage.allocated_bytes,
        ),
        ("allocator-rss.ratio", "allocator-rss.bytes", usage.resident_bytes, usage.active_bytes),
        ("rss-overhead.ratio", "rss-overhead.bytes", usage.rss_bytes, usage.resident_bytes),
        ("fragmentation", "fragmentation.bytes", usage.rss_bytes, usage.used_bytes),
    ] {
        add(ratio_name, MemoryStatValue::Float(safe_ratio(a, b)));
        add(bytes_name, MemoryStatValue::Integer(a as i64 - b as i64));
    }
    figures
}

/// Replies to MEMORY DOCTOR. `peak` is the peak of used memory in bytes.
pub(super) fn reply_diagnosis(peak_bytes: usize, reply: &mut Writer<'_>) {
    reply.verbatim(b"txt", diagnose_memory(&memory_usage(), peak_bytes).as_bytes());
}

fn diagnose_memory(usage: &MemoryUsage, peak_bytes: usize) -> String {
    if usage.used_bytes < MIN_SIGNIFICANT_SIZE {
        return "Hi Sam, this instance is empty or is using very little memory, my issues detector can't be used in \
                these conditions. Please, leave for your mission on Earth and fill it with some data. The new Sam and \
                I will be back to our programming as soon as I finished rebooting.\n"
            .to_owned();
    }
    let mut found = Vec::new();
    let over = |a: usize, b: usize, limit: f64| safe_ratio(a, b) > limit && a - b > HIGH_DIFFERENCE_BYTES;
    if safe_ratio(peak_bytes, usage.used_bytes) > 1.5 {
        found.push("Peak memory: much more was used once than is now. What is free goes back to the system by itself.");
    }
    if over(usage.rss_bytes, usage.used_bytes, HIGH_RATIO) {
        found.push("High total RSS: the process occupies much more than it uses. MEMORY PURGE gives back what it can.");
    }
    if over(usage.active_bytes, usage.allocated_bytes, HIGH_RSS_RATIO) {
        found.push("High allocator fragmentation: what is free lies between what is used.");
    }
    if over(usage.rss_bytes, usage.resident_bytes, HIGH_RSS_RATIO) {
        found.push("High process RSS overhead: more is occupied than the allocators know of.");
    }
    if found.is_empty() {
        return "Hi Sam, I can't find any memory issue in your instance. I can only account for what occurs on this \
                base.\n"
            .to_owned();
    }
    let found: String = found.iter().map(|line| format!(" * {line}\n")).collect();
    format!("Sam, I detected a few issues in this Redoubt instance memory implants:\n\n{found}\n")
}

/// Replies to MEMORY MALLOC-STATS.
pub(super) fn reply_malloc_stats(reply: &mut Writer<'_>) {
    let (usage, pool) = (memory_usage(), pool_usage());
    let text = format!(
        "pool of pages: taken {}, held {}\ngeneral allocator: allocated {}, active {}, resident {}\n",
        pool.used_bytes,
        pool.mapped_bytes,
        usage.allocated_bytes - pool.used_bytes.min(usage.allocated_bytes),
        usage.active_bytes - pool.mapped_bytes.min(usage.active_bytes),
        usage.resident_bytes - pool.mapped_bytes.min(usage.resident_bytes),
    );
    reply.verbatim(b"txt", text.as_bytes());
}

/// Starts MEMORY PURGE on another thread, for transactions and scripts, which cannot wait.
pub(super) fn purge_in_background(keyspace: Arc<Keyspace>) -> ShellResult {
    let steps = move || {
        for step in 0..Keyspace::PURGE_STEPS {
            keyspace.purge_step(step);
        }
    };
    let begun = std::thread::Builder::new().name("purge".to_owned()).spawn(steps);
    begun.map(drop).map_err(|error| format!("ERR {error}"))
}

/// Executes MEMORY PURGE: completes at once what the periodic purge does within half a minute.
pub(super) async fn purge_memory(keyspace: Arc<Keyspace>) {
    // The general allocator purges its memory on its own threads; this purges the keyspace's allocators.
    let steps = move || (0..Keyspace::PURGE_STEPS).map(|step| keyspace.purge_step(step)).sum::<usize>();
    let given = tokio::task::spawn_blocking(steps).await.unwrap_or(0);
    tracing::debug!("MEMORY PURGE gave {given} bytes back");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_doctor_reports_problems() {
        let used = 100 << 20;
        let well = MemoryUsage {
            used_bytes: used,
            allocated_bytes: used,
            active_bytes: used,
            resident_bytes: used,
            rss_bytes: used,
        };
        assert!(diagnose_memory(&well, used).starts_with("Hi Sam, I can't find any memory issue"));
        assert!(diagnose_memory(&MemoryUsage::default(), 0).starts_with("Hi Sam, this instance is empty"));
        let text = diagnose_memory(&MemoryUsage { rss_bytes: 2 * used, ..well }, 2 * used);
        assert!(text.starts_with("Sam, I detected a few issues"), "{text}");
        assert_eq!(text.matches(" * ").count(), 3, "{text}");
    }
}
