//! Queues: RPUSH, and BLPOP that waits a while. An element is given to one.

use harness::Value;

use super::{Workload, numbers, op, some_key};
use crate::{Client, Failure};

pub(super) struct Blocking;

impl Workload for Blocking {
    fn name(&self) -> &'static str {
        "queue"
    }

    fn step(&self, client: &mut Client<'_>) {
        let key = some_key(self, client);
        if client.below(2) == 0 {
            let element = client.unique();
            client.operate(op(self.name(), &key, "add", Some(element)), |client| {
                client.call(&key, &["RPUSH", &key, &element.to_string()]).map(|_| None)
            });
            return;
        }
        client.operate(op(self.name(), &key, "pop", None), |client| {
            match client.call(&key, &["BLPOP", &key, "0.05"])? {
                Value::Array(pair) => Ok(pair.get(1).and_then(|element| element.text().parse().ok())),
                Value::NullArray => Ok(None),
                other => Err(Failure::Refused(format!("{other:?}"))),
            }
        });
    }

    fn read(&self, client: &mut Client<'_>, key: &str) -> Result<Vec<u64>, Failure> {
        numbers(&client.call(key, &["LRANGE", key, "0", "-1"])?)
    }
}
