//! The source sets of commands on several sets.

use engine::{CommandError, Context};
use keyspace::{EntryRef, Key, KeyLookup, LockedSlots, SetRef};
use smallvec::SmallVec;

/// Source keys and the locations of their sets.
pub(super) struct SourceSets<'a> {
    keys: SmallVec<[(Key<'a>, Option<EntryRef>); 4]>,
}

/// One set per source; `None` if the key does not exist.
pub(super) type ResolvedSets<'s> = SmallVec<[Option<SetRef<'s>>; 4]>;

impl<'a> SourceSets<'a> {
    /// Looks up the sets named by the arguments at these indexes.
    ///
    /// # Errors
    /// If a key holds another type.
    pub(super) fn find_sources(
        context: &mut Context<'a>,
        arguments: impl Iterator<Item = usize>,
    ) -> Result<Self, CommandError> {
        let mut keys = SmallVec::new();
        for index in arguments {
            let key = context.key(index)?;
            keys.push((key, context.read_typed::<SetRef<'_>>(&key)?));
        }
        let mut sources = Self { keys };
        if sources.keys.iter().any(|(_, place)| place.is_none()) {
            sources.refresh_entries(context);
        }
        Ok(sources)
    }

    /// Repeats the lookups, because reading a missing key may have deleted it as expired and moved other entries of its
    /// table.
    fn refresh_entries(&mut self, context: &Context<'a>) {
        for (key, place) in &mut self.keys {
            if place.is_some() {
                *place = match context.table_ref(key).find(key, context.now) {
                    KeyLookup::Live(place) | KeyLookup::Expired(place) => Some(place),
                    KeyLookup::Missing => None,
                };
            }
        }
    }

    /// Returns the locations of the large sets, and the other sets.
    pub(super) fn split_by_size<'s>(
        &self,
        slots: &'s LockedSlots<'_>,
        db: u16,
    ) -> (Vec<(Key<'a>, EntryRef)>, ResolvedSets<'s>) {
        let there = self.keys.iter().filter_map(|(key, place)| Some((*key, (*place)?)));
        let view = |key: &Key<'_>| slots.slot(key.slot()).table_ref(db);
        let (large, small): (Vec<_>, Vec<_>) =
            there.partition(|(key, place)| view(key).value(*place).is_large());
        let small = small.into_iter().map(|(key, place)| view(&key).set(place)).collect();
        (large, small)
    }

    pub(super) fn resolve_sets<'s>(&self, slots: &'s LockedSlots<'_>, db: u16) -> ResolvedSets<'s> {
        let set =
            |(key, place): &(Key<'_>, Option<EntryRef>)| slots.slot(key.slot()).table_ref(db).set((*place)?);
        self.keys.iter().map(set).collect()
    }
}
