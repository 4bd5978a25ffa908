//! Statistics about handlers that accessed undeclared keys. Each such access is a bug in a command; the client gets an
//! error ([`crate::CommandError::UndeclaredKey`]).

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Number of accesses to undeclared keys, and the command of the last one.
#[derive(Debug, Default)]
pub struct UndeclaredKeys {
    count: AtomicU64,
    last_command: Mutex<String>,
}

impl UndeclaredKeys {
    /// Records an access by this command's handler.
    pub(crate) fn record_access(&self, command: &str) {
        self.count.fetch_add(1, Ordering::Relaxed);
        command.clone_into(&mut self.last_command.lock());
    }

    /// Returns the number of accesses since startup.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns the command of the last access; empty if there was none.
    #[must_use]
    pub fn last_command(&self) -> String {
        self.last_command.lock().clone()
    }
}
