//! Operations on sorted sets.

use std::collections::BTreeSet;

use keyspace::{OrderBoundary, RankRange, ScoredMember};

use super::super::model::Scores;
use super::*;

const LIMITS: ListpackBounds = ListpackBounds { max_entries: 20, max_value_len: 30 };

impl TestDriver {
    fn random_member_name(&mut self) -> Vec<u8> {
        let members = [3, 30, self.limits.fields][self.random(3) as usize];
        let number = self.random(members);
        let mut name = format!("m{number}").into_bytes();
        if number % 60 == 59 {
            name.resize(20 + number as usize % 600, b'.');
        }
        name
    }

    /// Returns a random score: a frequent, integral, arbitrary or extreme one.
    fn random_score(&mut self) -> f64 {
        let whole = self.random(1 << 32) as u32;
        match self.random(8) {
            0..2 => f64::from(whole % 4),
            2..4 => f64::from(whole % 1000) - 500.0,
            4 => f64::from(whole) - f64::from(1u32 << 31),
            5 => f64::from(whole) / 1000.0,
            6 => f64::from_bits(u64::from(whole) << 20),
            _ => [f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.0, 1e300, -1e-300][whole as usize % 6],
        }
    }

    /// Sets the scores of some members of a new or existing sorted set.
    pub(super) fn set_score(&mut self) {
        let (db, bytes) = self.random_key_name();
        let old = self.model.get(&(db, bytes.clone())).cloned();
        if old.as_ref().is_some_and(|entry| !matches!(entry.data, EntryData::SortedSet(..))) {
            return self.delete_key(db, &bytes);
        }
        let new = || Entry { data: EntryData::SortedSet(Scores::new(), false), expiry: None };
        let mut entry = old.unwrap_or_else(new);
        let EntryData::SortedSet(members, named) = &mut entry.data else { panic!("seen above") };
        let times = if self.random(10) == 0 { self.limits.fields } else { 1 + self.random(3) };
        for _ in 0..times {
            let (name, score) = (self.random_member_name(), self.random_score());
            let (leaves, known) = (self.random(20) == 0, members.get(&name).copied());
            let set = !leaves || known.is_none();
            let changed = set && known.is_none_or(|known| f64::from_bits(known) != score);
            let more = members.len() + usize::from(known.is_none());
            *named |= changed && (name.len() > LIMITS.max_value_len || more > LIMITS.max_entries);
            let kept = if *named { score } else { score + 0.0 };
            let expected = if changed { Some(kept.to_bits()) } else { known };
            self.with_key(db, &bytes, |table, key, place| {
                let place =
                    place.unwrap_or_else(|| table.insert(key, PackedValue::empty(Kind::SortedSet), None));
                let place = table.sorted_set_update(place, key, &name, LIMITS, |before| {
                    assert_eq!(before.map(f64::to_bits), known);
                    set.then_some(score)
                });
                let read = table.sorted_set(place).and_then(|set| set.score(&name));
                assert_eq!(read.map(f64::to_bits), expected);
            });
            members.extend(expected.map(|bits| (name, bits)));
        }
        self.record_added_key(db, &bytes, entry);
        self.check_sorted_set(db, &bytes);
    }

    pub(super) fn remove_member(&mut self) {
        let (db, bytes) = self.random_key_name();
        let Some(mut entry) = self.model.get(&(db, bytes.clone())).cloned() else { return };
        let EntryData::SortedSet(members, _) = &mut entry.data else { return self.delete_key(db, &bytes) };
        if self.random(3) == 0 {
            return self.remove_ranks(db, &bytes, entry);
        }
        let many = if self.random(6) == 0 { self.limits.fields } else { 2 };
        for _ in 0..many {
            let name = self.random_member_name();
            let name =
                if self.random(2) == 0 { members.keys().next().cloned().unwrap_or(name) } else { name };
            let removed = self.with_key(db, &bytes, |table, key, place| {
                let (place, removed) = table.sorted_set_remove(place.expect("there"), key, &name);
                if table.sorted_set(place).is_some_and(|set| set.is_empty()) {
                    drop(table.remove(place, key));
                }
                removed
            });
            assert_eq!(members.remove(&name), removed.map(f64::to_bits));
            if members.is_empty() {
                return self.record_removed_key(db, &bytes);
            }
        }
        self.record_added_key(db, &bytes, entry);
        self.compare_key(db, &bytes);
    }

