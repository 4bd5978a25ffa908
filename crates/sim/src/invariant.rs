//! The trait of invariants, and types for building invariants.

use std::collections::BTreeMap;
use std::fmt::Display;

/// A condition that must hold after every event.
pub(crate) trait Invariant<Observation> {
    /// Returns an error, which describes the violation, if the event violates the invariant.
    fn check(&mut self, observation: &Observation) -> Result<(), String>;
}

/// Values that may be set only once per key.
#[derive(Debug)]
pub(crate) struct SetOnce<K, V>(BTreeMap<K, V>);

impl<K, V> Default for SetOnce<K, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord, V: PartialEq + Clone> SetOnce<K, V> {
    /// Records a value. Returns the earlier value of the key if it differs.
    pub(crate) fn record(&mut self, key: K, value: &V) -> Result<(), V> {
        let first = self.0.entry(key).or_insert_with(|| value.clone());
        if first == value { Ok(()) } else { Err(first.clone()) }
    }
}

/// Values that must never decrease, one per key.
#[derive(Debug)]
pub(crate) struct NonDecreasing<K, N>(BTreeMap<K, N>);

impl<K, N> Default for NonDecreasing<K, N> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Display + Clone, N: Ord + Copy + Display> NonDecreasing<K, N> {
    pub(crate) fn check_next(&mut self, key: &K, number: N, description: &str) -> Result<(), String> {
        let Some(highest) = self.0.get_mut(key) else {
            self.0.insert(key.clone(), number);
            return Ok(());
        };
        if number < *highest {
            return Err(format!("the {description} of {key} went back from {highest} to {number}"));
        }
        *highest = number;
        Ok(())
    }

    /// Forgets the value of a key, so that its next value may be lower.
    pub(crate) fn remove(&mut self, key: &K) {
        self.0.remove(key);
    }
}
