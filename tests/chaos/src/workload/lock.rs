//! A lock: SET with NX and PX, released by a script that checks the holder.

use std::time::Duration;

use harness::Value;

use super::{Workload, op, some_key};
use crate::{Client, Failure};

/// Longer than any client holds it here.
const LEASE: &str = "10000";
const HELD: Duration = Duration::from_millis(5);
const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

pub(super) struct Lock;

impl Workload for Lock {
    fn name(&self) -> &'static str {
        "lock"
    }

    fn step(&self, client: &mut Client<'_>) {
        let key = some_key(self, client);
        let owner = client.unique();
        let text = owner.to_string();
        let taken = client.operate(op(self.name(), &key, "acquire", Some(owner)), |client| {
            match client.call(&key, &["SET", &key, &text, "NX", "PX", LEASE])? {
                Value::Simple(_) => Ok(None),
                _ => Err(Failure::Refused("held".to_owned())),
            }
        });
        if taken.is_some() {
            std::thread::sleep(HELD);
            client.operate(op(self.name(), &key, "release", Some(owner)), |client| {
                client.call(&key, &["EVAL", RELEASE, "1", &key, &text]).map(|_| None)
            });
        }
    }

    fn read(&self, _: &mut Client<'_>, _: &str) -> Result<Vec<u64>, Failure> {
        // A client that was disturbed between both leaves the lock to its lease's end.
        Ok(Vec::new())
    }
}
