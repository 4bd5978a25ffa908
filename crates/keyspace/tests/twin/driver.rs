//! Applies random operations to the keyspace and to a reference model, and compares them.

use std::sync::Arc;

use clock::Millis;
use keyspace::{
    DatabaseSize, EncodingHint, EncodingLimits, EntryRef, KeyLookup, Keyspace, Kind, ListpackBounds,
    LockedSlots, PackedBuilder, PackedValue, PinnedMembers, SetBounds, Snapshot, SnapshotEntry,
    SnapshotValue, Table,
};
use slot_routing::Slot;

use super::choices::RandomChoices;
use super::model::{Entry, EntryData, Fields, ReferenceModel, Scan};

/// The size of a test run: its steps, keys and elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TestLimits {
    pub(crate) slots: u64,
    /// Number of distinct keys per slot.
    pub(crate) keys: u64,
    pub(crate) max_len: u64,
    /// Maximum number of distinct fields per hash.
    pub(crate) fields: u64,
    pub(crate) steps: u64,
}

impl TestLimits {
    /// Returns the slots that the run uses.
    fn slots(self) -> impl Iterator<Item = Slot> {
        (0..self.slots).map(|slot| Slot::of_key(format!("{slot}").as_bytes()))
    }
}

const DATABASES: u16 = 2;

mod fields;
mod items;
mod members;
mod scored;
mod streamed;

pub(crate) struct TestDriver {
    limits: TestLimits,
    choices: RandomChoices,
    keyspace: Arc<Keyspace>,
    model: ReferenceModel,
    now: Millis,
    scans: Vec<Scan>,
    snapshots: Vec<TestSnapshot>,
    pinned_members: Vec<(PinnedMembers, ExpectedMembers)>,
    /// Whether the run currently adds more keys than it removes.
    is_growing: bool,
}

/// The expected members of a sorted set, in order.
type ExpectedMembers = Vec<(f64, Vec<u8>)>;

/// A snapshot, the keys that it still has to visit, and the slot that it is visiting.
struct TestSnapshot {
    snapshot: Snapshot,
    model: ReferenceModel,
    walk_position: Option<(Slot, SnapshotProgress)>,
    /// Whether the snapshot pins a single value.
    pins_one_value: bool,
}

/// The keys of one slot that a snapshot has visited so far.
#[derive(Default)]
struct SnapshotProgress {
    model: ReferenceModel,
    /// The large value that was visited last, and how many of its elements have not been visited.
    open_parts: Option<((u16, Vec<u8>), usize)>,
}

impl TestDriver {
    /// Creates a run. `seed` determines the hashes, and `choices` all operations.
    pub(crate) fn new(seed: u64, choices: RandomChoices, limits: TestLimits) -> Self {
        let keyspace = Arc::new(Keyspace::new(seed, DATABASES));
        Self {
            limits,
            choices,
            keyspace,
            model: ReferenceModel::new(),
            now: Millis(1_000),
            scans: Vec::new(),
            snapshots: Vec::new(),
            pinned_members: Vec::new(),
            is_growing: true,
        }
    }

    fn random(&mut self, bound: u64) -> u64 {
        self.choices.below(bound)
    }

    /// Runs all steps, or stops when the choices are used up, and then compares everything.
    pub(crate) fn run(mut self) {
        for step in 0..self.limits.steps {
            if self.choices.are_exhausted() {
                break;
            }
            self.random_step(step);
        }
        self.run_to_end();
    }

    fn random_key_name(&mut self) -> (u16, Vec<u8>) {
        let (slot, key) = (self.random(self.limits.slots), self.random(self.limits.keys));
        let mut bytes = format!("{{{slot}}}{key}").into_bytes();
        if key % 50 == 49 {
            bytes.resize(400 + key as usize % 300, b'.');
        }
        (u16::from(self.random(8) == 0), bytes)
    }

