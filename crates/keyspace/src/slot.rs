//! The data of one slot.

use std::sync::LazyLock;

use clock::Millis;
use parking_lot::MutexGuard;
use slot_routing::{Ownership, Slot};
use smallvec::SmallVec;

use crate::captured::CapturedEntries;
use crate::entries::{EntryRef, KeyLookup};
use crate::key::Key;
use crate::large::LargeValue;
use crate::overflow::Record;
use crate::page;
use crate::pages::FillLevel;
use crate::prefetched::ProbableEntry;
use crate::published::{PublishedSummaries, SlotSummary};
use crate::table::Table;
use crate::usage::Usage;

/// The data of one slot, protected by the slot's lock. Data and lock together take two cache lines.
#[derive(Debug, Default)]
pub struct SlotData {
    table: Table,
    extra_tables: Option<Box<ExtraTables>>,
    /// Number of the latest snapshot for which the slot was pinned.
    pub(crate) last_pinned_snapshot: u32,
    ownership: Ownership,
    /// Number of callers that have paused client writes to the slot.
    write_pause_count: u8,
    /// Whether the slot is being imported. The keys of such a slot must not be visible, expired or evicted.
    is_hidden: bool,
}

/// Tables of other databases than 0, and flushed tables. Few slots have them.
#[derive(Debug, Default)]
struct ExtraTables {
    /// The non-empty tables of databases 1 and up, in ascending order.
    tables: Vec<OtherDatabase>,
    /// Tables that were flushed but are still needed by a snapshot.
    flushed_tables: Vec<Table>,
}

/// The slot's keys in a database other than 0.
#[derive(Debug)]
struct OtherDatabase {
    db: u16,
    table: Table,
}

impl ExtraTables {
    fn position(&self, db: u16) -> Result<usize, usize> {
        self.tables.binary_search_by_key(&db, |other| other.db)
    }

    fn existing_table(&self, db: u16) -> Option<&Table> {
        Some(&self.tables[self.position(db).ok()?].table)
    }

    /// Returns the table of a database, created if missing.
    fn table(&mut self, db: u16) -> &mut Table {
        let place = self.position(db).unwrap_or_else(|place| {
            // Most slots use at most one database besides 0, so avoid spare capacity, which would cost about a hundred
            // bytes per slot.
            self.tables.reserve_exact(1);
            self.tables.insert(place, OtherDatabase { db, table: Table::default() });
            place
        });
        &mut self.tables[place].table
    }

    fn visible_tables(&self) -> impl Iterator<Item = &Table> {
        self.tables.iter().map(|other| &other.table)
    }

    /// Returns all tables, including those that only snapshots need.
    fn all_tables(&self) -> impl Iterator<Item = &Table> {
        self.visible_tables().chain(&self.flushed_tables)
    }
}

impl SlotData {
    /// Returns this node's relation to the slot, such as owning or importing it.
    #[must_use]
    pub fn ownership(&self) -> Ownership {
        self.ownership
    }

    /// Sets this node's relation to the slot.
    pub fn set_ownership(&mut self, ownership: Ownership) {
        self.ownership = ownership;
    }

    /// Returns whether client writes are paused so that a frequently written key can be migrated.
    #[must_use]
    pub fn has_paused_writes(&self) -> bool {
        self.write_pause_count > 0
    }

    /// Pauses client writes until [`SlotData::resume_writes`] has been called as often as this function. Returns false
    /// if the counter is at its maximum.
    pub fn pause_writes(&mut self) -> bool {
        let hold_count = self.write_pause_count.checked_add(1);
        self.write_pause_count = hold_count.unwrap_or(self.write_pause_count);
        hold_count.is_some()
    }

    /// Reverts one call of [`SlotData::pause_writes`].
    ///
    /// # Panics
    /// If writes to the slot are not paused.
    pub fn resume_writes(&mut self) {
        self.write_pause_count = self.write_pause_count.checked_sub(1).expect("who frees a slot has held it");
    }

    /// Returns whether the slot's keys are hidden ([`SlotData::set_hidden`]).
    #[must_use]
    pub fn is_hidden(&self) -> bool {
        self.is_hidden
    }

    /// Hides the slot's keys or makes them visible. A hidden slot counts as empty for loops over all keys and for
    /// expiry; commands that name a key still find it.
    pub fn set_hidden(&mut self, is_hidden: bool) {
        self.is_hidden = is_hidden;
    }

    /// Returns the slot's table of database `db`, creating it if necessary.
    #[inline]
    pub fn table(&mut self, db: u16) -> &mut Table {
        if db == 0 { &mut self.table } else { self.extra_tables.get_or_insert_default().table(db) }
    }

