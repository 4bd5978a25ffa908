//! INFO of a sentinel, with the sections of Valkey's sentinel and the fields that exporters read.
//!
//! A sentinel stores no data, so all counters of keys are zero.

use std::sync::atomic::{AtomicU64, Ordering};

use config::keys;
use process::info::{InfoText, ProcessInfo, largest_buffer, write_cpu_times, write_pause_state};

use super::server_state::ServerState;

type SectionWriter = fn(&ServerState, &mut InfoText);

/// Formats the requested sections, or all sections if none is requested.
pub(super) fn format_info(state: &ServerState, request: &[String]) -> String {
    let every = request.is_empty()
        || request.iter().any(|name| ["all", "default", "everything"].contains(&name.as_str()));
    let sections: [(&str, SectionWriter); 4] = [
        ("Server", write_server),
        ("Clients", write_clients_section),
        ("Stats", write_stats),
        ("CPU", |_, text| write_cpu_times(text)),
    ];
    let wanted = |title: &str| every || request.iter().any(|asked| asked.eq_ignore_ascii_case(title));
    let mut shown: Vec<String> = Vec::new();
    for (title, write) in sections.into_iter().filter(|(title, _)| wanted(title)) {
        let mut text = InfoText::default();
        write(state, &mut text);
        shown.push(format!("# {title}\r\n{}", text.text_mut()));
    }
    if wanted("Sentinel") {
        shown.push(state.sentinel.info(state.now()));
    }
    shown.join("\r\n")
}

fn write_server(state: &ServerState, text: &mut InfoText) {
    let executable = std::env::current_exe().unwrap_or_default();
    let facts = ProcessInfo {
        config: &state.config,
        mode: "sentinel",
        run_id: &state.sentinel.my_id(),
        tcp_port: state.sentinel.port(),
        uptime_secs: state.uptime().as_secs(),
        executable: &executable.display(),
        config_file: &state.config_path().display(),
        is_threaded: false,
    };
    facts.write(text);
}

fn write_clients_section(state: &ServerState, text: &mut InfoText) {
    // The requesting client is not in the table while its request is executed.
    text.write_line("connected_clients", state.clients.len() + 1);
    text.write_line("cluster_connections", 0);
    text.write_line("maxclients", state.config.get(keys::MAXCLIENTS));
    let known = state.engine.clients.list();
    text.write_line("client_recent_max_input_buffer", largest_buffer(&known, |client| &client.input_bytes));
    text.write_line("client_recent_max_output_buffer", largest_buffer(&known, |client| &client.unsent_bytes));
    text.write_line("blocked_clients", 0);
    text.write_line("tracking_clients", state.engine.notifications.tracking.client_count());
    let subscribed = state.clients.values().filter(|client| client.subscriptions() > 0);
    text.write_line("pubsub_clients", subscribed.count());
    for name in ["watching_clients", "clients_in_timeout_table", "total_watched_keys", "total_blocking_keys"]
    {
        text.write_line(name, 0);
    }
    text.write_line("total_blocking_keys_on_nokey", 0);
    write_pause_state(&state.engine, text);
}

fn write_stats(state: &ServerState, text: &mut InfoText) {
    let traffic = &*state.traffic;
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let [commands, input, output] = state.recent_rates.per_second;
    let kilobytes = |bytes: f64| format!("{:.2}", bytes / 1024.0);
    text.write_line("total_connections_received", state.connections);
    text.write_line("total_commands_processed", state.commands);
    text.write_line("instantaneous_ops_per_sec", commands.round());
    text.write_line("total_net_input_bytes", count(&traffic.input));
    text.write_line("total_net_output_bytes", count(&traffic.output));
    text.write_line("total_net_repl_input_bytes", 0);
    text.write_line("total_net_repl_output_bytes", 0);
    text.write_line("instantaneous_input_kbps", kilobytes(input));
    text.write_line("instantaneous_output_kbps", kilobytes(output));
    text.write_line("instantaneous_input_repl_kbps", kilobytes(0.0));
    text.write_line("instantaneous_output_repl_kbps", kilobytes(0.0));
    text.write_line("rejected_connections", count(&traffic.rejected_connections));
    for name in ALWAYS_ZERO_FIELDS {
        text.write_line(name, 0);
    }
    text.write_line("expired_stale_perc", "0.00");
    text.write_line("expired_keys_with_volatile_items_stale_perc", "0.00");
    let channels = state.clients.values().flat_map(|client| &client.channels);
    text.write_line("pubsub_channels", channels.collect::<std::collections::BTreeSet<_>>().len());
    let patterns = state.clients.values().flat_map(|client| &client.patterns);
    text.write_line("pubsub_patterns", patterns.collect::<std::collections::BTreeSet<_>>().len());
    text.write_line("pubsubshard_channels", 0);
    text.write_line("total_error_replies", count(&traffic.errors));
    text.write_line("client_query_buffer_limit_disconnections", count(&traffic.query_limit_disconnections));
    text.write_line("client_output_buffer_limit_disconnections", count(&traffic.output_limit_disconnections));
    text.write_line("total_reads_processed", count(&traffic.reads));
    text.write_line("total_writes_processed", count(&traffic.writes));
    for (what, refused) in state.engine.access.acl_log.lock().denials_by_reason() {
        text.write_line(&format!("acl_access_denied_{what}"), refused);
    }
}

/// Fields about keys and replicas, which are always zero on a sentinel.
const ALWAYS_ZERO_FIELDS: [&str; 25] = [
    "sync_full",
    "sync_partial_ok",
    "sync_partial_err",
    "expired_keys",
    "expired_fields",
    "expired_time_cap_reached_count",
    "expire_cycle_cpu_milliseconds",
    "evicted_keys",
    "evicted_clients",
    "evicted_scripts",
    "total_eviction_exceeded_time",
    "current_eviction_exceeded_time",
    "keyspace_hits",
    "keyspace_misses",
    "latest_fork_usec",
    "total_forks",
    "migrate_cached_sockets",
    "slave_expires_tracked_keys",
    "total_active_defrag_time",
    "current_active_defrag_time",
    "tracking_total_keys",
    "tracking_total_items",
    "tracking_total_prefixes",
    "unexpected_error_replies",
    "dump_payload_sanitizations",
];
