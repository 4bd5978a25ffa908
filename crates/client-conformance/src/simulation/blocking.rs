//! Implements the blocking commands BLPOP and BRPOP.

use resp::Value;

use super::commands;
use super::healthy_node::error_reply;
use super::{
    ClusterSimulation, ConnectionAction, ConnectionId, ExecutedCommand, NodeIndex, OTHER_CLIENTS_CONNECTION,
};
use crate::scenario::ConnectionHandling;

/// A blocking command that waits for a list element.
#[derive(Debug)]
pub(super) struct BlockedCommand {
    args: Vec<String>,
    /// The position among all blocked clients. The client with the lowest position is served first.
    queue_position: u64,
    /// When the command times out, in milliseconds; `None` means never.
    deadline: Option<u64>,
}

impl ClusterSimulation {
    /// Pops an element and returns the reply. If all lists are empty, blocks the connection and returns `None`.
    pub(super) fn pop_or_block(&mut self, now_ms: u64, id: ConnectionId, args: &[String]) -> Option<Value> {
        let seconds = args.last().and_then(|seconds| seconds.parse::<f64>().ok()).filter(|time| *time >= 0.0);
        let Some(seconds) = seconds else {
            return Some(error_reply("ERR timeout is not a float or out of range"));
        };
        if let Some(reply) = self.pop_any(now_ms, id, args) {
            return Some(reply);
        }
        if id == OTHER_CLIENTS_CONNECTION {
            return Some(Value::Null);
        }
        self.last_queue_position += 1;
        let queue_position = self.last_queue_position;
        let deadline = (seconds > 0.0).then(|| now_ms + (seconds * 1000.0) as u64);
        let connection = self.connections.get_mut(&id)?;
        connection.blocked_command = Some(BlockedCommand { args: args.to_vec(), queue_position, deadline });
        None
    }

    /// Pops an element without blocking, for use in a transaction.
    pub(super) fn pop_without_blocking(&mut self, now_ms: u64, id: ConnectionId, args: &[String]) -> Value {
        self.pop_any(now_ms, id, args).unwrap_or(Value::Null)
    }

    fn pop_any(&mut self, now_ms: u64, id: ConnectionId, args: &[String]) -> Option<Value> {
        let at_front = args[0].eq_ignore_ascii_case("blpop");
        let keys = &args[1..args.len() - 1];
        let (key, item) = keys.iter().find_map(|key| Some((key, self.pop(key, at_front)?)))?;
        self.changed_keys.push((id, key.clone()));
        if id != OTHER_CLIENTS_CONNECTION {
            let node = self.connections.get(&id)?.node;
            self.executed_commands.push(ExecutedCommand {
                ms: now_ms,
                step: self.step_count,
                node,
                args: args.to_vec(),
            });
        }
        Some(Value::Array(vec![super::bulk_reply(key), super::bulk_reply(&item)]))
    }

    /// Serves the client that has been blocked longest among those whose list has an element.
    pub(super) fn serve_longest_blocked(&mut self, now_ms: u64) -> Option<Vec<ConnectionAction>> {
        let mut blocked: Vec<(u64, ConnectionId, Vec<String>)> = self
            .connections
            .iter()
            .filter(|(_, connection)| {
                self.nodes[connection.node].connection_handling == ConnectionHandling::Serve
            })
            .filter_map(|(id, connection)| {
                let blocked = connection.blocked_command.as_ref()?;
                Some((blocked.queue_position, *id, blocked.args.clone()))
            })
            .collect();
        blocked.sort_unstable();
        let (id, reply) =
            blocked.into_iter().find_map(|(_, id, args)| Some((id, self.pop_any(now_ms, id, &args)?)))?;
        Some(self.unblock(now_ms, id, &reply))
    }

    /// Unblocks clients whose keys are no longer served by their node. `must_check` selects the clients to check by
    /// node and keys.
    pub(super) fn unblock_matching(
        &mut self,
        now_ms: u64,
        must_check: impl Fn(NodeIndex, &[String]) -> bool,
    ) -> Vec<ConnectionAction> {
        let gone: Vec<(ConnectionId, Vec<String>)> = self
            .connections
            .iter()
            .filter(|(_, connection)| {
                self.nodes[connection.node].connection_handling == ConnectionHandling::Serve
            })
            .filter_map(|(id, connection)| {
                let args = &connection.blocked_command.as_ref()?.args;
                must_check(connection.node, &args[1..]).then(|| (*id, args.clone()))
            })
            .collect();
        let mut actions = Vec::new();
        for (id, args) in gone {
            let moved = commands::find_command(&args[0]).and_then(|row| self.redirect_error(id, row, &args));
            let Some(reply) = moved else { continue };
            self.record_if_refused(now_ms, id, &reply, &args);
            actions.extend(self.unblock(now_ms, id, &reply));
        }
        actions
    }

    /// Returns when the blocking command of the connection times out; `None` if it is not blocked or has no timeout.
    #[must_use]
    pub fn next_deadline(&self, id: ConnectionId) -> Option<u64> {
        self.connections.get(&id)?.blocked_command.as_ref()?.deadline
    }

    /// Unblocks the connection if its blocking command has timed out at time `ms`.
    pub fn handle_timeout(&mut self, now_ms: u64, id: ConnectionId) -> Vec<ConnectionAction> {
        let Some(connection) = self.connections.get(&id) else { return Vec::new() };
        let is_over = self.next_deadline(id).is_some_and(|deadline| deadline <= now_ms);
        if !is_over || self.nodes[connection.node].connection_handling != ConnectionHandling::Serve {
            return Vec::new();
        }
        let mut actions = self.unblock(now_ms, id, &Value::Null);
        actions.extend(self.notify_other_clients(now_ms));
        actions
    }

    /// Ends a blocking command: sends its reply and executes the commands queued behind it.
    fn unblock(&mut self, now_ms: u64, id: ConnectionId, reply: &Value) -> Vec<ConnectionAction> {
        let mut actions = vec![self.send_reply(now_ms, id, reply)];
        let Some(connection) = self.connections.get_mut(&id) else { return actions };
        connection.blocked_command = None;
        for args in std::mem::take(&mut connection.queued_commands) {
            actions.extend(self.execute_or_queue(now_ms, id, &args));
        }
        actions
    }
}
