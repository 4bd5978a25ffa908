//! The keyspace: all slots and their locks.

use std::sync::atomic::Ordering;
use std::time::Duration;

use clock::Millis;
use parking_lot::{Mutex, MutexGuard};
use slot_routing::{SLOT_COUNT, Slot, SlotSet};
use smallvec::SmallVec;

use crate::global_lock::GlobalLock;
use crate::hashing;
use crate::key::Key;
use crate::locked_slots::LockedSlots;
use crate::memory::{ChunkArray, prefetch};
use crate::page;
use crate::prefetched::PrefetchedSlot;
use crate::published::PublishedSummaries;
use crate::slot::{SlotData, SlotGuard};
use crate::snapshot::ActiveSnapshots;
use crate::table::Table;

/// How many slots ahead the locks are prefetched while all slots are locked in order.
const PREFETCH_DISTANCE: usize = 16;
/// Time for which a thread that locks all slots may at first keep some of them locked while it waits for another slot.
const MAX_WAIT_WITH_SOME_SLOTS_LOCKED: Duration = Duration::from_millis(2);

/// Number of spin attempts before a waiting thread sleeps. They take about as long as a worker holds a slot for one
/// batch of commands.
const SPIN_ATTEMPTS: usize = 200;
/// Time after which a thread that waits for a slot releases all other slots.
const MAX_WAIT_WITH_LOCKS: Duration = Duration::from_millis(1);
/// Interval at which a thread that waits for a slot calls its wait policy.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Decides whether to keep waiting. It is called every two milliseconds with the time waited so far.
pub(crate) type WaitPolicy<'a> = &'a dyn Fn(Duration) -> bool;
/// Maximum number of keys that can be prefetched without a heap allocation.
const PREFETCH_BATCH: usize = 32;
pub(crate) type AllGuards<'k> = Vec<Option<MutexGuard<'k, SlotData>>>;

/// A slot with its lock, aligned so that it shares no cache line with another slot.
#[derive(Debug, Default)]
#[repr(align(128))]
struct AlignedSlot(Mutex<SlotData>);

/// Key counts of a database.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct DatabaseSize {
    /// Total number of keys.
    pub keys: usize,
    /// Number of keys with an expiry.
    pub volatile: usize,
    /// Number of keys whose values have expiring elements.
    pub keys_with_element_expiry: usize,
}

impl DatabaseSize {
    /// Adds the key counts of a table.
    pub fn add(&mut self, table: &Table) {
        self.keys += table.len();
        self.volatile += table.volatile_len();
        self.keys_with_element_expiry += table.keys_with_element_expiry();
    }
}

/// All data of a node: the slots, each with its own lock.
#[derive(Debug)]
pub struct Keyspace {
    slots: ChunkArray<AlignedSlot>,
    /// Slots that can contain keys, in ascending order.
    usable_slots: Box<[Slot]>,
    published_summaries: PublishedSummaries,
    pub(crate) active_snapshots: ActiveSnapshots,
    pub(crate) global_lock: Mutex<()>,
    database_count: u16,
}

impl Keyspace {
    /// Derives a hash seed from `text`. SCAN cursors are valid on all servers that use the same text.
    #[must_use]
    pub fn seed_from_text(text: &[u8]) -> u64 {
        hashing::seed_from_text(text)
    }

    /// Creates an empty keyspace with this many databases. `seed` makes hashes unpredictable; only the first keyspace
    /// created in a process sets it.
    #[must_use]
    pub fn new(seed: u64, databases: u16) -> Self {
        Self::with_slots(seed, databases, Slot::all().collect())
    }

    /// Like [`Self::new`], but loops over all slots visit only these slots. Keys of other slots must not be written.
    #[must_use]
    pub fn with_only_slots(seed: u64, databases: u16, slots: &SlotSet) -> Self {
        Self::with_slots(seed, databases, slots.iter().collect())
    }

