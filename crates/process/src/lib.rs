//! The process: its time, its log, its places, limits and signals, how it goes to the background and how it crashes.
#![forbid(unsafe_code)]

pub mod access;
pub mod alarm;
pub mod crash;
pub mod daemon;
pub mod event_loops;
pub mod file_limit;
pub mod info;
pub mod log;
pub mod memory;
pub mod occupation;
pub mod oom;
pub mod places;
pub mod pulse;
pub mod random;
pub mod rates;
pub mod stopping;
pub mod time;

use config::ConfigError;

/// Why a server did not start.
#[derive(Debug)]
pub enum Failure {
    /// The configuration cannot be used.
    Config(ConfigError),
    /// The machine did not give what is needed.
    Start(anyhow::Error),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::Start(error) => write!(f, "{error:#}"),
        }
    }
}
