//! The INFO sections Stats, Commandstats, Errorstats and Latencystats.

use std::sync::atomic::Ordering;

use config::keys;
use process::info::InfoText;
use process::rates::Rate;
use slot_routing::SLOT_COUNT;

use crate::housekeeping::totals::{Count, Totals};
use crate::server::Server;

pub(super) fn stats(server: &Server, text: &mut InfoText) {
    let totals = server.housekeeping.totals();
    traffic(server, &totals, text);
    crate::replication::info_stats(&server.replication, text.raw());
    keys(server, &totals, text);
    clients(server, &totals, text);
}

fn traffic(server: &Server, totals: &Totals, text: &mut InfoText) {
    let rate = |rate| server.housekeeping.rates.per_second(rate);
    text.line("total_connections_received", totals[Count::Connections]);
    text.line("total_commands_processed", totals[Count::Commands]);
    text.line("instantaneous_ops_per_sec", rate(Rate::Commands).round());
    text.line("total_net_input_bytes", totals[Count::InputBytes]);
    text.line("total_net_output_bytes", totals[Count::OutputBytes]);
    let replicated = &server.replication.stats;
    text.line("total_net_repl_input_bytes", replicated.input_bytes.load(Ordering::Relaxed));
    text.line("total_net_repl_output_bytes", replicated.output_bytes.load(Ordering::Relaxed));
    let kilobytes = |name| format!("{:.2}", rate(name) / 1024.0);
    text.line("instantaneous_input_kbps", kilobytes(Rate::InputBytes));
    text.line("instantaneous_output_kbps", kilobytes(Rate::OutputBytes));
    text.line("instantaneous_input_repl_kbps", kilobytes(Rate::ReplicaInputBytes));
    text.line("instantaneous_output_repl_kbps", kilobytes(Rate::ReplicaOutputBytes));
    text.line("rejected_connections", totals[Count::RejectedConnections]);
}

fn keys(server: &Server, totals: &Totals, text: &mut InfoText) {
    text.line("expired_keys", totals[Count::ExpiredKeys]);
    text.line("expired_fields", totals[Count::ExpiredFields]);
    // Redis's name for the same value.
    text.line("expired_subkeys", totals[Count::ExpiredFields]);
    text.line("expired_stale_perc", format!("{:.2}", stale_percent(server)));
    // Expired fields also make a slot due.
    text.line("expired_keys_with_volatile_items_stale_perc", format!("{:.2}", stale_percent(server)));
    text.line("expired_time_cap_reached_count", server.housekeeping.expiry.capped.load(Ordering::Relaxed));
    text.line(
        "expire_cycle_cpu_milliseconds",
        server.housekeeping.expiry.nanos.load(Ordering::Relaxed) / 1_000_000,
    );
    text.line("evicted_keys", totals[Count::EvictedKeys]);
    text.line("evicted_clients", totals[Count::EvictedClients]);
    text.line("evicted_scripts", server.engine.scripts.evicted.load(Ordering::Relaxed));
    let (total, current) = server.engine.budget.millis_over_limit(process::time::nanos());
    text.line("total_eviction_exceeded_time", total);
    text.line("current_eviction_exceeded_time", current);
    text.line("keyspace_hits", totals[Count::KeyspaceHits]);
    text.line("keyspace_misses", totals[Count::KeyspaceMisses]);
    text.line("slot_waits", server.engine.slot_waits.count());
    text.line("slot_longest_wait_usec", server.engine.slot_waits.longest_micros());
    let (cuts, micros) = server.durability.saving.snapshots();
    text.line("latest_fork_usec", micros);
    text.line("total_forks", cuts);
    text.line("migrate_cached_sockets", server.migration_targets.count());
    text.line("slave_expires_tracked_keys", server.engine.local_expiry_count());
    // Slots are defragmented as they change, so there is no pass over the data to count.
    for name in ["hits", "misses", "key_hits", "key_misses"] {
        text.line(&format!("active_defrag_{name}"), 0);
    }
    text.line("total_active_defrag_time", 0);
    text.line("current_active_defrag_time", 0);
}

