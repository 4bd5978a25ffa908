//! Locks: clients acquire a lock by SET with NX and PX, and release it with a script that checks the holder.

use std::time::Duration;

use harness::Reply;

use super::{Workload, new_op, random_key};
use crate::{CallError, ChaosClient};

/// The lease of a lock in milliseconds, longer than clients hold the lock.
const LOCK_LEASE_MILLIS: &str = "10000";
const HOLD_TIME: Duration = Duration::from_millis(5);
const RELEASE_SCRIPT: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

pub(super) struct LockWorkload;

impl Workload for LockWorkload {
    fn name(&self) -> &'static str {
        "lock"
    }

    fn run_operation(&self, client: &mut ChaosClient<'_>) {
        let key = random_key(self, client);
        let owner = client.unique_value();
        let text = owner.to_string();
        let taken = client.run_operation(new_op(self.name(), &key, "acquire", Some(owner)), |client| {
            match client.call_command(&key, &["SET", &key, &text, "NX", "PX", LOCK_LEASE_MILLIS])? {
                Reply::Simple(_) => Ok(None),
                _ => Err(CallError::NotExecuted("held".to_owned())),
            }
        });
        if taken.is_some() {
            std::thread::sleep(HOLD_TIME);
            client.run_operation(new_op(self.name(), &key, "release", Some(owner)), |client| {
                client.call_command(&key, &["EVAL", RELEASE_SCRIPT, "1", &key, &text]).map(|_| None)
            });
        }
    }

    fn read_elements(&self, _: &mut ChaosClient<'_>, _: &str) -> Result<Vec<u64>, CallError> {
        // If the client is interrupted before the release, the lock remains until its lease expires.
        Ok(Vec::new())
    }
}
