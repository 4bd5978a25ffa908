//! The steps that every hash command takes: find the hash, see its fields as of now, set one.

use clock::Millis;
use engine::{Class, CommandError, Context};
use keyspace::{Field, HashRef, Key, Kind, Packed, Place, Replaced};

/// The number of fields that a command set and that were not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FieldsSet {
    /// Those that were missing.
    pub(crate) missing: usize,
    /// Those whose time had come, which count as missing.
    pub(crate) expired: usize,
}

/// The hashes of a command.
pub(crate) trait HashAccess {
    /// Where the hash under `key` lies, for a command that changes it.
    fn find_hash(&mut self, key: &Key<'_>) -> Result<Option<Place>, CommandError>;

    /// The same for a command that reads: counts a hit or a miss.
    fn read_hash(&mut self, key: &Key<'_>) -> Result<Option<Place>, CommandError>;

    /// The hash at `place`, which [`Context::find_hash`] or [`Context::read_hash`] gave.
    fn hash(&self, key: &Key<'_>, place: Place) -> HashRef<'_>;

    /// Fields that expire up to this time count as missing.
    fn fields_now(&self) -> Millis;

    /// A field of the hash under `key`, which lies at `found`: whether it is there, and when it expires.
    fn field(&self, key: &Key<'_>, found: Option<Place>, name: &[u8]) -> Option<Option<Millis>>;

    /// Replies with a field's value or null; returns whether the field exists, and when it expires.
    fn reply_field(&mut self, key: &Key<'_>, found: Option<Place>, name: &[u8]) -> Option<Option<Millis>>;

    /// Sets a field of the hash under `key`, which lies at `found`, or makes the hash. Says what was there.
    fn set_field(
        &mut self,
        key: &Key<'_>,
        found: Option<Place>,
        field: Field<'_>,
    ) -> (Place, Option<Replaced>);

    /// Sets fields one after another, as [`Context::set_field`] does each.
    fn set_fields<'f>(
        &mut self,
        key: &Key<'_>,
        found: Option<Place>,
        fields: impl Iterator<Item = Field<'f>>,
    ) -> FieldsSet;

    /// Tells subscribers that fields whose time had come were there until others took their places, if any did.
    /// To be called between [`Context::modified`] and the command's own event.
    fn notify_overwritten(&self, key: &Key<'_>, any: bool);

    /// Deletes the hash at `place` if no field is left. The caller has said that it was modified.
    fn drop_if_empty(&mut self, key: &Key<'_>, place: Place);
}

impl HashAccess for Context<'_> {
    fn find_hash(&mut self, key: &Key<'_>) -> Result<Option<Place>, CommandError> {
        self.find_typed::<HashRef<'_>>(key)
    }

    fn read_hash(&mut self, key: &Key<'_>) -> Result<Option<Place>, CommandError> {
        self.read_typed::<HashRef<'_>>(key)
    }

    fn hash(&self, key: &Key<'_>, place: Place) -> HashRef<'_> {
        self.view(key).hash(place).expect("a hash was found there")
    }

    fn fields_now(&self) -> Millis {
        self.expired_until()
    }

    fn field(&self, key: &Key<'_>, found: Option<Place>, name: &[u8]) -> Option<Option<Millis>> {
        self.hash(key, found?).get(name).map(|field| field.expiry)
    }

    fn reply_field(&mut self, key: &Key<'_>, found: Option<Place>, name: &[u8]) -> Option<Option<Millis>> {
        let now = self.fields_now();
        let (table, reply) = self.view_and_reply(key);
        let field = found.and_then(|place| table.hash(place)?.get(name)).filter(|field| field.lives_at(now));
        match field {
            Some(field) => reply.bulk(field.value),
            None => reply.null(),
        }
        field.map(|field| field.expiry)
    }

    fn set_field(
        &mut self,
        key: &Key<'_>,
        found: Option<Place>,
        field: Field<'_>,
    ) -> (Place, Option<Replaced>) {
        let bounds = self.engine.settings.hash_bounds.load();
        let table = self.table(key);
        let place = found.unwrap_or_else(|| table.insert(key, Packed::empty(Kind::Hash), None));
        let (place, replaced) = table.hash_set(place, key, field, bounds);
        let hidden = replaced.is_some_and(|replaced| replaced.is_past(self.fields_now()));
        self.count_expired_fields(usize::from(hidden));
        (place, replaced)
    }

    fn set_fields<'f>(
        &mut self,
        key: &Key<'_>,
        found: Option<Place>,
        fields: impl Iterator<Item = Field<'f>>,
    ) -> FieldsSet {
        let (bounds, now) = (self.engine.settings.hash_bounds.load(), self.fields_now());
        let table = self.table(key);
        let place = found.unwrap_or_else(|| table.insert(key, Packed::empty(Kind::Hash), None));
        let mut set = FieldsSet { missing: 0, expired: 0 };
        table.hash_set_all(place, key, fields, bounds, |replaced| match replaced {
            None => set.missing += 1,
            Some(replaced) => set.expired += usize::from(replaced.is_past(now)),
        });
        self.count_expired_fields(set.expired);
        set
    }

    fn notify_overwritten(&self, key: &Key<'_>, any: bool) {
        if any {
            self.notify(Class::HASH, "hexpired", key);
        }
    }

    fn drop_if_empty(&mut self, key: &Key<'_>, place: Place) {
        if self.hash(key, place).is_empty() {
            let dropped = self.table(key).remove(place, key);
            self.discard(dropped);
            self.notify(Class::GENERIC, "del", key);
        }
    }
}
