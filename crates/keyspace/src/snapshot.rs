//! The state at one moment, slot by slot.

use clock::Millis;
use slot_routing::Slot;

use crate::locked::LockedSlots;
use crate::slot::Keyspace;
use crate::table::Table;
use crate::value::Value;

/// One key as it was at the cut.
#[derive(Debug, Clone, Copy)]
pub struct SnapshotEntry<'a> {
    pub db: u16,
    pub key: &'a [u8],
    pub value: Value<'a>,
    pub expiry: Option<Millis>,
}

/// The whole keyspace as it was at the cut.
#[derive(Debug)]
pub struct Snapshot {
    slots: Vec<Vec<(u16, Table)>>,
}

impl Keyspace {
    /// Takes a snapshot. `at_cut` runs while every slot is held, to note what belongs to that moment
    /// (the log's offset). Only for the holder of the script turn.
    pub fn cut<R>(&self, at_cut: impl FnOnce() -> R) -> (Snapshot, R) {
        let mut locked = LockedSlots::all(self);
        let noted = at_cut();
        let slots = locked.iter_mut().map(|slot| slot.tables().map(|(db, t)| (db, t.clone())).collect());
        (Snapshot { slots: slots.collect() }, noted)
    }
}

impl Snapshot {
    /// How many keys the snapshot holds in database `db`, and how many of them expire.
    #[must_use]
    pub fn len(&self, db: u16) -> (usize, usize) {
        let tables = self.slots.iter().flatten().filter(|(table_db, _)| *table_db == db);
        tables.fold((0, 0), |(keys, volatile), (_, t)| (keys + t.len(), volatile + t.volatile_len()))
    }

    /// Visits the keys that `slot` held at the cut and lets go of them. Each slot once.
    pub fn walk(&mut self, slot: Slot, visit: &mut dyn FnMut(SnapshotEntry<'_>)) {
        for (db, table) in std::mem::take(&mut self.slots[slot.index()]) {
            for entry in table.entries() {
                visit(SnapshotEntry { db, key: &entry.key, value: entry.value(), expiry: entry.expiry });
            }
        }
    }
}
