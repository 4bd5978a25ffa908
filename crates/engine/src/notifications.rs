//! Keyspace notifications: pub/sub messages about changes of keys.
//!
//! A command that changes a key calls [`Context::notify`](crate::Context::notify) with the event's class and name, as
//! in Redis. If `notify-keyspace-events` includes the class, the event is published to clients of this node: its name
//! on `__keyspace@<db>__:<key>` and the key on `__keyevent@<db>__:<event>`. The key's slot is still locked, so events
//! of one key arrive in order. With notifications off an event costs one load.
//!
//! Commands do not report that a key is new ([`EventClass::NEW`]). If that class is enabled, missing keys among a
//! command's keys are recorded before it runs; those that exist when it reports its change are new.

use std::cell::RefCell;

use bitflags::bitflags;

/// Keys of the running command that did not exist before it, with their databases.
pub(crate) type AbsentKeys = RefCell<Vec<(u16, Vec<u8>)>>;

bitflags! {
    /// Event classes of `notify-keyspace-events`, and the two kinds of channels on which events are published.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct EventClass: u32 {
        /// `K`: publish on keyspace channels.
        const KEYSPACE = 1;
        /// `E`: publish on keyevent channels.
        const KEYEVENT = 1 << 1;
        /// `g`: commands for any type (DEL, EXPIRE, RENAME).
        const GENERIC = 1 << 2;
        /// `$`: a string command changed a key.
        const STRING = 1 << 3;
        /// `l`: a list command changed a key.
        const LIST = 1 << 4;
        /// `s`: a set command changed a key.
        const SET = 1 << 5;
        /// `h`: a hash command changed a key.
        const HASH = 1 << 6;
        /// `z`: a sorted set command changed a key.
        const SORTED_SET = 1 << 7;
        /// `x`: a key was deleted because it had expired.
        const EXPIRED = 1 << 8;
        /// `e`: a key was evicted to free memory.
        const EVICTED = 1 << 9;
        /// `t`: a stream command changed a key.
        const STREAM = 1 << 10;
        /// `m`: a read did not find its key. This class is not part of `A`.
        const MISS = 1 << 11;
        /// `d`: events of module types. No module type exists here, so there are none.
        const MODULE = 1 << 12;
        /// `n`: a key was created. This class is not part of `A`.
        const NEW = 1 << 13;
        /// `A`: all classes except [`Self::MISS`] and [`Self::NEW`].
        const ALL = Self::GENERIC.bits() | Self::STRING.bits() | Self::LIST.bits() | Self::SET.bits()
            | Self::HASH.bits() | Self::SORTED_SET.bits() | Self::EXPIRED.bits() | Self::EVICTED.bits()
            | Self::STREAM.bits() | Self::MODULE.bits();
    }
}

/// Letters of `notify-keyspace-events`, except `A`.
const CLASS_LETTERS: [(char, EventClass); 14] = [
    ('g', EventClass::GENERIC),
    ('$', EventClass::STRING),
    ('l', EventClass::LIST),
    ('s', EventClass::SET),
    ('h', EventClass::HASH),
    ('z', EventClass::SORTED_SET),
    ('x', EventClass::EXPIRED),
    ('e', EventClass::EVICTED),
    ('t', EventClass::STREAM),
    ('d', EventClass::MODULE),
    ('n', EventClass::NEW),
    ('K', EventClass::KEYSPACE),
    ('E', EventClass::KEYEVENT),
    ('m', EventClass::MISS),
];

impl EventClass {
    /// Parses `notify-keyspace-events`; `None` if a letter is unknown.
    #[must_use]
    pub fn from_letters(letters: &str) -> Option<Self> {
        let class = |letter| match letter {
            'A' => Some(Self::ALL),
            letter => CLASS_LETTERS.iter().find(|(known, _)| *known == letter).map(|(_, class)| *class),
        };
        letters.chars().try_fold(Self::empty(), |classes, letter| Some(classes | class(letter)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_map_to_event_classes() {
        for (letters, classes) in [
            ("", Some(EventClass::empty())),
            ("KEA", Some(EventClass::KEYSPACE | EventClass::KEYEVENT | EventClass::ALL)),
            ("Ex", Some(EventClass::KEYEVENT | EventClass::EXPIRED)),
            ("nm", Some(EventClass::NEW | EventClass::MISS)),
            ("Kq", None),
        ] {
            assert_eq!(EventClass::from_letters(letters), classes, "{letters}");
        }
    }
}
