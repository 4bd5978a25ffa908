//! The INFO section Memory.

use std::sync::atomic::Ordering;

use config::keys;
use process::info::InfoText;
use process::memory::{format_human, memory_usage, total_system_memory};

use crate::housekeeping::overhead::MemoryOverhead;
use crate::server::Server;

pub(super) fn write_memory_section(server: &Server, text: &mut InfoText) {
    let usage = memory_usage();
    server.housekeeping.memory_tracker.record_peak(usage.used_bytes);
    let (peak, overhead) =
        (server.housekeeping.memory_tracker.peak_bytes(), MemoryOverhead::measure(&server.housekeeping));
    let dataset = usage.used_bytes.saturating_sub(overhead.total_bytes());
    let ratio = |a: usize, b: usize| if b == 0 { 0.0 } else { a as f64 / b as f64 };
    let difference = |a: usize, b: usize| a as i128 - b as i128;
    let percent = |a: usize, b: usize| format!("{:.2}%", ratio(a, b) * 100.0);
    let mut both = |name: &str, bytes: u64| {
        text.write_line(name, bytes);
        text.write_line(&format!("{name}_human"), format_human(bytes));
    };
    both("used_memory", usage.used_bytes as u64);
    both("used_memory_rss", usage.rss_bytes as u64);
    both("used_memory_peak", peak as u64);
    text.write_line("used_memory_peak_perc", percent(usage.used_bytes, peak));
    text.write_line("used_memory_overhead", overhead.total_bytes());
    text.write_line("used_memory_startup", overhead.startup_bytes);
    text.write_line("used_memory_dataset", dataset);
    text.write_line("used_memory_dataset_perc", percent(dataset, usage.used_bytes));
    text.write_line("allocator_allocated", usage.allocated_bytes);
    text.write_line("allocator_active", usage.active_bytes);
    text.write_line("allocator_resident", usage.resident_bytes);
    // "Muzzy" pages do not exist, because jemalloc returns them at once by default.
    text.write_line("allocator_muzzy", 0);
    let mut both = |name: &str, bytes: u64| {
        text.write_line(name, bytes);
        text.write_line(&format!("{name}_human"), format_human(bytes));
    };
    both("total_system_memory", total_system_memory());
    let scripts = &server.engine.scripting.scripts;
    both("used_memory_lua", scripts.lua_bytes() as u64);
    let functions = scripts.functions.bytes();
    // Each thread runs scripts and functions in the same Lua state, so both totals are equal.
    both("used_memory_vm_total", scripts.lua_bytes() as u64);
    both("used_memory_scripts", (scripts.bytes() + functions) as u64);
    both("maxmemory", server.config.get(keys::MAXMEMORY) as u64);
    text.write_line("maxmemory_policy", server.config.get(keys::MAXMEMORY_POLICY));
    let mut compared = |name: &str, end: &str, a: usize, b: usize| {
        text.write_line(&format!("{name}_ratio"), format!("{:.2}", ratio(a, b)));
        text.write_line(&format!("{name}{end}"), difference(a, b));
    };
    compared("allocator_frag", "_bytes", usage.active_bytes, usage.allocated_bytes);
    compared("allocator_rss", "_bytes", usage.resident_bytes, usage.active_bytes);
    compared("rss_overhead", "_bytes", usage.rss_bytes, usage.resident_bytes);
    compared("mem_fragmentation", "_bytes", usage.rss_bytes, usage.used_bytes);
    write_overhead_fields(server, &overhead, functions, text);
}

/// Writes the fields about memory used in addition to the data.
fn write_overhead_fields(server: &Server, overhead: &MemoryOverhead, functions: usize, text: &mut InfoText) {
    let scripts = &server.engine.scripting.scripts;
    text.write_line("mem_not_counted_for_evict", overhead.bytes_beyond_backlog + scripts.lua_bytes());
    text.write_line("mem_replication_backlog", overhead.backlog_bytes);
    // Replicas read directly from the log, so only the stream buffered while a snapshot is received counts here.
    let held = server.replication.buffered_bytes() as usize;
    text.write_line("mem_replicas_repl_buffer", held);
    text.write_line(
        "mem_total_replication_buffers",
        overhead.backlog_bytes + overhead.bytes_beyond_backlog + held,
    );
    text.write_line("mem_clients_slaves", overhead.replica_bytes);
    text.write_line("mem_clients_normal", overhead.client_bytes);
    text.write_line("mem_cluster_links", server.network.stats.bus_queued_bytes.load(Ordering::Relaxed));
    // The append-only file is written directly from the replication log, so it needs no buffer.
    text.write_line("mem_aof_buffer", 0);
    text.write_line("used_memory_vm_eval", scripts.lua_bytes());
    text.write_line("used_memory_vm_functions", 0);
    text.write_line("used_memory_functions", functions);
    text.write_line("used_memory_scripts_eval", scripts.bytes());
    text.write_line("number_of_cached_scripts", scripts.len());
    text.write_line("number_of_functions", scripts.functions.len());
    text.write_line("number_of_libraries", scripts.functions.libraries().len());
    text.write_line("mem_allocator", "jemalloc-5.3.0");
    // Hash tables grow in place, so there are no tables to rehash. Defragmentation works per slot.
    text.write_line("mem_overhead_db_hashtable_rehashing", 0);
    text.write_line("active_defrag_running", 0);
    text.write_line("lazyfree_pending_objects", server.engine.memory.lazy_free.pending_count());
    text.write_line("lazyfreed_objects", server.engine.memory.lazy_free.freed_count());
}
