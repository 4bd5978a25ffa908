//! Counters: INCR, each of whose replies comes once.

use super::{Workload, number, op, some_key};
use crate::{Client, Failure};

pub(super) struct Counter;

impl Workload for Counter {
    fn name(&self) -> &'static str {
        "counter"
    }

    fn step(&self, client: &mut Client<'_>) {
        let key = some_key(self, client);
        client.operate(op(self.name(), &key, "incr", None), |client| {
            number(&client.call(&key, &["INCR", &key])?)
        });
    }

    fn read(&self, client: &mut Client<'_>, key: &str) -> Result<Vec<u64>, Failure> {
        Ok(number(&client.call(key, &["GET", key])?)?.into_iter().collect())
    }
}