    fn random_value(&mut self) -> Vec<u8> {
        let longest = if self.random(4) == 0 { self.limits.max_len } else { 20.min(self.limits.max_len) };
        let (len, fill) = (self.random(longest + 1), self.random(256));
        vec![fill as u8; len as usize]
    }

    /// Returns a random expiry, which may be too large for six bytes.
    fn random_expiry(&mut self) -> Option<Millis> {
        let far = if self.random(40) == 0 { i64::MAX / 2 } else { 0 };
        (self.random(3) == 0).then(|| Millis(self.now.0 + far + 1 + self.random(3000) as i64))
    }

    fn random_step(&mut self, step: u64) {
        if step.is_multiple_of(self.limits.keys * 4) {
            self.is_growing = self.random(2) == 0 || step == 0;
        }
        match self.random(100) {
            0..12 if self.is_growing => self.set(),
            12..14 if self.is_growing => self.stream_add(),
            14..18 if self.is_growing => self.list_push(),
            18..24 if self.is_growing => self.set_add(),
            24..32 if self.is_growing => self.set_score(),
            32..40 if self.is_growing => self.hash_set(),
            0..5 => self.set(),
            5..6 => self.stream_add(),
            6..7 => self.list_push(),
            7..8 => self.set_add(),
            8..10 => self.set_score(),
            10..12 => self.hash_set(),
            12..24 => self.delete(),
            24..26 => self.list_remove(),
            26..27 => self.stream_remove(),
            27..32 => self.set_remove(),
            32..35 => self.remove_member(),
            35..40 => self.hash_remove(),
            40..46 => self.overwrite_with_same_size(),
            46..48 => self.rename(),
            48..53 => self.set_field_expiry(),
            53..58 => self.edit(),
            58..68 => self.set_expiry(),
            68..80 => self.check(),
            80..84 => self.expire(),
            84..90 if self.scans.len() < 3 && self.random(4) == 0 => self.begin_scan(),
            84..90 => self.scan(),
            90..92 => self.random_key(),
            92..93 if self.random(2) == 0 => self.take_snapshot(),
            92..93 if self.random(2) == 0 => self.pin_value(),
            92..93 => self.pin_members(),
            93..94 => self.read_members(),
            94..98 => self.walk(),
            98..99 => self.drop_snapshot(),
            _ => self.flush_or_swap(),
        }
        if step % 500 == 499 {
            self.check_counts();
        }
    }

    /// Finishes all snapshots and scans, and compares everything.
    fn run_to_end(mut self) {
        while !self.snapshots.is_empty() {
            self.walk();
        }
        while !self.pinned_members.is_empty() {
            self.read_members();
        }
        while !self.scans.is_empty() {
            self.scan();
        }
        self.check_counts();
        for ((db, key), _) in self.model.clone() {
            self.compare_key(db, &key);
        }
        for slot in self.limits.slots() {
            assert_eq!(self.keyspace.lock(slot).snapshot_only_bytes(), 0, "nothing is kept for nobody");
        }
    }

    fn compare_key(&mut self, db: u16, bytes: &[u8]) {
        let key = self.keyspace.key(bytes);
        self.keyspace.prefetch_slot(&key);
        let mut touched = self.keyspace.prefetch_index(db, &key);
        touched.iter_mut().for_each(|touched| touched.prefetch_entry(db, &key));
        let mut locked = LockedSlots::default();
        assert!(locked.try_lock_only(&self.keyspace, key.slot(), touched), "nobody else has it");
        let (found, usage) = locked.find(db, &key, self.now);
        let table = locked.slot_mut(key.slot()).table(db);
        // A prefetched lookup must agree with a plain one.
        assert_eq!((found, usage), table.find_with_usage(&key, self.now));
        let expected = self.model.get(&(db, bytes.to_vec()));
        match (found, expected) {
            (KeyLookup::Missing, None) => {}
            (KeyLookup::Live(place) | KeyLookup::Expired(place), Some(expected)) => {
                let entry = Entry::from_value(table.value(place), table.expiry(place));
                assert_eq!(&entry, expected);
                let past = expected.expiry.is_some_and(|expiry| expiry <= self.now);
                assert_eq!(past, matches!(found, KeyLookup::Expired(_)));
            }
            (found, expected) => panic!("found {found:?}, expected {expected:?}"),
        }
    }

