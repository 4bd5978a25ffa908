//! Confirmed writes: clients send SADD and WAIT in one pipeline. A promoted replica must have every confirmed write.

use harness::Reply;

use super::{Workload, new_op, parse_numbers, random_key};
use crate::{CallError, ChaosClient};

/// The timeout given to WAIT, in milliseconds.
const WAIT_TIMEOUT_MILLIS: &str = "300";

pub(super) struct ConfirmedWorkload;

impl Workload for ConfirmedWorkload {
    fn name(&self) -> &'static str {
        "confirmed"
    }

    fn run_operation(&self, client: &mut ChaosClient<'_>) {
        let key = random_key(self, client);
        let element = client.unique_value();
        let mut op = new_op(self.name(), &key, "add", Some(element));
        op.confirmed = true;
        client.run_operation(op, |client| {
            let text = element.to_string();
            let add: &[&str] = &["SADD", &key, &text];
            let wanted = client.replicas_per_master();
            let replies =
                client.call_pipeline(&key, &[add, &["WAIT", &wanted.to_string(), WAIT_TIMEOUT_MILLIS]])?;
            match &replies[1] {
                Reply::Int(replicas) if *replicas >= wanted as i64 => Ok(None),
                // The element was added even if WAIT was not satisfied.
                other => Err(CallError::UnknownResult(format!("not all replicas confirmed it: {other:?}"))),
            }
        });
    }

    fn read_elements(&self, client: &mut ChaosClient<'_>, key: &str) -> Result<Vec<u64>, CallError> {
        parse_numbers(&client.call_command(key, &["SMEMBERS", key])?)
    }
}
