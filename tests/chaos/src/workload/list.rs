//! Lists: RPUSH; what one client pushed stays in its order.

use super::{Workload, numbers, op, some_key};
use crate::{Client, Failure};

pub(super) struct List;

impl Workload for List {
    fn name(&self) -> &'static str {
        "list"
    }

    fn step(&self, client: &mut Client<'_>) {
        let key = some_key(self, client);
        let element = client.unique();
        client.operate(op(self.name(), &key, "add", Some(element)), |client| {
            client.call(&key, &["RPUSH", &key, &element.to_string()]).map(|_| None)
        });
    }

    fn read(&self, client: &mut Client<'_>, key: &str) -> Result<Vec<u64>, Failure> {
        numbers(&client.call(key, &["LRANGE", key, "0", "-1"])?)
    }
}
