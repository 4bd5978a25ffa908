//! What the server's own upkeep works with, and what it has noted.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use config::Config;
use engine::Engine;

use crate::net::door::Door;
use crate::process::memory::Tracker;
use crate::process::oom::Score;
use crate::process::rates::Rates;
use crate::process::totals::Baseline;
use crate::replication::Replication;

/// What active expiry did.
#[derive(Debug, Default)]
pub(crate) struct ExpiryStats {
    /// Time spent.
    pub(crate) nanos: AtomicU64,
    /// Cycles that ended with their time and not with their work.
    pub(crate) capped: AtomicU64,
}

/// The parts that are looked after, and the notes.
#[derive(Debug)]
pub(crate) struct Housekeeping {
    pub(super) engine: Arc<Engine>,
    pub(super) config: Arc<Config>,
    pub(super) door: Arc<Door>,
    pub(super) replication: Arc<Replication>,
    pub(crate) expiry: ExpiryStats,
    pub(crate) rates: Rates,
    pub(crate) memory: Tracker,
    pub(super) baseline: Baseline,
    pub(super) oom_score: Score,
}

impl Housekeeping {
    pub(crate) fn new(
        engine: Arc<Engine>,
        config: Arc<Config>,
        door: Arc<Door>,
        replication: Arc<Replication>,
    ) -> Self {
        Self {
            engine,
            config,
            door,
            replication,
            expiry: ExpiryStats::default(),
            rates: Rates::default(),
            memory: Tracker::default(),
            baseline: Baseline::default(),
            oom_score: Score::default(),
        }
    }
}
