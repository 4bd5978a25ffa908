//! Implements the behavior of a healthy node: key routing, connections and transactions.

use harness::slot_of;
use resp::{Protocol, Value};

use super::commands::{self, CommandSpec};
use super::{ClusterSimulation, ConnectionId, Role, bulk_reply};
use crate::protocol::DiscoveryMode;
use crate::scenario::ReportedMap;

pub(super) fn ok_reply() -> Value {
    Value::Simple("OK".to_owned())
}

pub(super) fn error_reply(text: &str) -> Value {
    Value::Error(text.to_owned())
}

/// Returns whether the command changes the connection, so that it is executed immediately even inside MULTI.
fn runs_inside_multi(name: &str) -> bool {
    matches!(name, "exec" | "discard" | "multi" | "watch" | "hello" | "quit")
}

impl ClusterSimulation {
    /// Executes a command and returns its replies; only Pub/Sub commands have several.
    pub(super) fn execute(&mut self, now_ms: u64, id: ConnectionId, args: &[String]) -> Vec<Value> {
        let Some(name) = args.first().map(|name| name.to_ascii_lowercase()) else { return Vec::new() };
        let Some(row) = commands::find_command(&name) else {
            return vec![Value::Error(format!("ERR unknown command '{name}'"))];
        };
        let refusal = if row.accepts_argument_count(args.len()) {
            self.redirect_error(id, row, args)
        } else {
            Some(Value::Error(format!("ERR wrong number of arguments for '{name}' command")))
        };
        let Some(connection) = self.connections.get_mut(&id) else { return Vec::new() };
        connection.is_asking = false;
        if let Some((queue, broken)) = connection.transaction.as_mut().filter(|_| !runs_inside_multi(&name)) {
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
            (None, "script") => vec![self.execute_script_command(id, args)],
            (None, "eval" | "evalsha") => vec![self.run_script(now_ms, id, &name, args)],
            (None, "blpop" | "brpop") => self.pop_or_block(now_ms, id, args).into_iter().collect(),
            (None, _) if row.keys(args).is_empty() => {
                vec![self.execute_connection_command(now_ms, id, &name, args)]
            }
            (None, _) => vec![self.execute_on_keys(now_ms, id, row, args)],
        }
    }

    /// Executes a command on keys and records its effects on other clients.
    pub(super) fn execute_on_keys(
        &mut self,
        now_ms: u64,
        id: ConnectionId,
        spec: &CommandSpec,
        args: &[String],
    ) -> Value {
        let reply = self.execute_data_command(now_ms, id, spec.name, args);
        self.record_key_access(id, spec, args);
        reply
    }

    /// Returns an error reply if this node must not execute the command on its keys.
    pub(super) fn redirect_error(
        &self,
        id: ConnectionId,
        spec: &CommandSpec,
        args: &[String],
    ) -> Option<Value> {
        let connection = self.connections.get(&id)?;
        let here = &self.nodes[connection.node];
        let keys = spec.keys(args);
        let slot = slot_of(keys.first()?);
        match (self.mode, here.role) {
            (DiscoveryMode::Sentinel, Role::Replica(_)) => {
                return spec
                    .is_write
                    .then(|| error_reply("READONLY You can't write against a read only replica."));
            }
            (DiscoveryMode::Sentinel, _) => return None,
            (DiscoveryMode::Cluster, _) => {}
        }
        if keys.iter().any(|key| slot_of(key) != slot) {
            return Some(error_reply("CROSSSLOT Keys in request don't hash to the same slot"));
        }
        let owners =
            if here.view.map == ReportedMap::Initial { &self.initial_owners } else { &self.slot_owners };
        let Some(owner) = owners[usize::from(slot)] else {
            return Some(error_reply("CLUSTERDOWN Hash slot not served"));
        };
        let follows = here.role == Role::Replica(owner) && connection.is_readonly && !spec.is_write;
        if owner == connection.node || connection.is_asking || follows {
            return None;
        }
        let owner = &self.nodes[owner];
        Some(Value::Error(format!("MOVED {slot} {}:{}", self.reported_host(here.view.map), owner.port)))
    }

