//! A signal that tells all tasks of a server to stop.

use tokio::sync::watch;

/// A stop signal. Clones share it, and it cannot be reset.
#[derive(Debug, Clone)]
pub struct StopSignal(watch::Sender<bool>);

impl Default for StopSignal {
    fn default() -> Self {
        Self(watch::Sender::new(false))
    }
}

impl StopSignal {
    /// Signals all tasks to stop. Later calls have no effect.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    /// Returns whether [`StopSignal::stop`] has been called.
    pub fn is_stopped(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until [`StopSignal::stop`] is called.
    pub async fn wait_until_stopped(&self) {
        // The wait cannot fail, as `self` keeps the sender alive.
        let _ = self.0.subscribe().wait_for(|stopping| *stopping).await;
    }
}
