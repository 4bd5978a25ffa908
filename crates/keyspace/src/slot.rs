//! The data of one slot.

use std::sync::LazyLock;

use clock::Millis;
use parking_lot::MutexGuard;
use slot_routing::{Ownership, Slot};
use smallvec::SmallVec;

use crate::captured::Captured;
use crate::entries::{Found, Place};
use crate::key::Key;
use crate::large::Large;
use crate::overflow::Record;
use crate::page;
use crate::pages::Crowding;
use crate::prefetched::Likely;
use crate::published::{Published, Summary};
use crate::table::Table;
use crate::usage::Usage;

/// The data of one slot. Read and changed under the slot's lock. With the lock it takes two cache lines.
#[derive(Debug, Default)]
pub struct SlotData {
    /// Database 0.
    table: Table,
    more: Option<Box<More>>,
    /// The last snapshot that the slot has been pinned for.
    pub(crate) seen: u32,
    ownership: Ownership,
    /// How many want it to stay as it is for a moment.
    holds: u8,
    /// It is being imported: what it holds is not this node's to show, to expire, nor to evict.
    is_hidden: bool,
}

/// The tables that few slots have.
#[derive(Debug, Default)]
struct More {
    /// Those of databases 1 and up that have something, in rising order.
    tables: Vec<OtherDatabase>,
    /// Tables that were flushed while a snapshot needed them.
    parted: Vec<Table>,
}

/// The slot's keys in a database other than 0.
#[derive(Debug)]
struct OtherDatabase {
    db: u16,
    table: Table,
}

impl More {
    fn position(&self, db: u16) -> Result<usize, usize> {
        self.tables.binary_search_by_key(&db, |other| other.db)
    }

    fn table_if(&self, db: u16) -> Option<&Table> {
        Some(&self.tables[self.position(db).ok()?].table)
    }

    /// The table of a database, which is made if it is not there.
    fn table(&mut self, db: u16) -> &mut Table {
        let place = self.position(db).unwrap_or_else(|place| {
            // Most slots have keys in one database besides 0: room for more would cost each slot some hundred bytes.
            self.tables.reserve_exact(1);
            self.tables.insert(place, OtherDatabase { db, table: Table::default() });
            place
        });
        &mut self.tables[place].table
    }

    fn each(&self) -> impl Iterator<Item = &Table> {
        self.tables.iter().map(|other| &other.table)
    }

    /// Those with keys, and those that only snapshots need.
    fn all(&self) -> impl Iterator<Item = &Table> {
        self.each().chain(&self.parted)
    }
}

impl SlotData {
    /// The relation of this node to the slot.
    #[must_use]
    pub fn ownership(&self) -> Ownership {
        self.ownership
    }

    /// Sets the relation of this node to the slot.
    pub fn set_ownership(&mut self, ownership: Ownership) {
        self.ownership = ownership;
    }

