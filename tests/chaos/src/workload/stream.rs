//! Streams with a consumer group: XADD, XREADGROUP and XACK.

use harness::Value;

use super::{Workload, new_op, random_key};
use crate::{CallError, Client};

const GROUP: &str = "group";

pub(super) struct Stream;

impl Workload for Stream {
    fn name(&self) -> &'static str {
        "stream"
    }

    fn step(&self, client: &mut Client<'_>) {
        let key = random_key(self, client);
        if client.random_below(3) > 0 {
            let element = client.unique_value();
            client.operate(new_op(self.name(), &key, "add", Some(element)), |client| {
                client.call(&key, &["XADD", &key, "*", "element", &element.to_string()]).map(|_| None)
            });
            return;
        }
        // Delivery is recorded as its own operation; an entry must not be delivered twice as new.
        let delivered = client.operate(new_op(self.name(), &key, "deliver", None), |client| {
            let consumer = format!("consumer-{}", client.id);
            let words = ["XREADGROUP", "GROUP", GROUP, &consumer, "COUNT", "1", "STREAMS", &key, ">"];
            match client.call(&key, &words) {
                Err(CallError::NotExecuted(error)) if error.starts_with("NOGROUP") => {
                    client.call(&key, &["XGROUP", "CREATE", &key, GROUP, "0", "MKSTREAM"]).map(|_| None)
                }
                reply => Ok(parse_first_entry(&reply?)),
            }
        });
        if delivered.is_some_and(|op| op.read.is_some()) {
            client.operate(new_op(self.name(), &key, "acknowledge", None), |client| {
                let consumer = format!("consumer-{}", client.id);
                let own = client.call(&key, &["XPENDING", &key, GROUP, "-", "+", "1", &consumer])?;
                if let Value::Array(items) = &own
                    && let Some(Value::Array(first)) = items.first()
                {
                    client.call(&key, &["XACK", &key, GROUP, &first[0].text()])?;
                }
                Ok(None)
            });
        }
    }

    fn read(&self, client: &mut Client<'_>, key: &str) -> Result<Vec<u64>, CallError> {
        let Value::Array(entries) = client.call(key, &["XRANGE", key, "-", "+"])? else {
            return Err(CallError::NotExecuted("no entries".to_owned()));
        };
        Ok(entries.iter().filter_map(parse_element).collect())
    }
}

/// Parses an entry `[id, ["element", number]]`.
fn parse_element(entry: &Value) -> Option<u64> {
    let Value::Array(parts) = entry else { return None };
    let Some(Value::Array(fields)) = parts.get(1) else { return None };
    fields.get(1)?.text().parse().ok()
}

/// Returns the element of the first entry in an XREADGROUP reply.
fn parse_first_entry(reply: &Value) -> Option<u64> {
    let Value::Array(streams) = reply else { return None };
    let Some(Value::Array(stream)) = streams.first() else { return None };
    let Some(Value::Array(entries)) = stream.get(1) else { return None };
    parse_element(entries.first()?)
}
