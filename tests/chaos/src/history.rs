//! The operations of clients, and the replies.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

/// The outcome of an operation, as far as its client knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Outcome {
    /// The server said that it is done.
    Acknowledged,
    /// The server said, or it is certain, that it is not done.
    Failed,
    /// No answer came: it may have been done, or be done later.
    Unknown,
}

/// An operation of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Op {
    /// The name of the workload that it belongs to.
    pub workload: &'static str,
    /// The number of the client.
    pub client: usize,
    /// The key.
    pub key: String,
    /// The kind of the operation, in the workload's words.
    pub verb: &'static str,
    /// The value that was written, unique in the run.
    pub written: Option<u64>,
    /// The value that was read.
    pub read: Option<u64>,
    /// Since the run began.
    pub invoked: Duration,
    /// Since the run began.
    pub completed: Duration,
    /// Which node answered, or was asked last.
    pub node: usize,
    /// Its outcome.
    pub outcome: Outcome,
    /// Whether WAIT confirmed that a replica has it.
    pub confirmed: bool,
    /// The error of the server or the system, if it failed.
    pub error: Option<String>,
}

/// The operations of all clients, in the order in which they completed.
#[derive(Debug)]
pub struct History {
    began: Instant,
    ops: Mutex<Vec<Op>>,
}

impl History {
    /// An empty one; time begins now.
    #[must_use]
    pub fn new() -> Self {
        Self { began: Instant::now(), ops: Mutex::default() }
    }

    /// Since the run began.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Notes what a client saw.
    pub fn note(&self, op: Op) {
        self.ops.lock().unwrap_or_else(PoisonError::into_inner).push(op);
    }

    /// All of it.
    #[must_use]
    pub fn into_ops(self) -> Vec<Op> {
        self.ops.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for History {
    fn default() -> Self {
        Self::new()
    }
}
