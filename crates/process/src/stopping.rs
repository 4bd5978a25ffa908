//! The word that the server stops, for every task that goes on until then.

use tokio::sync::watch;

/// Whether the server stops. Every holder of a copy is told.
#[derive(Debug, Clone)]
pub struct Stopping(watch::Sender<bool>);

impl Default for Stopping {
    fn default() -> Self {
        Self(watch::Sender::new(false))
    }
}

impl Stopping {
    /// Tells every task to come to its end.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    /// Whether that has been said.
    pub fn is_stopped(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns when [`Stopping::stop`] has been called.
    pub async fn stopped(&self) {
        // The sender lives as long as this, so waiting cannot fail.
        let _ = self.0.subscribe().wait_for(|stopping| *stopping).await;
    }
}
