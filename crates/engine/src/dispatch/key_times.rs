//! Detects expiry changes made by clients on a writable replica; see `engine/local_expiry.rs`.

use clock::Millis;
use keyspace::KeyLookup;
use smallvec::SmallVec;

use crate::command::{Command, Context, Flags};
use crate::session::CommandOrigin;

/// Database, name and expiry of a command's keys.
pub(super) type KeyExpiries = SmallVec<[(u16, Vec<u8>, Option<Millis>); 2]>;

impl Context<'_> {
    /// Returns whether this is a client's write on a replica.
    #[inline(always)]
    pub(super) fn is_client_write_on_replica(&self, command: &Command) -> bool {
        self.engine.settings.is_replica()
            && self.session.origin() == CommandOrigin::Client
            && command.flags.contains(Flags::WRITE)
    }

    /// Returns the expiry of the command's keys in all databases, because COPY and MOVE change a key in another
    /// database.
    pub(super) fn key_expiries(&self, command: &Command) -> KeyExpiries {
        let (args, mut times) = (self.args, KeyExpiries::new());
        command.visit_keys(args, &mut |index, _| {
            let databases = 0..self.engine.keyspace.database_count();
            times.extend(databases.map(|db| (db, args[index].to_vec(), self.expiry_of(db, &args[index]))));
        });
        times
    }

    fn expiry_of(&self, db: u16, name: &[u8]) -> Option<Millis> {
        let key = self.engine.keyspace.key(name);
        // A command that a script calls may lock slots of its own, so this key's slot may be unlocked.
        if !self.slots.is_locked(key.slot()) {
            return None;
        }
        let view = self.slots.slot(key.slot()).table_ref(db);
        match view.find(&key, Millis(i64::MIN)) {
            KeyLookup::Live(place) | KeyLookup::Expired(place) => view.expiry(place),
            KeyLookup::Missing => None,
        }
    }

    /// Records the keys whose expiry differs from `previous`.
    pub(super) fn record_key_expiries(&self, previous: KeyExpiries) {
        for (db, name, time) in previous {
            let now = self.expiry_of(db, &name);
            if now != time {
                self.engine.memory.record_local_expiry(db, name, now);
            }
        }
    }
}
