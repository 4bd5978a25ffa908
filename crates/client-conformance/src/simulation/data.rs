//! The keyspace of the simulated nodes, with string and list commands.

use resp::Value;

use super::healthy_node::{error_reply, ok_reply};
use super::{ClusterSimulation, ConnectionId, ExecutedCommand, OTHER_CLIENTS_CONNECTION, bulk_reply};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StoredValue {
    Text(String),
    List(Vec<String>),
}

impl ClusterSimulation {
    pub(super) fn execute_data_command(
        &mut self,
        now_ms: u64,
        id: ConnectionId,
        name: &str,
        args: &[String],
    ) -> Value {
        let node = self.connections.get(&id).map_or(0, |connection| connection.node);
        if id != OTHER_CLIENTS_CONNECTION {
            self.executed_commands.push(ExecutedCommand {
                ms: now_ms,
                step: self.step_count,
                node,
                args: args.to_vec(),
            });
        }
        let key = &args[1];
        match name {
            "set" => {
                self.data.insert(key.clone(), StoredValue::Text(args[2].clone()));
                ok_reply()
            }
            "get" => self.text_value(key).map_or(Value::Null, |text| bulk_reply(&text)),
            "strlen" => Value::Integer(self.text_value(key).map_or(0, |text| text.len() as i64)),
            "append" => {
                let text = self.text_value(key).unwrap_or_default() + &args[2];
                let length = text.len() as i64;
                self.data.insert(key.clone(), StoredValue::Text(text));
                Value::Integer(length)
            }
            "incr" => self.increment(key, Some(1)),
            "decr" => self.increment(key, Some(-1)),
            "incrby" => self.increment(key, args[2].parse().ok()),
            "del" => {
                Value::Integer(args[1..].iter().filter(|key| self.data.remove(*key).is_some()).count() as i64)
            }
            "exists" => {
                Value::Integer(args[1..].iter().filter(|key| self.data.contains_key(*key)).count() as i64)
            }
            "mget" => Value::Array(
                args[1..]
                    .iter()
                    .map(|key| self.text_value(key).map_or(Value::Null, |text| bulk_reply(&text)))
                    .collect(),
            ),
            "mset" => {
                for pair in args[1..].chunks_exact(2) {
                    self.data.insert(pair[0].clone(), StoredValue::Text(pair[1].clone()));
                }
                ok_reply()
            }
            "lpop" | "rpop" => self.pop(key, name == "lpop").map_or(Value::Null, |item| bulk_reply(&item)),
            "rpush" | "lpush" => self.push(key, &args[2..], name == "lpush"),
            "llen" => Value::Integer(self.list_items(key).len() as i64),
            "lrange" => Value::Array(self.list_items(key).iter().map(|item| bulk_reply(item)).collect()),
            // WATCH always succeeds, because the simulation detects no conflicting writes.
            _ => ok_reply(),
        }
    }

    /// Removes an element from a list. An empty list is deleted.
    pub(super) fn pop(&mut self, key: &str, at_front: bool) -> Option<String> {
        let Some(StoredValue::List(items)) = self.data.get_mut(key) else { return None };
        let item = if at_front { (!items.is_empty()).then(|| items.remove(0)) } else { items.pop() };
        if items.is_empty() {
            self.data.remove(key);
        }
        item
    }

    fn text_value(&self, key: &str) -> Option<String> {
        match self.data.get(key) {
            Some(StoredValue::Text(text)) => Some(text.clone()),
            Some(StoredValue::List(_)) | None => None,
        }
    }

    fn list_items(&self, key: &str) -> Vec<String> {
        match self.data.get(key) {
            Some(StoredValue::List(items)) => items.clone(),
            Some(StoredValue::Text(_)) | None => Vec::new(),
        }
    }

    fn increment(&mut self, key: &str, amount: Option<i64>) -> Value {
        let held = self.text_value(key).map_or(Ok(0), |text| text.parse::<i64>());
        let (Ok(held), Some(by)) = (held, amount) else {
            return error_reply("ERR value is not an integer or out of range");
        };
        let sum = held.saturating_add(by);
        self.data.insert(key.to_owned(), StoredValue::Text(sum.to_string()));
        Value::Integer(sum)
    }

    fn push(&mut self, key: &str, items: &[String], at_front: bool) -> Value {
        let mut list = self.list_items(key);
        for item in items {
            list.insert(if at_front { 0 } else { list.len() }, item.clone());
        }
        let length = list.len() as i64;
        self.data.insert(key.to_owned(), StoredValue::List(list));
        Value::Integer(length)
    }
}
