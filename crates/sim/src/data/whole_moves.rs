//! The data's part in moves of slots in one piece: the cut and the changes since, writes that are held, and what comes
//! to a node whose slots are not its own yet.

use std::fmt::Debug;

use replication::{CursorId, Incoming};

use super::Key;
use super::held::key_of;
use crate::stage::Stage;

/// A command that makes a key as it is, or changes it as it was changed.
pub(crate) type Change = Vec<u8>;

impl<E: Debug> Stage<E> {
    /// The keys of these slots, and a cursor for what changes in them from here on; none while no cut can be made.
    pub(crate) fn cut_slots(&mut self, host: usize, keys: &[Key]) -> Option<(Vec<Change>, CursorId)> {
        let store = &mut self.data.stores[host];
        if !store.is_whole() || !store.log.is_open() {
            return None;
        }
        let end = store.log.position().offset;
        let copies = keys.iter().flat_map(|key| store.held.copies(*key)).collect();
        Some((copies, store.log.add_own_cursor(end)))
    }

    /// The changes in these slots since it was last asked; none if the log does not have them any more.
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
            if key_of(args).is_some_and(|key| keys.contains(&key)) {
                let mut change = Vec::new();
                resp::encode_request(&mut change, args.iter());
                changes.push(change);
            }
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
        let wall = self.wall_of(host);
        let store = &mut self.data.stores[host];
        let effects = store.held.write_raw(wall, changes.concat());
        store.log.append(0, &effects);
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
