//! The clients' workloads: small programs over a few keys each, whose right outcome is known.

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

use crate::{Client, Failure, Op, Outcome};

pub(crate) use transaction::TORN;

/// How many keys each has, so that all shards have some.
const KEYS: usize = 6;

/// The data in the end: each key's elements in their order; of a number, the number.
pub type Final = BTreeMap<String, Vec<u64>>;

/// A small program.
pub trait Workload: Send + Sync {
    /// Its name, which its keys begin with.
    fn name(&self) -> &'static str;

    /// One step of a client.
    fn step(&self, client: &mut Client<'_>);

    /// Reads one of its keys, when all is quiet.
    ///
    /// # Errors
    /// If the key cannot be read.
    fn read(&self, client: &mut Client<'_>, key: &str) -> Result<Vec<u64>, Failure>;

    /// Its keys.
    fn keys(&self) -> Vec<String> {
        (0..KEYS).map(|number| format!("{}:{number}", self.name())).collect()
    }
}

/// All of them.
#[must_use]
pub fn all() -> Vec<Box<dyn Workload>> {
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

/// Every key that any of them writes to.
pub(crate) fn keys() -> Vec<String> {
    all().iter().flat_map(|workload| workload.keys()).collect()
}

/// One of a workload's keys.
fn some_key(workload: &dyn Workload, client: &mut Client<'_>) -> String {
    let keys = workload.keys();
    let chosen = client.below(keys.len());
    keys[chosen].clone()
}

/// An operation that has not begun.
fn op(workload: &'static str, key: &str, verb: &'static str, written: Option<u64>) -> Op {
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
        outcome: Outcome::Unknown,
        confirmed: false,
        error: None,
    }
}

/// A reply that is to be a number, or nothing.
fn number(reply: &Value) -> Result<Option<u64>, Failure> {
    match reply {
        Value::Int(number) => Ok(u64::try_from(*number).ok()),
        Value::Bulk(_) => Ok(reply.text().parse().ok()),
        Value::NullBulk | Value::NullArray | Value::Null => Ok(None),
        Value::Simple(_) => Ok(None),
        other => Err(Failure::Refused(format!("{other:?}"))),
    }
}

/// A reply that is to be a list of numbers.
fn numbers(reply: &Value) -> Result<Vec<u64>, Failure> {
    match reply {
        Value::Array(items) => Ok(items.iter().filter_map(|item| item.text().parse().ok()).collect()),
        other => Err(Failure::Refused(format!("{other:?}"))),
    }
}
