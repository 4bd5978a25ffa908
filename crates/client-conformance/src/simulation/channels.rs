//! Implements Pub/Sub: subscriptions, including sharded ones, which end when their slot moves.

use harness::slot_of;
use resp::Value;

use super::{ClusterSimulation, ConnectionAction, ConnectionId, NodeIndex, bulk_reply};
use crate::protocol::DiscoveryMode;
use crate::scenario::ConnectionHandling;

impl ClusterSimulation {
    pub(super) fn subscribe(&mut self, id: ConnectionId, kind: &str, names: &[String]) -> Vec<Value> {
        let Some(connection) = self.connections.get_mut(&id) else { return Vec::new() };
        let sharded = kind == "ssubscribe";
        let mut replies = Vec::new();
        for name in names {
            let channel = (name.clone(), sharded);
            if !connection.channels.contains(&channel) {
                connection.channels.push(channel);
            }
            let count = connection.channels.iter().filter(|(_, kind)| *kind == sharded).count() as i64;
            replies.push(Value::Push(vec![bulk_reply(kind), bulk_reply(name), Value::Integer(count)]));
        }
        replies
    }

    pub(super) fn unsubscribe(&mut self, id: ConnectionId, kind: &str, names: &[String]) -> Vec<Value> {
        let Some(connection) = self.connections.get_mut(&id) else { return Vec::new() };
        let sharded = kind == "sunsubscribe";
        let mine = connection.channels.iter().filter(|(_, of_slot)| *of_slot == sharded);
        let mine: Vec<String> = mine.map(|(name, _)| name.clone()).collect();
        let names = if names.is_empty() { mine } else { names.to_vec() };
        let mut replies = Vec::new();
        for name in &names {
            connection.channels.retain(|(known, of_slot)| !(known == name && *of_slot == sharded));
            let count = connection.channels.iter().filter(|(_, of_slot)| *of_slot == sharded).count() as i64;
            replies.push(Value::Push(vec![bulk_reply(kind), bulk_reply(name), Value::Integer(count)]));
        }
        if replies.is_empty() {
            replies.push(Value::Push(vec![bulk_reply(kind), Value::Null, Value::Integer(0)]));
        }
        replies
    }

    /// Ends the sharded subscriptions in a slot that moves. The subscribers receive `sunsubscribe`, as from a real
    /// node.
    pub(super) fn unsubscribe_moved_slot(
        &mut self,
        now_ms: u64,
        slot: u16,
        to: NodeIndex,
    ) -> Vec<ConnectionAction> {
        self.epoch += 1;
        self.slot_owners[usize::from(slot)] = Some(to);
        let mut told = Vec::new();
        for (id, connection) in self.connections.iter_mut().filter(|(_, connection)| connection.node != to) {
            let (gone, kept) = std::mem::take(&mut connection.channels)
                .into_iter()
                .partition(|(name, sharded)| *sharded && slot_of(name) == slot);
            connection.channels = kept;
            let left = connection.channels.iter().filter(|(_, sharded)| *sharded).count() as i64;
            let gone: Vec<(String, bool)> = gone;
            told.extend(gone.into_iter().map(|(name, _)| {
                (*id, Value::Push(vec![bulk_reply("sunsubscribe"), bulk_reply(&name), Value::Integer(left)]))
            }));
        }
        let mut actions: Vec<ConnectionAction> =
            told.into_iter().map(|(id, push)| self.send_reply(now_ms, id, &push)).collect();
        actions.extend(self.stop_tracking_slot(now_ms, slot, to));
        actions.extend(self.unblock_matching(now_ms, |node, keys| {
            node != to && keys.first().is_some_and(|key| slot_of(key) == slot)
        }));
        actions
    }

    /// Publishes a message to every subscriber that it would reach in a real cluster.
    pub fn publish(&mut self, now_ms: u64, channel: &str, data: &str) -> Vec<ConnectionAction> {
        let owner = self.slot_owners[usize::from(slot_of(channel))];
        let mut pushes = Vec::new();
        for (id, connection) in &self.connections {
            if self.nodes[connection.node].connection_handling != ConnectionHandling::Serve {
                continue;
            }
            for (name, sharded) in &connection.channels {
                let reached = name == channel
                    && (!sharded || owner == Some(connection.node) || self.mode != DiscoveryMode::Cluster);
                if reached {
                    let kind = if *sharded { "smessage" } else { "message" };
                    pushes.push((
                        *id,
                        Value::Push(vec![bulk_reply(kind), bulk_reply(channel), bulk_reply(data)]),
                    ));
                }
            }
        }
        pushes.into_iter().map(|(id, push)| self.send_reply(now_ms, id, &push)).collect()
    }
}
