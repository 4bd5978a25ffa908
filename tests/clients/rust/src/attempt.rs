//! One run of a feature's test.

use std::error::Error;
use std::fmt::Display;
use std::time::{Duration, Instant};

use crate::deployment::ServerAddresses;
use crate::kill_barrier::KillBarrier;

/// The result of a feature's test: `None` if the feature works, or the mark for a limitation in the table.
pub type FeatureResult = Result<Option<&'static str>, Box<dyn Error + Send + Sync>>;

/// The time limit for operations that take servers a second or two.
pub const OPERATION_TIMEOUT: Duration = Duration::from_secs(25);
/// The delay between two attempts.
pub const RETRY_DELAY: Duration = Duration::from_millis(20);

/// Returns a key with this name in a slot of the first range, whose master is the one that the tests kill.
#[must_use]
pub fn test_key(name: &str) -> String {
    format!("{{bar}}{name}")
}

/// Returns an error if the condition is false.
///
/// # Errors
/// The condition is false; the error is `description`, which says what was expected.
pub fn check_condition(condition: bool, description: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    if condition { Ok(()) } else { Err(description.into()) }
}

/// The environment of a feature's test: the servers and the protocol.
#[derive(Debug)]
pub struct FeatureAttempt {
    /// The addresses of the servers to connect to.
    pub addresses: ServerAddresses,
    /// The RESP version that the client must use, 2 or 3.
    pub protocol: u8,
    barrier: Option<KillBarrier>,
}

impl FeatureAttempt {
    pub(crate) fn new(addresses: ServerAddresses, protocol: u8, barrier: Option<KillBarrier>) -> Self {
        Self { addresses, protocol, barrier }
    }

    /// The point in a feature's test at which the master may be killed. Returns when the test may continue.
    pub async fn wait_for_kill(&self) {
        if let Some(middle) = &self.barrier {
            middle.wait_for_event().await;
        }
    }

    /// Whether a master is killed during this test.
    #[must_use]
    pub fn expects_kill(&self) -> bool {
        self.barrier.is_some()
    }

    /// Whether the kill of the master has already happened.
    #[must_use]
    pub fn is_after_kill(&self) -> bool {
        self.barrier.as_ref().is_some_and(KillBarrier::has_arrived)
    }

    /// Runs an operation, and retries it while it fails after the master was killed.
    ///
    /// # Errors
    /// The operation did not succeed; the error is that of the last attempt.
    pub async fn retry_after_kill<T, E: Display>(
        &self,
        mut operation: impl AsyncFnMut() -> Result<T, E>,
    ) -> Result<T, String> {
        let began = Instant::now();
        loop {
            match operation().await {
                Ok(value) => return Ok(value),
                Err(_) if self.is_after_kill() && began.elapsed() < OPERATION_TIMEOUT => {
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Waits until one client is blocked.
    pub async fn wait_for_blocked_client(&self) {
        while self.addresses.blocked_client_count() == 0 {
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }
}
