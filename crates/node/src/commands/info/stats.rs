//! The INFO sections Stats, Commandstats, Errorstats and Latencystats.

use std::sync::atomic::Ordering;

use config::keys;
use process::info::InfoText;
use process::rates::Rate;
use slot_routing::SLOT_COUNT;

use crate::housekeeping::totals::{ServerCounter, StatisticsTotals};
use crate::server::Server;

pub(super) fn write_stats_section(server: &Server, text: &mut InfoText) {
    let totals = server.housekeeping.totals_since_reset();
    write_traffic(server, &totals, text);
    crate::replication::write_sync_stats(&server.replication, text.text_mut());
    write_key_counters(server, &totals, text);
    write_client_counters(server, &totals, text);
}

fn write_traffic(server: &Server, totals: &StatisticsTotals, text: &mut InfoText) {
    let rate = |rate| server.housekeeping.rates.per_second(rate);
    text.write_line("total_connections_received", totals[ServerCounter::Connections]);
    text.write_line("total_commands_processed", totals[ServerCounter::Commands]);
    text.write_line("instantaneous_ops_per_sec", rate(Rate::Commands).round());
    text.write_line("total_net_input_bytes", totals[ServerCounter::InputBytes]);
    text.write_line("total_net_output_bytes", totals[ServerCounter::OutputBytes]);
    let replicated = &server.replication.stats;
    text.write_line("total_net_repl_input_bytes", replicated.input_bytes.load(Ordering::Relaxed));
    text.write_line("total_net_repl_output_bytes", replicated.output_bytes.load(Ordering::Relaxed));
    let kilobytes = |name| format!("{:.2}", rate(name) / 1024.0);
    text.write_line("instantaneous_input_kbps", kilobytes(Rate::InputBytes));
    text.write_line("instantaneous_output_kbps", kilobytes(Rate::OutputBytes));
    text.write_line("instantaneous_input_repl_kbps", kilobytes(Rate::ReplicaInputBytes));
    text.write_line("instantaneous_output_repl_kbps", kilobytes(Rate::ReplicaOutputBytes));
    text.write_line("rejected_connections", totals[ServerCounter::RejectedConnections]);
}

fn write_key_counters(server: &Server, totals: &StatisticsTotals, text: &mut InfoText) {
    text.write_line("expired_keys", totals[ServerCounter::ExpiredKeys]);
    text.write_line("expired_fields", totals[ServerCounter::ExpiredFields]);
    // Redis uses this name for the number of expired fields.
    text.write_line("expired_subkeys", totals[ServerCounter::ExpiredFields]);
    text.write_line("expired_stale_perc", format!("{:.2}", expired_slots_percent(server)));
    // A slot is also due if it has expired fields, so this percentage equals the previous one.
    text.write_line(
        "expired_keys_with_volatile_items_stale_perc",
        format!("{:.2}", expired_slots_percent(server)),
    );
    text.write_line(
        "expired_time_cap_reached_count",
        server.housekeeping.expiry_stats.timed_out_cycles.load(Ordering::Relaxed),
    );
    text.write_line(
        "expire_cycle_cpu_milliseconds",
        server.housekeeping.expiry_stats.spent_nanos.load(Ordering::Relaxed) / 1_000_000,
    );
    text.write_line("evicted_keys", totals[ServerCounter::EvictedKeys]);
    text.write_line("evicted_clients", totals[ServerCounter::EvictedClients]);
    text.write_line("evicted_scripts", server.engine.scripting.scripts.evicted.load(Ordering::Relaxed));
    let (total, current) = server.engine.memory.budget.millis_over_limit(process::time::nanos());
    text.write_line("total_eviction_exceeded_time", total);
    text.write_line("current_eviction_exceeded_time", current);
    text.write_line("keyspace_hits", totals[ServerCounter::KeyspaceHits]);
    text.write_line("keyspace_misses", totals[ServerCounter::KeyspaceMisses]);
    text.write_line("slot_waits", server.engine.diagnostics.slot_waits.count());
    text.write_line("slot_longest_wait_usec", server.engine.diagnostics.slot_waits.longest_micros());
    let (cuts, micros) = server.durability.rdb_saves.snapshot_count_and_micros();
    text.write_line("latest_fork_usec", micros);
    text.write_line("total_forks", cuts);
    text.write_line("migrate_cached_sockets", server.migration_targets.idle_count());
    text.write_line("slave_expires_tracked_keys", server.engine.memory.local_expiry_count());
    // Slots are defragmented as they change, so these counts of passes over the data do not exist.
    for name in ["hits", "misses", "key_hits", "key_misses"] {
        text.write_line(&format!("active_defrag_{name}"), 0);
    }
    text.write_line("total_active_defrag_time", 0);
    text.write_line("current_active_defrag_time", 0);
}

