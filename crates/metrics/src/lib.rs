//! Renders a node's metrics in the Prometheus text format.
//!
//! Most metrics come from INFO and CLUSTER INFO, under the names that redis_exporter gives them, so
//! that existing dashboards and alerts work; [`names`] has the mapping. Because both are rendered
//! from one source, INFO and a scrape never disagree. A [`MetricsSnapshot`] adds the values
//! that INFO has no line for. Metrics that Redis does not have are named `redoubt_...`.
//!
//! The number of label values is bounded: labels are command names, error codes, replicas,
//! databases and latency events, never keys or client addresses.
#![forbid(unsafe_code)]

mod fields;
mod names;
mod text;

pub use fields::InfoFields;
pub use text::render;

/// All metric values of a node, taken at one moment.
#[derive(Debug, Clone, Default)]
pub struct MetricsSnapshot {
    /// The text of `INFO all`, from which most metrics are derived.
    pub info: String,
    /// The text of CLUSTER INFO; empty without cluster mode.
    pub cluster_info: String,
    /// Configured limits, exported so that alerts can compare usage with them.
    pub limits: ConfiguredLimits,
    /// Latency statistics per command.
    pub commands: Vec<CommandLatency>,
    /// The length of the slow log and its newest entry.
    pub slow_log: SlowLog,
    /// The rows of LATENCY LATEST.
    pub latency_events: Vec<LatencyEvent>,
    /// Each reason that can make `/ready` fail, and whether it applies now.
    pub not_ready_reasons: Vec<(&'static str, bool)>,
    /// The number of slots that this node serves; `None` without cluster mode.
    pub slots_served: Option<usize>,
    /// Failovers that this node recorded; `None` without cluster mode.
    pub failovers: Option<FailoverMetrics>,
}

/// Configured limits of the server.
#[derive(Debug, Clone, Default)]
pub struct ConfiguredLimits {
    /// `maxclients`, the maximum number of connected clients.
    pub max_clients: usize,
    /// `maxmemory` in bytes; 0 means unlimited.
    pub max_memory_bytes: usize,
    /// `io-threads`, the number of worker threads.
    pub worker_threads: usize,
    /// `client-output-buffer-limit`, one entry per client class.
    pub output_limits: Vec<OutputLimit>,
}

/// The output buffer limits of one client class.
#[derive(Debug, Clone, Default)]
pub struct OutputLimit {
    /// The client class: `normal`, `slave` or `pubsub`.
    pub class: &'static str,
    /// Hard limit in bytes: a client above it is disconnected at once.
    pub hard_limit: usize,
    /// Soft limit in bytes: a client above it for longer than `soft_limit_seconds` is disconnected.
    pub soft_limit: usize,
    /// Number of seconds that a client may stay above the soft limit.
    pub soft_limit_seconds: u64,
}

/// Latency statistics of one command.
#[derive(Debug, Clone, Default)]
pub struct CommandLatency {
    /// The command's name, as `command|subcommand` where it has one.
    pub command: &'static str,
    /// The number of calls.
    pub calls: u64,
    /// Cumulative histogram: (upper bound in microseconds, number of calls up to that bound).
    /// Buckets without calls are left out.
    pub cumulative_counts: Vec<(u64, u64)>,
    /// The total duration of all calls, in microseconds.
    pub total_micros: f64,
    /// The percentiles that INFO shows: (fraction between 0 and 1, latency in microseconds).
    pub quantiles: Vec<(f64, f64)>,
}

/// The length of the slow log (SLOWLOG LEN) and its newest entry.
#[derive(Debug, Clone, Default)]
pub struct SlowLog {
    /// The number of entries.
    pub length: usize,
    /// Id of the newest entry and its duration in seconds; `None` if the log is empty.
    pub newest_entry: Option<(u64, f64)>,
}

/// A latency event, which took longer than `latency-monitor-threshold`.
#[derive(Debug, Clone, Default)]
pub struct LatencyEvent {
    /// The event's name in LATENCY LATEST.
    pub name: &'static str,
    /// The time of the latest occurrence, in Unix seconds.
    pub unix_secs: i64,
    /// The duration of the latest occurrence, in seconds.
    pub seconds: f64,
}

/// A summary of the failovers that this node recorded.
#[derive(Debug, Clone, Copy, Default)]
pub struct FailoverMetrics {
    /// The number of recorded failovers.
    pub recorded_count: usize,
    /// Unix time in seconds of the latest recorded promotion; `None` if no failover is recorded.
    pub last_promotion_unix_secs: Option<f64>,
}
