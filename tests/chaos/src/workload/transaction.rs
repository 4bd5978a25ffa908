//! Transactions over two keys of one slot, which are always equal.

use harness::Value;

use super::{KEYS, Workload, number, op};
use crate::{Client, Failure};

pub(super) struct Transaction;

fn pair(number: usize) -> (String, String) {
    (format!("transaction:{{{number}}}:a"), format!("transaction:{{{number}}}:b"))
}

/// One number for a pair that was read: it is wrong if they differ.
pub(crate) const TORN: u64 = u64::MAX;

impl Workload for Transaction {
    fn name(&self) -> &'static str {
        "transaction"
    }

    fn keys(&self) -> Vec<String> {
        (0..KEYS).map(|number| pair(number).0).collect()
    }

    fn step(&self, client: &mut Client<'_>) {
        let (a, b) = pair(client.below(KEYS));
        if client.below(3) == 0 {
            client.operate(op(self.name(), &a, "read", None), |client| {
                both(&client.call(&a, &["MGET", &a, &b])?)
            });
            return;
        }
        client.operate(op(self.name(), &a, "incr", None), |client| {
            let commands: [&[&str]; 4] = [&["MULTI"], &["INCR", &a], &["INCR", &b], &["EXEC"]];
            // Every node takes MULTI, so the owner of the keys is found out first.
            client.call(&a, &["GET", &a])?;
            let replies = client.batch(&a, &commands)?;
            match &replies[3] {
                Value::Array(done) if done.len() == 2 => both(&replies[3]),
                Value::Error(error) => Err(Failure::Refused(error.clone())),
                other => Err(Failure::Refused(format!("{other:?}"))),
            }
        });
    }

    fn read(&self, client: &mut Client<'_>, key: &str) -> Result<Vec<u64>, Failure> {
        let other = key.replace(":a", ":b");
        Ok(both(&client.call(key, &["MGET", key, &other])?)?.into_iter().collect())
    }
}

fn both(reply: &Value) -> Result<Option<u64>, Failure> {
    let Value::Array(items) = reply else { return Err(Failure::Refused(format!("{reply:?}"))) };
    if let Some(Value::Error(error)) = items.iter().find(|item| matches!(item, Value::Error(_))) {
        return Err(Failure::Refused(error.clone()));
    }
    let (one, other) = (number(&items[0])?, number(&items[1])?);
    Ok(if one == other { one } else { Some(TORN) })
}
