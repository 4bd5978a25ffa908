//! Registers: SET and GET of values that no other client writes.

use super::{Workload, number, op, some_key};
use crate::{Client, Failure};

pub(super) struct Register;

impl Workload for Register {
    fn name(&self) -> &'static str {
        "register"
    }

    fn step(&self, client: &mut Client<'_>) {
        let key = some_key(self, client);
        if client.below(2) == 0 {
            client.operate(op(self.name(), &key, "get", None), |client| {
                number(&client.call(&key, &["GET", &key])?)
            });
        } else {
            let value = client.unique();
            client.operate(op(self.name(), &key, "set", Some(value)), |client| {
                client.call(&key, &["SET", &key, &value.to_string()]).map(|_| None)
            });
        }
    }

    fn read(&self, client: &mut Client<'_>, key: &str) -> Result<Vec<u64>, Failure> {
        Ok(number(&client.call(key, &["GET", key])?)?.into_iter().collect())
    }
}
