//! A set of slots as the bitmap that the cluster bus carries.

use std::fmt;

use crate::slot::{SLOT_COUNT, Slot};

const BYTES: usize = SLOT_COUNT / 8;

/// A set of slots. Its memory is the bus's `myslots` field: bit `slot & 7` of byte `slot >> 3`.
#[derive(Clone, PartialEq, Eq)]
pub struct SlotSet(Box<[u8; BYTES]>);

impl SlotSet {
    /// No slot.
    #[must_use]
    pub fn new() -> Self {
        Self(Box::new([0; BYTES]))
    }

    /// The set that a bus packet's bitmap says.
    #[must_use]
    pub fn from_bitmap(bitmap: &[u8; BYTES]) -> Self {
        Self(Box::new(*bitmap))
    }

    /// One bit a slot, the first slot in the lowest bit of the first byte, as on the bus.
    #[must_use]
    pub fn as_bitmap(&self) -> &[u8; BYTES] {
        &self.0
    }

    /// Whether `slot` is in it.
    #[must_use]
    pub fn contains(&self, slot: Slot) -> bool {
        self.0[slot.index() / 8] & (1 << (slot.index() % 8)) != 0
    }

    /// Adds `slot`; says whether it was missing.
    pub fn insert(&mut self, slot: Slot) -> bool {
        let missing = !self.contains(slot);
        self.0[slot.index() / 8] |= 1 << (slot.index() % 8);
        missing
    }

    /// Takes `slot` out; says whether it was there.
    pub fn remove(&mut self, slot: Slot) -> bool {
        let there = self.contains(slot);
        self.0[slot.index() / 8] &= !(1 << (slot.index() % 8));
        there
    }

    /// How many slots it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words().all(|word| word == 0)
    }

    /// Sixty-four slots each, in rising order: bit `slot & 63` of word `slot >> 6`.
    pub fn words(&self) -> impl Iterator<Item = u64> + '_ {
        let (words, _) = self.0.as_chunks();
        words.iter().map(|bytes| u64::from_le_bytes(*bytes))
    }

    /// The slots in rising order.
    pub fn iter(&self) -> impl Iterator<Item = Slot> + '_ {
        self.words().enumerate().flat_map(|(index, mut word)| {
            std::iter::from_fn(move || {
                let bit = (word != 0).then(|| word.trailing_zeros() as u16)?;
                word &= word - 1;
                Slot::new(index as u16 * 64 + bit)
            })
        })
    }

    /// Runs of neighbouring slots as (first, last), both inclusive, in rising order.
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
    fn ranges_join_neighbours() {
        let set: SlotSet = [0, 1, 2, 7, 8, 16383].map(slot).into_iter().collect();
        assert_eq!(set.ranges(), [(slot(0), slot(2)), (slot(7), slot(8)), (slot(16383), slot(16383))]);
        assert_eq!(set.len(), 6);
    }

    #[test]
    fn the_bitmap_is_the_bus_layout() {
        let mut set = SlotSet::new();
        assert!(set.insert(slot(10)));
        assert!(!set.insert(slot(10)));
        assert_eq!(set.as_bitmap()[1], 0b100);
        assert_eq!(SlotSet::from_bitmap(set.as_bitmap()), set);
        assert!(set.remove(slot(10)));
        assert!(set.is_empty());
    }
}