    /// Returns the slot's table of database `db`, read-only; an empty table if it does not exist.
    #[inline(always)]
    #[must_use]
    pub fn table_ref(&self, db: u16) -> &Table {
        static NO_KEYS: LazyLock<Table> = LazyLock::new(Table::default);
        self.existing_table(db).unwrap_or_else(|| &NO_KEYS)
    }

    /// Returns the table of database `db`, if it exists.
    #[must_use]
    pub fn existing_table(&self, db: u16) -> Option<&Table> {
        if db == 0 { Some(&self.table) } else { self.extra_tables.as_ref()?.existing_table(db) }
    }

    /// Returns the slot's tables and their databases, in ascending order.
    pub fn tables(&mut self) -> impl Iterator<Item = (u16, &mut Table)> {
        let others = self.extra_tables.iter_mut().flat_map(|extra_tables| extra_tables.tables.iter_mut());
        std::iter::once((0, &mut self.table)).chain(others.map(|other| (other.db, &mut other.table)))
    }

    /// Returns how full the fullest of the slot's tables is, or how full the value of `key` is, if that is more.
    #[must_use]
    pub fn fill_level(&self, key: &Key<'_>) -> FillLevel {
        let others = self.extra_tables.iter().flat_map(|extra_tables| extra_tables.visible_tables());
        others.fold(self.table.fill_level(key), |most, table| most.max(table.fill_level(key)))
    }

    /// Swaps two databases (SWAPDB).
    pub fn swap_databases(&mut self, a: u16, b: u16) {
        // SWAPDB visits every slot, and most slots are empty in both databases, so do not allocate tables for them.
        let is_vacant = |db| self.existing_table(db).is_none_or(|table| table.entries.is_memory_free());
        if a != b && !(is_vacant(a) && is_vacant(b)) {
            let first = std::mem::take(self.table(a));
            let second = std::mem::replace(self.table(b), first);
            *self.table(a) = second;
        }
    }

    /// Returns database 0 and the databases that have data in this slot, in ascending order.
    #[must_use]
    pub fn databases(&self) -> SmallVec<[u16; 4]> {
        let others = self
            .extra_tables
            .iter()
            .flat_map(|extra_tables| extra_tables.tables.iter().map(|other| other.db));
        std::iter::once(0).chain(others).collect()
    }

    /// Returns whether [`SlotData::release_unused_memory`] may have something to free.
    #[inline]
    fn may_have_unused_memory(&self) -> bool {
        self.extra_tables.is_some() || self.table.entries.may_have_unused_memory()
    }

    /// Frees the memory that a database still uses after its last key was deleted, so that short-lived data costs no
    /// memory permanently.
    #[cold]
    #[inline(never)]
    fn release_unused_memory(&mut self) {
        self.table.entries.release_unused_memory();
        let Some(extra_tables) = &mut self.extra_tables else { return };
        extra_tables.tables.retain_mut(|other| {
            other.table.entries.release_unused_memory();
            !other.table.entries.is_memory_free()
        });
        if extra_tables.tables.is_empty() && extra_tables.flushed_tables.is_empty() {
            self.extra_tables = None;
        } else {
            extra_tables.tables.shrink_to_fit();
            extra_tables.flushed_tables.shrink_to_fit();
        }
    }

    /// Removes and returns all keys of database `db`; dropping them takes time. Entries that a snapshot needs stay
    /// until the snapshot has visited them.
    pub fn take_database(&mut self, db: u16) -> RemovedKeys {
        // FLUSHALL visits every slot, and most slots are empty, so do not allocate or touch a table for them.
        if self.existing_table(db).is_none_or(|table| table.entries.is_memory_free()) {
            return RemovedKeys::default();
        }
        let table = std::mem::take(self.table(db));
        let keys = table.len();
        if table.entries.is_pinned() {
            self.extra_tables.get_or_insert_default().flushed_tables.push(table);
            return RemovedKeys { count: keys, table: None };
        }
        RemovedKeys { count: keys, table: Some(table) }
    }

    /// Pins all tables for a snapshot. Returns whether any entry was pinned.
    pub(crate) fn pin(&mut self, snapshot_bit: u32) -> bool {
        self.tables().fold(false, |any, (db, table)| table.entries.pin(snapshot_bit, db) | any)
    }

    /// Pins one large value for a snapshot.
    pub(crate) fn pin_value(&mut self, snapshot_bit: u32, db: u16, entry_ref: EntryRef) {
        self.table(db).entries.pin_value(snapshot_bit, db, entry_ref);
    }

    /// Returns the next value that a snapshot will visit.
    pub(crate) fn pinned_value(&self, snapshot_bit: u32) -> Option<&LargeValue> {
        let extra_tables = self.extra_tables.iter().flat_map(|extra_tables| extra_tables.all_tables());
        std::iter::once(&self.table)
            .chain(extra_tables)
            .find_map(|table| table.entries.pinned_value(snapshot_bit))
    }

