//! The naive twin: std maps.

use std::collections::{BTreeMap, BTreeSet};

use clock::Millis;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) bytes: Vec<u8>,
    pub(crate) raw: bool,
    pub(crate) expiry: Option<Millis>,
}

/// By database and key.
pub(crate) type Model = BTreeMap<(u16, Vec<u8>), Entry>;

/// A scan under way: what was there all the time, and what was seen.
#[derive(Debug)]
pub(crate) struct Scan {
    pub(crate) db: u16,
    pub(crate) slot: slot_routing::Slot,
    pub(crate) position: u64,
    pub(crate) stayed: BTreeSet<Vec<u8>>,
    pub(crate) seen: BTreeSet<Vec<u8>>,
}
