//! The commands of a healthy node: connections, transactions, channels and a few kinds of data.

use harness::slot_of;
use resp::{Protocol, Value};

use super::commands::{self, Row};
use super::{ConnectionId, Executed, Role, Stage, bulk};
use crate::protocol::Mode;
use crate::scenario::Tells;

/// The value of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stored {
    Text(String),
    List(Vec<String>),
}

fn ok() -> Value {
    Value::Simple("OK".to_owned())
}

fn error(text: &str) -> Value {
    Value::Error(text.to_owned())
}

/// Whether the command is about the connection, and so runs at once even where others are queued.
fn ends_a_queue(name: &str) -> bool {
    matches!(name, "exec" | "discard" | "multi" | "watch" | "hello" | "quit")
}

impl Stage {
    /// The replies to a command: one, but for those about channels.
    pub(super) fn run(&mut self, ms: u64, id: ConnectionId, args: &[String]) -> Vec<Value> {
        let Some(name) = args.first().map(|name| name.to_ascii_lowercase()) else { return Vec::new() };
        let Some(row) = commands::find(&name) else {
            return vec![Value::Error(format!("ERR unknown command '{name}'"))];
        };
        let refusal = if row.takes(args.len()) {
            self.misplaced(id, row, args)
        } else {
            Some(Value::Error(format!("ERR wrong number of arguments for '{name}' command")))
        };
        let Some(connection) = self.connections.get_mut(&id) else { return Vec::new() };
        connection.asking = false;
        if let Some((queue, broken)) = connection.queue.as_mut().filter(|_| !ends_a_queue(&name)) {
            let reply = match refusal {
                Some(refusal) => {
                    *broken = true;
                    refusal
                }
                None => {
                    queue.push(args.to_vec());
                    Value::Simple("QUEUED".to_owned())
                }
            };
            return vec![reply];
        }
        match (refusal, &name[..]) {
            (Some(refusal), _) => vec![refusal],
            (None, "subscribe" | "ssubscribe" | "psubscribe") => self.subscribe(id, &name, &args[1..]),
            (None, "unsubscribe" | "sunsubscribe") => self.unsubscribe(id, &name, &args[1..]),
            (None, "publish" | "spublish") => vec![Value::Integer(0)],
            (None, _) if row.keys(args).is_empty() => vec![self.connection_command(ms, id, &name, args)],
            (None, _) => vec![self.data_command(ms, id, &name, args)],
        }
    }

    /// Why this node does not run a command on its keys.
    fn misplaced(&self, id: ConnectionId, row: &Row, args: &[String]) -> Option<Value> {
        let connection = self.connections.get(&id)?;
        let here = &self.nodes[connection.node];
        let keys = row.keys(args);
        let slot = slot_of(keys.first()?);
        match (self.mode, here.role) {
            (Mode::Sentinel, Role::Replica(_)) => {
                return row.writes.then(|| error("READONLY You can't write against a read only replica."));
            }
            (Mode::Sentinel, _) => return None,
            (Mode::Cluster, _) => {}
        }
        if keys.iter().any(|key| slot_of(key) != slot) {
            return Some(error("CROSSSLOT Keys in request don't hash to the same slot"));
        }
        let owners = if here.tells == Tells::Beginning { &self.beginning } else { &self.owners };
        let Some(owner) = owners[usize::from(slot)] else {
            return Some(error("CLUSTERDOWN Hash slot not served"));
        };
        let follows = here.role == Role::Replica(owner) && connection.readonly && !row.writes;
        if owner == connection.node || connection.asking || follows {
            return None;
        }
        let owner = &self.nodes[owner];
        Some(Value::Error(format!("MOVED {slot} {}:{}", self.host_told(here.tells), owner.port)))
    }

