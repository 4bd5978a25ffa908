//! The clients of WAIT: each waits until enough replicas have acknowledged an offset.

use std::collections::BTreeMap;

use slot_routing::ReplOffset;

/// The waiters, by the offset that they wait for. `T` names one.
#[derive(Debug)]
pub struct Waiters<T> {
    waiting: BTreeMap<(ReplOffset, T), usize>,
}

impl<T> Default for Waiters<T> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new() }
    }
}

impl<T: Ord + Clone> Waiters<T> {
    /// `token` waits until `needed` replicas have acknowledged `offset`.
    pub fn add(&mut self, token: T, offset: ReplOffset, needed: usize) {
        self.waiting.insert((offset, token), needed);
    }

    /// `token` waits no longer: its time is up, or its client is gone.
    pub fn remove(&mut self, token: T, offset: ReplOffset) {
        self.waiting.remove(&(offset, token));
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes out those whose wait is over, each with the number of replicas that acknowledged its
    /// offset. `acknowledged` has one offset for each replica, in any order.
    pub fn release(&mut self, acknowledged: &[ReplOffset]) -> Vec<(T, usize)> {
        let highest = acknowledged.iter().max().copied().unwrap_or_default();
        let count = |offset| acknowledged.iter().filter(|acked| **acked >= offset).count();
        let mut released = Vec::new();
        let mut done = Vec::new();
        for (key, &needed) in &self.waiting {
            let reached = count(key.0);
            if reached >= needed {
                released.push((key.1.clone(), reached));
                done.push(key.clone());
            } else if key.0 > highest && needed > 0 {
                // Nobody has come this far, nor to any later offset.
                break;
            }
        }
        for key in done {
            self.waiting.remove(&key);
        }
        released
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_waits_for_its_own_offset_and_number() {
        let mut waiters = Waiters::default();
        for (token, offset, needed) in [("one", 10, 1), ("two", 10, 2), ("late", 30, 1), ("gone", 10, 1)] {
            waiters.add(token, ReplOffset(offset), needed);
        }
        waiters.remove("gone", ReplOffset(10));
        assert_eq!(waiters.release(&[]), []);
        assert_eq!(waiters.release(&[ReplOffset(9), ReplOffset(5)]), []);
        assert_eq!(waiters.release(&[ReplOffset(10), ReplOffset(5)]), [("one", 1)]);
        assert_eq!(waiters.release(&[ReplOffset(29), ReplOffset(10)]), [("two", 2)]);
        assert_eq!(waiters.release(&[ReplOffset(40), ReplOffset(40)]), [("late", 2)]);
        assert!(waiters.is_empty());
    }
}
