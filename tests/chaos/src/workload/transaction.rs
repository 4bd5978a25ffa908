//! Transactions over two keys of one slot, whose values are always equal.

use harness::Reply;

use super::{KEYS_PER_WORKLOAD, Workload, new_op, parse_number};
use crate::{CallError, ChaosClient};

pub(super) struct TransactionWorkload;

fn key_pair(number: usize) -> (String, String) {
    (format!("transaction:{{{number}}}:a"), format!("transaction:{{{number}}}:b"))
}

/// The value that is recorded for a pair whose values differ.
pub(crate) const TORN_PAIR: u64 = u64::MAX;

impl Workload for TransactionWorkload {
    fn name(&self) -> &'static str {
        "transaction"
    }

    fn keys(&self) -> Vec<String> {
        (0..KEYS_PER_WORKLOAD).map(|number| key_pair(number).0).collect()
    }

    fn run_operation(&self, client: &mut ChaosClient<'_>) {
        let (a, b) = key_pair(client.random_below(KEYS_PER_WORKLOAD));
        if client.random_below(3) == 0 {
            client.run_operation(new_op(self.name(), &a, "read", None), |client| {
                read_pair(&client.call_command(&a, &["MGET", &a, &b])?)
            });
            return;
        }
        client.run_operation(new_op(self.name(), &a, "incr", None), |client| {
            let commands: [&[&str]; 4] = [&["MULTI"], &["INCR", &a], &["INCR", &b], &["EXEC"]];
            // Every node accepts MULTI, so a plain command must get the redirection first.
            client.call_command(&a, &["GET", &a])?;
            let replies = client.call_pipeline(&a, &commands)?;
            match &replies[3] {
                Reply::Array(done) if done.len() == 2 => read_pair(&replies[3]),
                Reply::Error(error) => Err(CallError::NotExecuted(error.clone())),
                other => Err(CallError::NotExecuted(format!("{other:?}"))),
            }
        });
    }

    fn read_elements(&self, client: &mut ChaosClient<'_>, key: &str) -> Result<Vec<u64>, CallError> {
        let other = key.replace(":a", ":b");
        Ok(read_pair(&client.call_command(key, &["MGET", key, &other])?)?.into_iter().collect())
    }
}

fn read_pair(reply: &Reply) -> Result<Option<u64>, CallError> {
    let Reply::Array(items) = reply else { return Err(CallError::NotExecuted(format!("{reply:?}"))) };
    if let Some(Reply::Error(error)) = items.iter().find(|item| matches!(item, Reply::Error(_))) {
        return Err(CallError::NotExecuted(error.clone()));
    }
    let (one, other) = (parse_number(&items[0])?, parse_number(&items[1])?);
    Ok(if one == other { one } else { Some(TORN_PAIR) })
}
