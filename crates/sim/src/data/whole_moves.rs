//! The data's part in moves of slots in one piece: the cut and the changes since, writes that are held, and what comes
//! to a node whose slots are not its own yet.

use std::fmt::Debug;

use replication::{CursorId, Incoming};

use super::Key;
use crate::stage::Stage;

/// A key's new value, or that it is no more.
pub(crate) type Change = (Key, Option<u64>);

impl<E: Debug> Stage<E> {
    /// The values of these keys, and a cursor for what changes in them from here on; none while no cut can be made.
    pub(crate) fn cut_slots(&mut self, host: usize, keys: &[Key]) -> Option<(Vec<Change>, CursorId)> {
        let store = &mut self.data.stores[host];
        if !store.is_whole() || !store.log.is_open() {
            return None;
        }
        let end = store.log.position().offset;
        let held = keys.iter().filter_map(|key| Some((*key, Some(store.held.get(*key)?))));
        Some((held.collect(), store.log.add_own_cursor(end)))
    }

    /// The writes to these keys since it was last asked; none if the log does not have it any more.
    pub(crate) fn changes_since(
        &mut self,
        host: usize,
        cursor: CursorId,
        keys: &[Key],
    ) -> Option<Vec<Change>> {
        let mut bytes = Vec::new();
        self.data.stores[host].log.read(cursor, usize::MAX, &mut bytes).ok()?;
        let came = Incoming::default().take(bytes);
        let mut changes = Vec::new();
        for index in 0..came.batch.len() {
            let args = came.batch.args(index, &came.bytes);
            let number = |index: usize| resp::parse_i64(args.get(index)?).map(|number| number as u64);
            let change = match (&args[0], number(1), number(2)) {
                (b"SET", Some(key), Some(write)) => (key as Key, Some(write)),
                (b"DEL", Some(key), None) => (key as Key, None),
                _ => continue,
            };
            changes.extend(keys.contains(&change.0).then_some(change));
        }
        Some(changes)
    }

    pub(crate) fn forget_changes(&mut self, host: usize, cursor: CursorId) {
        self.data.stores[host].log.remove_cursor(cursor);
    }

    /// Writes to these keys wait, or go on.
    pub(crate) fn hold_slots(&mut self, host: usize, keys: &[Key], are_held: bool) {
        let held = &mut self.data.stores[host].gates.held;
        for key in keys {
            let _ = if are_held { held.insert(*key) } else { held.remove(key) };
        }
    }

    /// Whether no command is under way on these keys.
    pub(crate) fn slots_are_free(&self, host: usize, keys: &[Key]) -> bool {
        !self.data.stores[host].running.values().any(|running| keys.contains(&running.key))
    }

    /// Takes what another node had, and tells the replicas.
    pub(crate) fn take_changes(&mut self, host: usize, changes: &[Change]) {
        let store = &mut self.data.stores[host];
        for (key, write) in changes {
            let (mut effect, name) = (Vec::new(), key.to_string());
            match write {
                Some(write) => {
                    store.held.set(*key, *write);
                    let value = write.to_string();
                    resp::encode_request(&mut effect, [&b"SET"[..], name.as_bytes(), value.as_bytes()]);
                }
                None => {
                    store.held.remove(*key);
                    resp::encode_request(&mut effect, [&b"DEL"[..], name.as_bytes()]);
                }
            }
            store.log.append(0, &effect);
        }
        self.log_grew(host);
    }

    /// A key of which one process does not hold what the other does.
    pub(crate) fn differing_key(
        &self,
        one: usize,
        other: usize,
        keys: &[Key],
    ) -> Option<(Key, [Option<u64>; 2])> {
        let values = |key: &Key| [one, other].map(|host| self.data.stores[host].held.get(*key));
        keys.iter().map(|key| (*key, values(key))).find(|(_, [one, other])| one != other)
    }
}
