//! Builds the list that SORT stores.

use keyspace::{Builder, Kind, Limits};

/// A list of sorted elements under construction.
pub(super) struct Stored {
    list: Builder,
}

impl Stored {
    pub(super) fn new() -> Self {
        Self { list: Builder::new(Kind::List) }
    }

    pub(super) fn push(&mut self, element: &[u8]) {
        self.list.push_item(element);
    }

    /// Finishes the list and selects its reported encoding.
    pub(super) fn named_by(mut self, limits: &Limits) -> Builder {
        self.list.name_by(limits);
        self.list
    }
}
