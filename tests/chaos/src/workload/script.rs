//! Scripts: decrement one key and increment another; the sum must stay constant.

use super::{KEYS_PER_WORKLOAD, Workload, new_op, parse_number};
use crate::{CallError, Client};

/// Moves one unit from the first key to the second and returns their sum, which is always zero.
const MOVE: &str = "local a = redis.call('DECR', KEYS[1]) local b = redis.call('INCR', KEYS[2]) return a + b";
const SUM: &str =
    "return tonumber(redis.call('GET', KEYS[1]) or 0) + tonumber(redis.call('GET', KEYS[2]) or 0)";

pub(super) struct Script;

fn key_pair(number: usize) -> (String, String) {
    (format!("script:{{{number}}}:a"), format!("script:{{{number}}}:b"))
}

impl Workload for Script {
    fn name(&self) -> &'static str {
        "script"
    }

    fn keys(&self) -> Vec<String> {
        (0..KEYS_PER_WORKLOAD).map(|number| key_pair(number).0).collect()
    }

    fn step(&self, client: &mut Client<'_>) {
        let (a, b) = key_pair(client.random_below(KEYS_PER_WORKLOAD));
        client.operate(new_op(self.name(), &a, "move", None), |client| {
            let reply = client.call(&a, &["EVAL", MOVE, "2", &a, &b])?;
            // A negative sum is a violation, too.
            parse_number(&reply).map(|sum| Some(sum.unwrap_or(u64::MAX)))
        });
    }

    fn read(&self, client: &mut Client<'_>, key: &str) -> Result<Vec<u64>, CallError> {
        let other = key.replace(":a", ":b");
        let sum = parse_number(&client.call(key, &["EVAL", SUM, "2", key, &other])?)?;
        Ok(vec![sum.unwrap_or(u64::MAX)])
    }
}
