//! A set of slots, stored as the bitmap that the cluster bus carries.

use std::fmt;

use crate::slot::{SLOT_COUNT, Slot};

const BITMAP_BYTES: usize = SLOT_COUNT / 8;

/// A set of slots. The layout is that of the bus field `myslots`: slot `s` is bit `s & 7` of byte `s >> 3`.
#[derive(Clone, PartialEq, Eq)]
pub struct SlotSet(Box<[u8; BITMAP_BYTES]>);

impl SlotSet {
    /// Creates an empty set.
    #[must_use]
    pub fn new() -> Self {
        Self(Box::new([0; BITMAP_BYTES]))
    }

    /// Creates a set from the bitmap of a bus packet.
    #[must_use]
    pub fn from_bitmap(bitmap: &[u8; BITMAP_BYTES]) -> Self {
        Self(Box::new(*bitmap))
    }

    /// Returns the bitmap with one bit per slot, as on the bus; slot 0 is the lowest bit of the first byte.
    #[must_use]
    pub fn as_bitmap(&self) -> &[u8; BITMAP_BYTES] {
        &self.0
    }

    /// Returns whether the set contains `slot`.
    #[must_use]
    pub fn contains(&self, slot: Slot) -> bool {
        self.0[slot.index() / 8] & (1 << (slot.index() % 8)) != 0
    }

    /// Adds `slot`. Returns true if it was not in the set before.
    pub fn insert(&mut self, slot: Slot) -> bool {
        let missing = !self.contains(slot);
        self.0[slot.index() / 8] |= 1 << (slot.index() % 8);
        missing
    }

    /// Removes `slot`. Returns true if it was in the set.
    pub fn remove(&mut self, slot: Slot) -> bool {
        let there = self.contains(slot);
        self.0[slot.index() / 8] &= !(1 << (slot.index() % 8));
        there
    }

    /// Returns the number of slots in the set, 0 to 16384.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns whether the set contains no slot.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words().all(|word| word == 0)
    }

    /// Returns the bitmap as 64-bit words: slot `s` is bit `s & 63` of word `s >> 6`.
    pub fn words(&self) -> impl Iterator<Item = u64> + '_ {
        let (words, _) = self.0.as_chunks();
        words.iter().map(|bytes| u64::from_le_bytes(*bytes))
    }

    /// Returns the slots in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = Slot> + '_ {
        self.words().enumerate().flat_map(|(index, mut word)| {
            std::iter::from_fn(move || {
                let bit = (word != 0).then(|| word.trailing_zeros() as u16)?;
                word &= word - 1;
                Slot::new(index as u16 * 64 + bit)
            })
        })
    }

    /// Returns the maximal ranges of consecutive slots as (first, last), both inclusive, in ascending order.
    #[must_use]
    pub fn ranges(&self) -> Vec<(Slot, Slot)> {
        let mut ranges: Vec<(Slot, Slot)> = Vec::new();
        for slot in self.iter() {
            match ranges.last_mut() {
                Some((_, last)) if last.number() + 1 == slot.number() => *last = slot,
                _ => ranges.push((slot, slot)),
            }
        }
        ranges
    }
}

impl Default for SlotSet {
    fn default() -> Self {
        Self::new()
    }
}

impl FromIterator<Slot> for SlotSet {
    fn from_iter<I: IntoIterator<Item = Slot>>(slots: I) -> Self {
        let mut set = Self::new();
        set.extend(slots);
        set
    }
}

impl Extend<Slot> for SlotSet {
    fn extend<I: IntoIterator<Item = Slot>>(&mut self, slots: I) {
        for slot in slots {
            self.insert(slot);
        }
    }
}

impl fmt::Debug for SlotSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = f.debug_list();
        for (first, last) in self.ranges() {
            list.entry(&format_args!("{first}-{last}"));
        }
        list.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(number: u16) -> Slot {
        Slot::new(number).unwrap()
    }

    #[test]
    fn consecutive_slots_form_one_range() {
        let set: SlotSet = [0, 1, 2, 7, 8, 16383].map(slot).into_iter().collect();
        assert_eq!(set.ranges(), [(slot(0), slot(2)), (slot(7), slot(8)), (slot(16383), slot(16383))]);
        assert_eq!(set.len(), 6);
    }

    #[test]
    fn bitmap_has_the_bus_layout() {
        let mut set = SlotSet::new();
        assert!(set.insert(slot(10)));
        assert!(!set.insert(slot(10)));
        assert_eq!(set.as_bitmap()[1], 0b100);
        assert_eq!(SlotSet::from_bitmap(set.as_bitmap()), set);
        assert!(set.remove(slot(10)));
        assert!(set.is_empty());
    }
}
