//! Signals all tasks of the server to stop.

use tokio::sync::watch;

/// A stop signal, shared by all clones.
#[derive(Debug, Clone)]
pub struct StopSignal(watch::Sender<bool>);

impl Default for StopSignal {
    fn default() -> Self {
        Self(watch::Sender::new(false))
    }
}

impl StopSignal {
    /// Signals all tasks to stop.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    /// Whether [`StopSignal::stop`] has been called.
    pub fn is_stopped(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until [`StopSignal::stop`] is called.
    pub async fn stopped(&self) {
        // Cannot fail, as `self` owns the sender.
        let _ = self.0.subscribe().wait_for(|stopping| *stopping).await;
    }
}