    /// Removes the members between two ranks.
    fn remove_ranks(&mut self, db: u16, bytes: &[u8], mut entry: Entry) {
        let EntryData::SortedSet(members, _) = &mut entry.data else { panic!("seen by the caller") };
        let sorted = sorted_members(members);
        let start = self.random(sorted.len() as u64 + 1) as usize;
        let end = start + self.random(30) as usize;
        let mut left = sorted.iter().skip(start).take(end - start);
        self.with_key(db, bytes, |table, key, place| {
            let place = place.expect("there");
            let place =
                table.sorted_set_remove_ranks(place, key, start..end, &mut |ScoredMember { name, score }| {
                    let expected = left.next().map(|(score, name)| (*score, *name));
                    assert_eq!(expected, Some((score, name)));
                });
            if table.sorted_set(place).is_some_and(|set| set.is_empty()) {
                drop(table.remove(place, key));
            }
        });
        assert!(left.next().is_none());
        let gone: Vec<Vec<u8>> =
            sorted.iter().skip(start).take(end - start).map(|(_, name)| name.to_vec()).collect();
        members.retain(|name, _| !gone.contains(name));
        if members.is_empty() {
            return self.record_removed_key(db, bytes);
        }
        self.record_added_key(db, bytes, entry);
        self.compare_key(db, bytes);
    }

    /// Compares ranks, boundaries and scans of a sorted set with the model.
    fn check_sorted_set(&mut self, db: u16, bytes: &[u8]) {
        let (count, which) = (self.random(10) as usize, self.random(1 << 20) as usize);
        let score = self.random_score();
        let EntryData::SortedSet(members, _) = &self.model[&(db, bytes.to_vec())].data else { return };
        let sorted = sorted_members(members);
        let rank = which % sorted.len();
        let at = sorted[rank];
        self.with_key(db, bytes, |table, _, place| {
            let set = table.sorted_set(place.expect("there")).expect("a sorted set");
            assert_eq!(set.rank(at.1), Some((rank, at.0)));
            assert_eq!(set.member_at_rank(rank).map(|member| (member.score, member.name)), Some(at));
            assert!(set.member_at_rank(sorted.len()).is_none() && set.rank(b"nosuch").is_none());
            for score in [score, at.0] {
                let before = sorted.iter().filter(|(other, _)| *other < score).count();
                assert_eq!(set.count_before(OrderBoundary::BeforeScore(score)), before);
                let upto = sorted.iter().filter(|(other, _)| *other <= score).count();
                assert_eq!(set.count_before(OrderBoundary::AfterScore(score)), upto);
            }
            let (mut seen, mut position) = (BTreeSet::new(), Some(0));
            while let Some(from) = position {
                position = set.scan(from, count, &mut |member| assert!(seen.insert(member.name.to_vec())));
            }
            assert!(seen.iter().eq(members.keys()));
        });
    }

    /// Pins members of the largest sorted set if it is stored as a large collection.
    pub(super) fn pin_members(&mut self) {
        let sorted_sets = self.model.iter().filter_map(|(key, entry)| match &entry.data {
            EntryData::SortedSet(members, _) => Some((key, members)),
            _ => None,
        });
        let Some(((db, name), members)) = sorted_sets.max_by_key(|(_, members)| members.len()) else {
            return;
        };
        let (db, key) = (*db, self.keyspace.key(name));
        let mut slots = self.keyspace.lock_many(&[key.slot()]);
        let (KeyLookup::Live(place) | KeyLookup::Expired(place)) = slots.find(db, &key, self.now).0 else {
            return;
        };
        let mut end = || self.choices.below(1 + members.len() as u64) as usize;
        let (one, other) = (end(), end());
        let (ranks, reversed) = (one.min(other)..one.max(other), self.choices.below(2) == 0);
        let wanted = sorted_members(members)[ranks.clone()].to_vec();
        let mut expected: Vec<_> = wanted.into_iter().map(|(score, name)| (score, name.to_vec())).collect();
        if reversed {
            expected.reverse();
        }
        let pinned =
            self.keyspace.pin_members(&mut slots, db, key.slot(), place, RankRange { ranks, reversed });
        self.pinned_members.extend(pinned.map(|pinned| (pinned, expected)));
    }

    pub(super) fn read_members(&mut self) {
        let Some((pinned, mut expected)) = self.pinned_members.pop() else { return };
        if self.random(4) == 0 {
            expected.truncate(self.random(50) as usize);
        }
        let mut left = expected.iter();
        pinned.visit(&mut |member| match left.next() {
            Some((score, name)) => {
                assert_eq!((member.score, member.name), (*score, &name[..]));
                true
            }
            None => false,
        });
        assert!(left.next().is_none(), "all are shown");
    }
}

fn sorted_members(members: &Scores) -> Vec<(f64, &[u8])> {
    let mut sorted: Vec<_> =
        members.iter().map(|(name, bits)| (f64::from_bits(*bits), name.as_slice())).collect();
    sorted.sort_by(|one, other| one.partial_cmp(other).expect("no score is NaN"));
    sorted
}