    fn check(&mut self) {
        let (db, key) = self.random_key_name();
        self.compare_key(db, &key);
    }

    /// Calls `work` with the key's table and, if the key exists, its entry.
    fn with_key<R>(
        &self,
        db: u16,
        bytes: &[u8],
        work: impl FnOnce(&mut Table, &keyspace::Key<'_>, Option<EntryRef>) -> R,
    ) -> R {
        let key = self.keyspace.key(bytes);
        let mut guard = self.keyspace.lock(key.slot());
        let table = guard.table(db);
        let place = match table.find(&key, self.now) {
            KeyLookup::Missing => None,
            KeyLookup::Live(place) | KeyLookup::Expired(place) => Some(place),
        };
        work(table, &key, place)
    }

    /// Renames a key, possibly to another slot or database.
    fn rename(&mut self) {
        let ((from_db, from), (to_db, to)) = (self.random_key_name(), self.random_key_name());
        let source = (from_db, from.clone());
        let Some(entry) = self.model.get(&source).cloned() else { return };
        if self.model.contains_key(&(to_db, to.clone())) {
            return;
        }
        let detached =
            self.with_key(from_db, &from, |table, key, place| table.detach(place.expect("there"), key));
        let read = self.with_key(to_db, &to, |table, key, _| {
            let place = table.attach(key, detached, entry.expiry);
            Entry::from_value(table.value(place), table.expiry(place))
        });
        assert_eq!(read, entry);
        self.record_removed_key(from_db, &from);
        self.record_added_key(to_db, &to, entry);
    }

    fn record_added_key(&mut self, db: u16, bytes: &[u8], entry: Entry) {
        self.model.insert((db, bytes.to_vec()), entry);
    }

    fn record_removed_key(&mut self, db: u16, bytes: &[u8]) {
        self.model.remove(&(db, bytes.to_vec()));
        for scan in self.scans.iter_mut().filter(|scan| scan.db == db) {
            scan.present_throughout.remove(bytes);
        }
    }

    fn store_entry(&mut self, db: u16, bytes: &[u8], entry: Entry) {
        let key = self.keyspace.key(bytes);
        let mut guard = self.keyspace.lock(key.slot());
        let table = guard.table(db);
        let mut builder = PackedBuilder::new(entry.data.kind());
        let value = match &entry.data {
            EntryData::String(bytes, encoding_hint) => PackedValue::string_with_hint(bytes, *encoding_hint),
            EntryData::List(items) => {
                items.iter().for_each(|item| builder.push_item(item));
                builder.choose_encoding(&EncodingLimits { list: items::LIMIT, ..EncodingLimits::default() });
                builder.packed()
            }
            EntryData::Set(members, name) => {
                members.iter().for_each(|member| assert!(builder.push_member(member)));
                // With unlimited bounds a set has a compact encoding, so `hashtable` requires a bound that is exceeded.
                let entries = if *name == "hashtable" { 0 } else { usize::MAX };
                let listpack = ListpackBounds { max_entries: entries, max_value_len: usize::MAX };
                let intset = if *name == "intset" { usize::MAX } else { 0 };
                builder.choose_encoding(&EncodingLimits {
                    set: SetBounds { max_intset_entries: intset, listpack },
                    ..EncodingLimits::default()
                });
                builder.packed()
            }
            EntryData::SortedSet(members, named) => {
                members
                    .iter()
                    .for_each(|(name, bits)| builder.push_scored_member(name, f64::from_bits(*bits)));
                builder.sort_scored_members();
                if *named {
                    let sorted_set = ListpackBounds { max_entries: 0, max_value_len: 0 };
                    builder.choose_encoding(&EncodingLimits { sorted_set, ..EncodingLimits::default() });
                }
                builder.packed()
            }
            EntryData::Stream(_) => panic!("streams are changed where they are"),
            EntryData::Hash(fields, named) => {
                fields.iter().for_each(|(name, (value, expiry))| builder.push_field(name, value, *expiry));
                if *named {
                    let hash = ListpackBounds { max_entries: 0, max_value_len: 0 };
                    builder.choose_encoding(&EncodingLimits { hash, ..EncodingLimits::default() });
                }
                builder.packed()
            }
        };
        let place = match table.find(&key, self.now) {
            KeyLookup::Missing => table.insert(&key, value, entry.expiry),
            KeyLookup::Live(place) | KeyLookup::Expired(place) => {
                table.replace(place, &key, value, entry.expiry).0
            }
        };
        assert_eq!(Entry::from_value(table.value(place), table.expiry(place)), entry);
        drop(guard);
        self.record_added_key(db, bytes, entry);
    }

    fn set(&mut self) {
        let (db, key) = self.random_key_name();
        let encoding_hint = match self.random(9) {
            0 => EncodingHint::Raw,
            1 => EncodingHint::NeverInt,
            _ => EncodingHint::ByContent,
        };
        let entry = Entry::string(self.random_value(), encoding_hint, self.random_expiry());
        self.store_entry(db, &key, entry);
    }

    fn overwrite_with_same_size(&mut self) {
        let (db, key) = self.random_key_name();
        if let Some(mut entry) = self.model.get(&(db, key.clone())).cloned() {
            let fill = self.random(256) as u8;
            match &mut entry.data {
                EntryData::String(bytes, _) => bytes.fill(fill),
                EntryData::List(items) => items.iter_mut().for_each(|item| item.fill(fill)),
                EntryData::Set(members, name) if *name != "intset" => {
                    *members = members.iter().map(|member| [member, &b"x"[..]].concat()).collect();
                }
                EntryData::Set(..) => {}
                EntryData::SortedSet(members, _) => {
                    members.values_mut().for_each(|bits| *bits = f64::from(fill).to_bits());
                }
                EntryData::Hash(fields, _) => fields.values_mut().for_each(|(value, _)| value.fill(fill)),
                EntryData::Stream(_) => return,
            }
            self.store_entry(db, &key, entry);
        }
    }

    fn edit(&mut self) {
        let (db, bytes) = self.random_key_name();
        let len = self.random(self.limits.max_len + 1) as usize;
        let mark = self.random(256) as u8;
        let Some(mut entry) = self.model.get(&(db, bytes.clone())).cloned() else { return };
        let EntryData::String(twin, encoding_hint) = &mut entry.data else { return };
        let key = self.keyspace.key(&bytes);
        let mut guard = self.keyspace.lock(key.slot());
        let table = guard.table(db);
        let (KeyLookup::Live(place) | KeyLookup::Expired(place)) = table.find(&key, self.now) else {
            panic!("missing")
        };
        let (_, edited) = table.edit_string(place, &key, len, EncodingHint::Raw);
        twin.resize(len, 0);
        *encoding_hint = EncodingHint::Raw;
        assert_eq!(edited, twin);
        if let (Some(byte), Some(twin)) = (edited.last_mut(), twin.last_mut()) {
            (*byte, *twin) = (mark, mark);
        }
        drop(guard);
        self.record_added_key(db, &bytes, entry);
    }

    fn set_expiry(&mut self) {
        let (db, bytes) = self.random_key_name();
        let expiry = self.random_expiry();
        let Some(mut entry) = self.model.get(&(db, bytes.clone())).cloned() else { return };
        let key = self.keyspace.key(&bytes);
        let mut guard = self.keyspace.lock(key.slot());
        let table = guard.table(db);
        let (KeyLookup::Live(place) | KeyLookup::Expired(place)) = table.find(&key, self.now) else {
            panic!("missing")
        };
        let place = table.set_expiry(place, &key, expiry);
        assert_eq!(table.expiry(place), expiry);
        drop(guard);
        entry.expiry = expiry;
        self.record_added_key(db, &bytes, entry);
    }

    fn delete(&mut self) {
        let (db, bytes) = self.random_key_name();
        self.delete_key(db, &bytes);
    }

    fn delete_key(&mut self, db: u16, bytes: &[u8]) {
        let evicts = self.random(3) == 0;
        let key = self.keyspace.key(bytes);
        let mut guard = self.keyspace.lock(key.slot());
        let table = guard.table(db);
        let found = table.find(&key, self.now);
        assert_eq!(found == KeyLookup::Missing, !self.model.contains_key(&(db, bytes.to_vec())));
        if let KeyLookup::Live(place) | KeyLookup::Expired(place) = found {
            drop(if evicts { table.evict(place, &key) } else { table.remove(place, &key) });
            assert_eq!(table.find(&key, self.now), KeyLookup::Missing);
        }
        drop(guard);
        self.record_removed_key(db, bytes);
    }

    fn expire(&mut self) {
        self.now = Millis(self.now.0 + self.random(500) as i64);
        let slots = self.keyspace.slots_with_expiries_due(self.now);
        let mut key = Vec::new();
        for slot in slots {
            for db in 0..DATABASES {
                while self.keyspace.lock(slot).table(db).remove_expired(self.now, &mut key).is_some() {
                    let entry = self.model.get(&(db, key.clone())).expect("what expires was there");
                    assert!(entry.expiry.is_some_and(|expiry| expiry <= self.now));
                    let key = key.clone();
                    self.record_removed_key(db, &key);
                }
            }
        }
        self.expire_fields();
        let late = self.model.values().filter(|entry| entry.expiry.is_some_and(|expiry| expiry <= self.now));
        assert_eq!(late.count(), 0, "what is due was popped");
    }

    fn begin_scan(&mut self) {
        let (db, key) = self.random_key_name();
        let slot = Slot::of_key(&key);
        let here = self.model.keys().filter(|(of, key)| *of == db && Slot::of_key(key) == slot);
        let stayed = here.map(|(_, key)| key.clone()).collect();
        self.scans.push(Scan {
            db,
            slot,
            position: 0,
            present_throughout: stayed,
            scanned: Default::default(),
        });
    }

    fn scan(&mut self) {
        let (count, which) = (self.random(20), self.random(3) as usize);
        let Some(which) = which.checked_rem(self.scans.len()) else { return };
        let scan = &mut self.scans[which];
        let mut guard = self.keyspace.lock(scan.slot);
        let next = guard.table(scan.db).scan(scan.position, count as usize, &mut |item| {
            scan.scanned.insert(item.key.to_vec());
        });
        match next {
            Some(next) => {
                assert!(next > scan.position && next & 0xffff == 0);
                scan.position = next;
            }
            None => {
                let missed: Vec<_> = scan.present_throughout.difference(&scan.scanned).collect();
                assert!(missed.is_empty(), "the scan missed {missed:?}");
                drop(guard);
                self.scans.swap_remove(which);
            }
        }
    }

    fn random_key(&mut self) {
        let random = (self.random(u64::from(u32::MAX)) << 32) | self.random(u64::from(u32::MAX));
        let slot = Slot::of_key(&self.random_key_name().1);
        let mut guard = self.keyspace.lock(slot);
        let found = guard.table(0).random_key(random);
        let there = self.model.keys().any(|(db, key)| *db == 0 && Slot::of_key(key) == slot);
        assert_eq!(found.is_some(), there);
        assert!(found.is_none_or(|item| self.model.contains_key(&(0, item.key.to_vec()))));
        let volatile =
            guard.table(0).random_volatile_key(random).map(|item| (item.key.to_vec(), item.expiry));
        let expires = |((db, key), entry): (&(u16, Vec<u8>), &Entry)| {
            *db == 0 && Slot::of_key(key) == slot && entry.expiry.is_some()
        };
        assert_eq!(volatile.is_some(), self.model.iter().any(expires));
        if let Some((key, expiry)) = volatile {
            assert_eq!(self.model.get(&(0, key)).map(|entry| entry.expiry), Some(expiry));
        }
    }

    /// Returns the number of snapshot bits in use.
    fn pin_count(&self) -> usize {
        self.snapshots.len() + self.pinned_members.len()
    }

    fn take_snapshot(&mut self) {
        let reads =
            self.snapshots.iter().any(|pinned| pinned.pins_one_value) || !self.pinned_members.is_empty();
        if self.pin_count() == 3 && reads {
            // Taking a snapshot now would wait forever.
            return;
        }
        match self.keyspace.prepare_snapshot().take(&self.keyspace.acquire_global_lock(), || 7) {
            Some((snapshot, noted)) => {
                assert_eq!(noted, 7);
                let model = self.model.clone();
                self.snapshots.push(TestSnapshot {
                    snapshot,
                    model,
                    walk_position: None,
                    pins_one_value: false,
                });
            }
            None => assert_eq!(self.pin_count(), 3),
        }
    }

    /// Takes a snapshot of one value, if it is large.
    fn pin_value(&mut self) {
        let (db, name) = self.random_key_name();
        let key = self.keyspace.key(&name);
        let mut slots = self.keyspace.lock_many(&[key.slot()]);
        let (KeyLookup::Live(place) | KeyLookup::Expired(place)) = slots.find(db, &key, self.now).0 else {
            return;
        };
        if let Some(snapshot) = self.keyspace.pin_values(&mut slots, db, &[(key.slot(), place)]) {
            let model = ReferenceModel::from_iter([((db, name.clone()), self.model[&(db, name)].clone())]);
            self.snapshots.push(TestSnapshot { snapshot, model, walk_position: None, pins_one_value: true });
        }
    }

    /// Visits a part of a slot for a snapshot, or everything that the snapshot has not visited.
    fn walk(&mut self) {
        let Some(which) = (self.random(3) as usize).checked_rem(self.snapshots.len()) else { return };
        if self.random(3) > 0 {
            let slot = Slot::of_key(&self.random_key_name().1);
            self.snapshots[which].walk_part(slot);
            return;
        }
        let mut pinned = self.snapshots.swap_remove(which);
        let names_only = !pinned.pins_one_value && self.random(2) == 0;
        for slot in self.limits.slots() {
            while pinned.walk_position.is_some() {
                pinned.walk_part(slot);
            }
            if names_only {
                pinned.walk_names(slot);
            } else {
                while pinned.walk_part(slot) {}
            }
        }
        assert!(pinned.model.is_empty(), "the snapshot has everything");
    }

    fn drop_snapshot(&mut self) {
        if let Some(which) = (self.random(9) as usize).checked_rem(self.snapshots.len().max(3))
            && which < self.snapshots.len()
        {
            self.snapshots.swap_remove(which);
        }
    }

    fn flush_or_swap(&mut self) {
        let slots: Vec<Slot> = self.limits.slots().collect();
        match self.random(40) {
            0 => {
                let db = self.random(2) as u16;
                for slot in slots {
                    drop(self.keyspace.lock(slot).take_database(db));
                }
                self.model.retain(|(of, _), _| *of != db);
                self.scans.clear();
            }
            1 => {
                for slot in slots {
                    self.keyspace.lock(slot).swap_databases(0, 1);
                }
                let swapped = std::mem::take(&mut self.model).into_iter();
                self.model = swapped.map(|((db, key), entry)| ((1 - db, key), entry)).collect();
                self.scans.clear();
            }
            2..8 => {
                let step = slots[0].index() / (16384 / Keyspace::PURGE_STEPS);
                self.keyspace.purge_step(step);
            }
            _ => self.check(),
        }
    }

    fn check_counts(&self) {
        let mut sizes = vec![DatabaseSize::default(); usize::from(DATABASES)];
        for ((db, _), entry) in &self.model {
            let size = &mut sizes[usize::from(*db)];
            size.keys += 1;
            size.volatile += usize::from(entry.expiry.is_some());
            let EntryData::Hash(fields, _) = &entry.data else { continue };
            size.keys_with_element_expiry += usize::from(fields.values().any(|(_, expiry)| expiry.is_some()));
        }
        assert_eq!(self.keyspace.sizes(), sizes);
        let published = Slot::all()
            .map(|slot| (self.keyspace.keys_in_slot(slot), self.keyspace.volatile_keys_in_slot(slot)));
        let published = published.fold((0, 0), |(keys, volatile), slot| (keys + slot.0, volatile + slot.1));
        let all = sizes.iter().fold((0, 0), |sum, db| (sum.0 + db.keys, sum.1 + db.volatile));
        assert_eq!(published, all, "what is read without locks");
        for (db, size) in (0..DATABASES).zip(sizes) {
            assert_eq!(self.keyspace.len(db), size.keys);
        }
    }
}

impl TestSnapshot {
    /// Visits the names of the remaining keys of the slot.
    fn walk_names(&mut self, slot: Slot) {
        self.snapshot.walk_names(slot, |db, key, expiry| {
            let known = self.model.remove(&(db, key.to_vec()));
            assert_eq!(
                known.map(|entry| entry.expiry),
                Some(expiry),
                "a name is visited once, if it was there"
            );
        });
        assert!(!self.model.keys().any(|(_, key)| Slot::of_key(key) == slot));
    }

