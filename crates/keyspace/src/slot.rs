//! Slots and their locks.

use std::sync::atomic::{AtomicU32, Ordering};

use clock::Millis;
use parking_lot::{Mutex, MutexGuard};
use slot_routing::{Ownership, SLOT_COUNT, Slot};

use crate::key::Key;
use crate::locked::LockedSlots;
use crate::table::Table;

/// What one slot holds. Read and changed under the slot's lock.
#[derive(Debug, Default)]
pub struct SlotData {
    ownership: Ownership,
    tables: Vec<Table>,
}

impl SlotData {
    /// What this node is to the slot.
    #[must_use]
    pub fn ownership(&self) -> Ownership {
        self.ownership
    }

    pub fn set_ownership(&mut self, ownership: Ownership) {
        self.ownership = ownership;
    }

    /// The slot's keys in database `db`.
    pub fn table(&mut self, db: u16) -> &mut Table {
        let db = usize::from(db);
        if self.tables.len() <= db {
            self.tables.resize_with(db + 1, Table::default);
        }
        &mut self.tables[db]
    }

    /// The slot's tables with their databases, in rising order.
    pub fn tables(&mut self) -> impl Iterator<Item = (u16, &mut Table)> {
        (0..).zip(self.tables.iter_mut())
    }

    /// Exchanges two databases.
    pub fn swap(&mut self, a: u16, b: u16) {
        self.table(a.max(b));
        self.tables.swap(usize::from(a), usize::from(b));
    }

    /// Takes all keys of database `db` out; dropping them takes time.
    pub fn take(&mut self, db: u16) -> Table {
        std::mem::take(self.table(db))
    }
}

/// A locked slot. Counts are published when it is unlocked.
#[derive(Debug)]
pub struct SlotGuard<'k> {
    data: MutexGuard<'k, SlotData>,
    keys: &'k AtomicU32,
    slot: Slot,
}

impl SlotGuard<'_> {
    #[must_use]
    pub fn slot(&self) -> Slot {
        self.slot
    }
}

impl std::ops::Deref for SlotGuard<'_> {
    type Target = SlotData;

    fn deref(&self) -> &SlotData {
        &self.data
    }
}

impl std::ops::DerefMut for SlotGuard<'_> {
    fn deref_mut(&mut self) -> &mut SlotData {
        &mut self.data
    }
}

impl Drop for SlotGuard<'_> {
    fn drop(&mut self) {
        let keys = self.data.tables.first().map_or(0, Table::len) as u32;
        self.keys.store(keys, Ordering::Relaxed);
    }
}

/// All slots.
#[derive(Debug)]
pub struct Keyspace {
    slots: Box<[Mutex<SlotData>]>,
    /// Keys of database 0 by slot, readable without the lock.
    keys: Box<[AtomicU32]>,
    seed: u64,
    databases: u16,
}

impl Keyspace {
    /// An empty keyspace of that many databases. `seed` makes the hashes unguessable.
    #[must_use]
    pub fn new(seed: u64, databases: u16) -> Self {
        Self {
            slots: Slot::all().map(|_| Mutex::default()).collect(),
            keys: Slot::all().map(|_| AtomicU32::new(0)).collect(),
            seed,
            databases,
        }
    }

    #[must_use]
    pub fn databases(&self) -> u16 {
        self.databases
    }

    /// Hashes `bytes` once for everything that follows.
    #[must_use]
    pub fn key<'a>(&self, bytes: &'a [u8]) -> Key<'a> {
        Key {
            bytes,
            slot: Slot::of_key(bytes),
            hash: rapidhash::v3::rapidhash_v3_seeded(bytes, &rapidhash::v3::RapidSecrets::seed(self.seed)),
        }
    }

    /// First sweep over a batch: asks the processor for the slot's own memory.
    pub fn touch_slot(&self, _key: &Key<'_>) {}

    /// Second sweep: asks for the index line of the key.
    pub fn touch_index(&self, _db: u16, _key: &Key<'_>) {}

    /// Third sweep: asks for the key's entry.
    pub fn touch_entry(&self, _db: u16, _key: &Key<'_>) {}

    /// Waits for one slot. The caller must hold no other (see [`Keyspace::lock_many`]).
    #[must_use]
    pub fn lock(&self, slot: Slot) -> SlotGuard<'_> {
        self.guard(slot, self.slots[slot.index()].lock())
    }

    /// Locks the slots all or nothing: never waits for one while it holds another, so two callers
    /// cannot wait for each other.
    #[must_use]
    pub fn lock_many(&self, slots: &[Slot]) -> LockedSlots<'_> {
        LockedSlots::acquire(self, slots)
    }

    pub(crate) fn try_lock(&self, slot: Slot) -> Option<SlotGuard<'_>> {
        self.slots[slot.index()].try_lock().map(|data| self.guard(slot, data))
    }

    fn guard<'k>(&'k self, slot: Slot, data: MutexGuard<'k, SlotData>) -> SlotGuard<'k> {
        SlotGuard { data, keys: &self.keys[slot.index()], slot }
    }

    /// How many keys database 0 has in `slot`, as of the last unlock.
    #[must_use]
    pub fn slot_len(&self, slot: Slot) -> usize {
        self.keys[slot.index()].load(Ordering::Relaxed) as usize
    }

    /// How many keys database `db` has.
    #[must_use]
    pub fn len(&self, db: u16) -> usize {
        Slot::all().map(|slot| self.lock(slot).table(db).len()).sum()
    }

    /// Whether database `db` has no keys.
    #[must_use]
    pub fn is_empty(&self, db: u16) -> bool {
        self.len(db) == 0
    }

    /// The slots that may hold a key whose time has come.
    pub fn due_slots(&self, now: Millis) -> impl Iterator<Item = Slot> + '_ {
        Slot::all().filter(move |&slot| {
            self.lock(slot).tables().any(|(_, table)| table.next_due().is_some_and(|due| due <= now))
        })
    }

    /// A slot of database `db` chosen by `random`, a uniform random number, each with a chance in
    /// proportion to its keys.
    #[must_use]
    pub fn random_slot(&self, db: u16, random: u64) -> Option<Slot> {
        let mut left = random.checked_rem(self.len(db) as u64)? as usize;
        Slot::all().find(|&slot| {
            let len = self.lock(slot).table(db).len();
            let found = left < len;
            left = left.saturating_sub(len);
            found
        })
    }
}

const _: () = assert!(SLOT_COUNT <= u16::MAX as usize);
