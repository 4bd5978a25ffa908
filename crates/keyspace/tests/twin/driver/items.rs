//! Operations on lists.

use std::collections::VecDeque;

use keyspace::{ItemDigits, ListEnd, ListLimit};

use super::*;

/// A limit so low that packed and large lists occur with both encodings, `listpack` and `quicklist`.
pub(super) const LIMIT: ListLimit = ListLimit(20);

impl TestDriver {
    /// Returns a string of any length or an integer. There are few distinct values, so that duplicates occur.
    fn random_item(&mut self) -> Vec<u8> {
        match self.random(3) {
            0 => self.random_value(),
            1 => self.random(300).to_string().into_bytes(),
            _ => format!("item {}", self.random(10)).into_bytes(),
        }
    }

    fn random_list(&mut self) -> Option<(u16, Vec<u8>, Entry)> {
        let (db, bytes) = self.random_key_name();
        let old = self.model.get(&(db, bytes.clone())).cloned();
        let entry = old.unwrap_or(Entry { data: EntryData::List(VecDeque::new()), expiry: None });
        if !matches!(entry.data, EntryData::List(_)) {
            self.delete_key(db, &bytes);
            return None;
        }
        Some((db, bytes, entry))
    }

    fn random_end(&mut self) -> ListEnd {
        if self.random(2) == 0 { ListEnd::Head } else { ListEnd::Tail }
    }

    /// Pushes elements to an end of a new or existing list, or inserts elements.
    pub(super) fn list_push(&mut self) {
        let Some((db, bytes, mut entry)) = self.random_list() else { return };
        let EntryData::List(twin) = &mut entry.data else { panic!("seen above") };
        if !twin.is_empty() && self.random(3) == 0 {
            let (index, item, sets) =
                (self.random(twin.len() as u64) as usize, self.random_item(), self.random(2) == 0);
            self.with_key(db, &bytes, |table, key, place| {
                let place = place.expect("there");
                if sets {
                    table.list_set(place, key, index, &item, LIMIT);
                } else {
                    table.list_insert(place, key, index, &item, LIMIT);
                }
            });
            if sets {
                twin[index] = item;
            } else {
                twin.insert(index, item);
            }
        } else {
            let times = if self.random(10) == 0 { self.limits.fields } else { 1 + self.random(5) };
            let new: Vec<Vec<u8>> = (0..times).map(|_| self.random_item()).collect();
            let end = self.random_end();
            self.with_key(db, &bytes, |table, key, place| {
                let items = new.iter().map(Vec::as_slice);
                match place {
                    None => table.list_create(key, end, items, LIMIT),
                    Some(place) => table.list_push(place, key, end, items, LIMIT),
                };
            });
            for item in new {
                match end {
                    ListEnd::Head => twin.push_front(item),
                    ListEnd::Tail => twin.push_back(item),
                }
            }
        }
        self.record_added_key(db, &bytes, entry);
        self.check_list(db, &bytes);
    }

    /// Removes elements of a list from an end, or by value.
    pub(super) fn list_remove(&mut self) {
        let Some((db, bytes, mut entry)) = self.random_list() else { return };
        let EntryData::List(twin) = &mut entry.data else { panic!("seen above") };
        if twin.is_empty() {
            return;
        }
        if self.random(3) == 0 {
            let index = self.random(twin.len() as u64) as usize;
            let wanted = if self.random(4) == 0 { self.random_item() } else { twin[index].clone() };
            let (from_tail, most) = (self.random(2) == 0, 1 + self.random(4) as usize);
            let removed = self.with_key(db, &bytes, |table, key, place| {
                let count = if from_tail { -(most as i64) } else { most as i64 };
                let (place, removed) = table.list_remove(place.expect("there"), key, &wanted, count, LIMIT);
                if table.list(place).expect("a list").is_empty() {
                    drop(table.remove(place, key));
                }
                removed
            });
            let mut places: Vec<usize> = (0..twin.len()).filter(|index| twin[*index] == wanted).collect();
            if from_tail {
                places.reverse();
            }
            places.truncate(most);
            assert_eq!(removed, places.len());
            places.sort_unstable();
            places.into_iter().rev().for_each(|index| drop(twin.remove(index)));
        } else {
            let most = if self.random(4) == 0 { twin.len() as u64 } else { 3 };
            let (end, count) = (self.random_end(), 1 + self.random(most) as usize);
            self.with_key(db, &bytes, |table, key, place| {
                let (place, dropped) = table.list_remove_ends(place.expect("there"), key, end, count, LIMIT);
                drop(dropped);
                if table.list(place).expect("a list").is_empty() {
                    drop(table.remove(place, key));
                }
            });
            let count = count.min(twin.len());
            match end {
                ListEnd::Head => drop(twin.drain(..count)),
                ListEnd::Tail => twin.truncate(twin.len() - count),
            }
        }
        if twin.is_empty() {
            return self.record_removed_key(db, &bytes);
        }
        self.record_added_key(db, &bytes, entry);
        self.check_list(db, &bytes);
    }

    /// Compares all read operations and the encoding with the model.
    fn check_list(&mut self, db: u16, bytes: &[u8]) {
        let random = self.random(1 << 16) as usize;
        let EntryData::List(twin) = &self.model[&(db, bytes.to_vec())].data else { panic!("a list") };
        let (index, mut digits) = (random % twin.len(), ItemDigits::default());
        self.with_key(db, bytes, |table, _, place| {
            let list = table.list(place.expect("there")).expect("a list");
            assert_eq!(list.len(), twin.len());
            assert_eq!(list.get(index).expect("there").bytes(&mut digits), twin[index]);
            assert!(list.get(twin.len()).is_none());
            let (mut forward, mut back) = (twin.iter().skip(index), twin.iter().take(index + 1).rev());
            list.visit_from(index, &mut |item| {
                assert_eq!(item.bytes(&mut digits), forward.next().expect("no more"));
                true
            });
            list.visit_backward_from(index, &mut |item| {
                assert_eq!(item.bytes(&mut digits), back.next().expect("no more"));
                true
            });
            assert!(forward.next().is_none() && back.next().is_none());
            let (mut runs, mut len) = (0, 0);
            list.for_each_run(&mut |run| {
                runs += 1;
                len += run.items().count();
                assert_eq!(run.len, run.items().count());
            });
            assert_eq!((runs, len), (list.run_count(), twin.len()));
            assert!(list.encoding() == "quicklist" || twin.len() <= 20);
            let bytes: usize = twin.iter().map(Vec::len).sum();
            assert!(list.encoding() == "listpack" || twin.len() > 10 || bytes > 4000);
        });
    }
}
