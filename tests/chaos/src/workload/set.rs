//! Sets: SADD of elements unique to one client.

use super::{Workload, new_op, parse_numbers, random_key};
use crate::{CallError, Client};

pub(super) struct Set;

impl Workload for Set {
    fn name(&self) -> &'static str {
        "set"
    }

    fn step(&self, client: &mut Client<'_>) {
        let key = random_key(self, client);
        let element = client.unique_value();
        client.operate(new_op(self.name(), &key, "add", Some(element)), |client| {
            client.call(&key, &["SADD", &key, &element.to_string()]).map(|_| None)
        });
    }

    fn read(&self, client: &mut Client<'_>, key: &str) -> Result<Vec<u64>, CallError> {
        parse_numbers(&client.call(key, &["SMEMBERS", key])?)
    }
}
