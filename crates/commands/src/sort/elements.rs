//! What SORT takes of values, and what it makes of that.

use std::ops::Range;

use clock::Millis;
use keyspace::{Builder, ItemDigits, Kind, Limits, ListItem, Value};
use smallvec::SmallVec;

/// Most elements are short.
pub(super) type Bytes = SmallVec<[u8; 24]>;

/// How many elements a value has, and whether they have an order of their own; `None` if it has none to be sorted.
pub(super) fn count(value: &Value<'_>) -> Option<(usize, bool)> {
    match value {
        Value::List(list) => Some((list.len(), true)),
        Value::Set(set) => Some((set.len(), false)),
        Value::SortedSet(set) => Some((set.len(), true)),
        Value::String(_) | Value::Hash(_) | Value::Stream(_) => None,
    }
}

/// Those elements of a value, the last first if it has an order and that is to be `reversed`.
pub(super) fn load(value: &Value<'_>, range: Range<usize>, reversed: bool) -> Vec<Bytes> {
    let mut loaded = Vec::with_capacity(range.len());
    match value {
        Value::List(_) if range.is_empty() => {}
        Value::List(list) => {
            let (mut digits, wanted) = (ItemDigits::default(), range.len());
            let mut visit = |item: ListItem<'_>| {
                loaded.push(Bytes::from_slice(item.bytes(&mut digits)));
                loaded.len() < wanted
            };
            match reversed {
                true => list.visit_back_from(list.len() - 1 - range.start, &mut visit),
                false => list.visit_from(range.start, &mut visit),
            }
        }
        Value::Set(set) => {
            let mut index = 0;
            set.for_each(&mut |member| {
                if range.contains(&index) {
                    loaded.push(Bytes::from_slice(&member));
                }
                index += 1;
            });
        }
        Value::SortedSet(set) => {
            // It counts from its first member whichever way it goes.
            let from_first = if reversed { set.len() - range.end..set.len() - range.start } else { range };
            set.visit(from_first, reversed, &mut |member| {
                loaded.push(Bytes::from_slice(member.name));
                true
            });
        }
        Value::String(_) | Value::Hash(_) | Value::Stream(_) => {}
    }
    loaded
}

/// What a value is where a pattern names it: a string, or that field of a hash if it lives at `now`.
pub(super) fn text(value: &Value<'_>, field: Option<&[u8]>, now: Millis) -> Option<Bytes> {
    match (value, field) {
        (Value::String(string), None) => Some(string.bytes.into()),
        (Value::Hash(hash), Some(field)) => {
            hash.get(field).filter(|field| field.lives_at(now)).map(|field| field.value.into())
        }
        (Value::String(_) | Value::Hash(_), _)
        | (Value::List(_) | Value::Set(_) | Value::SortedSet(_) | Value::Stream(_), _) => None,
    }
}

/// A list of what was sorted, that is being made.
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

    /// The list as it is to be put.
    pub(super) fn named_by(mut self, limits: &Limits) -> Builder {
        self.list.name_by(limits);
        self.list
    }
}
