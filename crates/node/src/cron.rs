//! What happens by itself: the control thread does it every tenth of a second.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::Gate;
use tokio::time::{MissedTickBehavior, interval};

use crate::memory;
use crate::server::Server;
use crate::totals::{Count, Totals};

const PERIOD: Duration = Duration::from_millis(100);
/// Memory is looked at this often while it has a limit.
const MEMORY_PERIOD: Duration = Duration::from_millis(10);

/// Runs until the server stops.
pub(crate) async fn run(server: Arc<Server>) {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let now = crate::time::instant();
        server.engine.pauses.settle(&server.engine.settings, crate::time::now());
        let totals = Totals::sum(&server);
        let counts = [Count::Commands, Count::InputBytes, Count::OutputBytes].map(|count| totals[count]);
        server.rates.sample(now, counts);
    }
}

/// Watches the memory in use: its peak, and its limit.
pub(crate) async fn watch_memory(server: Arc<Server>) {
    loop {
        check_memory(&server);
        let limited = server.limits.memory.load(Ordering::Relaxed) > 0;
        tokio::time::sleep(if limited { MEMORY_PERIOD } else { PERIOD }).await;
    }
}

/// Refuses commands that need memory while more than `maxmemory` is in use.
pub(crate) fn check_memory(server: &Server) {
    let used = memory::used();
    server.memory.note(used);
    let limit = server.limits.memory.load(Ordering::Relaxed);
    let over = limit > 0 && used > limit;
    if over != server.engine.settings.gate().contains(Gate::OUT_OF_MEMORY) {
        server.engine.settings.set_gate(Gate::OUT_OF_MEMORY, over);
    }
}
