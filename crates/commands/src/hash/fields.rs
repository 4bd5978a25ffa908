//! Steps shared by all hash commands: find the hash, read its unexpired fields, set a field.

use clock::Millis;
use engine::{CommandError, Context, EventClass};
use keyspace::{EntryRef, Field, HashRef, Key, Kind, PackedValue, ReplacedField};

/// Counts of the fields that a command set although they did not exist before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AddedFields {
    /// Number of fields that did not exist.
    pub(crate) missing_count: usize,
    /// Number of fields that had expired but were still stored; they count as missing.
    pub(crate) expired_count: usize,
}

/// Access to the hashes of a command's keys.
pub(crate) trait HashAccess {
    /// Finds the hash under `key` for writing. Fails with WRONGTYPE if the key has another type.
    fn find_hash(&mut self, key: &Key<'_>) -> Result<Option<EntryRef>, CommandError>;

    /// Finds the hash under `key` for reading, and counts a keyspace hit or miss.
    fn read_hash(&mut self, key: &Key<'_>) -> Result<Option<EntryRef>, CommandError>;

    /// The hash in the entry `entry_ref`, which [`Context::find_hash`] or [`Context::read_hash`] returned.
    fn hash_at(&self, key: &Key<'_>, entry_ref: EntryRef) -> HashRef<'_>;

    /// Fields that expire at or before this time count as missing.
    fn field_expiry_cutoff(&self) -> Millis;

    /// Looks up a field of the hash at `found`. Returns `None` if the field does not exist, otherwise its expiry, if
    /// any.
    fn find_field_expiry(
        &self,
        key: &Key<'_>,
        found: Option<EntryRef>,
        name: &[u8],
    ) -> Option<Option<Millis>>;

    /// Replies with the value of a field or null. Returns the same as [`HashAccess::find_field_expiry`].
    fn reply_field_and_return_expiry(
        &mut self,
        key: &Key<'_>,
        found: Option<EntryRef>,
        name: &[u8],
    ) -> Option<Option<Millis>>;

    /// Sets a field of the hash at `found`, or creates the hash. Returns the previous state of the field.
    fn set_field(
        &mut self,
        key: &Key<'_>,
        found: Option<EntryRef>,
        field: Field<'_>,
    ) -> (EntryRef, Option<ReplacedField>);

    /// Sets several fields, each as [`Context::set_field`] does.
    fn set_fields<'f>(
        &mut self,
        key: &Key<'_>,
        found: Option<EntryRef>,
        fields: impl Iterator<Item = Field<'f>>,
    ) -> AddedFields;

    /// Sends the `hexpired` event if `any_expired` is set, which means that a write replaced expired fields. Call it
    /// between [`Context::report_modified`] and the command's own event.
    fn notify_expired_fields_replaced(&self, key: &Key<'_>, any_expired: bool);

    /// Deletes the hash at `entry_ref` if it is empty. The caller has already reported the modification.
    fn delete_if_empty(&mut self, key: &Key<'_>, entry_ref: EntryRef);
}

impl HashAccess for Context<'_> {
    fn find_hash(&mut self, key: &Key<'_>) -> Result<Option<EntryRef>, CommandError> {
        self.find_typed::<HashRef<'_>>(key)
    }

    fn read_hash(&mut self, key: &Key<'_>) -> Result<Option<EntryRef>, CommandError> {
        self.read_typed::<HashRef<'_>>(key)
    }

    fn hash_at(&self, key: &Key<'_>, entry_ref: EntryRef) -> HashRef<'_> {
        self.table_ref(key).hash(entry_ref).expect("a hash was found there")
    }

    fn field_expiry_cutoff(&self) -> Millis {
        self.expiry_cutoff()
    }

    fn find_field_expiry(
        &self,
        key: &Key<'_>,
        found: Option<EntryRef>,
        name: &[u8],
    ) -> Option<Option<Millis>> {
        self.hash_at(key, found?).get(name).map(|field| field.expiry)
    }

    fn reply_field_and_return_expiry(
        &mut self,
        key: &Key<'_>,
        found: Option<EntryRef>,
        name: &[u8],
    ) -> Option<Option<Millis>> {
        let now = self.field_expiry_cutoff();
        let (table, reply) = self.table_and_reply(key);
        let field =
            found.and_then(|place| table.hash(place)?.get(name)).filter(|field| field.is_live_at(now));
        match field {
            Some(field) => reply.bulk(field.value),
            None => reply.null(),
        }
        field.map(|field| field.expiry)
    }

    fn set_field(
        &mut self,
        key: &Key<'_>,
        found: Option<EntryRef>,
        field: Field<'_>,
    ) -> (EntryRef, Option<ReplacedField>) {
        let bounds = self.engine.settings.value_limits.listpack_bounds_of_hashes.load();
        let table = self.table(key);
        let place = found.unwrap_or_else(|| table.insert(key, PackedValue::empty(Kind::Hash), None));
        let (place, replaced) = table.hash_set(place, key, field, bounds);
        let hidden = replaced.is_some_and(|replaced| replaced.was_expired_at(self.field_expiry_cutoff()));
        self.count_expired_fields(usize::from(hidden));
        (place, replaced)
    }

    fn set_fields<'f>(
        &mut self,
        key: &Key<'_>,
        found: Option<EntryRef>,
        fields: impl Iterator<Item = Field<'f>>,
    ) -> AddedFields {
        let (bounds, now) =
            (self.engine.settings.value_limits.listpack_bounds_of_hashes.load(), self.field_expiry_cutoff());
        let table = self.table(key);
        let place = found.unwrap_or_else(|| table.insert(key, PackedValue::empty(Kind::Hash), None));
        let mut set = AddedFields { missing_count: 0, expired_count: 0 };
        table.hash_set_all(place, key, fields, bounds, |replaced| match replaced {
            None => set.missing_count += 1,
            Some(replaced) => set.expired_count += usize::from(replaced.was_expired_at(now)),
        });
        self.count_expired_fields(set.expired_count);
        set
    }

    fn notify_expired_fields_replaced(&self, key: &Key<'_>, any_expired: bool) {
        if any_expired {
            self.notify(EventClass::HASH, "hexpired", key);
        }
    }

    fn delete_if_empty(&mut self, key: &Key<'_>, entry_ref: EntryRef) {
        if self.hash_at(key, entry_ref).is_empty() {
            let dropped = self.table(key).remove(entry_ref, key);
            self.discard(dropped);
            self.notify(EventClass::GENERIC, "del", key);
        }
    }
}
