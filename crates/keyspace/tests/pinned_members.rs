//! Reads members of a large sorted set in order while the set is changed, emptied and flushed.

use std::collections::BTreeSet;
use std::sync::Arc;

use clock::Millis;
use keyspace::{
    EntryRef, KeyLookup, Keyspace, Kind, ListpackBounds, LockedSlots, PackedValue, PinnedMembers, RankRange,
    ScoredMember,
};
use slot_routing::Slot;

const LIMITS: ListpackBounds = ListpackBounds { max_entries: 128, max_value_len: 64 };

struct SetUnderTest {
    keyspace: Arc<Keyspace>,
    /// Expected members: the bits of the score, and the name.
    reference: BTreeSet<(u64, Vec<u8>)>,
    random: u64,
}

/// The scores and names that a reader must see, in order.
type ExpectedMembers = Vec<(u64, Vec<u8>)>;

/// Returns the name of a member. Some names are too long for a page.
fn member_name(number: u64) -> Vec<u8> {
    let mut name = number.to_string().into_bytes();
    if number.is_multiple_of(97) {
        name.resize(4000 + number as usize, b'.');
    }
    name
}

impl SetUnderTest {
    fn random(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % bound
    }

    fn with_slots<R>(&self, work: impl FnOnce(&mut LockedSlots<'_>, Slot, Option<EntryRef>) -> R) -> R {
        let key = self.keyspace.key(b"key");
        let mut slots = self.keyspace.lock_many(&[key.slot()]);
        let place = match slots.find(0, &key, Millis(0)).0 {
            KeyLookup::Live(place) | KeyLookup::Expired(place) => Some(place),
            KeyLookup::Missing => None,
        };
        work(&mut slots, key.slot(), place)
    }

    /// Updates the score of a member, or removes it.
    fn random_change(&mut self) {
        let (number, score, leaves) = (self.random(3000), self.random(500), self.random(4) == 0);
        let name = member_name(number);
        let key = self.keyspace.key(b"key");
        self.reference.retain(|(_, other)| *other != name);
        self.with_slots(|slots, slot, place| {
            let table = slots.slot_mut(slot).table(0);
            let place =
                place.unwrap_or_else(|| table.insert(&key, PackedValue::empty(Kind::SortedSet), None));
            if leaves {
                table.sorted_set_remove(place, &key, &name);
            } else {
                table.sorted_set_update(place, &key, &name, LIMITS, |_| Some(score as f64));
            }
        });
        if !leaves {
            self.reference.insert((score, name));
        }
    }

    fn flush(&mut self) {
        self.reference.clear();
        self.with_slots(|slots, slot, _| drop(slots.slot_mut(slot).take_database(0)));
    }

    /// Pins a random range of ranks. Also returns the expected members.
    fn pin_random_ranks(&mut self) -> Option<(PinnedMembers, ExpectedMembers)> {
        let most = self.reference.len() as u64 + 1;
        let (one, other, reversed) =
            (self.random(most) as usize, self.random(most) as usize, self.random(2) == 0);
        let ranks = one.min(other)..one.max(other);
        let mut expected: Vec<_> =
            self.reference.iter().skip(ranks.start).take(ranks.len()).cloned().collect();
        if reversed {
            expected.reverse();
        }
        let keyspace = &self.keyspace;
        let pin = |slots: &mut LockedSlots<'_>, slot, place: Option<EntryRef>| {
            keyspace.pin_members(slots, 0, slot, place?, RankRange { ranks, reversed })
        };
        self.with_slots(pin).map(|pinned| (pinned, expected))
    }
}

#[test]
fn pinned_members_are_unaffected_by_later_changes() {
    let keyspace = Arc::new(Keyspace::new(1, 1));
    let mut set = SetUnderTest { keyspace, reference: BTreeSet::new(), random: 0x9E37_79B9_7F4A_7C15 };
    let mut seen = 0;
    for round in 0..60 {
        (0..300 * (1 + round % 10)).for_each(|_| set.random_change());
        let Some((pinned, expected)) = set.pin_random_ranks() else { continue };
        // Change the set before the first read and between reads.
        (0..200).for_each(|_| set.random_change());
        if round % 7 == 6 {
            set.flush();
        }
        let mut left = expected.iter();
        pinned.visit(&mut |ScoredMember { name, score }| {
            assert_eq!(left.next(), Some(&(score as u64, name.to_vec())));
            seen += 1;
            if seen % 50 == 0 {
                set.random_change();
            }
            true
        });
        assert!(left.next().is_none(), "all are shown");
        let len = set.with_slots(|slots, slot, place| {
            place.map_or(0, |place| {
                slots.slot(slot).table_ref(0).sorted_set(place).expect("a sorted set").len()
            })
        });
        assert_eq!(len, set.reference.len(), "nothing is kept or lost");
        assert_eq!(set.keyspace.lock(Slot::of_key(b"key")).snapshot_only_bytes(), 0);
    }
    assert!(seen > 10_000, "large ones were pinned: {seen}");
}
