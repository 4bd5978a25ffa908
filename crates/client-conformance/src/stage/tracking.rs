//! Client-side caching: which connection keeps which keys, and what it is told when they change.

use std::collections::BTreeSet;

use harness::slot_of;
use resp::{Protocol, Value};

use super::commands::Row;
use super::model::{error, ok};
use super::{Action, ConnectionId, NodeIndex, Stage, bulk};

/// How a connection is told of changes.
#[derive(Debug, Default)]
pub(super) struct Tracking {
    /// Of all keys with these beginnings, whatever it has read.
    broadcast: bool,
    prefixes: Vec<String>,
    /// Of what it reads right behind CLIENT CACHING YES alone.
    only_chosen: bool,
    chosen: bool,
    /// Not of what it changes itself.
    only_others: bool,
    /// The keys that it has read and may keep.
    keys: BTreeSet<String>,
}

impl Tracking {
    fn concerns(&mut self, key: &str) -> bool {
        if self.broadcast {
            self.prefixes.is_empty() || self.prefixes.iter().any(|prefix| key.starts_with(prefix))
        } else {
            self.keys.remove(key)
        }
    }
}

impl Stage {
    /// CLIENT TRACKING.
    pub(super) fn track(&mut self, id: ConnectionId, args: &[String]) -> Value {
        let Some(connection) = self.connections.get_mut(&id) else { return Value::Null };
        if args.get(2).is_some_and(|word| word.eq_ignore_ascii_case("off")) {
            connection.tracking = None;
            return ok();
        }
        let mut tracking = Tracking::default();
        let mut words = args.iter().skip(3);
        while let Some(word) = words.next() {
            match word.to_ascii_uppercase().as_str() {
                "BCAST" => tracking.broadcast = true,
                "PREFIX" => tracking.prefixes.extend(words.next().cloned()),
                "OPTIN" => tracking.only_chosen = true,
                "NOLOOP" => tracking.only_others = true,
                other => return Value::Error(format!("ERR a scripted node does not know {other}")),
            }
        }
        if connection.protocol == Protocol::Resp2 {
            return error("ERR a scripted node tells of changes by RESP3 alone");
        }
        connection.tracking = Some(tracking);
        ok()
    }

    /// CLIENT CACHING YES.
    pub(super) fn track_next(&mut self, id: ConnectionId) -> Value {
        let tracking = self.connections.get_mut(&id).and_then(|connection| connection.tracking.as_mut());
        match tracking {
            Some(tracking) if tracking.only_chosen => {
                tracking.chosen = true;
                ok()
            }
            _ => {
                error("ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN")
            }
        }
    }

    /// A command has used its keys: they are kept, or others have to be told.
    pub(super) fn keys_used(&mut self, id: ConnectionId, row: &Row, args: &[String]) {
        let keys = row.keys(args).into_iter().cloned();
        if row.writes {
            self.changed.extend(keys.map(|key| (id, key)));
            return;
        }
        let tracking = self.connections.get_mut(&id).and_then(|connection| connection.tracking.as_mut());
        if let Some(tracking) = tracking {
            let keeps = !tracking.broadcast && (!tracking.only_chosen || tracking.chosen);
            tracking.chosen = false;
            if keeps {
                tracking.keys.extend(keys);
            }
        }
    }

    /// Tells those who keep the keys that have changed.
    pub(super) fn invalidations(&mut self, ms: u64) -> Vec<Action> {
        let mut told = Vec::new();
        for (by, key) in std::mem::take(&mut self.changed) {
            for (id, connection) in &mut self.connections {
                let Some(tracking) = &mut connection.tracking else { continue };
                let is_own = tracking.only_others && *id == by;
                if tracking.concerns(&key) && !is_own {
                    told.push((*id, key.clone()));
                }
            }
        }
        told.into_iter().map(|(id, key)| self.send(ms, id, &invalidation(&key))).collect()
    }

    /// The keys of a slot are gone from everywhere but its new owner: whoever keeps them is told.
    pub(super) fn forget_slot(&mut self, ms: u64, slot: u16, owner: NodeIndex) -> Vec<Action> {
        let mut told = Vec::new();
        for (id, connection) in self.connections.iter_mut().filter(|(_, connection)| connection.node != owner)
        {
            let Some(tracking) = &mut connection.tracking else { continue };
            let (gone, kept): (BTreeSet<String>, _) =
                std::mem::take(&mut tracking.keys).into_iter().partition(|key| slot_of(key) == slot);
            tracking.keys = kept;
            told.extend(gone.into_iter().map(|key| (*id, key)));
        }
        told.into_iter().map(|(id, key)| self.send(ms, id, &invalidation(&key))).collect()
    }
}

fn invalidation(key: &str) -> Value {
    Value::Push(vec![bulk("invalidate"), Value::Array(vec![bulk(key)])])
}