    /// Copies a part of the slot's data that is pinned for a snapshot. Returns whether it was the last part.
    pub(crate) fn walk(&mut self, snapshot_bit: u32, budget: usize, captured: &mut CapturedEntries) -> bool {
        self.for_each_pinned_table(snapshot_bit, |table| table.entries.walk(snapshot_bit, budget, captured))
    }

    /// Unpins a part of the slot's data without copying it. Returns whether it was the last part.
    pub(crate) fn unpin(
        &mut self,
        snapshot_bit: u32,
        budget: usize,
        dropped: &mut Vec<Record<LargeValue>>,
    ) -> bool {
        self.for_each_pinned_table(snapshot_bit, |table| table.entries.unpin(snapshot_bit, budget, dropped))
    }

    fn for_each_pinned_table(&mut self, snapshot_bit: u32, mut step: impl FnMut(&mut Table) -> bool) -> bool {
        let (others, flushed) = match &mut self.extra_tables {
            Some(extra_tables) => {
                (extra_tables.tables.as_mut_slice(), extra_tables.flushed_tables.as_mut_slice())
            }
            None => (&mut [][..], &mut [][..]),
        };
        let others = others.iter_mut().map(|other| &mut other.table);
        let mut tables: SmallVec<[&mut Table; 2]> =
            std::iter::once(&mut self.table).chain(others).chain(flushed).collect();
        tables.retain(|table| table.entries.is_pinned_for(snapshot_bit));
        // Continue with a table that was visited in part: FLUSHALL or SWAPDB may have reordered the tables, but the
        // parts of a value must stay adjacent.
        tables.sort_by_key(|table| !table.entries.is_walking_page_values(snapshot_bit));
        let done = tables.into_iter().all(&mut step);
        if let Some(extra_tables) = &mut self.extra_tables {
            extra_tables.flushed_tables.retain(|table| table.entries.is_pinned());
        }
        done
    }

    /// Returns the bytes of entries that only snapshots still need.
    #[must_use]
    pub fn snapshot_only_bytes(&self) -> usize {
        let extra_tables = self.extra_tables.iter().flat_map(|extra_tables| extra_tables.all_tables());
        std::iter::once(&self.table)
            .chain(extra_tables)
            .map(|table| table.entries.snapshot_only_bytes())
            .sum()
    }

    /// Returns the bytes of the slot's pages, index lines and overflow values.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let extra_tables = self.extra_tables.iter().flat_map(|extra_tables| extra_tables.all_tables());
        std::iter::once(&self.table).chain(extra_tables).map(Table::heap_bytes).sum()
    }

    /// Computes the summary to publish. This runs twice per change, so rare features are handled out of line.
    #[inline(always)]
    pub(crate) fn summary(&self) -> SlotSummary {
        let entries = &self.table.entries;
        if self.extra_tables.is_some() || self.is_hidden || entries.may_have_element_expiry() {
            return self.full_summary();
        }
        let (keys, volatile) = (entries.len() as u32, entries.volatile_len() as u32);
        SlotSummary {
            keys,
            other_database_keys: 0,
            volatile,
            keys_with_element_expiry: 0,
            next_expiry: entries.next_entry_expiry(),
        }
    }

    #[cold]
    #[inline(never)]
    fn full_summary(&self) -> SlotSummary {
        if self.is_hidden {
            return SlotSummary {
                keys: 0,
                other_database_keys: 0,
                volatile: 0,
                keys_with_element_expiry: 0,
                next_expiry: page::NO_EXPIRY,
            };
        }
        let mut due = self.table.next_expiry().unwrap_or(page::NO_EXPIRY);
        let (mut others, mut volatile) = (0, self.table.volatile_len());
        let mut timed = self.table.keys_with_element_expiry();
        if let Some(extra_tables) = &self.extra_tables {
            due = extra_tables.visible_tables().filter_map(Table::next_expiry).fold(due, Millis::min);
            others = extra_tables.visible_tables().map(Table::len).sum();
            volatile += extra_tables.visible_tables().map(Table::volatile_len).sum::<usize>();
            timed += extra_tables.visible_tables().map(Table::keys_with_element_expiry).sum::<usize>();
        }
        let (keys, others, volatile) = (self.table.len() as u32, others as u32, volatile as u32);
        SlotSummary {
            keys,
            other_database_keys: others,
            volatile,
            keys_with_element_expiry: timed as u32,
            next_expiry: due,
        }
    }
}

/// The keys of one database that were removed from a slot.
#[derive(Debug, Default)]
pub struct RemovedKeys {
    /// Number of removed keys.
    pub count: usize,
    /// The table of the removed keys, to be dropped by the caller; `None` if there is nothing to drop.
    pub table: Option<Table>,
}

