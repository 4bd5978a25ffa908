//! The trait of invariants, and the parts that several of them are made of.

use std::collections::BTreeMap;
use std::fmt::Display;

/// Something that must hold whatever is seen.
pub(crate) trait Invariant<Seen> {
    /// The violation, if this is one.
    fn check(&mut self, seen: &Seen) -> Result<(), String>;
}

/// Values that are settled once, by what they are settled for.
#[derive(Debug)]
pub(crate) struct Once<K, V>(BTreeMap<K, V>);

impl<K, V> Default for Once<K, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord, V: PartialEq + Clone> Once<K, V> {
    /// The other value, if another was settled on before.
    pub(crate) fn record(&mut self, key: K, value: &V) -> Result<(), V> {
        let first = self.0.entry(key).or_insert_with(|| value.clone());
        if first == value { Ok(()) } else { Err(first.clone()) }
    }
}

/// Numbers that never go back, by whose they are.
#[derive(Debug)]
pub(crate) struct Rising<K, N>(BTreeMap<K, N>);

impl<K, N> Default for Rising<K, N> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Display + Clone, N: Ord + Copy + Display> Rising<K, N> {
    pub(crate) fn see(&mut self, whose: &K, number: N, what: &str) -> Result<(), String> {
        let Some(highest) = self.0.get_mut(whose) else {
            self.0.insert(whose.clone(), number);
            return Ok(());
        };
        if number < *highest {
            return Err(format!("the {what} of {whose} went back from {highest} to {number}"));
        }
        *highest = number;
        Ok(())
    }

    /// It may begin anew.
    pub(crate) fn forget(&mut self, whose: &K) {
        self.0.remove(whose);
    }
}
