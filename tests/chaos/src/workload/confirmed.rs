//! Writes that every replica has: SADD and WAIT in one go. A promoted replica has them.

use harness::Value;

use super::{Workload, numbers, op, some_key};
use crate::{Client, Failure};

/// Milliseconds.
const TIMEOUT: &str = "300";

pub(super) struct Confirmed;

impl Workload for Confirmed {
    fn name(&self) -> &'static str {
        "confirmed"
    }

    fn step(&self, client: &mut Client<'_>) {
        let key = some_key(self, client);
        let element = client.unique();
        let mut op = op(self.name(), &key, "add", Some(element));
        op.confirmed = true;
        client.operate(op, |client| {
            let text = element.to_string();
            let add: &[&str] = &["SADD", &key, &text];
            let wanted = client.replicas();
            let replies = client.batch(&key, &[add, &["WAIT", &wanted.to_string(), TIMEOUT]])?;
            match &replies[1] {
                Value::Int(replicas) if *replicas >= wanted as i64 => Ok(None),
                // Whatever WAIT says, the element was added.
                other => Err(Failure::Unknown(format!("not all replicas confirmed it: {other:?}"))),
            }
        });
    }

    fn read(&self, client: &mut Client<'_>, key: &str) -> Result<Vec<u64>, Failure> {
        numbers(&client.call(key, &["SMEMBERS", key])?)
    }
}
