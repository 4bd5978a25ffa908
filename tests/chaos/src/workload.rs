//! Client workloads: small programs over a few keys each, with a known correct result.

mod blocking;
mod confirmed;
mod counter;
mod list;
mod lock;
mod register;
mod script;
mod set;
mod stream;
mod transaction;

use std::collections::BTreeMap;
use std::time::Duration;

use harness::Value;

use crate::{CallError, Client, Op, OpOutcome};

pub(crate) use transaction::TORN_PAIR;

/// Keys per workload; enough that every shard has some.
const KEYS_PER_WORKLOAD: usize = 6;

/// Final data: the elements of each key in order, or the single value of a number.
pub type FinalData = BTreeMap<String, Vec<u64>>;

/// A client workload.
pub trait Workload: Send + Sync {
    /// The workload's name, which is its key prefix.
    fn name(&self) -> &'static str;

    /// Runs one random operation.
    fn step(&self, client: &mut Client<'_>);

    /// Reads one key after the run.
    ///
    /// # Errors
    /// If the key cannot be read.
    fn read(&self, client: &mut Client<'_>, key: &str) -> Result<Vec<u64>, CallError>;

    /// Returns the keys in use.
    fn keys(&self) -> Vec<String> {
        (0..KEYS_PER_WORKLOAD).map(|number| format!("{}:{number}", self.name())).collect()
    }
}

/// Returns all workloads.
#[must_use]
pub fn all_workloads() -> Vec<Box<dyn Workload>> {
    vec![
        Box::new(register::Register),
        Box::new(counter::Counter),
        Box::new(set::Set),
        Box::new(list::List),
        Box::new(stream::Stream),
        Box::new(transaction::Transaction),
        Box::new(script::Script),
        Box::new(lock::Lock),
        Box::new(blocking::Blocking),
        Box::new(confirmed::Confirmed),
    ]
}

/// Returns the keys of all workloads.
pub(crate) fn all_keys() -> Vec<String> {
    all_workloads().iter().flat_map(|workload| workload.keys()).collect()
}

/// Picks a random key of the workload.
fn random_key(workload: &dyn Workload, client: &mut Client<'_>) -> String {
    let keys = workload.keys();
    let chosen = client.random_below(keys.len());
    keys[chosen].clone()
}

/// Creates the record of an operation before it starts.
fn new_op(workload: &'static str, key: &str, verb: &'static str, written: Option<u64>) -> Op {
    Op {
        workload,
        client: 0,
        key: key.to_owned(),
        verb,
        written,
        read: None,
        invoked: Duration::ZERO,
        completed: Duration::ZERO,
        node: 0,
        outcome: OpOutcome::Unknown,
        confirmed: false,
        error: None,
    }
}

/// Parses a reply that is a number or null.
fn parse_number(reply: &Value) -> Result<Option<u64>, CallError> {
    match reply {
        Value::Int(number) => Ok(u64::try_from(*number).ok()),
        Value::Bulk(_) => Ok(reply.text().parse().ok()),
        Value::NullBulk | Value::NullArray | Value::Null => Ok(None),
        Value::Simple(_) => Ok(None),
        other => Err(CallError::NotExecuted(format!("{other:?}"))),
    }
}

/// Parses a reply that is a list of numbers.
fn parse_numbers(reply: &Value) -> Result<Vec<u64>, CallError> {
    match reply {
        Value::Array(items) => Ok(items.iter().filter_map(|item| item.text().parse().ok()).collect()),
        other => Err(CallError::NotExecuted(format!("{other:?}"))),
    }
}
