//! Streams with a consumer group: XADD, XREADGROUP and XACK.

use harness::Reply;

use super::{Workload, new_op, random_key};
use crate::{CallError, ChaosClient};

const GROUP_NAME: &str = "group";

pub(super) struct StreamWorkload;

impl Workload for StreamWorkload {
    fn name(&self) -> &'static str {
        "stream"
    }

    fn run_operation(&self, client: &mut ChaosClient<'_>) {
        let key = random_key(self, client);
        if client.random_below(3) > 0 {
            let element = client.unique_value();
            client.run_operation(new_op(self.name(), &key, "add", Some(element)), |client| {
                client.call_command(&key, &["XADD", &key, "*", "element", &element.to_string()]).map(|_| None)
            });
            return;
        }
        // The delivery is recorded as a separate operation, because an entry must not be delivered twice as new.
        let delivered = client.run_operation(new_op(self.name(), &key, "deliver", None), |client| {
            let consumer = format!("consumer-{}", client.id);
            let words = ["XREADGROUP", "GROUP", GROUP_NAME, &consumer, "COUNT", "1", "STREAMS", &key, ">"];
            match client.call_command(&key, &words) {
                Err(CallError::NotExecuted(error)) if error.starts_with("NOGROUP") => client
                    .call_command(&key, &["XGROUP", "CREATE", &key, GROUP_NAME, "0", "MKSTREAM"])
                    .map(|_| None),
                reply => Ok(parse_first_entry(&reply?)),
            }
        });
        if delivered.is_some_and(|op| op.read.is_some()) {
            client.run_operation(new_op(self.name(), &key, "acknowledge", None), |client| {
                let consumer = format!("consumer-{}", client.id);
                let own =
                    client.call_command(&key, &["XPENDING", &key, GROUP_NAME, "-", "+", "1", &consumer])?;
                if let Reply::Array(items) = &own
                    && let Some(Reply::Array(first)) = items.first()
                {
                    client.call_command(&key, &["XACK", &key, GROUP_NAME, &first[0].text()])?;
                }
                Ok(None)
            });
        }
    }

    fn read_elements(&self, client: &mut ChaosClient<'_>, key: &str) -> Result<Vec<u64>, CallError> {
        let Reply::Array(entries) = client.call_command(key, &["XRANGE", key, "-", "+"])? else {
            return Err(CallError::NotExecuted("no entries".to_owned()));
        };
        Ok(entries.iter().filter_map(parse_element).collect())
    }
}

/// Parses an entry `[id, ["element", number]]`.
fn parse_element(entry: &Reply) -> Option<u64> {
    let Reply::Array(parts) = entry else { return None };
    let Some(Reply::Array(fields)) = parts.get(1) else { return None };
    fields.get(1)?.text().parse().ok()
}

/// Returns the element of the first entry in an XREADGROUP reply.
fn parse_first_entry(reply: &Reply) -> Option<u64> {
    let Reply::Array(streams) = reply else { return None };
    let Some(Reply::Array(stream)) = streams.first() else { return None };
    let Some(Reply::Array(entries)) = stream.get(1) else { return None };
    parse_element(entries.first()?)
}
