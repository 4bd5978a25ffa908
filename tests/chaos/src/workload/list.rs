//! Lists: clients send RPUSH, and the elements of one client must keep their order.

use super::{Workload, new_op, parse_numbers, random_key};
use crate::{CallError, ChaosClient};

pub(super) struct ListWorkload;

impl Workload for ListWorkload {
    fn name(&self) -> &'static str {
        "list"
    }

    fn run_operation(&self, client: &mut ChaosClient<'_>) {
        let key = random_key(self, client);
        let element = client.unique_value();
        client.run_operation(new_op(self.name(), &key, "add", Some(element)), |client| {
            client.call_command(&key, &["RPUSH", &key, &element.to_string()]).map(|_| None)
        });
    }

    fn read_elements(&self, client: &mut ChaosClient<'_>, key: &str) -> Result<Vec<u64>, CallError> {
        parse_numbers(&client.call_command(key, &["LRANGE", key, "0", "-1"])?)
    }
}