    pub(super) fn host_told(&self, tells: Tells) -> &'static str {
        match tells {
            Tells::NullHost => "",
            Tells::Hostnames => "localhost",
            Tells::Truth | Tells::Empty | Tells::Beginning => "127.0.0.1",
        }
    }

    /// Commands without keys.
    fn connection_command(&mut self, ms: u64, id: ConnectionId, name: &str, args: &[String]) -> Value {
        let Some(connection) = self.connections.get_mut(&id) else { return Value::Null };
        let node = connection.node;
        match name {
            "asking" => connection.asking = true,
            "readonly" => connection.readonly = true,
            "readwrite" => connection.readonly = false,
            "multi" if connection.queue.is_some() => return error("ERR MULTI calls can not be nested"),
            "multi" => connection.queue = Some((Vec::new(), false)),
            "discard" if connection.queue.is_none() => return error("ERR DISCARD without MULTI"),
            "discard" => connection.queue = None,
            "exec" => return self.exec(ms, id),
            "ping" if connection.protocol == Protocol::Resp2 && !connection.channels.is_empty() => {
                return Value::Array(vec![bulk("pong"), bulk("")]);
            }
            "ping" => return args.get(1).map_or_else(|| Value::Simple("PONG".to_owned()), |text| bulk(text)),
            "echo" => return bulk(&args[1]),
            "hello" => return self.hello(id, args),
            "client" => return self.client(id, args),
            "command" => return commands::command(args),
            "info" => return self.info(node),
            "role" => return self.role(node),
            "cluster" => return self.cluster(node, args),
            "sentinel" => return self.sentinel(node, args),
            // SELECT, AUTH, QUIT, UNWATCH: nothing depends on them here.
            _ => {}
        }
        ok()
    }

    fn hello(&mut self, id: ConnectionId, args: &[String]) -> Value {
        let Some(connection) = self.connections.get_mut(&id) else { return Value::Null };
        match args.get(1).map(String::as_str) {
            Some("3") => connection.protocol = Protocol::Resp3,
            Some("2") => connection.protocol = Protocol::Resp2,
            None => {}
            Some(_) => return error("NOPROTO unsupported protocol version"),
        }
        let protocol = if connection.protocol == Protocol::Resp3 { 3 } else { 2 };
        let mode = match self.mode {
            Mode::Cluster => "cluster",
            Mode::Sentinel => "standalone",
        };
        let role = if self.nodes[connection.node].role == Role::Master { "master" } else { "replica" };
        let texts = [("server", "redis"), ("version", resp::REDIS_VERSION), ("mode", mode), ("role", role)];
        let mut pairs: Vec<(Value, Value)> =
            texts.iter().map(|(name, value)| (bulk(name), bulk(value))).collect();
        pairs.push((bulk("proto"), Value::Integer(protocol)));
        pairs.push((bulk("id"), Value::Integer(id as i64)));
        pairs.push((bulk("modules"), Value::Array(Vec::new())));
        Value::Map(pairs)
    }

    fn client(&self, id: ConnectionId, args: &[String]) -> Value {
        match args[1].to_ascii_uppercase().as_str() {
            "ID" => Value::Integer(id as i64),
            "SETINFO" | "SETNAME" | "TRACKING" | "NO-EVICT" | "NO-TOUCH" | "REPLY" => ok(),
            "GETNAME" => Value::Null,
            other => Value::Error(format!("ERR unknown subcommand '{other}'.")),
        }
    }

    fn exec(&mut self, ms: u64, id: ConnectionId) -> Value {
        let queue = self.connections.get_mut(&id).and_then(|connection| connection.queue.take());
        match queue {
            None => error("ERR EXEC without MULTI"),
            Some((_, true)) => error("EXECABORT Transaction discarded because of previous errors."),
            Some((commands, false)) => {
                // A slot that has left since a command was queued.
                let gone = commands.iter().find_map(|args| {
                    let row = commands::find(&args[0])?;
                    self.misplaced(id, row, args)
                });
                if let Some(gone) = gone {
                    return gone;
                }
                let replies = commands.iter().flat_map(|args| self.run(ms, id, args)).collect();
                Value::Array(replies)
            }
        }
    }

    fn subscribe(&mut self, id: ConnectionId, kind: &str, names: &[String]) -> Vec<Value> {
        let Some(connection) = self.connections.get_mut(&id) else { return Vec::new() };
        let sharded = kind == "ssubscribe";
        let mut replies = Vec::new();
        for name in names {
            let channel = (name.clone(), sharded);
            if !connection.channels.contains(&channel) {
                connection.channels.push(channel);
            }
            let count = connection.channels.iter().filter(|(_, kind)| *kind == sharded).count() as i64;
            replies.push(Value::Push(vec![bulk(kind), bulk(name), Value::Integer(count)]));
        }
        replies
    }

    fn unsubscribe(&mut self, id: ConnectionId, kind: &str, names: &[String]) -> Vec<Value> {
        let Some(connection) = self.connections.get_mut(&id) else { return Vec::new() };
        let sharded = kind == "sunsubscribe";
        let mine = connection.channels.iter().filter(|(_, of_slot)| *of_slot == sharded);
        let mine: Vec<String> = mine.map(|(name, _)| name.clone()).collect();
        let names = if names.is_empty() { mine } else { names.to_vec() };
        let mut replies = Vec::new();
        for name in &names {
            connection.channels.retain(|(known, of_slot)| !(known == name && *of_slot == sharded));
            let count = connection.channels.iter().filter(|(_, of_slot)| *of_slot == sharded).count() as i64;
            replies.push(Value::Push(vec![bulk(kind), bulk(name), Value::Integer(count)]));
        }
        if replies.is_empty() {
            replies.push(Value::Push(vec![bulk(kind), Value::Null, Value::Integer(0)]));
        }
        replies
    }

    fn data_command(&mut self, ms: u64, id: ConnectionId, name: &str, args: &[String]) -> Value {
        let node = self.connections.get(&id).map_or(0, |connection| connection.node);
        self.executed.push(Executed { ms, node, args: args.to_vec() });
        let key = &args[1];
        match name {
            "set" => {
                self.data.insert(key.clone(), Stored::Text(args[2].clone()));
                ok()
            }
            "get" => self.text(key).map_or(Value::Null, |text| bulk(&text)),
            "strlen" => Value::Integer(self.text(key).map_or(0, |text| text.len() as i64)),
            "append" => {
                let text = self.text(key).unwrap_or_default() + &args[2];
                let length = text.len() as i64;
                self.data.insert(key.clone(), Stored::Text(text));
                Value::Integer(length)
            }
            "incr" => self.add(key, Some(1)),
            "decr" => self.add(key, Some(-1)),
            "incrby" => self.add(key, args[2].parse().ok()),
            "del" => {
                Value::Integer(args[1..].iter().filter(|key| self.data.remove(*key).is_some()).count() as i64)
            }
            "exists" => {
                Value::Integer(args[1..].iter().filter(|key| self.data.contains_key(*key)).count() as i64)
            }
            "mget" => Value::Array(
                args[1..].iter().map(|key| self.text(key).map_or(Value::Null, |text| bulk(&text))).collect(),
            ),
            "mset" => {
                for pair in args[1..].chunks_exact(2) {
                    self.data.insert(pair[0].clone(), Stored::Text(pair[1].clone()));
                }
                ok()
            }
            "rpush" | "lpush" => self.push(key, &args[2..], name == "lpush"),
            "llen" => Value::Integer(self.list(key).len() as i64),
            "lrange" => Value::Array(self.list(key).iter().map(|item| bulk(item)).collect()),
            // WATCH: no other client writes here.
            _ => ok(),
        }
    }

    fn text(&self, key: &str) -> Option<String> {
        match self.data.get(key) {
            Some(Stored::Text(text)) => Some(text.clone()),
            Some(Stored::List(_)) | None => None,
        }
    }

    fn list(&self, key: &str) -> Vec<String> {
        match self.data.get(key) {
            Some(Stored::List(items)) => items.clone(),
            Some(Stored::Text(_)) | None => Vec::new(),
        }
    }

    fn add(&mut self, key: &str, by: Option<i64>) -> Value {
        let held = self.text(key).map_or(Ok(0), |text| text.parse::<i64>());
        let (Ok(held), Some(by)) = (held, by) else {
            return error("ERR value is not an integer or out of range");
        };
        let sum = held.saturating_add(by);
        self.data.insert(key.to_owned(), Stored::Text(sum.to_string()));
        Value::Integer(sum)
    }

    fn push(&mut self, key: &str, items: &[String], at_front: bool) -> Value {
        let mut list = self.list(key);
        for item in items {
            list.insert(if at_front { 0 } else { list.len() }, item.clone());
        }
        let length = list.len() as i64;
        self.data.insert(key.to_owned(), Stored::List(list));
        Value::Integer(length)
    }
}
