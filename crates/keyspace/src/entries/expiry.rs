//! Tracks when entries expire.
//!
//! Each page has a lower bound of its entries' expiry times, the store has the minimum over its pages, and the keyspace
//! publishes the minimum over a slot's tables, readable without the slot's lock. To find expired entries, it is
//! therefore enough to scan 16384 numbers, then the pages of a store, then one page. A store with many pages has a tree
//! of minima with a fan-out of 64. Removing an entry does not raise the bound of its page; if nothing in a page has
//! expired after all, the bound is recomputed.
//!
//! Keys whose values have expiring elements are tracked by key, with a lower bound of the element times
//! ([`ElementExpiryIndex`]). Deleted keys, and keys whose values no longer have expiring elements, are removed at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use clock::Millis;

use super::{Entries, EntryRef};
use crate::entry;
use crate::hashing;
use crate::overflow::{OverflowValue, Record};
use crate::page;
use crate::pages;

const TREE_FANOUT: usize = 64;
/// Minimum number of pages for which a store maintains the tree.
const MIN_TREE_PAGES: usize = 64;

/// A tree of minima over page expiry times. Each level has the minima over groups of elements of the level below.
#[derive(Debug, Default)]
pub(super) struct PageExpiryTree {
    levels: Vec<Vec<Millis>>,
}

impl PageExpiryTree {
    fn set(&mut self, number: usize, time: Millis) {
        let (mut index, mut time) = (number, time);
        for level in 0.. {
            if self.levels.len() == level {
                self.levels.push(Vec::new());
            }
            let times = &mut self.levels[level];
            if times.len() <= index {
                times.resize(index + 1, page::NO_EXPIRY);
            }
            times[index] = time;
            if times.len() <= TREE_FANOUT {
                // This level is the root; drop the levels above it, which the store no longer needs.
                self.levels.truncate(level + 1);
                return;
            }
            let group = index / TREE_FANOUT * TREE_FANOUT;
            time = *times[group..times.len().min(group + TREE_FANOUT)]
                .iter()
                .min()
                .expect("a group has a member");
            if self.levels.len() == level + 1 {
                let groups = self.levels[level].chunks(TREE_FANOUT);
                let above = groups.map(|group| *group.iter().min().expect("not empty")).collect();
                self.levels.push(above);
            }
            index /= TREE_FANOUT;
        }
    }

    fn earliest_page(&self) -> (usize, Millis) {
        let mut group = 0;
        let mut found = (0, page::NO_EXPIRY);
        for times in self.levels.iter().rev() {
            let range = group * TREE_FANOUT..times.len().min((group + 1) * TREE_FANOUT);
            found = range.map(|index| (index, times[index])).min_by_key(|&(_, time)| time).unwrap_or(found);
            group = found.0;
        }
        found
    }
}

/// Keys whose values contain expiring elements.
#[derive(Debug, Default)]
pub(crate) struct ElementExpiryIndex {
    by_time: BTreeSet<(Millis, Arc<[u8]>)>,
    by_key: BTreeMap<Arc<[u8]>, Millis>,
}

impl ElementExpiryIndex {
    fn first(&self) -> Option<Millis> {
        self.by_time.first().map(|(time, _)| *time)
    }

    fn record(&mut self, key: &[u8], expiry: Millis) {
        let known = self.by_key.get_key_value(key).map(|(key, &time)| (key.clone(), time));
        if known.as_ref().is_some_and(|&(_, time)| time <= expiry) {
            return;
        }
        let key = match known {
            Some((key, time)) => {
                self.by_time.remove(&(time, key.clone()));
                key
            }
            None => key.into(),
        };
        self.by_time.insert((expiry, key.clone()));
        self.by_key.insert(key, expiry);
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some((key, time)) = self.by_key.remove_entry(key) {
            self.by_time.remove(&(time, key));
        }
    }

    fn pop(&mut self, now: Millis) -> Option<Arc<[u8]>> {
        if self.first()? > now {
            return None;
        }
        let (_, key) = self.by_time.pop_first()?;
        self.by_key.remove(&key);
        Some(key)
    }
}

impl<V: OverflowValue> Entries<V> {
    /// Removes one expired entry, puts its key into `key` and returns its overflow record, if any. Returns `None` if no
    /// entry has expired.
    pub(crate) fn remove_expired(&mut self, now: Millis, key: &mut Vec<u8>) -> Option<Option<Record<V>>> {
        while self.next_expiry <= now {
            let (number, earliest) = self.earliest_page();
            self.next_expiry = earliest;
            if earliest > now {
                break;
            }
            let page = self.pages.page(number);
            let mut exact = page::NO_EXPIRY;
            let due = page::entries(page, page::HEADER_LEN).find(|&(at, header)| {
                let expiry = header.expiry(page, at).filter(|_| header.state() == entry::STATE_ALIVE);
                exact = exact.min(expiry.unwrap_or(page::NO_EXPIRY));
                expiry.is_some_and(|expiry| expiry <= now)
            });
            let Some((at, _)) = due else {
                self.set_page_expiry(number, exact);
                self.next_expiry = self.earliest_page().1;
                continue;
            };
            let reference = pages::reference(number, at);
            key.clear();
            key.extend_from_slice(self.entry_keys().name(reference));
            let record = self.remove_without_compaction(EntryRef(reference), hashing::hash_bytes(key));
            self.compact_after_removal();
            return Some(record);
        }
        None
    }

