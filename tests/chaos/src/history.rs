//! What clients did, and what they were told.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

/// What a client knows of an operation.
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
    /// Whose it is, by the workload's name.
    pub workload: &'static str,
    /// The number of the client.
    pub client: usize,
    /// The key.
    pub key: String,
    /// What was asked for, in the workload's words.
    pub verb: &'static str,
    /// What was written, unique in the run.
    pub written: Option<u64>,
    /// What was read.
    pub read: Option<u64>,
    /// Since the run began.
    pub invoked: Duration,
    /// Since the run began.
    pub completed: Duration,
    /// Which node answered, or was asked last.
    pub node: usize,
    /// What became of it.
    pub outcome: Outcome,
    /// Whether WAIT confirmed that a replica has it.
    pub confirmed: bool,
    /// What the server or the system said if it failed.
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
