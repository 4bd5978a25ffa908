//! The INFO sections Server, Clients, CPU and Cluster.

use std::sync::atomic::Ordering;

use config::keys;
use engine::ClientFlags;
use net::listener::ListenPorts;
use process::info::{InfoText, ProcessInfo, largest_buffer, write_cpu_times, write_pause_state};

use crate::server::Server;

pub(super) fn write_server_section(server: &Server, text: &mut InfoText) {
    let now = process::time::unix_micros();
    let config = &server.config;
    let ports = ListenPorts::from_values(&config.values());
    let facts = ProcessInfo {
        config,
        mode: if server.engine.topology.is_some() { "cluster" } else { "standalone" },
        run_id: &server.identity.run_id,
        tcp_port: if ports.plain_port == 0 { ports.tls_port } else { ports.plain_port },
        uptime_secs: u64::try_from(now / 1_000_000 - server.started_at).unwrap_or(0),
        executable: &server.identity.executable,
        config_file: &server.identity.config_file.as_deref().unwrap_or_default(),
        is_threaded: config.get(keys::IO_THREADS) > 1,
    };
    facts.write(text);
    for (name, facts) in server.network.tls.certificate_info() {
        let (serial, left) = match facts {
            Some(facts) => (facts.serial, (facts.expires_at - now / 1_000_000).max(0)),
            None => ("none".to_owned(), 0),
        };
        text.write_line(&format!("tls_{name}_serial"), serial);
        text.write_line(&format!("tls_{name}_expires_in_seconds"), left);
    }
    if let Some(left) = server.shutdown.remaining_wait_millis() {
        text.write_line("shutdown_in_milliseconds", left);
    }
    for (index, listener) in server.network.listener_lines().iter().enumerate() {
        text.write_line(&format!("listener{index}"), listener);
    }
}

pub(super) fn write_clients_section(server: &Server, text: &mut InfoText) {
    text.write_line("connected_clients", server.network.client_count.load(Ordering::Relaxed));
    text.write_line("cluster_connections", server.network.stats.bus_links.load(Ordering::Relaxed));
    text.write_line("maxclients", server.config.get(keys::MAXCLIENTS));
    let clients = server.engine.clients.list();
    text.write_line("client_recent_max_input_buffer", largest_buffer(&clients, |client| &client.input_bytes));
    text.write_line(
        "client_recent_max_output_buffer",
        largest_buffer(&clients, |client| &client.unsent_bytes),
    );
    let busiest = server.network.stats.busiest_client();
    text.write_line("busiest_client_id", busiest.id);
    let percent = format!("{}.{}", busiest.permille / 10, busiest.permille % 10);
    text.write_line("busiest_client_worker_percent", percent);
    let blocked = clients.iter().filter(|client| client.flags().contains(ClientFlags::BLOCKED)).count();
    text.write_line("blocked_clients", blocked);
    text.write_line("tracking_clients", server.engine.notifications.tracking.client_count());
    text.write_line("pubsub_clients", server.engine.notifications.pubsub.client_count());
    text.write_line("watching_clients", server.engine.notifications.watching_client_count());
    text.write_line("clients_in_timeout_table", 0);
    text.write_line("total_watched_keys", server.engine.notifications.watched_key_count());
    text.write_line("total_blocking_keys", server.engine.scheduling.awaited_key_count());
    text.write_line("total_blocking_keys_on_nokey", server.engine.scheduling.removal_awaited_key_count());
    write_pause_state(&server.engine, text);
}

pub(super) fn write_cpu_section(_server: &Server, text: &mut InfoText) {
    write_cpu_times(text);
}

pub(super) fn write_cluster_section(server: &Server, text: &mut InfoText) {
    text.write_line("cluster_enabled", u8::from(server.engine.topology.is_some()));
}

/// Writes the section Scripting Engines. The only engine is the built-in Lua.
pub(super) fn write_scripting_engines_section(server: &Server, text: &mut InfoText) {
    let used = server.engine.scripting.scripts.lua_bytes();
    text.write_line("engines_count", 1);
    text.write_line("engines_total_used_memory", used);
    text.write_line("engines_total_memory_overhead", 0);
    text.write_line(
        "engine_0",
        format!("name=LUA,module=built-in,abi_version=1,used_memory={used},memory_overhead=0"),
    );
}