    /// Returns a lower bound of the next expiry time of an entry, or of an element inside a value.
    #[inline]
    pub(crate) fn next_expiry(&self) -> Option<Millis> {
        if self.volatile == 0 && self.extras.is_none() {
            return None;
        }
        let parts = self.extras.as_ref().and_then(|extras| extras.element_expiry.as_ref()?.first());
        let entries = (self.volatile > 0).then_some(self.next_expiry);
        parts.into_iter().chain(entries).min()
    }

    /// Returns a lower bound of the next expiry time of an entry, without elements inside values; `page::NO_EXPIRY` if
    /// no entry expires.
    #[inline(always)]
    pub(crate) fn next_entry_expiry(&self) -> Millis {
        if self.volatile > 0 { self.next_expiry } else { page::NO_EXPIRY }
    }

    #[inline(always)]
    pub(crate) fn may_have_element_expiry(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| extras.element_expiry.is_some())
    }

    /// Records `due` as the time when the first element of this key's value expires.
    pub(crate) fn record_element_expiry(&mut self, key: &[u8], expiry: Millis) {
        self.extras_mut().element_expiry.get_or_insert_default().record(key, expiry);
    }

    /// Records that no element of this key's value expires.
    #[inline]
    pub(crate) fn clear_element_expiry(&mut self, key: &[u8]) {
        if let Some(parts) = self.extras.as_mut().and_then(|extras| extras.element_expiry.as_mut()) {
            parts.remove(key);
        }
    }

    /// Returns whether this key's value is recorded as having expiring elements.
    #[inline]
    pub(crate) fn has_element_expiry(&self, key: &[u8]) -> bool {
        let parts = self.extras.as_ref().and_then(|extras| extras.element_expiry.as_ref());
        parts.is_some_and(|parts| parts.by_key.contains_key(key))
    }

    #[inline]
    pub(crate) fn element_expiry_len(&self) -> usize {
        let parts = self.extras.as_ref().and_then(|extras| extras.element_expiry.as_ref());
        parts.map_or(0, |parts| parts.by_key.len())
    }

    /// Removes and returns a key whose value may have an element that has expired at `now`.
    pub(crate) fn pop_element_expiry(&mut self, now: Millis) -> Option<Arc<[u8]>> {
        self.extras.as_mut()?.element_expiry.as_mut()?.pop(now)
    }

    pub(crate) fn count_expired(&self, now: Millis) -> usize {
        if self.volatile == 0 || self.next_expiry > now {
            return 0;
        }
        let pages = (0..self.pages.count()).filter_map(|number| self.pages.existing_page(number));
        let due = pages.filter(|page| page::earliest_expiry(page) <= now).map(|page| {
            let alive = page::entries(page, page::HEADER_LEN)
                .filter(|(_, header)| header.state() == entry::STATE_ALIVE);
            alive.filter(|&(at, header)| header.expiry(page, at).is_some_and(|expiry| expiry <= now)).count()
        });
        due.sum()
    }

    /// Returns the page with the lowest expiry bound, and that bound.
    pub(super) fn earliest_page(&self) -> (usize, Millis) {
        if let Some(tree) = self.extras.as_ref().and_then(|extras| extras.page_expiries.as_ref()) {
            return tree.earliest_page();
        }
        let times = (0..self.pages.count()).map(|number| (number, self.pages.existing_page(number)));
        let times = times.map(|(number, page)| (number, page.map_or(page::NO_EXPIRY, page::earliest_expiry)));
        times.min_by_key(|&(_, time)| time).unwrap_or((0, page::NO_EXPIRY))
    }

    /// Lowers the expiry bound of a page to `expiry` if it is higher.
    pub(super) fn lower_page_expiry(&mut self, number: usize, expiry: Millis) {
        let expiry = entry::clamp_time(expiry);
        self.next_expiry = self.next_expiry.min(expiry);
        if expiry < page::earliest_expiry(self.pages.page(number)) {
            self.set_page_expiry(number, expiry);
        }
    }

    pub(super) fn set_page_expiry(&mut self, number: usize, time: Millis) {
        page::set_earliest_expiry(self.pages.page_mut(number), time);
        if let Some(tree) = self.extras.as_mut().and_then(|extras| extras.page_expiries.as_mut()) {
            tree.set(number, time);
        }
    }

    /// Adds a page to the tree. The tree is built when the store reaches `MIN_TREE_PAGES` pages.
    pub(super) fn add_page_to_expiry_tree(&mut self, number: usize) {
        let has_tree = self.extras.as_ref().is_some_and(|extras| extras.page_expiries.is_some());
        if number >= MIN_TREE_PAGES && !has_tree {
            let mut tree = PageExpiryTree::default();
            for number in 0..self.pages.count() {
                tree.set(
                    number,
                    self.pages.existing_page(number).map_or(page::NO_EXPIRY, page::earliest_expiry),
                );
            }
            self.extras_mut().page_expiries = Some(Box::new(tree));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiry_tree_finds_the_minimum() {
        let mut tree = PageExpiryTree::default();
        let mut times = vec![page::NO_EXPIRY; 10_000];
        let mut seed = 1u64;
        for _ in 0..30_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let number = (seed >> 40) as usize % (1 + (seed >> 33) as usize % times.len());
            let time = if seed >> 63 == 0 { page::NO_EXPIRY } else { Millis((seed >> 20) as i64 & 0xffff) };
            times[number] = time;
            tree.set(number, time);
            assert_eq!(tree.earliest_page().1, *times.iter().min().unwrap());
            let (first, time) = tree.earliest_page();
            assert_eq!(times[first], time);
        }
    }
}
