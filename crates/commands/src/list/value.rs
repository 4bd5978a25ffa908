//! Implements [`AnyValue`] for lists.

use std::ops::Range;

use keyspace::{ItemDigits, ListItem, ListRef};

use crate::digest::Digest;
use crate::kinds::{AnyValue, ElementBytes, Sortable};

impl AnyValue<'_> for ListRef<'_> {
    fn type_number(&self) -> u32 {
        1
    }

    fn digest(&self, digest: &mut Digest) {
        let mut digits = ItemDigits::default();
        self.for_each(&mut |item| digest.add_ordered(item.bytes(&mut digits)));
    }

    fn element_count(&self) -> Option<usize> {
        Some(self.len())
    }

    fn as_sortable(&self) -> Option<&dyn Sortable> {
        Some(self)
    }
}

impl Sortable for ListRef<'_> {
    fn len(&self) -> usize {
        ListRef::len(self)
    }

    fn is_ordered(&self) -> bool {
        true
    }

    fn load_elements(&self, range: Range<usize>, reversed: bool) -> Vec<ElementBytes> {
        let mut loaded = Vec::with_capacity(range.len());
        if range.is_empty() {
            return loaded;
        }
        let (mut digits, wanted) = (ItemDigits::default(), range.len());
        let mut visit = |item: ListItem<'_>| {
            loaded.push(ElementBytes::from_slice(item.bytes(&mut digits)));
            loaded.len() < wanted
        };
        match reversed {
            true => self.visit_backward_from(ListRef::len(self) - 1 - range.start, &mut visit),
            false => self.visit_from(range.start, &mut visit),
        }
        loaded
    }
}