    pub(super) fn reported_host(&self, reported_map: ReportedMap) -> &'static str {
        match reported_map {
            ReportedMap::NullHost => "",
            ReportedMap::Hostnames => "localhost",
            ReportedMap::Current | ReportedMap::Empty | ReportedMap::Initial => "127.0.0.1",
        }
    }

    /// Executes commands without keys.
    fn execute_connection_command(
        &mut self,
        now_ms: u64,
        id: ConnectionId,
        name: &str,
        args: &[String],
    ) -> Value {
        let Some(connection) = self.connections.get_mut(&id) else { return Value::Null };
        let node = connection.node;
        match name {
            "asking" => connection.is_asking = true,
            "readonly" => connection.is_readonly = true,
            "readwrite" => connection.is_readonly = false,
            "multi" if connection.transaction.is_some() => {
                return error_reply("ERR MULTI calls can not be nested");
            }
            "multi" => connection.transaction = Some((Vec::new(), false)),
            "discard" if connection.transaction.is_none() => return error_reply("ERR DISCARD without MULTI"),
            "discard" => connection.transaction = None,
            "exec" => return self.execute_exec(now_ms, id),
            "ping" if connection.protocol == Protocol::Resp2 && !connection.channels.is_empty() => {
                return Value::Array(vec![bulk_reply("pong"), bulk_reply("")]);
            }
            "ping" => {
                return args.get(1).map_or_else(|| Value::Simple("PONG".to_owned()), |text| bulk_reply(text));
            }
            "echo" => return bulk_reply(&args[1]),
            "hello" => return self.execute_hello(id, args),
            "client" => return self.execute_client(id, args),
            "command" => return commands::command_table_reply(args),
            "info" => return self.info_reply(node),
            "role" => return self.role_reply(node),
            "cluster" => return self.cluster_command(node, args),
            "sentinel" => return self.sentinel_command(node, args),
            // SELECT, AUTH, QUIT and UNWATCH have no effect here.
            _ => {}
        }
        ok_reply()
    }

    fn execute_hello(&mut self, id: ConnectionId, args: &[String]) -> Value {
        let Some(connection) = self.connections.get_mut(&id) else { return Value::Null };
        match args.get(1).map(String::as_str) {
            Some("3") => connection.protocol = Protocol::Resp3,
            Some("2") => connection.protocol = Protocol::Resp2,
            None => {}
            Some(_) => return error_reply("NOPROTO unsupported protocol version"),
        }
        let protocol = if connection.protocol == Protocol::Resp3 { 3 } else { 2 };
        let mode = match self.mode {
            DiscoveryMode::Cluster => "cluster",
            DiscoveryMode::Sentinel => "standalone",
        };
        let role = if self.nodes[connection.node].role == Role::Master { "master" } else { "replica" };
        let texts = [("server", "redis"), ("version", resp::REDIS_VERSION), ("mode", mode), ("role", role)];
        let mut pairs: Vec<(Value, Value)> =
            texts.iter().map(|(name, value)| (bulk_reply(name), bulk_reply(value))).collect();
        pairs.push((bulk_reply("proto"), Value::Integer(protocol)));
        pairs.push((bulk_reply("id"), Value::Integer(id as i64)));
        pairs.push((bulk_reply("modules"), Value::Array(Vec::new())));
        Value::Map(pairs)
    }

    fn execute_client(&mut self, id: ConnectionId, args: &[String]) -> Value {
        match args[1].to_ascii_uppercase().as_str() {
            "ID" => Value::Integer(id as i64),
            "TRACKING" => self.enable_tracking(id, args),
            "CACHING" => self.track_next_command(id),
            "SETINFO" | "SETNAME" | "NO-EVICT" | "NO-TOUCH" | "REPLY" => ok_reply(),
            "GETNAME" => Value::Null,
            other => Value::Error(format!("ERR unknown subcommand '{other}'.")),
        }
    }

    fn execute_exec(&mut self, now_ms: u64, id: ConnectionId) -> Value {
        let queue = self.connections.get_mut(&id).and_then(|connection| connection.transaction.take());
        match queue {
            None => error_reply("ERR EXEC without MULTI"),
            Some((_, true)) => error_reply("EXECABORT Transaction discarded because of previous errors."),
            Some((commands, false)) => {
                // The slot of a queued command may have moved in the meantime.
                let gone = commands.iter().find_map(|args| {
                    let row = commands::find_command(&args[0])?;
                    self.redirect_error(id, row, args)
                });
                if let Some(gone) = gone {
                    return gone;
                }
                let replies = commands.iter().flat_map(|args| {
                    if commands::may_block(args) {
                        vec![self.pop_without_blocking(now_ms, id, args)]
                    } else {
                        self.execute(now_ms, id, args)
                    }
                });
                let replies = replies.collect();
                Value::Array(replies)
            }
        }
    }
}
