//! Counters: INCR, whose replies are all distinct.

use super::{Workload, new_op, parse_number, random_key};
use crate::{CallError, Client};

pub(super) struct Counter;

impl Workload for Counter {
    fn name(&self) -> &'static str {
        "counter"
    }

    fn step(&self, client: &mut Client<'_>) {
        let key = random_key(self, client);
        client.operate(new_op(self.name(), &key, "incr", None), |client| {
            parse_number(&client.call(&key, &["INCR", &key])?)
        });
    }

    fn read(&self, client: &mut Client<'_>, key: &str) -> Result<Vec<u64>, CallError> {
        Ok(parse_number(&client.call(key, &["GET", key])?)?.into_iter().collect())
    }
}
