//! Implements client-side caching: tracks which connection caches which keys, and sends invalidation messages.

use std::collections::BTreeSet;

use harness::slot_of;
use resp::{Protocol, Value};

use super::commands::CommandSpec;
use super::healthy_node::{error_reply, ok_reply};
use super::{ClusterSimulation, ConnectionAction, ConnectionId, NodeIndex, bulk_reply};

/// The CLIENT TRACKING state of a connection.
#[derive(Debug, Default)]
pub(super) struct ClientTracking {
    /// Set by BCAST: all keys with the given prefixes are tracked, whether or not the client has read them.
    is_broadcast: bool,
    prefixes: Vec<String>,
    /// Set by OPTIN: only keys read directly after CLIENT CACHING YES are tracked.
    is_opt_in: bool,
    tracks_next_command: bool,
    /// Set by NOLOOP: the connection is not notified of its own changes.
    skips_own_changes: bool,
    /// The keys that the client has read and may cache.
    cached_keys: BTreeSet<String>,
}

impl ClientTracking {
    fn has_cached_key(&mut self, key: &str) -> bool {
        if self.is_broadcast {
            self.prefixes.is_empty() || self.prefixes.iter().any(|prefix| key.starts_with(prefix))
        } else {
            self.cached_keys.remove(key)
        }
    }
}

impl ClusterSimulation {
    /// Executes CLIENT TRACKING ON or OFF for the connection.
    pub(super) fn enable_tracking(&mut self, id: ConnectionId, args: &[String]) -> Value {
        let Some(connection) = self.connections.get_mut(&id) else { return Value::Null };
        if args.get(2).is_some_and(|word| word.eq_ignore_ascii_case("off")) {
            connection.tracking = None;
            return ok_reply();
        }
        let mut tracking = ClientTracking::default();
        let mut words = args.iter().skip(3);
        while let Some(word) = words.next() {
            match word.to_ascii_uppercase().as_str() {
                "BCAST" => tracking.is_broadcast = true,
                "PREFIX" => tracking.prefixes.extend(words.next().cloned()),
                "OPTIN" => tracking.is_opt_in = true,
                "NOLOOP" => tracking.skips_own_changes = true,
                other => return Value::Error(format!("ERR a scripted node does not know {other}")),
            }
        }
        if connection.protocol == Protocol::Resp2 {
            return error_reply("ERR a scripted node tells of changes by RESP3 alone");
        }
        connection.tracking = Some(tracking);
        ok_reply()
    }

    /// Executes CLIENT CACHING YES: the keys of the next command are tracked.
    pub(super) fn track_next_command(&mut self, id: ConnectionId) -> Value {
        let tracking = self.connections.get_mut(&id).and_then(|connection| connection.tracking.as_mut());
        match tracking {
            Some(tracking) if tracking.is_opt_in => {
                tracking.tracks_next_command = true;
                ok_reply()
            }
            _ => error_reply(
                "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN",
            ),
        }
    }

    /// Records the keys that a command has read, or marks the keys that it has changed for invalidation.
    pub(super) fn record_key_access(&mut self, id: ConnectionId, spec: &CommandSpec, args: &[String]) {
        let keys = spec.keys(args).into_iter().cloned();
        if spec.is_write {
            self.changed_keys.extend(keys.map(|key| (id, key)));
            return;
        }
        let tracking = self.connections.get_mut(&id).and_then(|connection| connection.tracking.as_mut());
        if let Some(tracking) = tracking {
            let keeps = !tracking.is_broadcast && (!tracking.is_opt_in || tracking.tracks_next_command);
            tracking.tracks_next_command = false;
            if keeps {
                tracking.cached_keys.extend(keys);
            }
        }
    }

    /// Sends invalidation messages for the changed keys.
    pub(super) fn send_invalidations(&mut self, now_ms: u64) -> Vec<ConnectionAction> {
        let mut told = Vec::new();
        for (by, key) in std::mem::take(&mut self.changed_keys) {
            for (id, connection) in &mut self.connections {
                let Some(tracking) = &mut connection.tracking else { continue };
                let is_own = tracking.skips_own_changes && *id == by;
                if tracking.has_cached_key(&key) && !is_own {
                    told.push((*id, key.clone()));
                }
            }
        }
        told.into_iter().map(|(id, key)| self.send_reply(now_ms, id, &invalidation_message(&key))).collect()
    }

    /// Invalidates the keys of a moved slot in all caches, except on connections to the new owner.
    pub(super) fn stop_tracking_slot(
        &mut self,
        now_ms: u64,
        slot: u16,
        owner: NodeIndex,
    ) -> Vec<ConnectionAction> {
        let mut told = Vec::new();
        for (id, connection) in self.connections.iter_mut().filter(|(_, connection)| connection.node != owner)
        {
            let Some(tracking) = &mut connection.tracking else { continue };
            let (gone, kept): (BTreeSet<String>, _) =
                std::mem::take(&mut tracking.cached_keys).into_iter().partition(|key| slot_of(key) == slot);
            tracking.cached_keys = kept;
            told.extend(gone.into_iter().map(|key| (*id, key)));
        }
        told.into_iter().map(|(id, key)| self.send_reply(now_ms, id, &invalidation_message(&key))).collect()
    }
}

fn invalidation_message(key: &str) -> Value {
    Value::Push(vec![bulk_reply("invalidate"), Value::Array(vec![bulk_reply(key)])])
}