    fn with_slots(seed: u64, databases: u16, usable_slots: Box<[Slot]>) -> Self {
        hashing::set_seed(seed);
        Self {
            slots: ChunkArray::default(),
            usable_slots,
            published_summaries: PublishedSummaries::default(),
            active_snapshots: ActiveSnapshots::default(),
            global_lock: Mutex::new(()),
            database_count: databases,
        }
    }

    /// Returns the slots that can contain keys, in ascending order: all slots, unless [`Self::with_only_slots`] was
    /// used.
    pub fn slots(&self) -> impl ExactSizeIterator<Item = Slot> + '_ {
        self.usable_slots.iter().copied()
    }

    /// Returns whether keys may be written to this slot.
    #[must_use]
    pub fn is_usable(&self, slot: Slot) -> bool {
        self.usable_slots.len() == SLOT_COUNT || self.usable_slots.binary_search(&slot).is_ok()
    }

    /// Creates an empty keyspace with the same databases and slots.
    #[must_use]
    pub fn empty_like(&self, seed: u64) -> Self {
        Self::with_slots(seed, self.database_count, self.usable_slots.clone())
    }

    /// Returns the number of databases.
    #[must_use]
    pub fn database_count(&self) -> u16 {
        self.database_count
    }

    /// Creates a key from its name, which is hashed once for all later lookups.
    #[must_use]
    #[inline]
    pub fn key<'a>(&self, bytes: &'a [u8]) -> Key<'a> {
        Key { bytes, slot: Slot::of_key(bytes), hash: hashing::hash_bytes(bytes) }
    }

    /// Like [`Self::key`], for callers that know the key's slot.
    #[must_use]
    #[inline]
    pub fn key_in_slot<'a>(&self, slot: Slot, bytes: &'a [u8]) -> Key<'a> {
        debug_assert_eq!(slot, Slot::of_key(bytes));
        Key { bytes, slot, hash: hashing::hash_bytes(bytes) }
    }

    /// Prefetches the lock and header of the key's slot (first pass over a batch).
    #[inline]
    pub fn prefetch_slot(&self, key: &Key<'_>) {
        let slot = &self.slots[key.slot.index()..];
        prefetch(slot.as_ptr());
        prefetch(slot.as_ptr().cast::<u8>().wrapping_add(64));
    }

    /// Prefetches the key's index line (second pass). Locks the slot; returns `None` if another thread holds it.
    #[inline]
    pub fn prefetch_index(&self, db: u16, key: &Key<'_>) -> Option<PrefetchedSlot<'_>> {
        let data = self.slots[key.slot.index()].0.try_lock()?;
        data.existing_table(db)?.entries.prefetch_index(key.hash);
        Some(PrefetchedSlot { data, probable_entry: None })
    }

    /// Runs the second and third prefetch pass over keys, and unlocks their slots again.
    pub fn prefetch_entries<'a>(&self, db: u16, keys: impl Iterator<Item = &'a Key<'a>>) {
        let touched = keys.filter_map(|key| Some((self.prefetch_index(db, key)?, key)));
        let touched: SmallVec<[(PrefetchedSlot<'_>, &Key<'_>); PREFETCH_BATCH]> = touched.collect();
        touched.into_iter().for_each(|(mut touched, key)| touched.prefetch_entry(db, key));
    }

    /// Hashes the name of an element, such as a hash field.
    #[must_use]
    #[inline]
    pub fn hash_element_name(&self, name: &[u8]) -> u64 {
        hashing::hash_bytes(name)
    }

    /// Locks one slot, waiting if necessary. The calling thread must hold no other slot (see [`Keyspace::lock_many`]).
    #[must_use]
    #[inline]
    pub fn lock(&self, slot: Slot) -> SlotGuard<'_> {
        self.try_lock(slot).unwrap_or_else(|| self.wait_for_slot(slot))
    }

    /// Spins before sleeping: a slot is held only for a few microseconds, and sleeping and waking up costs both threads
    /// more.
    #[cold]
    fn wait_for_slot(&self, slot: Slot) -> SlotGuard<'_> {
        let data = self.spin_for_slot(slot).unwrap_or_else(|| self.slots[slot.index()].0.lock());
        self.slot_guard(slot, data)
    }

    fn spin_for_slot(&self, slot: Slot) -> Option<MutexGuard<'_, SlotData>> {
        let lock = &self.slots[slot.index()].0;
        (0..SPIN_ATTEMPTS).find_map(|_| {
            std::hint::spin_loop();
            lock.try_lock()
        })
    }

    /// Locks all given slots. It never waits for a slot while holding another, so two callers cannot deadlock.
    #[must_use]
    pub fn lock_many(&self, slots: &[Slot]) -> LockedSlots<'_> {
        let mut locked = LockedSlots::default();
        locked.lock_while(self, slots, &|_| true);
        locked
    }

    /// Waits for a slot until `wait_policy` gives up.
    pub fn lock_slot_while(&self, slot: Slot, wait_policy: WaitPolicy<'_>) -> Option<SlotGuard<'_>> {
        self.try_lock(slot).or_else(|| Some(self.slot_guard(slot, self.lock_data_while(slot, wait_policy)?)))
    }

    fn lock_data_while(&self, slot: Slot, wait_policy: WaitPolicy<'_>) -> Option<MutexGuard<'_, SlotData>> {
        let spun = self.spin_for_slot(slot);
        let mut waited = Duration::ZERO;
        spun.or_else(|| {
            while wait_policy(waited) {
                if let Some(data) = self.slots[slot.index()].0.try_lock_for(POLL_INTERVAL) {
                    return Some(data);
                }
                waited += POLL_INTERVAL;
            }
            None
        })
    }

    /// Locks many slots without blocking other clients behind one busy slot: if a slot stays locked by another thread,
    /// this thread waits for it with all other slots released. `guards` has one element per slot. Returns whether all
    /// slots are locked; if not, the wait policy gave up. The caller holds the global lock and may hold other slots.
    pub(crate) fn lock_all_slots<'k, G>(
        &'k self,
        _global_lock: &GlobalLock<'_>,
        slots: &[Slot],
        guards: &mut [Option<G>],
        wait_policy: WaitPolicy<'_>,
        to_guard: impl Fn(Slot, MutexGuard<'k, SlotData>) -> G,
    ) -> bool {
        let mut awaited: SmallVec<[usize; 8]> = SmallVec::new();
        let mut patience = MAX_WAIT_WITH_SOME_SLOTS_LOCKED;
        loop {
            let busy = slots.iter().zip(&mut *guards).position(|(slot, held)| {
                if held.is_none() {
                    self.prefetch_lock(slot.index() + PREFETCH_DISTANCE);
                    *held = self.try_lock_briefly(*slot).map(|data| to_guard(*slot, data));
                }
                held.is_none()
            });
            let Some(busy) = busy else { return true };
            let others = guards.iter_mut().enumerate().filter(|(place, _)| !awaited.contains(place));
            others.for_each(|(_, held)| *held = None);
            // During the next wait, keep the slots for which this thread has already waited, or two busy slots could
            // alternate forever. The next slot may stay locked for long, so keep them only briefly, but longer after
            // each failure.
            let kept = |waited| waited < patience && wait_policy(waited);
            let mut data = if awaited.is_empty() { None } else { self.lock_data_while(slots[busy], &kept) };
            if data.is_none() {
                guards.iter_mut().for_each(|held| *held = None);
                if !std::mem::take(&mut awaited).is_empty() {
                    patience *= 2;
                }
                data = self.lock_data_while(slots[busy], wait_policy);
            }
            let Some(data) = data else { return false };
            guards[busy] = Some(to_guard(slots[busy], data));
            awaited.push(busy);
        }
    }

    fn try_lock_briefly(&self, slot: Slot) -> Option<MutexGuard<'_, SlotData>> {
        let lock = &self.slots[slot.index()].0;
        lock.try_lock()
            .or_else(|| self.spin_for_slot(slot))
            .or_else(|| lock.try_lock_for(MAX_WAIT_WITH_LOCKS))
    }

    /// Prepares for locking all slots: allocates the guards and prefetches the cache lines of the locks, because
    /// fetching them from other cores takes longer than locking.
    pub(crate) fn prepare_to_lock_all(&self) -> AllGuards<'_> {
        for slot in self.slots() {
            self.prefetch_lock(slot.index() + PREFETCH_DISTANCE);
            drop(self.slots[slot.index()].0.try_lock());
        }
        self.slots().map(|_| None).collect()
    }

    /// Calls `while_locked` while all slots are locked. Of each slot, only the cache line with the lock is touched.
    pub(crate) fn with_all_locked<'k, R>(
        &'k self,
        global_lock: &GlobalLock<'_>,
        mut guards: AllGuards<'k>,
        while_locked: impl FnOnce() -> R,
    ) -> R {
        self.lock_all_slots(global_lock, &self.usable_slots, &mut guards, &|_| true, |_, data| data);
        let outcome = while_locked();
        guards.iter_mut().for_each(|guard| *guard = None);
        outcome
    }

    fn prefetch_lock(&self, number: usize) {
        if let Some(slot) = self.slots.get(number) {
            prefetch(slot);
        }
    }

    /// Locks a slot; returns `None` if another thread holds it.
    #[must_use]
    pub fn try_lock(&self, slot: Slot) -> Option<SlotGuard<'_>> {
        self.slots[slot.index()].0.try_lock().map(|data| self.slot_guard(slot, data))
    }

    /// Unlocks the slot for waiting threads and locks it again. Long operations on a slot must call this regularly,
    /// because after a plain unlock and lock this thread would nearly always get the slot before a waiting thread.
    pub(crate) fn yield_to_waiters(&self, guard: &mut SlotGuard<'_>) {
        guard.publish();
        MutexGuard::bump(&mut guard.data);
        self.active_snapshots.pin_for_missed_snapshots(guard.slot, &mut guard.data);
        guard.probable_entry = None;
    }

    #[inline]
    pub(crate) fn slot_guard<'k>(&'k self, slot: Slot, data: MutexGuard<'k, SlotData>) -> SlotGuard<'k> {
        self.guard_from_prefetched(slot, PrefetchedSlot { data, probable_entry: None })
    }

    #[inline(always)]
    pub(crate) fn guard_from_prefetched<'k>(
        &'k self,
        slot: Slot,
        prefetched: PrefetchedSlot<'k>,
    ) -> SlotGuard<'k> {
        let PrefetchedSlot { mut data, probable_entry: likely } = prefetched;
        self.active_snapshots.pin_for_missed_snapshots(slot, &mut data);
        SlotGuard {
            data,
            summaries: &self.published_summaries,
            slot,
            last_published: None,
            probable_entry: likely,
        }
    }

    /// Returns the number of keys of database 0 in `slot`, as published when the slot was last unlocked.
    #[must_use]
    pub fn slot_len(&self, slot: Slot) -> usize {
        self.published_summaries.keys[slot.index()].load(Ordering::Relaxed) as usize
    }

    /// Returns the number of keys in all databases, as published when each slot was last unlocked.
    #[must_use]
    pub fn key_count(&self) -> usize {
        self.non_empty_slots().map(|slot| self.keys_in_slot(slot)).sum()
    }

    /// Returns the slots that contain visible keys, in ascending order, as published when each slot was last unlocked.
    pub fn non_empty_slots(&self) -> impl Iterator<Item = Slot> + '_ {
        self.published_summaries.non_empty_slots.iter()
    }

    /// Returns how often a slot has become empty or non-empty, as published when slots were last unlocked.
    #[must_use]
    pub fn non_empty_change_count(&self) -> u64 {
        self.published_summaries.non_empty_slots.change_count()
    }

    /// Returns the number of keys of `slot` in all databases, as published when the slot was last unlocked.
    #[must_use]
    pub fn keys_in_slot(&self, slot: Slot) -> usize {
        self.slot_len(slot)
            + self.published_summaries.other_database_keys[slot.index()].load(Ordering::Relaxed) as usize
    }

    /// Returns the number of keys of `slot` with an expiry, in all databases.
    #[must_use]
    pub fn volatile_keys_in_slot(&self, slot: Slot) -> usize {
        self.published_summaries.volatile[slot.index()].load(Ordering::Relaxed) as usize
    }

    /// Returns the number of keys of database `db` in `slot`.
    #[must_use]
    pub fn len_in_slot(&self, db: u16, slot: Slot) -> usize {
        if db == 0 {
            return self.slot_len(slot);
        }
        if !self.has_other_databases(slot) {
            0
        } else {
            self.lock(slot).existing_table(db).map_or(0, Table::len)
        }
    }

    /// Returns whether databases other than 0 have keys in `slot`, as published when the slot was last unlocked.
    #[must_use]
    pub fn has_other_databases(&self, slot: Slot) -> bool {
        self.published_summaries.other_database_keys[slot.index()].load(Ordering::Relaxed) > 0
    }

    /// Returns the number of keys of database `db`.
    #[must_use]
    pub fn len(&self, db: u16) -> usize {
        self.non_empty_slots().map(|slot| self.len_in_slot(db, slot)).sum()
    }

    /// Returns the key counts of each database. Other threads may write while the slots are counted one after another.
    /// A slot is locked only if databases other than 0 have keys in it.
    #[must_use]
    pub fn sizes(&self) -> Vec<DatabaseSize> {
        let mut sizes = vec![DatabaseSize::default(); usize::from(self.database_count())];
        for slot in self.non_empty_slots() {
            if self.has_other_databases(slot) {
                for (db, table) in self.lock(slot).tables() {
                    sizes[usize::from(db)].add(table);
                }
            } else {
                sizes[0].keys += self.slot_len(slot);
                sizes[0].volatile += self.volatile_keys_in_slot(slot);
            }
        }
        let others: usize = sizes[1..].iter().map(|size| size.keys_with_element_expiry).sum();
        sizes[0].keys_with_element_expiry =
            self.published_summaries.keys_with_element_expiry.load(Ordering::Relaxed).saturating_sub(others);
        sizes
    }

    /// Returns whether database `db` has no keys.
    #[must_use]
    pub fn is_empty(&self, db: u16) -> bool {
        self.len(db) == 0
    }

    /// Returns the slots that may contain an expired key. Locks no slot, and is fast while no key can have expired.
    #[must_use]
    pub fn slots_with_expiries_due(&self, now: Millis) -> Vec<Slot> {
        if self.published_summaries.next_expiry() > now {
            Vec::new()
        } else {
            self.published_summaries.slots_with_expiries_due(now)
        }
    }

    /// Returns a lower bound of the time at which the next key expires; `None` if no key expires.
    /// [`Keyspace::slots_with_expiries_due`] makes the bound exact.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Millis> {
        Some(self.published_summaries.next_expiry()).filter(|next| *next != page::NO_EXPIRY)
    }

    /// Registers `notify`, which is called whenever a key gets an expiry earlier than [`Keyspace::next_expiry`], while the
    /// key's slot is locked.
    ///
    /// # Panics
    /// If called twice.
    pub fn on_earlier_expiry(&self, notify: impl Fn() + Send + Sync + 'static) {
        self.published_summaries.on_earlier_expiry(Box::new(notify));
    }
}

const _: () = assert!(SLOT_COUNT <= u16::MAX as usize && ChunkArray::<AlignedSlot>::LEN == SLOT_COUNT);
