//! Queues: RPUSH and BLPOP with a timeout. Each element is delivered to one client.

use harness::Value;

use super::{Workload, new_op, parse_numbers, random_key};
use crate::{CallError, Client};

pub(super) struct Blocking;

impl Workload for Blocking {
    fn name(&self) -> &'static str {
        "queue"
    }

    fn step(&self, client: &mut Client<'_>) {
        let key = random_key(self, client);
        if client.random_below(2) == 0 {
            let element = client.unique_value();
            client.operate(new_op(self.name(), &key, "add", Some(element)), |client| {
                client.call(&key, &["RPUSH", &key, &element.to_string()]).map(|_| None)
            });
            return;
        }
        client.operate(new_op(self.name(), &key, "pop", None), |client| {
            match client.call(&key, &["BLPOP", &key, "0.05"])? {
                Value::Array(pair) => Ok(pair.get(1).and_then(|element| element.text().parse().ok())),
                Value::NullArray => Ok(None),
                other => Err(CallError::NotExecuted(format!("{other:?}"))),
            }
        });
    }

    fn read(&self, client: &mut Client<'_>, key: &str) -> Result<Vec<u64>, CallError> {
        parse_numbers(&client.call(key, &["LRANGE", key, "0", "-1"])?)
    }
}
