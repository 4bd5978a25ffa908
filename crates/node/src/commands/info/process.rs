//! INFO about the process: the sections Server, Clients, CPU and Cluster.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use config::{Config, keys};
use engine::{Client, ClientFlags, Engine, PauseMode, PausePurpose};
use net::listener::Ports;

use super::Text;
use crate::server::Server;

/// The facts of a process in the section Server, whatever it serves.
pub(crate) struct Facts<'a> {
    pub(crate) config: &'a Config,
    /// `standalone`, `cluster` or `sentinel`.
    pub(crate) mode: &'static str,
    pub(crate) run_id: &'a dyn Display,
    pub(crate) tcp_port: u16,
    pub(crate) uptime_secs: u64,
    pub(crate) executable: &'a dyn Display,
    pub(crate) config_file: &'a dyn Display,
    /// Whether more than one thread serves clients.
    pub(crate) threaded: bool,
}

impl Facts<'_> {
    pub(crate) fn write(&self, text: &mut Text) {
        let system = rustix::system::uname();
        let part = |name: &std::ffi::CStr| name.to_string_lossy().into_owned();
        text.line("redis_version", resp::REDIS_VERSION);
        text.line("server_name", "redoubt");
        text.line("redoubt_version", env!("CARGO_PKG_VERSION"));
        text.line("redis_git_sha1", "00000000");
        text.line("redis_git_dirty", 0);
        text.line("redis_build_id", 0);
        text.line("redis_mode", self.mode);
        text.line("server_mode", self.mode);
        let (name, release, machine) =
            (part(system.sysname()), part(system.release()), part(system.machine()));
        text.line("os", format!("{name} {release} {machine}"));
        text.line("arch_bits", usize::BITS);
        text.line("monotonic_clock", "quanta");
        text.line("multiplexing_api", "epoll");
        // As Redis says it of another compiler.
        text.line("gcc_version", "0.0.0");
        text.line("process_id", std::process::id());
        text.line("process_supervised", self.config.get(keys::SUPERVISED));
        text.line("run_id", self.run_id);
        text.line("tcp_port", self.tcp_port);
        text.line("server_time_usec", process::time::unix_micros());
        text.line("uptime_in_seconds", self.uptime_secs);
        text.line("uptime_in_days", self.uptime_secs / 86400);
        // Timed work runs when it is due; this is how often the rest is looked at.
        text.line("hz", self.config.get(keys::HZ));
        text.line("configured_hz", self.config.get(keys::HZ));
        text.line("clients_hz", 1);
        text.line("lru_clock", process::time::now().secs() & 0xff_ffff);
        text.line("executable", self.executable);
        text.line("config_file", self.config_file);
        text.line("io_threads_active", u8::from(self.threaded));
        text.line("availability_zone", self.config.get(keys::AVAILABILITY_ZONE));
    }
}

pub(super) fn server(server: &Server, text: &mut Text) {
    let now = process::time::unix_micros();
    let config = &server.config;
    let ports = Ports::of(&config.values());
    let facts = Facts {
        config,
        mode: if server.engine.topology.is_some() { "cluster" } else { "standalone" },
        run_id: &server.identity.run_id,
        tcp_port: if ports.plain == 0 { ports.tls } else { ports.plain },
        uptime_secs: u64::try_from(now / 1_000_000 - server.started).unwrap_or(0),
        executable: &server.identity.executable,
        config_file: &server.identity.config_file.as_deref().unwrap_or_default(),
        threaded: config.get(keys::IO_THREADS) > 1,
    };
    facts.write(text);
    for (name, facts) in server.door.tls.facts() {
        let (serial, left) = match facts {
            Some(facts) => (facts.serial, (facts.expires_at - now / 1_000_000).max(0)),
            None => ("none".to_owned(), 0),
        };
        text.line(&format!("tls_{name}_serial"), serial);
        text.line(&format!("tls_{name}_expires_in_seconds"), left);
    }
    if let Some(left) = server.shutdown.waits_for() {
        text.line("shutdown_in_milliseconds", left);
    }
    for (index, listener) in server.door.listener_lines().iter().enumerate() {
        text.line(&format!("listener{index}"), listener);
    }
}

