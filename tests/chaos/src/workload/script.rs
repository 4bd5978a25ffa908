//! Scripts: one key counts what another loses; their sum is what was put in.

use super::{KEYS, Workload, number, op};
use crate::{Client, Failure};

/// Moves one from the first key to the second; answers the sum of both, which is zero.
const MOVE: &str = "local a = redis.call('DECR', KEYS[1]) local b = redis.call('INCR', KEYS[2]) return a + b";
const SUM: &str =
    "return tonumber(redis.call('GET', KEYS[1]) or 0) + tonumber(redis.call('GET', KEYS[2]) or 0)";

pub(super) struct Script;

fn pair(number: usize) -> (String, String) {
    (format!("script:{{{number}}}:a"), format!("script:{{{number}}}:b"))
}

impl Workload for Script {
    fn name(&self) -> &'static str {
        "script"
    }

    fn keys(&self) -> Vec<String> {
        (0..KEYS).map(|number| pair(number).0).collect()
    }

    fn step(&self, client: &mut Client<'_>) {
        let (a, b) = pair(client.below(KEYS));
        client.operate(op(self.name(), &a, "move", None), |client| {
            let reply = client.call(&a, &["EVAL", MOVE, "2", &a, &b])?;
            // A negative sum is wrong as any other.
            number(&reply).map(|sum| Some(sum.unwrap_or(u64::MAX)))
        });
    }

    fn read(&self, client: &mut Client<'_>, key: &str) -> Result<Vec<u64>, Failure> {
        let other = key.replace(":a", ":b");
        let sum = number(&client.call(key, &["EVAL", SUM, "2", key, &other])?)?;
        Ok(vec![sum.unwrap_or(u64::MAX)])
    }
}
