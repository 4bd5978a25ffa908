//! Sets: clients SADD elements that no other client adds.

use super::{Workload, new_op, parse_numbers, random_key};
use crate::{CallError, ChaosClient};

pub(super) struct SetWorkload;

impl Workload for SetWorkload {
    fn name(&self) -> &'static str {
        "set"
    }

    fn run_operation(&self, client: &mut ChaosClient<'_>) {
        let key = random_key(self, client);
        let element = client.unique_value();
        client.run_operation(new_op(self.name(), &key, "add", Some(element)), |client| {
            client.call_command(&key, &["SADD", &key, &element.to_string()]).map(|_| None)
        });
    }

    fn read_elements(&self, client: &mut ChaosClient<'_>, key: &str) -> Result<Vec<u64>, CallError> {
        parse_numbers(&client.call_command(key, &["SMEMBERS", key])?)
    }
}
