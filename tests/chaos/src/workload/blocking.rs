//! Queues: clients use RPUSH, and BLPOP with a timeout. Each element is delivered to one client.

use harness::Reply;

use super::{Workload, new_op, parse_numbers, random_key};
use crate::{CallError, ChaosClient};

pub(super) struct BlockingWorkload;

impl Workload for BlockingWorkload {
    fn name(&self) -> &'static str {
        "queue"
    }

    fn run_operation(&self, client: &mut ChaosClient<'_>) {
        let key = random_key(self, client);
        if client.random_below(2) == 0 {
            let element = client.unique_value();
            client.run_operation(new_op(self.name(), &key, "add", Some(element)), |client| {
                client.call_command(&key, &["RPUSH", &key, &element.to_string()]).map(|_| None)
            });
            return;
        }
        client.run_operation(new_op(self.name(), &key, "pop", None), |client| {
            match client.call_command(&key, &["BLPOP", &key, "0.05"])? {
                Reply::Array(pair) => Ok(pair.get(1).and_then(|element| element.text().parse().ok())),
                Reply::NullArray => Ok(None),
                other => Err(CallError::NotExecuted(format!("{other:?}"))),
            }
        });
    }

    fn read_elements(&self, client: &mut ChaosClient<'_>, key: &str) -> Result<Vec<u64>, CallError> {
        parse_numbers(&client.call_command(key, &["LRANGE", key, "0", "-1"])?)
    }
}
