//! Maintenance of the server: its components, its statistics, and periodic work ([`cron`]).

pub(crate) mod cron;
pub(crate) mod overhead;
pub(crate) mod totals;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use config::Config;
use engine::Engine;
use net::context::NetworkContext;
use parking_lot::Mutex;
use process::event_loops::EventLoopTime;
use process::memory::MemoryTracker;
use process::oom::OomScoreAdjuster;
use process::rates::Rates;
use tokio::sync::Notify;

use crate::replication::Replication;
use totals::StatisticsBaseline;

/// Statistics of active expiry.
#[derive(Debug, Default)]
pub(crate) struct ExpiryStats {
    pub(crate) spent_nanos: AtomicU64,
    /// Number of cycles that ended at their time limit although more keys were due.
    pub(crate) timed_out_cycles: AtomicU64,
}

/// A DEBUG SLEEP request for the control thread. The sleep also suspends the cluster bus, the timers and new
/// connections.
#[derive(Debug, Default)]
pub(crate) struct SleepRequest {
    end: Mutex<Option<Instant>>,
    requested: Notify,
}

impl SleepRequest {
    pub(crate) fn request_sleep(&self, duration: Duration) {
        *self.end.lock() = Instant::now().checked_add(duration);
        self.requested.notify_one();
    }

    /// Waits for a request, suspends the calling thread for the requested time, and returns.
    async fn sleep_when_requested(&self) {
        self.requested.notified().await;
        let until = self.end.lock().take();
        if let Some(until) = until {
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
        }
    }
}

/// The components that periodic work maintains, and the state of that work.
#[derive(Debug)]
pub(crate) struct Housekeeping {
    pub(crate) engine: Arc<Engine>,
    config: Arc<Config>,
    pub(crate) network: Arc<NetworkContext>,
    replication: Arc<Replication>,
    pub(crate) expiry_stats: ExpiryStats,
    pub(crate) rates: Rates,
    pub(crate) event_loop_time: EventLoopTime,
    pub(crate) memory_tracker: MemoryTracker,
    baseline: StatisticsBaseline,
    oom_score: OomScoreAdjuster,
    pub(crate) sleep_request: SleepRequest,
    /// Whether no work was received or done between the last two ticks.
    is_quiet: AtomicBool,
    /// Whether all free memory has been returned to the system since the last change of the data.
    is_memory_purged: AtomicBool,
    /// Suspends all periodic work (DEBUG PAUSE-CRON).
    pub(crate) is_cron_paused: AtomicBool,
}

impl Housekeeping {
    pub(crate) fn new(
        engine: Arc<Engine>,
        config: Arc<Config>,
        network: Arc<NetworkContext>,
        replication: Arc<Replication>,
    ) -> Self {
        Self {
            engine,
            config,
            network,
            replication,
            expiry_stats: ExpiryStats::default(),
            rates: Rates::default(),
            event_loop_time: EventLoopTime::default(),
            memory_tracker: MemoryTracker::default(),
            baseline: StatisticsBaseline::default(),
            oom_score: OomScoreAdjuster::default(),
            sleep_request: SleepRequest::default(),
            is_quiet: AtomicBool::new(false),
            is_memory_purged: AtomicBool::new(false),
            is_cron_paused: AtomicBool::new(false),
        }
    }
}
