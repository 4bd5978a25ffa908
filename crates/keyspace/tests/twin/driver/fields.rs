//! Operations on hashes.

use std::collections::BTreeSet;

use keyspace::Field;

use super::*;

const LIMITS: ListpackBounds = ListpackBounds { max_entries: 20, max_value_len: 30 };

impl TestDriver {
    fn random_field(&mut self) -> Vec<u8> {
        let fields = [3, 30, self.limits.fields][self.random(3) as usize];
        format!("f{}", self.random(fields)).into_bytes()
    }

    /// Sets some fields of a new or existing hash.
    pub(super) fn hash_set(&mut self) {
        let (db, bytes) = self.random_key_name();
        let id = (db, bytes.clone());
        let old = self.model.get(&id).cloned();
        if old.as_ref().is_some_and(|entry| !matches!(entry.data, EntryData::Hash(..))) {
            return self.delete_key(db, &bytes);
        }
        let mut entry = old.unwrap_or(Entry { data: EntryData::Hash(Fields::new(), false), expiry: None });
        if self.random(3) == 0 {
            return self.hash_set_all(db, &bytes, entry);
        }
        let times = if self.random(10) == 0 { self.limits.fields } else { 1 + self.random(3) };
        for _ in 0..times {
            let (name, mut value) = (self.random_field(), self.random_value());
            let expiry = if self.random(4) == 0 { self.random_expiry() } else { None };
            let EntryData::Hash(fields, named) = &mut entry.data else { panic!("seen above") };
            if let Some((old, _)) = fields.get(&name)
                && value.len() % 2 == 0
            {
                value.resize(old.len(), 1);
            }
            let field = Field { name: &name, value: &value, expiry };
            let replaced = self.with_key(db, &bytes, |table, key, place| {
                let place = place.unwrap_or_else(|| table.insert(key, PackedValue::empty(Kind::Hash), None));
                let (place, replaced) = table.hash_set(place, key, field, LIMITS);
                assert_eq!(table.hash(place).and_then(|hash| hash.get(&name)), Some(field));
                replaced.map(|replaced| replaced.expiry)
            });
            let longest = name.len().max(value.len());
            assert_eq!(fields.insert(name, (value, expiry)).map(|(_, expiry)| expiry), replaced);
            *named |= longest > LIMITS.max_value_len || fields.len() > LIMITS.max_entries;
        }
        self.record_hash(db, &bytes, entry);
    }

    /// Sets many fields at once, some of them more than once.
    fn hash_set_all(&mut self, db: u16, bytes: &[u8], mut entry: Entry) {
        let EntryData::Hash(fields, named) = &mut entry.data else { panic!("seen by the caller") };
        let times = if self.random(5) == 0 { 2 * self.limits.fields } else { 1 + self.random(8) };
        let mut new = Vec::new();
        for _ in 0..times {
            let expiry = if self.random(4) == 0 { self.random_expiry() } else { None };
            new.push((self.random_field(), self.random_value(), expiry));
        }
        let told = self.with_key(db, bytes, |table, key, place| {
            let place = place.unwrap_or_else(|| table.insert(key, PackedValue::empty(Kind::Hash), None));
            let fields = new.iter().map(|(name, value, expiry)| Field { name, value, expiry: *expiry });
            let mut told = Vec::new();
            table.hash_set_all(place, key, fields, LIMITS, |replaced| {
                told.push(replaced.map(|old| old.expiry));
            });
            told
        });
        for ((name, value, expiry), told) in new.into_iter().zip(told) {
            let longest = name.len().max(value.len());
            assert_eq!(fields.insert(name, (value, expiry)).map(|(_, expiry)| expiry), told);
            *named |= longest > LIMITS.max_value_len || fields.len() > LIMITS.max_entries;
        }
        self.record_hash(db, bytes, entry);
    }

    /// Checks that the encoding follows the limits, whatever the representation, and records the hash in the model.
    fn record_hash(&mut self, db: u16, bytes: &[u8], entry: Entry) {
        let encoding = self.with_key(db, bytes, |table, _, place| {
            table.hash(place.expect("there")).expect("a hash").encoding()
        });
        if let EntryData::Hash(_, named) = &entry.data {
            assert_eq!(*named, encoding == "hashtable");
        }
        self.record_added_key(db, bytes, entry);
    }

