//! INFO: sections of `name:value` lines. Names are those that dashboards and exporters read.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use resp::{Args, Writer};
use slot_routing::Slot;

use crate::server::Server;

type Section = (&'static str, fn(&Server, &mut String));

/// In the order in which they are shown.
const SECTIONS: &[Section] = &[
    ("Server", server),
    ("Clients", clients),
    ("Stats", stats),
    ("Replication", crate::replication::info),
    ("Cluster", cluster),
    ("Commandstats", commandstats),
    ("Keyspace", keyspace),
];

/// Shown only when asked for by name, or with `all` and `everything`.
const EXTRA: &[&str] = &["commandstats"];

/// INFO [section ...]
pub(crate) fn info(server: &Server, args: Args<'_>, reply: &mut Writer<'_>) {
    let wanted: Vec<String> =
        args.iter().skip(1).map(|word| String::from_utf8_lossy(word).to_lowercase()).collect();
    let mut text = String::new();
    for (name, write) in SECTIONS {
        if is_wanted(&wanted, &name.to_lowercase()) {
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            let _ = write!(text, "# {name}\r\n");
            write(server, &mut text);
        }
    }
    reply.verbatim(b"txt", text.as_bytes());
}

fn is_wanted(wanted: &[String], section: &str) -> bool {
    let everything = |word: &String| matches!(word.as_str(), "all" | "everything");
    let default = wanted.is_empty() || wanted.iter().any(|word| word == "default");
    wanted.iter().any(|word| word == section || everything(word)) || (default && !EXTRA.contains(&section))
}

fn line(text: &mut String, name: &str, value: impl std::fmt::Display) {
    // Writing to a String cannot fail.
    let _ = write!(text, "{name}:{value}\r\n");
}

fn server(server: &Server, text: &mut String) {
    let now = crate::time::unix_micros();
    let uptime = now / 1_000_000 - server.started;
    line(text, "redis_version", "7.2.4");
    line(text, "server_name", "redoubt");
    line(text, "redoubt_version", env!("CARGO_PKG_VERSION"));
    line(text, "redis_mode", if server.engine.topology.is_some() { "cluster" } else { "standalone" });
    line(text, "os", std::env::consts::OS);
    line(text, "arch_bits", usize::BITS);
    line(text, "multiplexing_api", "epoll");
    line(text, "process_id", std::process::id());
    line(text, "run_id", &server.run_id);
    line(text, "tcp_port", server.config.port("port"));
    line(text, "server_time_usec", now);
    line(text, "uptime_in_seconds", uptime);
    line(text, "uptime_in_days", uptime / 86400);
    line(text, "io_threads_active", server.config.integer("io-threads"));
}

fn clients(server: &Server, text: &mut String) {
    line(text, "connected_clients", server.connected.load(Ordering::Relaxed));
    line(text, "maxclients", server.config.integer("maxclients"));
}

fn stats(server: &Server, text: &mut String) {
    let network = &server.network;
    let workers = server.engine.worker_stats();
    let sum =
        |counter: fn(&engine::WorkerStats) -> u64| workers.iter().map(|worker| counter(worker)).sum::<u64>();
    line(text, "total_connections_received", network.connections_received.load(Ordering::Relaxed));
    line(text, "total_commands_processed", sum(engine::WorkerStats::calls));
    line(text, "total_net_input_bytes", network.input_bytes.load(Ordering::Relaxed));
    line(text, "total_net_output_bytes", network.output_bytes.load(Ordering::Relaxed));
    crate::replication::info_stats(server, text);
    line(text, "rejected_connections", network.connections_rejected.load(Ordering::Relaxed));
    line(text, "expired_keys", sum(|worker| worker.expired_keys.load(Ordering::Relaxed)));
    line(text, "keyspace_hits", sum(|worker| worker.keyspace_hits.load(Ordering::Relaxed)));
    line(text, "keyspace_misses", sum(|worker| worker.keyspace_misses.load(Ordering::Relaxed)));
    line(text, "total_error_replies", sum(|worker| worker.error_replies.load(Ordering::Relaxed)));
    let limit = &network.query_limit_disconnections;
    line(text, "client_query_buffer_limit_disconnections", limit.load(Ordering::Relaxed));
    let limit = &network.output_limit_disconnections;
    line(text, "client_output_buffer_limit_disconnections", limit.load(Ordering::Relaxed));
}

fn cluster(server: &Server, text: &mut String) {
    line(text, "cluster_enabled", u8::from(server.engine.topology.is_some()));
}

fn commandstats(server: &Server, text: &mut String) {
    let workers = server.engine.worker_stats();
    for entry in engine::Registry::the().all() {
        let (mut calls, mut nanos, mut rejected, mut failed) = (0, 0, 0, 0);
        for stats in workers.iter().map(|worker| &worker.commands[entry.index]) {
            calls += stats.calls.load(Ordering::Relaxed);
            nanos += stats.nanos.load(Ordering::Relaxed);
            rejected += stats.rejected.load(Ordering::Relaxed);
            failed += stats.failed.load(Ordering::Relaxed);
        }
        if calls + rejected > 0 {
            let micros = nanos / 1000;
            let each = if calls == 0 { 0.0 } else { nanos as f64 / 1000.0 / calls as f64 };
            let value = format!(
                "calls={calls},usec={micros},usec_per_call={each:.2},rejected_calls={rejected},failed_calls={failed}"
            );
            line(text, &format!("cmdstat_{}", entry.full_name), value);
        }
    }
}

fn keyspace(server: &Server, text: &mut String) {
    let keyspace = &server.engine.keyspace;
    for db in 0..keyspace.databases() {
        let (mut keys, mut volatile) = (0, 0);
        for slot in Slot::all() {
            let mut slot = keyspace.lock(slot);
            let table = slot.table(db);
            keys += table.len();
            volatile += table.volatile_len();
        }
        if keys > 0 {
            line(text, &format!("db{db}"), format!("keys={keys},expires={volatile},avg_ttl=0"));
        }
    }
}
