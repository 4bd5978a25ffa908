//! Counters: clients send INCR, whose replies must all be distinct.

use super::{Workload, new_op, parse_number, random_key};
use crate::{CallError, ChaosClient};

pub(super) struct CounterWorkload;

impl Workload for CounterWorkload {
    fn name(&self) -> &'static str {
        "counter"
    }

    fn run_operation(&self, client: &mut ChaosClient<'_>) {
        let key = random_key(self, client);
        client.run_operation(new_op(self.name(), &key, "incr", None), |client| {
            parse_number(&client.call_command(&key, &["INCR", &key])?)
        });
    }

    fn read_elements(&self, client: &mut ChaosClient<'_>, key: &str) -> Result<Vec<u64>, CallError> {
        Ok(parse_number(&client.call_command(key, &["GET", key])?)?.into_iter().collect())
    }
}
