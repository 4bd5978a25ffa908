//! Commands that wait for an item of a list: BLPOP and BRPOP.

use resp::Value;

use super::commands;
use super::model::error;
use super::{Action, ConnectionId, Executed, NodeIndex, OTHERS, Stage};
use crate::scenario::NetState;

/// A command that has no reply yet.
#[derive(Debug)]
pub(super) struct Waiting {
    args: Vec<String>,
    /// Its place among all that wait: the longest waiting is served first.
    turn: u64,
    /// When it ends in vain, if ever.
    until: Option<u64>,
}

impl Stage {
    /// Takes an item, or has the connection wait for one.
    pub(super) fn pop_or_wait(&mut self, ms: u64, id: ConnectionId, args: &[String]) -> Option<Value> {
        let seconds = args.last().and_then(|seconds| seconds.parse::<f64>().ok()).filter(|time| *time >= 0.0);
        let Some(seconds) = seconds else { return Some(error("ERR timeout is not a float or out of range")) };
        if let Some(reply) = self.pop_any(ms, id, args) {
            return Some(reply);
        }
        if id == OTHERS {
            return Some(Value::Null);
        }
        self.last_turn += 1;
        let turn = self.last_turn;
        let until = (seconds > 0.0).then(|| ms + (seconds * 1000.0) as u64);
        let connection = self.connections.get_mut(&id)?;
        connection.waiting = Some(Waiting { args: args.to_vec(), turn, until });
        None
    }

    /// Within a transaction nothing waits.
    pub(super) fn pop_now(&mut self, ms: u64, id: ConnectionId, args: &[String]) -> Value {
        self.pop_any(ms, id, args).unwrap_or(Value::Null)
    }

    fn pop_any(&mut self, ms: u64, id: ConnectionId, args: &[String]) -> Option<Value> {
        let at_front = args[0].eq_ignore_ascii_case("blpop");
        let keys = &args[1..args.len() - 1];
        let (key, item) = keys.iter().find_map(|key| Some((key, self.pop(key, at_front)?)))?;
        self.changed.push((id, key.clone()));
        if id != OTHERS {
            let node = self.connections.get(&id)?.node;
            self.executed.push(Executed { ms, step: self.steps, node, args: args.to_vec() });
        }
        Some(Value::Array(vec![super::bulk(key), super::bulk(&item)]))
    }

    /// Serves the longest waiting of those who can be served.
    pub(super) fn serve_next(&mut self, ms: u64) -> Option<Vec<Action>> {
        let mut waiting: Vec<(u64, ConnectionId, Vec<String>)> = self
            .connections
            .iter()
            .filter(|(_, connection)| self.nodes[connection.node].state == NetState::Up)
            .filter_map(|(id, connection)| {
                let waiting = connection.waiting.as_ref()?;
                Some((waiting.turn, *id, waiting.args.clone()))
            })
            .collect();
        waiting.sort_unstable();
        let (id, reply) =
            waiting.into_iter().find_map(|(_, id, args)| Some((id, self.pop_any(ms, id, &args)?)))?;
        Some(self.resume(ms, id, &reply))
    }

    /// Ends the waits of those whose node does not serve their keys any more; `concerns` is asked with node and keys.
    pub(super) fn send_away(
        &mut self,
        ms: u64,
        concerns: impl Fn(NodeIndex, &[String]) -> bool,
    ) -> Vec<Action> {
        let gone: Vec<(ConnectionId, Vec<String>)> = self
            .connections
            .iter()
            .filter(|(_, connection)| self.nodes[connection.node].state == NetState::Up)
            .filter_map(|(id, connection)| {
                let args = &connection.waiting.as_ref()?.args;
                concerns(connection.node, &args[1..]).then(|| (*id, args.clone()))
            })
            .collect();
        let mut actions = Vec::new();
        for (id, args) in gone {
            let moved = commands::find(&args[0]).and_then(|row| self.misplaced(id, row, &args));
            let Some(reply) = moved else { continue };
            self.refuse(ms, id, &reply, &args);
            actions.extend(self.resume(ms, id, &reply));
        }
        actions
    }

    /// When a connection's wait ends in vain.
    #[must_use]
    pub fn next_deadline(&self, id: ConnectionId) -> Option<u64> {
        self.connections.get(&id)?.waiting.as_ref()?.until
    }

    /// Time has passed on a connection.
    pub fn handle_time(&mut self, ms: u64, id: ConnectionId) -> Vec<Action> {
        let Some(connection) = self.connections.get(&id) else { return Vec::new() };
        let is_over = self.next_deadline(id).is_some_and(|until| until <= ms);
        if !is_over || self.nodes[connection.node].state != NetState::Up {
            return Vec::new();
        }
        let mut actions = self.resume(ms, id, &Value::Null);
        actions.extend(self.follow_up(ms));
        actions
    }

    /// The wait is over: the reply, and those to the commands behind.
    fn resume(&mut self, ms: u64, id: ConnectionId, reply: &Value) -> Vec<Action> {
        let mut actions = vec![self.send(ms, id, reply)];
        let Some(connection) = self.connections.get_mut(&id) else { return actions };
        connection.waiting = None;
        for args in std::mem::take(&mut connection.behind) {
            actions.extend(self.answer_in_turn(ms, id, &args));
        }
        actions
    }
}