/// A locked slot. Unlocking it publishes its key counts.
#[derive(Debug)]
pub struct SlotGuard<'k> {
    pub(crate) data: MutexGuard<'k, SlotData>,
    pub(crate) summaries: &'k PublishedSummaries,
    pub(crate) slot: Slot,
    /// The summary before the slot was changed, as last published; `None` if the slot has not changed since.
    pub(crate) last_published: Option<SlotSummary>,
    /// The entry that most likely belongs to the key for which the slot was prefetched.
    pub(crate) probable_entry: Option<ProbableEntry>,
}

impl SlotGuard<'_> {
    /// Returns the number of the locked slot.
    #[must_use]
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// Prefetches the entry of `key`; its index line must have been prefetched before.
    #[inline]
    pub(crate) fn prefetch_entry(&mut self, db: u16, key: &Key<'_>) {
        self.probable_entry = ProbableEntry::prefetch(&self.data, db, key);
    }

    /// Looks up `key` in database `db` and also returns its usage if it exists.
    #[inline(always)]
    pub(crate) fn find(&self, db: u16, key: &Key<'_>, now: Millis) -> (KeyLookup, Usage) {
        let likely = self.probable_entry.filter(|likely| likely.db == db);
        self.data.table_ref(db).entries.find_with_hint(likely.map(|likely| likely.reference), key, now)
    }

    /// Returns whether the slot has keys but was published as empty.
    pub(crate) fn becomes_non_empty(&self) -> bool {
        self.last_published.is_some_and(|last| last.is_empty() && !self.data.summary().is_empty())
    }

    /// Publishes the changed fields. Unchanged fields are not written, so that their cache lines stay shared between
    /// cores.
    #[inline]
    pub(crate) fn publish(&mut self) {
        let Some(last_published) = self.last_published.take() else { return };
        if self.data.may_have_unused_memory() {
            self.data.release_unused_memory();
        }
        let summary = self.data.summary();
        if summary != last_published {
            self.summaries.publish(self.slot, summary, last_published);
        }
    }
}

impl std::ops::Deref for SlotGuard<'_> {
    type Target = SlotData;

    #[inline]
    fn deref(&self) -> &SlotData {
        &self.data
    }
}

impl std::ops::DerefMut for SlotGuard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut SlotData {
        self.probable_entry = None;
        if self.last_published.is_none() {
            self.last_published = Some(self.data.summary());
        }
        &mut self.data
    }
}

impl Drop for SlotGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.publish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_with_lock_fits_two_cache_lines() {
        assert_eq!(size_of::<parking_lot::Mutex<SlotData>>(), 128);
    }

    #[test]
    fn flushing_an_unused_database_allocates_nothing() {
        let mut slot = SlotData::default();
        assert!((0..16).all(|db| slot.take_database(db).table.is_none()));
        assert!(slot.extra_tables.is_none());
    }

    #[test]
    fn removing_last_keys_frees_all_memory() {
        let keyspace = crate::Keyspace::new(1, 16);
        let (key, now) = (keyspace.key(b"k"), Millis(0));
        let large = vec![b'x'; 100_000];
        let fill = |db, value: &[u8]| {
            keyspace.lock(key.slot()).table(db).insert(
                &key,
                crate::PackedValue::string(value),
                Some(Millis(5)),
            );
        };
        let is_bare = || {
            let slot = keyspace.lock(key.slot());
            slot.extra_tables.is_none() && slot.table.entries.is_memory_free()
        };
        for (db, value) in [(0, &b"v"[..]), (0, &large), (15, b"v"), (15, &large)] {
            fill(db, value);
            assert!(!is_bare());
            assert_eq!(keyspace.lock(key.slot()).databases().last(), Some(&db));
            let mut slot = keyspace.lock(key.slot());
            let KeyLookup::Live(place) = slot.table_ref(db).find(&key, now) else {
                panic!("the key is there")
            };
            drop(slot.table(db).remove(place, &key));
            drop(slot);
            assert!(is_bare(), "after a deletion in {db}");
            fill(db, value);
            assert!(keyspace.lock(key.slot()).table(db).remove_expired(Millis(5), &mut Vec::new()).is_some());
            assert!(is_bare(), "after expiry in {db}");
            fill(db, value);
            drop(keyspace.lock(key.slot()).take_database(db));
            assert!(is_bare(), "after a flush of {db}");
            fill(db, value);
            keyspace.lock(key.slot()).swap_databases(db, 7);
            assert_eq!(keyspace.lock(key.slot()).databases()[..], [0, 7]);
            keyspace.lock(key.slot()).swap_databases(0, 7);
            drop(keyspace.lock(key.slot()).take_database(0));
            assert!(is_bare(), "after exchanges of {db}");
        }
    }

    #[test]
    fn swapping_unused_databases_allocates_nothing() {
        let mut slot = SlotData::default();
        slot.swap_databases(0, 1);
        assert!(slot.extra_tables.is_none());
    }
}