pub(super) fn clients(server: &Server, text: &mut Text) {
    text.line("connected_clients", server.door.connected.load(Ordering::Relaxed));
    text.line("cluster_connections", server.door.network.bus_links.load(Ordering::Relaxed));
    text.line("maxclients", server.config.get(keys::MAXCLIENTS));
    let clients = server.engine.clients.all();
    text.line("client_recent_max_input_buffer", largest(&clients, |client| &client.input_bytes));
    text.line("client_recent_max_output_buffer", largest(&clients, |client| &client.output_bytes));
    let busiest = server.door.network.busiest();
    text.line("busiest_client_id", busiest.id);
    let percent = format!("{}.{}", busiest.permille / 10, busiest.permille % 10);
    text.line("busiest_client_worker_percent", percent);
    let blocked = clients.iter().filter(|client| client.flags().contains(ClientFlags::BLOCKED)).count();
    text.line("blocked_clients", blocked);
    text.line("tracking_clients", server.engine.tracking.clients());
    text.line("pubsub_clients", server.engine.pubsub.clients());
    text.line("watching_clients", server.engine.watching_clients());
    text.line("clients_in_timeout_table", 0);
    text.line("total_watched_keys", server.engine.watched_keys());
    text.line("total_blocking_keys", server.engine.awaited_keys());
    text.line("total_blocking_keys_on_nokey", server.engine.awaited_keys_that_may_go());
    pause(&server.engine, text);
}

/// Whether clients are paused, why, and for how long yet.
pub(crate) fn pause(engine: &Engine, text: &mut Text) {
    let (pauses, now) = (&engine.pauses, process::time::now());
    pauses.end_overdue(&engine.settings, now);
    let (actions, left) = match pauses.until() {
        Some((PauseMode::All, until)) => ("all", until.0 - now.0),
        Some((PauseMode::Writes, until)) => ("write", until.0 - now.0),
        None => ("none", 0),
    };
    let reason = match pauses.purpose() {
        Some(PausePurpose::Client) => "client_pause",
        Some(PausePurpose::Failover) => "failover_in_progress",
        Some(PausePurpose::Shutdown) => "shutdown_in_progress",
        Some(PausePurpose::Sleep) => "debug_sleep",
        None => "none",
    };
    text.line("paused_reason", reason);
    text.line("paused_actions", actions);
    text.line("paused_timeout_milliseconds", left.max(0));
}

/// The largest buffer that any client has, of those that `bytes` names.
pub(crate) fn largest(clients: &[Arc<Client>], bytes: fn(&Client) -> &AtomicUsize) -> usize {
    clients.iter().map(|client| bytes(client).load(Ordering::Relaxed)).max().unwrap_or(0)
}

pub(super) fn cpu(_server: &Server, text: &mut Text) {
    cpu_times(text);
}

/// The lines of INFO on the processor time that this process has used.
pub(crate) fn cpu_times(text: &mut Text) {
    let process = cpu_seconds("/proc/self/stat");
    text.line("used_cpu_sys", format!("{:.6}", process[1]));
    text.line("used_cpu_user", format!("{:.6}", process[0]));
    text.line("used_cpu_sys_children", format!("{:.6}", process[3]));
    text.line("used_cpu_user_children", format!("{:.6}", process[2]));
    let main = cpu_seconds(&format!("/proc/self/task/{}/stat", std::process::id()));
    text.line("used_cpu_sys_main_thread", format!("{:.6}", main[1]));
    text.line("used_cpu_user_main_thread", format!("{:.6}", main[0]));
}

/// User and system time of a process or thread, then those of its children that have ended.
fn cpu_seconds(path: &str) -> [f64; 4] {
    // The system counts in ticks, fields 14 to 17. The name in parentheses before them may hold anything.
    let stat = std::fs::read_to_string(path).unwrap_or_default();
    let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let ticks = rustix::param::clock_ticks_per_second().max(1) as f64;
    let mut fields = after_name.split(' ').skip(11).map(|field| field.parse().unwrap_or(0.0) / ticks);
    std::array::from_fn(|_| fields.next().unwrap_or(0.0))
}

pub(super) fn cluster(server: &Server, text: &mut Text) {
    text.line("cluster_enabled", u8::from(server.engine.topology.is_some()));
}

/// Lua alone, which is built in.
pub(super) fn scripting_engines(server: &Server, text: &mut Text) {
    let used = server.engine.scripts.lua_bytes();
    text.line("engines_count", 1);
    text.line("engines_total_used_memory", used);
    text.line("engines_total_memory_overhead", 0);
    text.line(
        "engine_0",
        format!("name=LUA,module=built-in,abi_version=1,used_memory={used},memory_overhead=0"),
    );
}