fn write_client_counters(server: &Server, totals: &StatisticsTotals, text: &mut InfoText) {
    let tracking = &server.engine.notifications.tracking;
    text.write_line("tracking_total_keys", tracking.key_count());
    text.write_line("tracking_total_items", tracking.item_count());
    text.write_line("tracking_total_prefixes", tracking.prefix_count());
    let unexpected = server.replication.stats.unexpected_errors.load(Ordering::Relaxed);
    text.write_line("unexpected_error_replies", unexpected);
    text.write_line("undeclared_key_errors", server.engine.diagnostics.undeclared_keys.count());
    text.write_line("pubsub_channels", server.engine.notifications.pubsub.channel_count());
    text.write_line("pubsub_patterns", server.engine.notifications.pubsub.pattern_count());
    text.write_line("pubsubshard_channels", server.engine.notifications.pubsub.shard_channel_count());
    text.write_line("total_error_replies", totals[ServerCounter::ErrorReplies]);
    text.write_line("dump_payload_sanitizations", 0);
    let (reads, writes) = (totals[ServerCounter::Reads], totals[ServerCounter::Writes]);
    text.write_line("total_reads_processed", reads);
    text.write_line("total_writes_processed", writes);
    // Each event loop cycle of a worker reads once, so the number of reads is the number of cycles.
    text.write_line("eventloop_cycles", reads);
    let at_work = server.housekeeping.event_loop_time.total_micros();
    text.write_line("eventloop_duration_sum", at_work);
    text.write_line(
        "eventloop_duration_cmd_sum",
        totals.commands.iter().map(|command| command.total_nanos).sum::<u64>() / 1000,
    );
    let turns = server.housekeeping.rates.per_second(Rate::Reads);
    text.write_line("instantaneous_eventloop_cycles_per_sec", turns.round());
    let each = server.housekeeping.event_loop_time.mean_cycle_micros(at_work, reads);
    text.write_line("instantaneous_eventloop_duration_usec", each);
    // With several threads, every worker reads and writes for its own clients, so all I/O is threaded.
    let threaded = u64::from(server.config.get(keys::IO_THREADS) > 1);
    text.write_line("io_threaded_reads_processed", reads * threaded);
    text.write_line("io_threaded_writes_processed", writes * threaded);
    text.write_line(
        "client_query_buffer_limit_disconnections",
        totals[ServerCounter::QueryLimitDisconnections],
    );
    text.write_line(
        "client_output_buffer_limit_disconnections",
        totals[ServerCounter::OutputLimitDisconnections],
    );
    // Reply buffers are freed after sending and never resized.
    text.write_line("reply_buffer_shrinks", 0);
    text.write_line("reply_buffer_expands", 0);
    for (what, count) in server.engine.access.acl_log.lock().denials_by_reason() {
        text.write_line(&format!("acl_access_denied_{what}"), count);
    }
}

/// Returns the percentage of slots with expired keys, which is zero after a completed expiry cycle.
fn expired_slots_percent(server: &Server) -> f64 {
    server.engine.keyspace.slots_with_expiries_due(process::time::now()).len() as f64 * 100.0
        / SLOT_COUNT as f64
}

pub(super) fn write_commandstats_section(server: &Server, text: &mut InfoText) {
    let totals = server.housekeeping.totals_since_reset();
    for (entry, command) in ::commands::server_registry().commands().iter().zip(&totals.commands) {
        if command.call_count + command.rejected_count > 0 {
            let micros = command.total_nanos / 1000;
            let each = if command.call_count == 0 {
                0.0
            } else {
                command.total_nanos as f64 / 1000.0 / command.call_count as f64
            };
            let (calls, rejected, failed) =
                (command.call_count, command.rejected_count, command.failed_count);
            let value = format!(
                "calls={calls},usec={micros},usec_per_call={each:.2},rejected_calls={rejected},failed_calls={failed}"
            );
            text.write_line(&format!("cmdstat_{}", entry.full_name), value);
        }
    }
}

pub(super) fn write_errorstats_section(server: &Server, text: &mut InfoText) {
    for (code, count) in &server.housekeeping.totals_since_reset().errors {
        let code = code.replace([':', '#', '\r', '\n'], "_");
        text.write_line(&format!("errorstat_{code}"), format!("count={count}"));
    }
}

/// Writes latency percentiles of each command in microseconds.
pub(super) fn write_latencystats_section(server: &Server, text: &mut InfoText) {
    let percents = server.config.get(keys::LATENCY_TRACKING_INFO_PERCENTILES);
    if percents.is_empty() || !server.config.get(keys::LATENCY_TRACKING) {
        return;
    }
    for entry in ::commands::server_registry().commands() {
        let times = server.engine.diagnostics.command_latency(entry.index);
        if times.calls() == 0 {
            continue;
        }
        let values: Vec<String> = percents
            .iter()
            .map(|percent| format!("p{percent}={:.3}", times.percentile(*percent) as f64 / 1000.0))
            .collect();
        text.write_line(&format!("latency_percentiles_usec_{}", entry.full_name), values.join(","));
    }
}
