//! One run of a feature.

use std::error::Error;
use std::fmt::Display;
use std::time::{Duration, Instant};

use crate::deployment::Addresses;
use crate::middle::Middle;

/// Why a feature has no mark, or nothing if it works.
pub type Outcome = Result<Option<&'static str>, Box<dyn Error + Send + Sync>>;

/// How long something may take that servers do in a second or two.
pub const TIMEOUT: Duration = Duration::from_secs(25);
/// Between two tries.
pub const PAUSE: Duration = Duration::from_millis(20);

/// The key of this name in a slot of the first range: its master is the one that is killed.
#[must_use]
pub fn key(name: &str) -> String {
    format!("{{bar}}{name}")
}

/// Whether something is as it should be.
///
/// # Errors
/// The given text, which says what was expected.
pub fn check(holds: bool, what: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    if holds { Ok(()) } else { Err(what.into()) }
}

/// The surroundings of a feature's test: the servers and the protocol.
#[derive(Debug)]
pub struct Attempt {
    /// Where the servers are.
    pub at: Addresses,
    /// 2 or 3.
    pub protocol: u8,
    middle: Option<Middle>,
}

impl Attempt {
    pub(crate) fn new(at: Addresses, protocol: u8, middle: Option<Middle>) -> Self {
        Self { at, protocol, middle }
    }

    /// The feature is in its middle. A master may be dead when it goes on.
    pub async fn middle(&self) {
        if let Some(middle) = &self.middle {
            middle.reached().await;
        }
    }

    /// Whether a master is killed in the middle.
    #[must_use]
    pub fn has_kill(&self) -> bool {
        self.middle.is_some()
    }

    /// Whether that was done.
    #[must_use]
    pub fn is_after_kill(&self) -> bool {
        self.middle.as_ref().is_some_and(Middle::is_reached)
    }

    /// Does something; after the kill it is done again while it fails.
    ///
    /// # Errors
    /// Those of the last time.
    pub async fn retried<T, E: Display>(
        &self,
        mut operation: impl AsyncFnMut() -> Result<T, E>,
    ) -> Result<T, String> {
        let began = Instant::now();
        loop {
            match operation().await {
                Ok(value) => return Ok(value),
                Err(_) if self.is_after_kill() && began.elapsed() < TIMEOUT => {
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Waits until a client waits for an element.
    pub async fn one_is_blocked(&self) {
        while self.at.blocked_clients() == 0 {
            tokio::time::sleep(PAUSE).await;
        }
    }
}