    /// Whether clients' writes wait: a key is being moved that they write all the time.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.holds > 0
    }

    /// Lets clients' writes wait until [`SlotData::free`] has been called as often as this; `false` if too many
    /// do that already.
    pub fn hold(&mut self) -> bool {
        let holds = self.holds.checked_add(1);
        self.holds = holds.unwrap_or(self.holds);
        holds.is_some()
    }

    /// Ends what one [`SlotData::hold`] began.
    ///
    /// # Panics
    /// If none did.
    pub fn free(&mut self) {
        self.holds = self.holds.checked_sub(1).expect("who frees a slot has held it");
    }

    /// Whether what the slot holds is hidden.
    #[must_use]
    pub fn is_hidden(&self) -> bool {
        self.is_hidden
    }

    /// From now on the slot counts as empty for whoever looks at all keys, and nothing in it as due, though commands
    /// about its keys find them; or no longer.
    pub fn set_hidden(&mut self, is_hidden: bool) {
        self.is_hidden = is_hidden;
    }

    /// The slot's keys in database `db`.
    #[inline]
    pub fn table(&mut self, db: u16) -> &mut Table {
        if db == 0 { &mut self.table } else { self.more.get_or_insert_default().table(db) }
    }

    /// The slot's keys in database `db`, to be looked at.
    #[inline(always)]
    #[must_use]
    pub fn view(&self, db: u16) -> &Table {
        static NO_KEYS: LazyLock<Table> = LazyLock::new(Table::default);
        self.table_if(db).unwrap_or_else(|| &NO_KEYS)
    }

    /// The table of database `db`, if it has anything.
    #[must_use]
    pub fn table_if(&self, db: u16) -> Option<&Table> {
        if db == 0 { Some(&self.table) } else { self.more.as_ref()?.table_if(db) }
    }

    /// The slot's tables with their databases, in rising order.
    pub fn tables(&mut self) -> impl Iterator<Item = (u16, &mut Table)> {
        let others = self.more.iter_mut().flat_map(|more| more.tables.iter_mut());
        std::iter::once((0, &mut self.table)).chain(others.map(|other| (other.db, &mut other.table)))
    }

    /// How full the slot's databases, or the values under `key`, are.
    #[must_use]
    pub fn crowding(&self, key: &Key<'_>) -> Crowding {
        let others = self.more.iter().flat_map(|more| more.each());
        others.fold(self.table.crowding(key), |most, table| most.max(table.crowding(key)))
    }

    /// Exchanges two databases.
    pub fn swap(&mut self, a: u16, b: u16) {
        // Most have nothing in either, and every slot is asked: one that has nothing must not make a table.
        let is_vacant = |db| self.table_if(db).is_none_or(|table| table.entries.is_vacant());
        if a != b && !(is_vacant(a) && is_vacant(b)) {
            let first = std::mem::take(self.table(a));
            let second = std::mem::replace(self.table(b), first);
            *self.table(a) = second;
        }
    }

    /// The databases that have anything here, and 0, in rising order.
    #[must_use]
    pub fn databases(&self) -> SmallVec<[u16; 4]> {
        let others = self.more.iter().flat_map(|more| more.tables.iter().map(|other| other.db));
        std::iter::once(0).chain(others).collect()
    }

    /// Whether it may hold something that [`SlotData::release_unused`] gives back.
    #[inline]
    fn may_hold_unused(&self) -> bool {
        self.more.is_some() || self.table.entries.may_hold_unused()
    }

    /// Gives back what the last keys of a database left behind: nothing that was written once costs memory for ever.
    #[cold]
    #[inline(never)]
    fn release_unused(&mut self) {
        self.table.entries.release_unused();
        let Some(more) = &mut self.more else { return };
        more.tables.retain_mut(|other| {
            other.table.entries.release_unused();
            !other.table.entries.is_vacant()
        });
        if more.tables.is_empty() && more.parted.is_empty() {
            self.more = None;
        } else {
            more.tables.shrink_to_fit();
            more.parted.shrink_to_fit();
        }
    }

    /// Takes all keys of database `db` out, if it has anything; dropping them takes time. Entries that a snapshot
    /// still needs stay until they have been walked.
    pub fn take(&mut self, db: u16) -> Taken {
        // Most have nothing, and this is asked of all slots at once: it must not make a table, nor touch one.
        if self.table_if(db).is_none_or(|table| table.entries.is_vacant()) {
            return Taken::default();
        }
        let table = std::mem::take(self.table(db));
        let keys = table.len();
        if table.entries.is_pinned() {
            self.more.get_or_insert_default().parted.push(table);
            return Taken { keys, table: None };
        }
        Taken { keys, table: Some(table) }
    }

    /// Pins all tables for a snapshot; says whether there was anything to pin.
    pub(crate) fn pin(&mut self, bit: u32) -> bool {
        self.tables().fold(false, |any, (db, table)| table.entries.pin(bit, db) | any)
    }

    /// Pins one large value for a snapshot.
    pub(crate) fn pin_value(&mut self, bit: u32, db: u16, place: Place) {
        self.table(db).entries.pin_value(bit, db, place);
    }

    /// The value that a snapshot is to walk next.
    pub(crate) fn pinned_value(&self, bit: u32) -> Option<&Large> {
        let more = self.more.iter().flat_map(|more| more.all());
        std::iter::once(&self.table).chain(more).find_map(|table| table.entries.pinned_value(bit))
    }

    /// Copies a part of what a snapshot holds here; says whether that was the rest.
    pub(crate) fn walk(&mut self, bit: u32, budget: usize, captured: &mut Captured) -> bool {
        self.each_pinned(bit, |table| table.entries.walk(bit, budget, captured))
    }

    /// Lets go of a part of what a snapshot holds here; says whether that was the rest.
    pub(crate) fn unpin(&mut self, bit: u32, budget: usize, dropped: &mut Vec<Record<Large>>) -> bool {
        self.each_pinned(bit, |table| table.entries.unpin(bit, budget, dropped))
    }

    fn each_pinned(&mut self, bit: u32, mut step: impl FnMut(&mut Table) -> bool) -> bool {
        let (others, parted) = match &mut self.more {
            Some(more) => (more.tables.as_mut_slice(), more.parted.as_mut_slice()),
            None => (&mut [][..], &mut [][..]),
        };
        let others = others.iter_mut().map(|other| &mut other.table);
        let mut tables: SmallVec<[&mut Table; 2]> =
            std::iter::once(&mut self.table).chain(others).chain(parted).collect();
        tables.retain(|table| table.entries.is_pinned_for(bit));
        // A table that has been begun comes first: a flush or an exchange may have put it behind others, and
        // nothing may come between the parts of a value.
        tables.sort_by_key(|table| !table.entries.is_within(bit));
        let done = tables.into_iter().all(&mut step);
        if let Some(more) = &mut self.more {
            more.parted.retain(|table| table.entries.is_pinned());
        }
        done
    }

    /// Bytes of entries that are kept for snapshots only.
    #[must_use]
    pub fn leftover_bytes(&self) -> usize {
        let more = self.more.iter().flat_map(|more| more.all());
        std::iter::once(&self.table).chain(more).map(|table| table.entries.leftover_bytes()).sum()
    }

    /// Bytes that the slot takes: pages, index lines and what lies outside.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let more = self.more.iter().flat_map(|more| more.all());
        std::iter::once(&self.table).chain(more).map(Table::held_bytes).sum()
    }

    /// The summary that other threads read without the slot's lock. It is made twice for each change: what few slots
    /// have is asked about elsewhere, so that this stays some loads.
    #[inline(always)]
    pub(crate) fn summary(&self) -> Summary {
        let entries = &self.table.entries;
        if self.more.is_some() || self.is_hidden || entries.may_have_parts_due() {
            return self.whole_summary();
        }
        let (keys, volatile) = (entries.len() as u32, entries.volatile_len() as u32);
        Summary { keys, others: 0, volatile, timed: 0, due: entries.next_entry_due() }
    }

    #[cold]
    #[inline(never)]
    fn whole_summary(&self) -> Summary {
        if self.is_hidden {
            return Summary { keys: 0, others: 0, volatile: 0, timed: 0, due: page::NEVER };
        }
        let mut due = self.table.next_due().unwrap_or(page::NEVER);
        let (mut others, mut volatile) = (0, self.table.volatile_len());
        let mut timed = self.table.timed_len();
        if let Some(more) = &self.more {
            due = more.each().filter_map(Table::next_due).fold(due, Millis::min);
            others = more.each().map(Table::len).sum();
            volatile += more.each().map(Table::volatile_len).sum::<usize>();
            timed += more.each().map(Table::timed_len).sum::<usize>();
        }
        let (keys, others, volatile) = (self.table.len() as u32, others as u32, volatile as u32);
        Summary { keys, others, volatile, timed: timed as u32, due }
    }
}

