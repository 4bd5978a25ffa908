//! Sets: SADD of elements that no other client adds.

use super::{Workload, numbers, op, some_key};
use crate::{Client, Failure};

pub(super) struct Set;

impl Workload for Set {
    fn name(&self) -> &'static str {
        "set"
    }

    fn step(&self, client: &mut Client<'_>) {
        let key = some_key(self, client);
        let element = client.unique();
        client.operate(op(self.name(), &key, "add", Some(element)), |client| {
            client.call(&key, &["SADD", &key, &element.to_string()]).map(|_| None)
        });
    }

    fn read(&self, client: &mut Client<'_>, key: &str) -> Result<Vec<u64>, Failure> {
        numbers(&client.call(key, &["SMEMBERS", key])?)
    }
}
