//! Builds the list that SORT stores.

use keyspace::{EncodingLimits, Kind, PackedBuilder};

/// A list of sorted elements under construction.
pub(super) struct StoredListBuilder {
    list: PackedBuilder,
}

impl StoredListBuilder {
    pub(super) fn new() -> Self {
        Self { list: PackedBuilder::new(Kind::List) }
    }

    pub(super) fn push(&mut self, element: &[u8]) {
        self.list.push_item(element);
    }

    /// Finishes the list and selects its reported encoding.
    pub(super) fn finish_with_encoding(mut self, limits: &EncodingLimits) -> PackedBuilder {
        self.list.choose_encoding(limits);
        self.list
    }
}