/// The keys of a database that were taken out of a slot.
#[derive(Debug, Default)]
pub struct Taken {
    /// How many keys there were.
    pub keys: usize,
    /// The table that is to be dropped.
    pub table: Option<Table>,
}

/// A locked slot. Counts are published when it is unlocked.
#[derive(Debug)]
pub struct SlotGuard<'k> {
    pub(crate) data: MutexGuard<'k, SlotData>,
    pub(crate) published: &'k Published,
    pub(crate) slot: Slot,
    /// The summary that is published, if the slot may have changed since.
    pub(crate) last_published: Option<Summary>,
    /// The likely entry of the key for which the slot was touched ahead.
    pub(crate) likely: Option<Likely>,
}

impl SlotGuard<'_> {
    /// The slot that is locked.
    #[must_use]
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// Asks the processor for the entry of `key`, whose index line was asked for before.
    #[inline]
    pub(crate) fn touch_entry(&mut self, db: u16, key: &Key<'_>) {
        self.likely = Likely::touch(&self.data, db, key);
    }

    /// Looks `key` up in database `db`, and says when and how often it was used, if it is there.
    #[inline(always)]
    pub(crate) fn find(&self, db: u16, key: &Key<'_>, now: Millis) -> (Found, Usage) {
        let likely = self.likely.filter(|likely| likely.db == db);
        self.data.view(db).entries.find_likely(likely.map(|likely| likely.reference), key, now)
    }

    /// Whether the slot is not known to hold keys, and does.
    pub(crate) fn gets_first_key(&self) -> bool {
        self.last_published.is_some_and(|last| last.is_empty() && !self.data.summary().is_empty())
    }

    /// Publishes what changed, and only then writes, so that neither this core nor another has to fetch the
    /// lines for nothing.
    #[inline]
    pub(crate) fn publish(&mut self) {
        let Some(last_published) = self.last_published.take() else { return };
        if self.data.may_hold_unused() {
            self.data.release_unused();
        }
        let summary = self.data.summary();
        if summary != last_published {
            self.published.publish(self.slot, summary, last_published);
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
        self.likely = None;
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
    fn a_slot_with_its_lock_takes_two_lines() {
        assert_eq!(size_of::<parking_lot::Mutex<SlotData>>(), 128);
    }

    #[test]
    fn taking_what_was_never_used_makes_nothing() {
        let mut slot = SlotData::default();
        assert!((0..16).all(|db| slot.take(db).table.is_none()));
        assert!(slot.more.is_none());
    }

    #[test]
    fn last_keys_of_a_database_leave_nothing_behind() {
        let keyspace = crate::Keyspace::new(1, 16);
        let (key, now) = (keyspace.key(b"k"), Millis(0));
        let large = vec![b'x'; 100_000];
        let fill = |db, value: &[u8]| {
            keyspace.lock(key.slot()).table(db).insert(&key, crate::Packed::string(value), Some(Millis(5)));
        };
        let is_bare = || {
            let slot = keyspace.lock(key.slot());
            slot.more.is_none() && slot.table.entries.is_vacant()
        };
        for (db, value) in [(0, &b"v"[..]), (0, &large), (15, b"v"), (15, &large)] {
            fill(db, value);
            assert!(!is_bare());
            assert_eq!(keyspace.lock(key.slot()).databases().last(), Some(&db));
            let mut slot = keyspace.lock(key.slot());
            let Found::Live(place) = slot.view(db).find(&key, now) else { panic!("the key is there") };
            drop(slot.table(db).remove(place, &key));
            drop(slot);
            assert!(is_bare(), "after a deletion in {db}");
            fill(db, value);
            assert!(keyspace.lock(key.slot()).table(db).pop_due(Millis(5), &mut Vec::new()).is_some());
            assert!(is_bare(), "after expiry in {db}");
            fill(db, value);
            drop(keyspace.lock(key.slot()).take(db));
            assert!(is_bare(), "after a flush of {db}");
            fill(db, value);
            keyspace.lock(key.slot()).swap(db, 7);
            assert_eq!(keyspace.lock(key.slot()).databases()[..], [0, 7]);
            keyspace.lock(key.slot()).swap(0, 7);
            drop(keyspace.lock(key.slot()).take(0));
            assert!(is_bare(), "after exchanges of {db}");
        }
    }

    #[test]
    fn exchanging_two_databases_that_were_never_used_makes_nothing() {
        let mut slot = SlotData::default();
        slot.swap(0, 1);
        assert!(slot.more.is_none());
    }
}
