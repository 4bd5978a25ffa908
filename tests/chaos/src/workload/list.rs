//! Lists: RPUSH; elements of one client keep their order.

use super::{Workload, new_op, parse_numbers, random_key};
use crate::{CallError, Client};

pub(super) struct List;

impl Workload for List {
    fn name(&self) -> &'static str {
        "list"
    }

    fn step(&self, client: &mut Client<'_>) {
        let key = random_key(self, client);
        let element = client.unique_value();
        client.operate(new_op(self.name(), &key, "add", Some(element)), |client| {
            client.call(&key, &["RPUSH", &key, &element.to_string()]).map(|_| None)
        });
    }

    fn read(&self, client: &mut Client<'_>, key: &str) -> Result<Vec<u64>, CallError> {
        parse_numbers(&client.call(key, &["LRANGE", key, "0", "-1"])?)
    }
}
