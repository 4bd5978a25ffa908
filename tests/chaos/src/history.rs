//! Records the operations of clients and their results.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

/// The result of an operation as far as its client knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum OpOutcome {
    /// The server confirmed the operation, so its effect must last.
    Acknowledged,
    /// The operation certainly did not take effect.
    Failed,
    /// There was no reply: the operation may have taken effect or may still do so.
    Unknown,
}

/// An operation of a client, as recorded by the client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Operation {
    /// The name of the workload that performed the operation.
    pub workload: &'static str,
    /// The number of the client that performed the operation.
    pub client: usize,
    /// The key that was read or written.
    pub key: String,
    /// The operation's kind in the workload's terms, such as `add` or `pop`.
    pub verb: &'static str,
    /// The written value, unique in the run; `None` for a read.
    pub written: Option<u64>,
    /// The value that was read, or `None` if there was none.
    pub read: Option<u64>,
    /// When the operation began, since the beginning of the run.
    pub invoked: Duration,
    /// When the operation ended, since the beginning of the run.
    pub completed: Duration,
    /// The index of the node that replied, or else of the last node contacted.
    pub node: usize,
    /// Whether the operation took effect, as far as the client knows.
    pub outcome: OpOutcome,
    /// Whether WAIT confirmed that a replica has the write; false if WAIT was not sent.
    pub confirmed: bool,
    /// The error of the server or of the system; `None` if the operation succeeded.
    pub error: Option<String>,
}

/// The operations of all clients in order of completion.
#[derive(Debug)]
pub struct OpHistory {
    start_time: Instant,
    operations: Mutex<Vec<Operation>>,
}

impl OpHistory {
    /// Creates an empty history; its clock starts now.
    #[must_use]
    pub fn new() -> Self {
        Self { start_time: Instant::now(), operations: Mutex::default() }
    }

    /// Returns the time since the beginning of the run.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.start_time.elapsed()
    }

    /// Appends an operation that has ended.
    pub fn record(&self, op: Operation) {
        self.operations.lock().unwrap_or_else(PoisonError::into_inner).push(op);
    }

    /// Returns all recorded operations, in order of completion.
    #[must_use]
    pub fn into_ops(self) -> Vec<Operation> {
        self.operations.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for OpHistory {
    fn default() -> Self {
        Self::new()
    }
}
