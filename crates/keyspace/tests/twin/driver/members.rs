//! Operations on sets.

use std::collections::BTreeSet;

use keyspace::{SetBounds, SetBuilder};

use super::*;

const LIMITS: SetBounds =
    SetBounds { max_intset_entries: 15, listpack: ListpackBounds { max_entries: 20, max_value_len: 30 } };

/// Returns the encoding of a set whose encoding is `name` after a member is added.
fn with_new_encoding(name: &'static str, members: &BTreeSet<Vec<u8>>, member: &[u8]) -> &'static str {
    let is_integer = |member: &[u8]| {
        let number = std::str::from_utf8(member).ok().and_then(|text| text.parse::<i64>().ok());
        number.is_some_and(|number| number.to_string().as_bytes() == member)
    };
    let listpack = || {
        let small =
            members.len() <= LIMITS.listpack.max_entries && member.len() <= LIMITS.listpack.max_value_len;
        if small { "listpack" } else { "hashtable" }
    };
    match name {
        "intset" if is_integer(member) && members.len() <= LIMITS.max_intset_entries => "intset",
        "intset" if is_integer(member) => "hashtable",
        "intset" | "listpack" => listpack(),
        other => other,
    }
}

impl TestDriver {
    /// Returns a random member. Most sets contain only integers of one width; a few have other members.
    fn random_member(&mut self, key: &[u8]) -> Vec<u8> {
        let members = [3, 30, self.limits.fields][self.random(3) as usize];
        let number = self.random(members);
        let kind = key.iter().map(|byte| u64::from(*byte)).sum::<u64>() % 4;
        match (kind, self.random(60)) {
            (0, 0) => self.random_value(),
            (0, _) => number.to_string().into_bytes(),
            (1, _) => ((number as i64 - 20) << (8 * (number % 7))).to_string().into_bytes(),
            (2, 0) => self.random_value(),
            _ => format!("m{number}").into_bytes(),
        }
    }

    fn random_set(&mut self) -> Option<(u16, Vec<u8>, Entry)> {
        let (db, bytes) = self.random_key_name();
        let old = self.model.get(&(db, bytes.clone())).cloned();
        let entry = old.unwrap_or(Entry { data: EntryData::Set(BTreeSet::new(), "intset"), expiry: None });
        if !matches!(entry.data, EntryData::Set(..)) {
            self.delete_key(db, &bytes);
            return None;
        }
        Some((db, bytes, entry))
    }

    /// Adds members to a new or existing set, one by one or all at once.
    pub(super) fn set_add(&mut self) {
        let Some((db, bytes, mut entry)) = self.random_set() else { return };
        let times = if self.random(10) == 0 { self.limits.fields } else { 1 + self.random(5) };
        let new: Vec<Vec<u8>> = (0..times).map(|_| self.random_member(&bytes)).collect();
        let singly = self.random(2) == 0;
        let made = !self.model.contains_key(&(db, bytes.clone())) && self.random(2) == 0;
        let EntryData::Set(members, name) = &mut entry.data else { panic!("seen above") };
        if !singly && new.len() > 1 && !made {
            *name = match *name {
                "intset" if new.len() > LIMITS.max_intset_entries => "hashtable",
                "listpack" if new.len() > LIMITS.listpack.max_entries => "hashtable",
                name => name,
            };
        }
        let mut expected = 0;
        for member in &new {
            if members.insert(member.clone()) {
                *name = with_new_encoding(name, members, member);
                expected += 1;
            }
        }
        let added = self.with_key(db, &bytes, |table, key, place| {
            if made {
                let mut set = SetBuilder::new(LIMITS);
                let added = new.iter().filter(|member| set.add(member)).count();
                assert_eq!(set.as_ref().len(), added);
                table.attach(key, set.into_value(), None);
                return added;
            }
            let mut place = place.unwrap_or_else(|| table.insert(key, PackedValue::empty(Kind::Set), None));
            if !singly {
                let members = new.iter().map(Vec::as_slice);
                return table.set_add_all(place, key, members, LIMITS).1;
            }
            let mut added = 0;
            for member in &new {
                let (set, is_new) = table.set_add(place, key, member, LIMITS);
                place = set;
                added += usize::from(is_new);
            }
            added
        });
        assert_eq!(added, expected);
        self.check_set(db, &bytes, &entry);
        self.record_added_key(db, &bytes, entry);
    }

    /// Removes named or random members.
    pub(super) fn set_remove(&mut self) {
        let (db, bytes) = self.random_key_name();
        let Some(mut entry) = self.model.get(&(db, bytes.clone())).cloned() else { return };
        let EntryData::Set(members, _) = &mut entry.data else { return self.delete_key(db, &bytes) };
        let many = if self.random(6) == 0 { self.limits.fields } else { 3 };
        for _ in 0..many {
            let (pops, random) = (self.random(2) == 0, self.random(u64::from(u32::MAX)) << 20);
            let mut member = self.random_member(&bytes);
            let removed = self.with_key(db, &bytes, |table, key, place| {
                let place = place.expect("there");
                let (place, removed) = if pops {
                    (table.set_pop(place, key, random, &mut member), true)
                } else {
                    table.set_remove(place, key, &member)
                };
                if table.set(place).is_some_and(|set| set.is_empty()) {
                    drop(table.remove(place, key));
                }
                removed
            });
            assert_eq!(members.remove(&member), removed);
            if members.is_empty() {
                return self.record_removed_key(db, &bytes);
            }
        }
        self.check_set(db, &bytes, &entry);
        self.record_added_key(db, &bytes, entry);
    }

    /// Compares all read operations with the model.
    fn check_set(&mut self, db: u16, bytes: &[u8], entry: &Entry) {
        let count = self.random(10) as usize;
        let random = self.random(u64::from(u32::MAX)) << 20;
        let other = self.random_member(bytes);
        let EntryData::Set(members, _) = &entry.data else { panic!("a set") };
        self.with_key(db, bytes, |table, _, place| {
            let place = place.expect("there");
            assert_eq!(&Entry::from_value(table.value(place), table.expiry(place)), entry);
            let set = table.set(place).expect("a set");
            let (mut seen, mut position) = (BTreeSet::new(), Some(0));
            while let Some(from) = position {
                position = set.scan(from, count, &mut |member| assert!(seen.insert(member.to_vec())));
            }
            assert_eq!(&seen, members);
            assert_eq!(set.contains(&other), members.contains(&other));
            assert!(set.random_member(random).is_some_and(|member| members.contains(&*member)));
        });
    }
}
