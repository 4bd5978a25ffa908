//! Keyspace notifications: subscribers are told what happens to keys.
//!
//! A command that changed a key says so by [`Context::notify`](crate::Context::notify), with the class of the event and
//! its name, as Redis has them. If `notify-keyspace-events` names the class, the event is published, to clients of this
//! node alone: on `__keyspace@<db>__:<key>` the name of the event, on `__keyevent@<db>__:<event>` the key. The slot of
//! the key is still locked, so subscribers hear of one key's events in their order. Where nothing is named an event
//! costs one load.
//!
//! No command says that a key is new ([`Class::NEW`]). If that class is published, the keys that a command names and
//! that do not exist are noted before it runs, and those of them that exist when it says what it did are new.

use std::cell::RefCell;
use std::collections::HashSet;

use bitflags::bitflags;
use keyspace::Found;

use crate::command::Command;
use crate::context::Context;
use crate::engine::Engine;

/// Keys that a command names and that were not there before it ran, with their databases.
pub(crate) type Absent = RefCell<Vec<(u16, Vec<u8>)>>;

bitflags! {
    /// The class of an event, and the channels on which it is published.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Class: u32 {
        /// `K`: published by key.
        const KEYSPACE = 1;
        /// `E`: published by event.
        const KEYEVENT = 1 << 1;
        /// `g`: commands that are about any kind of value (DEL, EXPIRE, RENAME).
        const GENERIC = 1 << 2;
        /// `$`
        const STRING = 1 << 3;
        /// `l`
        const LIST = 1 << 4;
        /// `s`
        const SET = 1 << 5;
        /// `h`
        const HASH = 1 << 6;
        /// `z`
        const SORTED_SET = 1 << 7;
        /// `x`: a key's time has come.
        const EXPIRED = 1 << 8;
        /// `e`: a key went to make room.
        const EVICTED = 1 << 9;
        /// `t`
        const STREAM = 1 << 10;
        /// `m`: a key was read that is not there. Not part of `A`.
        const MISS = 1 << 11;
        /// `d`: values of modules, of which there are none.
        const MODULE = 1 << 12;
        /// `n`: a key is new. Not part of `A`.
        const NEW = 1 << 13;
        /// `A`
        const ALL = Self::GENERIC.bits() | Self::STRING.bits() | Self::LIST.bits() | Self::SET.bits()
            | Self::HASH.bits() | Self::SORTED_SET.bits() | Self::EXPIRED.bits() | Self::EVICTED.bits()
            | Self::STREAM.bits() | Self::MODULE.bits();
    }
}

/// The letters of `notify-keyspace-events`, besides `A`.
const LETTERS: [(char, Class); 14] = [
    ('g', Class::GENERIC),
    ('$', Class::STRING),
    ('l', Class::LIST),
    ('s', Class::SET),
    ('h', Class::HASH),
    ('z', Class::SORTED_SET),
    ('x', Class::EXPIRED),
    ('e', Class::EVICTED),
    ('t', Class::STREAM),
    ('d', Class::MODULE),
    ('n', Class::NEW),
    ('K', Class::KEYSPACE),
    ('E', Class::KEYEVENT),
    ('m', Class::MISS),
];

impl Class {
    /// The classes that the letters name, or `None` if one of them names nothing.
    #[must_use]
    pub fn of_letters(letters: &str) -> Option<Self> {
        let class = |letter| match letter {
            'A' => Some(Self::ALL),
            letter => LETTERS.iter().find(|(known, _)| *known == letter).map(|(_, class)| *class),
        };
        letters.chars().try_fold(Self::empty(), |classes, letter| Some(classes | class(letter)?))
    }
}

impl Engine {
    /// Publishes an event of a key, if there may be subscribers to it. The caller holds the key's slot.
    #[inline]
    pub(crate) fn notify(&self, class: Class, event: &str, db: u16, key: &[u8]) {
        let wanted = self.settings.notified();
        if wanted.intersects(class) {
            self.publish_event(wanted, event, db, key);
        }
    }

    #[cold]
    fn publish_event(&self, wanted: Class, event: &str, db: u16, key: &[u8]) {
        if wanted.contains(Class::KEYSPACE) {
            let mut channel = format!("__keyspace@{db}__:").into_bytes();
            channel.extend_from_slice(key);
            self.pubsub.deliver(false, &channel, event.as_bytes());
        }
        if wanted.contains(Class::KEYEVENT) {
            self.pubsub.deliver(false, format!("__keyevent@{db}__:{event}").as_bytes(), key);
        }
    }
}

impl Context<'_> {
    /// Notes which of the command's keys are not there.
    #[cold]
    pub(crate) fn note_absent(&mut self, command: &Command) {
        let (args, mut absent) = (self.args, Vec::new());
        // A key that is named twice is new once.
        let mut seen = HashSet::new();
        command.visit_keys(args, &mut |index, _| {
            if !seen.insert(&args[index]) {
                return;
            }
            let key = self.engine.keyspace.key(&args[index]);
            if !self.slots.has(key.slot()) {
                return;
            }
            let data = self.slots.slot(key.slot());
            let missing =
                |db: &u16| matches!(data.view(*db).find(&key, self.now), Found::Missing | Found::Expired(_));
            // COPY and MOVE put them into another database.
            let databases = 0..self.engine.keyspace.databases();
            absent.extend(databases.filter(missing).map(|db| (db, key.bytes().to_vec())));
        });
        self.worker.absent.replace(absent);
    }

    /// Publishes that keys are new which were not there.
    #[cold]
    pub(crate) fn notify_new(&self) {
        let (mut absent, mut new) = (self.worker.absent.borrow_mut(), Vec::new());
        absent.retain(|(db, name)| {
            let key = self.engine.keyspace.key(name);
            // A script's commands have slots of their own.
            let is_there = self.slots.has(key.slot())
                && matches!(self.slots.slot(key.slot()).view(*db).find(&key, self.now), Found::Live(_));
            if is_there {
                new.push((*db, name.clone()));
            }
            !is_there
        });
        drop(absent);
        new.iter().for_each(|(db, key)| self.engine.notify(Class::NEW, "new", *db, key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_name_classes() {
        for (letters, classes) in [
            ("", Some(Class::empty())),
            ("KEA", Some(Class::KEYSPACE | Class::KEYEVENT | Class::ALL)),
            ("Ex", Some(Class::KEYEVENT | Class::EXPIRED)),
            ("nm", Some(Class::NEW | Class::MISS)),
            ("Kq", None),
        ] {
            assert_eq!(Class::of_letters(letters), classes, "{letters}");
        }
    }
}