    pub(super) fn hash_remove(&mut self) {
        let (db, bytes) = self.random_key_name();
        let id = (db, bytes.clone());
        let Some(mut entry) = self.model.get(&id).cloned() else { return };
        let EntryData::Hash(fields, _) = &mut entry.data else { return self.delete_key(db, &bytes) };
        let many = if self.random(6) == 0 { self.limits.fields } else { 2 };
        for _ in 0..many {
            let name = self.random_field();
            let name = if self.random(2) == 0 { fields.keys().next().cloned().unwrap_or(name) } else { name };
            let removed = self.with_key(db, &bytes, |table, key, place| {
                let (place, removed) = table.hash_remove(place.expect("there"), key, &name);
                if table.hash(place).is_some_and(|hash| hash.is_empty()) {
                    drop(table.remove(place, key));
                }
                removed
            });
            assert_eq!(fields.remove(&name).is_some(), removed);
            if fields.is_empty() {
                return self.record_removed_key(db, &bytes);
            }
        }
        self.record_added_key(db, &bytes, entry);
    }

    pub(super) fn set_field_expiry(&mut self) {
        let (db, bytes) = self.random_key_name();
        let (name, expiry) = (self.random_field(), self.random_expiry());
        let Some(mut entry) = self.model.get(&(db, bytes.clone())).cloned() else { return };
        let EntryData::Hash(fields, _) = &mut entry.data else { return };
        let found = self.with_key(db, &bytes, |table, key, place| {
            let (place, found) = table.hash_set_expiry(place.expect("there"), key, &name, expiry);
            let read = table.hash(place).and_then(|hash| hash.get(&name)).map(|field| field.expiry);
            assert_eq!(read, found.then_some(expiry));
            found
        });
        if let Some(field) = fields.get_mut(&name) {
            field.1 = expiry;
        }
        assert_eq!(found, fields.contains_key(&name));
        self.record_hash(db, &bytes, entry);
        self.check_hash(db, &bytes);
    }

    /// Compares scanning and random picks with the model.
    fn check_hash(&mut self, db: u16, bytes: &[u8]) {
        let count = self.random(10) as usize;
        let random = self.random(u64::from(u32::MAX)) << 20;
        let now = self.now;
        let EntryData::Hash(fields, _) = &self.model[&(db, bytes.to_vec())].data else { return };
        self.with_key(db, bytes, |table, _, place| {
            let hash = table.hash(place.expect("there")).expect("a hash");
            let (mut seen, mut position) = (BTreeSet::new(), Some(0));
            while let Some(from) = position {
                position = hash.scan(from, count, &mut |field| assert!(seen.insert(field.name.to_vec())));
            }
            assert!(seen.iter().eq(fields.keys()));
            let live = fields.values().filter(|(_, expiry)| expiry.is_none_or(|expiry| expiry > now));
            assert_eq!(hash.live_len(now), live.count());
            assert!(hash.random_field(random).is_some_and(|field| fields.contains_key(field.name)));
        });
    }

    pub(super) fn expire_fields(&mut self) {
        let slots = self.keyspace.slots_with_expiries_due(self.now);
        let (mut key, mut name) = (Vec::new(), Vec::new());
        for slot in slots {
            for db in 0..DATABASES {
                loop {
                    let popped = self
                        .keyspace
                        .lock(slot)
                        .table(db)
                        .remove_expired_field(self.now, &mut key, &mut name);
                    if popped.is_none() {
                        break;
                    }
                    let Some(EntryData::Hash(fields, _)) =
                        self.model.get_mut(&(db, key.clone())).map(|e| &mut e.data)
                    else {
                        panic!("a field of no hash")
                    };
                    let (_, expiry) = fields.remove(&name).expect("what expires was there");
                    assert!(expiry.is_some_and(|expiry| expiry <= self.now));
                    if fields.is_empty() {
                        let key = key.clone();
                        self.record_removed_key(db, &key);
                    }
                }
            }
        }
        for entry in self.model.values() {
            let EntryData::Hash(fields, _) = &entry.data else { continue };
            let late = fields.values().filter(|(_, expiry)| expiry.is_some_and(|expiry| expiry <= self.now));
            assert_eq!(late.count(), 0, "fields that are due were popped");
        }
    }
}
