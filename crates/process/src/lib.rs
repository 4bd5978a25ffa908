//! Process-level services: clocks, logging, paths, limits, signals, daemonizing and crash reports.
#![forbid(unsafe_code)]

pub mod access;
pub mod adaptive_tick;
pub mod alarm;
pub mod crash;
pub mod daemon;
pub mod event_loops;
pub mod file_limit;
pub mod info;
pub mod log;
pub mod memory;
pub mod oom;
pub mod paths;
pub mod random;
pub mod rates;
pub mod stall_detector;
pub mod stop_signal;
pub mod time;
pub mod title;

use config::ConfigError;

/// Why a server failed to start.
#[derive(Debug)]
pub enum StartError {
    /// The configuration is invalid.
    Config(ConfigError),
    /// The environment lacks something the server needs.
    Start(anyhow::Error),
}

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::Start(error) => write!(f, "{error:#}"),
        }
    }
}
