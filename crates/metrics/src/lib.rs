//! A node's figures as Prometheus reads them.
//!
//! The figures are those of INFO and CLUSTER INFO, which dashboards and alerts know under the names that redis_exporter
//! gives them: [`names`] is that mapping, as a table. So a figure is counted in one place, and INFO and a scrape never
//! differ. What INFO has no line for comes in a [`Snapshot`] beside it. Figures that Redis has not are named
//! `redoubt_...`.
//!
//! Labels are bounded: by the table of commands, by the codes of errors that a server keeps apart, by its replicas, its
//! databases and the kinds of events. No key, client or address of a client is ever a label.
#![forbid(unsafe_code)]

mod fields;
mod names;
mod text;

pub use fields::Fields;
pub use text::render;

/// The figures of one moment.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// All sections of INFO.
    pub info: String,
    /// CLUSTER INFO; empty without cluster mode.
    pub cluster_info: String,
    /// The largest number of clients, `maxmemory` in bytes, and how many threads serve.
    pub limits: Limits,
    /// How long commands took.
    pub commands: Vec<CommandTimes>,
    /// The state of SLOWLOG.
    pub slow_log: SlowLog,
    /// The events of LATENCY LATEST.
    pub latency_events: Vec<LatencyEvent>,
    /// Every reason not to be ready, and whether it holds.
    pub hindrances: Vec<(&'static str, bool)>,
    /// How many slots this node serves; `None` without cluster mode.
    pub slots_served: Option<usize>,
    /// The failovers that this node remembers, and those of them that ended with a promotion.
    pub failovers: Option<Failovers>,
}

/// Limits by configuration.
#[derive(Debug, Clone, Default)]
pub struct Limits {
    /// `maxclients`
    pub clients: usize,
    /// `maxmemory`, in bytes.
    pub memory: usize,
    /// `io-threads`
    pub threads: usize,
    /// `client-output-buffer-limit`
    pub output: Vec<OutputLimit>,
}

/// How much may wait to be sent to a client of one class.
#[derive(Debug, Clone, Default)]
pub struct OutputLimit {
    /// `normal`, `slave` or `pubsub`.
    pub class: &'static str,
    /// Bytes that are never exceeded.
    pub hard: usize,
    /// Bytes that are exceeded for `seconds` at most.
    pub soft: usize,
    /// See `soft`.
    pub seconds: u64,
}

/// How long the calls of one command took.
#[derive(Debug, Clone, Default)]
pub struct CommandTimes {
    /// The command's name, with its subcommand.
    pub command: &'static str,
    /// How many there were.
    pub calls: u64,
    /// How many calls took at most so many microseconds, wherever that grows.
    pub cumulative: Vec<(u64, u64)>,
    /// All calls together, in microseconds.
    pub sum: f64,
    /// Percentiles that INFO shows, each as a part of 1, in microseconds.
    pub quantiles: Vec<(f64, f64)>,
}

/// The commands that took long.
#[derive(Debug, Clone, Default)]
pub struct SlowLog {
    /// How many are kept.
    pub length: usize,
    /// The number of the last one, and how many seconds it took.
    pub last: Option<(u64, f64)>,
}

/// An event that took longer than `latency-monitor-threshold`.
#[derive(Debug, Clone, Default)]
pub struct LatencyEvent {
    /// Its name in LATENCY.
    pub name: &'static str,
    /// When it last happened, in seconds since the epoch.
    pub at: i64,
    /// How long it took then, in seconds.
    pub seconds: f64,
}

/// Failovers as this node saw them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Failovers {
    /// Failures that it still remembers.
    pub remembered: usize,
    /// When one of them last ended with another node in the failed one's place, in seconds since the epoch.
    pub last: Option<f64>,
}
