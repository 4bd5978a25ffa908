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

use bitflags::bitflags;

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
