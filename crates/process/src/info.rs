//! INFO sections that servers and sentinels share.

use std::fmt::{Display, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use config::{Config, keys};
use engine::{Client, Engine, PauseMode, PausePurpose};

use crate::time;

/// An INFO section to which fields are appended.
#[derive(Debug, Default)]
pub struct InfoText(String);

impl InfoText {
    /// Appends the line `name:value`.
    pub fn write_line(&mut self, name: &str, value: impl Display) {
        // Writing to a String cannot fail.
        let _ = write!(self.0, "{name}:{value}\r\n");
    }

    /// Returns the underlying text, for writers that append whole lines.
    pub fn text_mut(&mut self) -> &mut String {
        &mut self.0
    }
}

/// The fields of INFO's Server section.
pub struct ProcessInfo<'a> {
    /// The configuration, whose parameters appear in some fields.
    pub config: &'a Config,
    /// `standalone`, `cluster` or `sentinel`.
    pub mode: &'static str,
    /// The run id. A server has a new one after each start; a sentinel keeps its id.
    pub run_id: &'a dyn Display,
    /// The TCP port for clients.
    pub tcp_port: u16,
    /// Number of seconds since the start.
    pub uptime_secs: u64,
    /// Path of the executable.
    pub executable: &'a dyn Display,
    /// Path of the configuration file; empty if there is none.
    pub config_file: &'a dyn Display,
    /// Whether several threads serve clients.
    pub is_threaded: bool,
}

impl std::fmt::Debug for ProcessInfo<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProcessInfo").field("mode", &self.mode).finish_non_exhaustive()
    }
}

impl ProcessInfo<'_> {
    /// Appends the fields of the Server section.
    pub fn write(&self, text: &mut InfoText) {
        let system = rustix::system::uname();
        let part = |name: &std::ffi::CStr| name.to_string_lossy().into_owned();
        text.write_line("redis_version", resp::REDIS_VERSION);
        text.write_line("server_name", "redoubt");
        text.write_line("redoubt_version", env!("CARGO_PKG_VERSION"));
        text.write_line("redis_git_sha1", "00000000");
        text.write_line("redis_git_dirty", 0);
        text.write_line("redis_build_id", 0);
        text.write_line("redis_mode", self.mode);
        text.write_line("server_mode", self.mode);
        let (name, release, machine) =
            (part(system.sysname()), part(system.release()), part(system.machine()));
        text.write_line("os", format!("{name} {release} {machine}"));
        text.write_line("arch_bits", usize::BITS);
        text.write_line("monotonic_clock", "quanta");
        text.write_line("multiplexing_api", "epoll");
        // Redis shows this version if it was not compiled by gcc.
        text.write_line("gcc_version", "0.0.0");
        text.write_line("process_id", std::process::id());
        text.write_line("process_supervised", self.config.get(keys::SUPERVISED));
        text.write_line("run_id", self.run_id);
        text.write_line("tcp_port", self.tcp_port);
        text.write_line("server_time_usec", time::unix_micros());
        text.write_line("uptime_in_seconds", self.uptime_secs);
        text.write_line("uptime_in_days", self.uptime_secs / 86400);
        // `hz` is shown for compatibility, but periodic work here runs when it is due.
        text.write_line("hz", self.config.get(keys::HZ));
        text.write_line("configured_hz", self.config.get(keys::HZ));
        text.write_line("clients_hz", 1);
        text.write_line("lru_clock", time::now().secs() & 0xff_ffff);
        text.write_line("executable", self.executable);
        text.write_line("config_file", self.config_file);
        text.write_line("io_threads_active", u8::from(self.is_threaded));
        text.write_line("availability_zone", self.config.get(keys::AVAILABILITY_ZONE));
    }
}

/// Writes whether clients are paused, the reason and the remaining time.
pub fn write_pause_state(engine: &Engine, text: &mut InfoText) {
    let (pauses, now) = (&engine.scheduling.pauses, time::now());
    pauses.end_expired(&engine.settings, now);
    let (actions, left) = match pauses.strictest_pause() {
        Some((PauseMode::All, until)) => ("all", until.0 - now.0),
        Some((PauseMode::Writes, until)) => ("write", until.0 - now.0),
        None => ("none", 0),
    };
    let reason = match pauses.strictest_purpose() {
        Some(PausePurpose::Client) => "client_pause",
        Some(PausePurpose::Failover) => "failover_in_progress",
        Some(PausePurpose::Shutdown) => "shutdown_in_progress",
        Some(PausePurpose::Sleep) => "debug_sleep",
        Some(PausePurpose::ProcessSuspended) => "standstill",
        None => "none",
    };
    text.write_line("paused_reason", reason);
    text.write_line("paused_actions", actions);
    text.write_line("paused_timeout_milliseconds", left.max(0));
}

/// Returns the maximum of one counter over all clients. `counter` selects the counter.
pub fn largest_buffer(clients: &[Arc<Client>], counter: fn(&Client) -> &AtomicUsize) -> usize {
    clients.iter().map(|client| counter(client).load(Ordering::Relaxed)).max().unwrap_or(0)
}

/// Writes the CPU times of this process and its main thread.
pub fn write_cpu_times(text: &mut InfoText) {
    let process = cpu_seconds("/proc/self/stat");
    text.write_line("used_cpu_sys", format!("{:.6}", process[1]));
    text.write_line("used_cpu_user", format!("{:.6}", process[0]));
    text.write_line("used_cpu_sys_children", format!("{:.6}", process[3]));
    text.write_line("used_cpu_user_children", format!("{:.6}", process[2]));
    let main = cpu_seconds(&format!("/proc/self/task/{}/stat", std::process::id()));
    text.write_line("used_cpu_sys_main_thread", format!("{:.6}", main[1]));
    text.write_line("used_cpu_user_main_thread", format!("{:.6}", main[0]));
    text.write_line("used_active_time_main_thread", format!("{:.6}", active_seconds(std::process::id())));
}

/// Returns the CPU time of a thread in seconds, without the time spent waiting for events.
fn active_seconds(thread: u32) -> f64 {
    let times = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).unwrap_or_default();
    let nanos = times.split(' ').next().and_then(|nanos| nanos.parse::<u64>().ok()).unwrap_or(0);
    nanos as f64 / 1e9
}

/// Returns user and system time in seconds, followed by those of child processes that have ended.
fn cpu_seconds(path: &str) -> [f64; 4] {
    // Fields 14 to 17, in clock ticks. The process name in parentheses before them may contain anything.
    let stat = std::fs::read_to_string(path).unwrap_or_default();
    let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let ticks = rustix::param::clock_ticks_per_second().max(1) as f64;
    let mut fields = after_name.split(' ').skip(11).map(|field| field.parse().unwrap_or(0.0) / ticks);
    std::array::from_fn(|_| fields.next().unwrap_or(0.0))
}
