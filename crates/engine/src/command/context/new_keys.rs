//! Events of new keys ([`EventClass::NEW`]): compares which of a command's keys exist before and after it.

use std::collections::HashSet;

use keyspace::{Key, KeyLookup};

use super::Context;
use crate::command::Command;
use crate::notifications::EventClass;

impl Context<'_> {
    /// Records which of the command's keys do not exist.
    #[cold]
    pub(crate) fn record_absent_keys(&mut self, command: &Command) {
        let (args, mut absent) = (self.args, Vec::new());
        // A key that is named twice causes one event.
        let mut seen = HashSet::new();
        command.visit_keys(args, &mut |index, _| {
            if !seen.insert(&args[index]) {
                return;
            }
            let key = self.engine.keyspace.key(&args[index]);
            if !self.slots.is_locked(key.slot()) {
                return;
            }
            let data = self.slots.slot(key.slot());
            let missing = |db: &u16| {
                matches!(data.table_ref(*db).find(&key, self.now), KeyLookup::Missing | KeyLookup::Expired(_))
            };
            // COPY and MOVE may create the key in another database.
            let databases = 0..self.engine.keyspace.database_count();
            absent.extend(databases.filter(missing).map(|db| (db, key.bytes().to_vec())));
        });
        self.worker.absent_keys.replace(absent);
    }

    /// Publishes an event for each key that was recorded as absent and exists now.
    #[cold]
    pub(crate) fn publish_new_keys(&self) {
        let (mut absent, mut new) = (self.worker.absent_keys.borrow_mut(), Vec::new());
        absent.retain(|(db, name)| {
            let key = self.engine.keyspace.key(name);
            // Commands called by a script lock slots of their own, so a slot may be unlocked here.
            let is_there = self.slots.is_locked(key.slot())
                && matches!(
                    self.slots.slot(key.slot()).table_ref(*db).find(&key, self.now),
                    KeyLookup::Live(_)
                );
            if is_there {
                new.push((*db, name.clone()));
            }
            !is_there
        });
        drop(absent);
        new.iter().for_each(|(db, key)| self.engine.notify(EventClass::NEW, "new", *db, key));
    }

    /// Publishes that `key` of database `db` is new, when comparing the keys before and after the command cannot show
    /// it: the key replaced another, or has already expired. Called before the command's own event.
    #[inline]
    pub fn publish_new_key(&self, db: u16, key: &Key<'_>) {
        if self.engine.settings.notified_event_classes().contains(EventClass::NEW) {
            self.worker.absent_keys.borrow_mut().retain(|(of, name)| *of != db || name != key.bytes());
            self.engine.notify(EventClass::NEW, "new", db, key.bytes());
        }
    }
}