    /// Visits a part of the slot that the snapshot is in, or of `slot`. Returns whether more remains.
    fn walk_part(&mut self, slot: Slot) -> bool {
        let (slot, mut walked) =
            self.walk_position.take().unwrap_or_else(|| (slot, SnapshotProgress::default()));
        if self.snapshot.walk_part(slot, &mut |entry| walked.record_piece(entry)) {
            self.walk_position = Some((slot, walked));
            return true;
        }
        walked.finish_piece();
        let model = walked.model;
        if model.is_empty() {
            // The slot was empty when the snapshot was taken or has been visited, so the model must have no keys of it
            // either.
            assert!(!self.model.keys().any(|(_, key)| Slot::of_key(key) == slot));
            return false;
        }
        let (here, elsewhere) =
            std::mem::take(&mut self.model).into_iter().partition(|((_, key), _)| Slot::of_key(key) == slot);
        self.model = elsewhere;
        assert_eq!(model, here, "a snapshot is exactly what was there at its cut");
        false
    }
}

impl SnapshotProgress {
    fn record_piece(&mut self, entry: SnapshotEntry<'_>) {
        let key = (entry.db, entry.key.to_vec());
        let part = match entry.value {
            SnapshotValue::Part(part) => part,
            SnapshotValue::Whole(value) => {
                self.finish_piece();
                let before = self.model.insert(key, Entry::from_value(value, entry.expiry));
                assert_eq!(before, None, "a key is visited once");
                return;
            }
        };
        if part.is_first {
            self.finish_piece();
            self.open_parts = Some((key.clone(), part.total_elements));
        }
        let (open, left) = self.open_parts.as_mut().expect("the first part comes first");
        assert_eq!(*open, key, "nothing comes between the parts of a value");
        let known = self.model.entry(key).or_insert_with(|| Entry::empty(part.elements, entry.expiry));
        *left -= known.data.add(part.elements);
    }

    /// Checks that the large value visited last was visited completely.
    fn finish_piece(&mut self) {
        let open = self.open_parts.take();
        assert!(open.is_none_or(|(_, left)| left == 0), "the parts add up");
    }
}
