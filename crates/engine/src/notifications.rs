//! Keyspace notifications: what happens to keys, told to who subscribes to it.
//!
//! A command that changed a key says so by [`Context::notify`](crate::Context::notify), with the class of the event and
//! its name, as Redis has them. If `notify-keyspace-events` names the class, the event is published, to clients of this
//! node alone: on `__keyspace@<db>__:<key>` the name of the event, on `__keyevent@<db>__:<event>` the key. The slot of
//! the key is still locked, so subscribers hear of one key's events in their order. Where nothing is named an event
//! costs one load.

use bitflags::bitflags;

use crate::engine::Engine;

bitflags! {
    /// What an event is about, and where it is published.
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

/// The letters of `notify-keyspace-events`, in the order in which CONFIG GET shows them.
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
    /// What the letters name, or `None` if one of them names nothing.
    #[must_use]
    pub fn of_letters(letters: &str) -> Option<Self> {
        let class = |letter| match letter {
            'A' => Some(Self::ALL),
            letter => LETTERS.iter().find(|(known, _)| *known == letter).map(|(_, class)| *class),
        };
        letters.chars().try_fold(Self::empty(), |classes, letter| Some(classes | class(letter)?))
    }

    /// The letters that name these, as short as they can be.
    #[must_use]
    pub fn letters(self) -> String {
        let (mut letters, mut left) = (String::new(), self);
        if self.contains(Self::ALL) {
            letters.push('A');
            left -= Self::ALL;
        }
        letters.extend(LETTERS.iter().filter(|(_, class)| left.contains(*class)).map(|(letter, _)| *letter));
        letters
    }
}

impl Engine {
    /// Publishes an event of a key, if anybody may want to hear of it. The caller holds the key's slot.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_read_and_written() {
        for (letters, written) in [
            ("", ""),
            ("KEA", "AKE"),
            ("Ex", "xE"),
            ("g$lshzxetdKE", "AKE"),
            ("Knm", "nKm"),
            ("AKEmn", "AnKEm"),
        ] {
            assert_eq!(Class::of_letters(letters).map(Class::letters).as_deref(), Some(written), "{letters}");
        }
        assert_eq!(Class::of_letters("Kq"), None);
    }
}
