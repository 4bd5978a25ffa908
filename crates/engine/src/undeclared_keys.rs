//! Keys that handlers asked for without having declared them: faults of commands, which their clients get as errors
//! ([`crate::CommandError::UndeclaredKey`]).

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// How often that happened, and to which command last.
#[derive(Debug, Default)]
pub struct UndeclaredKeys {
    count: AtomicU64,
    last: Mutex<String>,
}

impl UndeclaredKeys {
    /// The handler of this command asked for such a key.
    pub(crate) fn note(&self, command: &str) {
        self.count.fetch_add(1, Ordering::Relaxed);
        command.clone_into(&mut self.last.lock());
    }

    /// How often it happened since the server started.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The command of the last one; empty if there was none.
    #[must_use]
    pub fn last(&self) -> String {
        self.last.lock().clone()
    }
}
