//! Scripts: each decrements one key and increments another, so the sum must stay constant.

use super::{KEYS_PER_WORKLOAD, Workload, new_op, parse_number};
use crate::{CallError, ChaosClient};

/// Moves one unit from the first key to the second and returns their sum, which is always zero.
const TRANSFER_SCRIPT: &str =
    "local a = redis.call('DECR', KEYS[1]) local b = redis.call('INCR', KEYS[2]) return a + b";
const SUM_SCRIPT: &str =
    "return tonumber(redis.call('GET', KEYS[1]) or 0) + tonumber(redis.call('GET', KEYS[2]) or 0)";

pub(super) struct ScriptWorkload;

fn key_pair(number: usize) -> (String, String) {
    (format!("script:{{{number}}}:a"), format!("script:{{{number}}}:b"))
}

impl Workload for ScriptWorkload {
    fn name(&self) -> &'static str {
        "script"
    }

    fn keys(&self) -> Vec<String> {
        (0..KEYS_PER_WORKLOAD).map(|number| key_pair(number).0).collect()
    }

    fn run_operation(&self, client: &mut ChaosClient<'_>) {
        let (a, b) = key_pair(client.random_below(KEYS_PER_WORKLOAD));
        client.run_operation(new_op(self.name(), &a, "move", None), |client| {
            let reply = client.call_command(&a, &["EVAL", TRANSFER_SCRIPT, "2", &a, &b])?;
            // A negative sum cannot be parsed as a number; `u64::MAX` reports it as a violation.
            parse_number(&reply).map(|sum| Some(sum.unwrap_or(u64::MAX)))
        });
    }

    fn read_elements(&self, client: &mut ChaosClient<'_>, key: &str) -> Result<Vec<u64>, CallError> {
        let other = key.replace(":a", ":b");
        let sum = parse_number(&client.call_command(key, &["EVAL", SUM_SCRIPT, "2", key, &other])?)?;
        Ok(vec![sum.unwrap_or(u64::MAX)])
    }
}
