//! Registers: clients SET values that no other client writes, and GET them.

use super::{Workload, new_op, parse_number, random_key};
use crate::{CallError, ChaosClient};

pub(super) struct RegisterWorkload;

impl Workload for RegisterWorkload {
    fn name(&self) -> &'static str {
        "register"
    }

    fn run_operation(&self, client: &mut ChaosClient<'_>) {
        let key = random_key(self, client);
        if client.random_below(2) == 0 {
            client.run_operation(new_op(self.name(), &key, "get", None), |client| {
                parse_number(&client.call_command(&key, &["GET", &key])?)
            });
        } else {
            let value = client.unique_value();
            client.run_operation(new_op(self.name(), &key, "set", Some(value)), |client| {
                client.call_command(&key, &["SET", &key, &value.to_string()]).map(|_| None)
            });
        }
    }

    fn read_elements(&self, client: &mut ChaosClient<'_>, key: &str) -> Result<Vec<u64>, CallError> {
        Ok(parse_number(&client.call_command(key, &["GET", key])?)?.into_iter().collect())
    }
}