fn clients(server: &Server, totals: &Totals, text: &mut InfoText) {
    let tracking = &server.engine.tracking;
    text.line("tracking_total_keys", tracking.keys());
    text.line("tracking_total_items", tracking.item_count());
    text.line("tracking_total_prefixes", tracking.prefixes());
    let unexpected = server.replication.stats.unexpected_errors.load(Ordering::Relaxed);
    text.line("unexpected_error_replies", unexpected);
    text.line("undeclared_key_errors", server.engine.undeclared_keys.count());
    text.line("pubsub_channels", server.engine.pubsub.channels());
    text.line("pubsub_patterns", server.engine.pubsub.patterns());
    text.line("pubsubshard_channels", server.engine.pubsub.shard_channels());
    text.line("total_error_replies", totals[Count::ErrorReplies]);
    text.line("dump_payload_sanitizations", 0);
    let (reads, writes) = (totals[Count::Reads], totals[Count::Writes]);
    text.line("total_reads_processed", reads);
    text.line("total_writes_processed", writes);
    // A cycle of a worker reads, executes requests, and writes.
    text.line("eventloop_cycles", reads);
    let at_work = server.housekeeping.event_loops.total_micros();
    text.line("eventloop_duration_sum", at_work);
    text.line(
        "eventloop_duration_cmd_sum",
        totals.commands.iter().map(|command| command.nanos).sum::<u64>() / 1000,
    );
    let turns = server.housekeeping.rates.per_second(Rate::Reads);
    text.line("instantaneous_eventloop_cycles_per_sec", turns.round());
    let each = server.housekeeping.event_loops.mean_cycle_micros(at_work, reads);
    text.line("instantaneous_eventloop_duration_usec", each);
    // Every worker reads and writes for its own clients.
    let threaded = u64::from(server.config.get(keys::IO_THREADS) > 1);
    text.line("io_threaded_reads_processed", reads * threaded);
    text.line("io_threaded_writes_processed", writes * threaded);
    text.line("client_query_buffer_limit_disconnections", totals[Count::QueryLimitDisconnections]);
    text.line("client_output_buffer_limit_disconnections", totals[Count::OutputLimitDisconnections]);
    // Reply buffers are freed when they have been sent.
    text.line("reply_buffer_shrinks", 0);
    text.line("reply_buffer_expands", 0);
    for (what, count) in server.engine.acl_log.lock().refused() {
        text.line(&format!("acl_access_denied_{what}"), count);
    }
}

/// Returns the percentage of slots with expired keys. It is zero after a completed cycle of active expiry.
fn stale_percent(server: &Server) -> f64 {
    server.engine.keyspace.due_slots(process::time::now()).len() as f64 * 100.0 / SLOT_COUNT as f64
}

pub(super) fn commandstats(server: &Server, text: &mut InfoText) {
    let totals = server.housekeeping.totals();
    for (entry, command) in ::commands::for_server().commands().iter().zip(&totals.commands) {
        if command.calls + command.rejected > 0 {
            let micros = command.nanos / 1000;
            let each =
                if command.calls == 0 { 0.0 } else { command.nanos as f64 / 1000.0 / command.calls as f64 };
            let (calls, rejected, failed) = (command.calls, command.rejected, command.failed);
            let value = format!(
                "calls={calls},usec={micros},usec_per_call={each:.2},rejected_calls={rejected},failed_calls={failed}"
            );
            text.line(&format!("cmdstat_{}", entry.full_name), value);
        }
    }
}

pub(super) fn errorstats(server: &Server, text: &mut InfoText) {
    for (code, count) in &server.housekeeping.totals().errors {
        let code = code.replace([':', '#', '\r', '\n'], "_");
        text.line(&format!("errorstat_{code}"), format!("count={count}"));
    }
}

/// Latency percentiles of each command in microseconds.
pub(super) fn latencystats(server: &Server, text: &mut InfoText) {
    let percents = server.config.get(keys::LATENCY_TRACKING_INFO_PERCENTILES);
    if percents.is_empty() || !server.config.get(keys::LATENCY_TRACKING) {
        return;
    }
    for entry in ::commands::for_server().commands() {
        let times = server.engine.command_latency(entry.index);
        if times.calls() == 0 {
            continue;
        }
        let values: Vec<String> = percents
            .iter()
            .map(|percent| format!("p{percent}={:.3}", times.percentile(*percent) as f64 / 1000.0))
            .collect();
        text.line(&format!("latency_percentiles_usec_{}", entry.full_name), values.join(","));
    }
}
