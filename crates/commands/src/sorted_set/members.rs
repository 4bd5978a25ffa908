//! Steps shared by sorted set commands: find the sorted set, change it, delete it when it is empty.

use engine::{CommandError, Context, EventClass};
use keyspace::{EntryRef, Key, Kind, PackedBuilder, PackedValue, ScoredMember, SortedSetRef};
use resp::{Protocol, Writer};

/// Access to the sorted sets of a command's keys.
pub(crate) trait SortedSetAccess {
    /// Finds the sorted set under `key` for writing. Fails with WRONGTYPE if the key has another type.
    fn find_sorted_set(&mut self, key: &Key<'_>) -> Result<Option<EntryRef>, CommandError>;

    /// Finds the sorted set under `key` for reading, and counts a keyspace hit or miss.
    fn read_sorted_set(&mut self, key: &Key<'_>) -> Result<Option<EntryRef>, CommandError>;

    /// The sorted set in the entry `entry_ref`, which [`Context::find_sorted_set`] or [`Context::read_sorted_set`]
    /// returned.
    fn sorted_set_at(&self, key: &Key<'_>, entry_ref: EntryRef) -> SortedSetRef<'_>;

    /// Handles commands of the form `key [member ...]`. Replies with an array in which `write_entry` writes one entry
    /// per member from the member's score.
    fn reply_each_score(
        &mut self,
        write_entry: impl Fn(&mut Writer<'_>, Option<f64>),
    ) -> Result<(), CommandError>;

    /// Sets the score of a member to the one that `decide` returns. Creates the sorted set if `found` is `None`.
    fn update_member(
        &mut self,
        key: &Key<'_>,
        found: Option<EntryRef>,
        name: &[u8],
        decide: impl FnOnce(Option<f64>) -> Option<f64>,
    ) -> EntryRef;

    /// Reports the removal of members from the sorted set at `entry_ref`, and deletes the set if it is empty.
    fn report_removed_members(&mut self, key: &Key<'_>, entry_ref: EntryRef, event: &str);

    /// Replaces the value under `key` by a sorted set of these members, which must be in order. Without members, the
    /// key is deleted. Replies with the number of members.
    fn store_members<'m>(
        &mut self,
        key: &Key<'_>,
        members: impl ExactSizeIterator<Item = ScoredMember<'m>> + Clone,
        event: &str,
    );

    /// Builds a sorted set from members in order.
    fn build_members<'m>(
        &self,
        members: impl ExactSizeIterator<Item = ScoredMember<'m>> + Clone,
    ) -> PackedBuilder;

    /// Does the same as [`Context::store_members`] for a sorted set that is already built.
    fn store_built_members(&mut self, key: &Key<'_>, built: &PackedBuilder, count: usize, event: &str);
}

impl SortedSetAccess for Context<'_> {
    fn find_sorted_set(&mut self, key: &Key<'_>) -> Result<Option<EntryRef>, CommandError> {
        self.find_typed::<SortedSetRef<'_>>(key)
    }

    fn read_sorted_set(&mut self, key: &Key<'_>) -> Result<Option<EntryRef>, CommandError> {
        self.read_typed::<SortedSetRef<'_>>(key)
    }

    fn sorted_set_at(&self, key: &Key<'_>, entry_ref: EntryRef) -> SortedSetRef<'_> {
        self.table_ref(key).sorted_set(entry_ref).expect("a sorted set was found there")
    }

    fn reply_each_score(
        &mut self,
        write_entry: impl Fn(&mut Writer<'_>, Option<f64>),
    ) -> Result<(), CommandError> {
        let (key, args) = (self.key(1)?, self.args);
        let found = self.read_sorted_set(&key)?;
        let (table, reply) = self.table_and_reply(&key);
        let set = found.and_then(|place| table.sorted_set(place));
        reply.array(args.len() - 2);
        for name in (2..args.len()).filter_map(|index| args.get(index)) {
            write_entry(reply, set.and_then(|set| set.score(name)));
        }
        Ok(())
    }

    fn update_member(
        &mut self,
        key: &Key<'_>,
        found: Option<EntryRef>,
        name: &[u8],
        decide: impl FnOnce(Option<f64>) -> Option<f64>,
    ) -> EntryRef {
        let bounds = self.engine.settings.value_limits.listpack_bounds_of_sorted_sets.load();
        let table = self.table(key);
        let place = found.unwrap_or_else(|| table.insert(key, PackedValue::empty(Kind::SortedSet), None));
        table.sorted_set_update(place, key, name, bounds, decide)
    }

    fn report_removed_members(&mut self, key: &Key<'_>, entry_ref: EntryRef, event: &str) {
        let emptied = self.sorted_set_at(key, entry_ref).is_empty();
        if emptied {
            let dropped = self.table(key).remove(entry_ref, key);
            self.discard(dropped);
        }
        self.report_modified(key);
        self.notify(EventClass::SORTED_SET, event, key);
        if emptied {
            self.notify(EventClass::GENERIC, "del", key);
        }
    }

    fn store_members<'m>(
        &mut self,
        key: &Key<'_>,
        members: impl ExactSizeIterator<Item = ScoredMember<'m>> + Clone,
        event: &str,
    ) {
        let (count, built) = (members.len(), self.build_members(members));
        self.store_built_members(key, &built, count, event);
    }

    fn build_members<'m>(
        &self,
        members: impl ExactSizeIterator<Item = ScoredMember<'m>> + Clone,
    ) -> PackedBuilder {
        let mut builder = PackedBuilder::new(Kind::SortedSet);
        let limits = self.engine.settings.value_limits.encoding_limits();
        let longest = members.clone().map(|member| member.name.len()).max().unwrap_or(0);
        let is_small =
            members.len() <= limits.sorted_set.max_entries && longest <= limits.sorted_set.max_value_len;
        // A listpack cannot represent negative zero.
        let kept = |score| if is_small { score + 0.0 } else { score };
        members.for_each(|member| builder.push_scored_member(member.name, kept(member.score)));
        builder.choose_encoding(&limits);
        builder
    }

    fn store_built_members(&mut self, key: &Key<'_>, built: &PackedBuilder, count: usize, event: &str) {
        let found = self.find(key);
        if count > 0 {
            self.put(key, found, built.packed(), None);
            self.notify(EventClass::SORTED_SET, event, key);
        } else if let Some(place) = found {
            self.delete(key, place);
            self.notify(EventClass::GENERIC, "del", key);
        }
        self.reply.integer(count as i64);
    }
}

/// The layout of members in a reply.
#[derive(Clone, Copy)]
pub(crate) struct MemberLayout {
    /// Whether to include scores.
    pub(crate) with_scores: bool,
    /// Whether each member and its score form a nested array.
    is_nested: bool,
}

impl MemberLayout {
    /// The layout of range replies: nested pairs in RESP3.
    pub(crate) fn for_range_reply(reply: &Writer<'_>, with_scores: bool) -> Self {
        Self { with_scores, is_nested: with_scores && reply.protocol() == Protocol::Resp3 }
    }

    /// A layout with scores. Each pair of member and score is a nested array if `is_nested` is set.
    pub(super) fn with_pairs(is_nested: bool) -> Self {
        Self { with_scores: true, is_nested }
    }

    /// Writes the array header of a reply with `members` members.
    pub(crate) fn write_header(self, reply: &mut Writer<'_>, members: usize) {
        reply.array(if self.with_scores && !self.is_nested { members * 2 } else { members });
    }

    pub(crate) fn write_member(self, reply: &mut Writer<'_>, member: &ScoredMember<'_>) {
        if self.is_nested {
            reply.array(2);
        }
        reply.bulk(member.name);
        if self.with_scores {
            reply.double(member.score);
        }
    }
}
