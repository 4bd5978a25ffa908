//! Registers: SET and GET of values unique to one client.

use super::{Workload, new_op, parse_number, random_key};
use crate::{CallError, Client};

pub(super) struct Register;

impl Workload for Register {
    fn name(&self) -> &'static str {
        "register"
    }

    fn step(&self, client: &mut Client<'_>) {
        let key = random_key(self, client);
        if client.random_below(2) == 0 {
            client.operate(new_op(self.name(), &key, "get", None), |client| {
                parse_number(&client.call(&key, &["GET", &key])?)
            });
        } else {
            let value = client.unique_value();
            client.operate(new_op(self.name(), &key, "set", Some(value)), |client| {
                client.call(&key, &["SET", &key, &value.to_string()]).map(|_| None)
            });
        }
    }

    fn read(&self, client: &mut Client<'_>, key: &str) -> Result<Vec<u64>, CallError> {
        Ok(parse_number(&client.call(key, &["GET", key])?)?.into_iter().collect())
    }
}
