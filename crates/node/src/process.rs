//! The process: its time, its log, its places, limits and signals, how it goes to the background and how it crashes.

pub(crate) mod access;
pub(crate) mod crash;
pub(crate) mod daemon;
pub(crate) mod event_loops;
pub(crate) mod file_limit;
pub(crate) mod log;
pub(crate) mod memory;
pub(crate) mod occupation;
pub(crate) mod oom;
pub(crate) mod places;
pub(crate) mod pulse;
pub(crate) mod random;
pub(crate) mod rates;
pub(crate) mod stopping;
pub(crate) mod time;

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
