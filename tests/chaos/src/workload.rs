//! Client workloads: small programs that use a few keys each and have a known correct result.

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

use harness::Reply;

use crate::{CallError, ChaosClient, OpOutcome, Operation};

pub(crate) use transaction::TORN_PAIR;

/// The number of keys per workload, which is enough that every shard has some.
const KEYS_PER_WORKLOAD: usize = 6;

/// The final data of each key: its elements in order, or the single value of a number.
pub type FinalData = BTreeMap<String, Vec<u64>>;

/// A kind of client operations whose results can be checked after the run.
pub trait Workload: Send + Sync {
    /// Returns the workload's name, which is the prefix of its keys.
    fn name(&self) -> &'static str;

    /// Runs one random operation and records it.
    fn run_operation(&self, client: &mut ChaosClient<'_>);

    /// Reads one key after the run.
    ///
    /// # Errors
    /// The key cannot be read.
    fn read_elements(&self, client: &mut ChaosClient<'_>, key: &str) -> Result<Vec<u64>, CallError>;

    /// Returns the keys that the workload uses.
    fn keys(&self) -> Vec<String> {
        (0..KEYS_PER_WORKLOAD).map(|number| format!("{}:{number}", self.name())).collect()
    }
}

/// Returns one instance of each workload; every client runs all of them.
#[must_use]
pub fn all_workloads() -> Vec<Box<dyn Workload>> {
    vec![
        Box::new(register::RegisterWorkload),
        Box::new(counter::CounterWorkload),
        Box::new(set::SetWorkload),
        Box::new(list::ListWorkload),
        Box::new(stream::StreamWorkload),
        Box::new(transaction::TransactionWorkload),
        Box::new(script::ScriptWorkload),
        Box::new(lock::LockWorkload),
        Box::new(blocking::BlockingWorkload),
        Box::new(confirmed::ConfirmedWorkload),
    ]
}

/// Returns the keys of all workloads.
pub(crate) fn all_keys() -> Vec<String> {
    all_workloads().iter().flat_map(|workload| workload.keys()).collect()
}

/// Picks a random key of the workload.
fn random_key(workload: &dyn Workload, client: &mut ChaosClient<'_>) -> String {
    let keys = workload.keys();
    let chosen = client.random_below(keys.len());
    keys[chosen].clone()
}

/// Creates the record of an operation that is about to start.
fn new_op(workload: &'static str, key: &str, verb: &'static str, written_value: Option<u64>) -> Operation {
    Operation {
        workload,
        client: 0,
        key: key.to_owned(),
        verb,
        written: written_value,
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
fn parse_number(reply: &Reply) -> Result<Option<u64>, CallError> {
    match reply {
        Reply::Int(number) => Ok(u64::try_from(*number).ok()),
        Reply::Bulk(_) => Ok(reply.text().parse().ok()),
        Reply::NullBulk | Reply::NullArray | Reply::Null => Ok(None),
        Reply::Simple(_) => Ok(None),
        other => Err(CallError::NotExecuted(format!("{other:?}"))),
    }
}

/// Parses a reply that is a list of numbers.
fn parse_numbers(reply: &Reply) -> Result<Vec<u64>, CallError> {
    match reply {
        Reply::Array(items) => Ok(items.iter().filter_map(|item| item.text().parse().ok()).collect()),
        other => Err(CallError::NotExecuted(format!("{other:?}"))),
    }
}
