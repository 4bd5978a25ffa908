//! The groups of commands that rules name with `@`.

use bitflags::bitflags;

bitflags! {
    /// Access control categories.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Categories: u32 {
        /// Keys as such: DEL, EXPIRE, SCAN.
        const KEYSPACE = 1;
        /// Values are read.
        const READ = 1 << 1;
        /// Values are written.
        const WRITE = 1 << 2;
        /// Sets.
        const SET = 1 << 3;
        /// Sorted sets.
        const SORTEDSET = 1 << 4;
        /// Lists.
        const LIST = 1 << 5;
        /// Hashes.
        const HASH = 1 << 6;
        /// Strings.
        const STRING = 1 << 7;
        /// Bits of strings.
        const BITMAP = 1 << 8;
        /// Estimated counts of different elements.
        const HYPERLOGLOG = 1 << 9;
        /// Places on the earth.
        const GEO = 1 << 10;
        /// Streams.
        const STREAM = 1 << 11;
        /// Channels.
        const PUBSUB = 1 << 12;
        /// Commands of operators.
        const ADMIN = 1 << 13;
        /// Takes constant or logarithmic time.
        const FAST = 1 << 14;
        /// Everything that is not fast.
        const SLOW = 1 << 15;
        /// May wait.
        const BLOCKING = 1 << 16;
        /// Can harm a running server or its other clients.
        const DANGEROUS = 1 << 17;
        /// The client's own connection.
        const CONNECTION = 1 << 18;
        /// MULTI and what belongs to it.
        const TRANSACTION = 1 << 19;
        /// Scripts and functions.
        const SCRIPTING = 1 << 20;
    }
}

impl Categories {
    /// Every category with its name, in the order in which ACL CAT has them.
    pub const NAMED: &[(Self, &'static str)] = &[
        (Self::KEYSPACE, "keyspace"),
        (Self::READ, "read"),
        (Self::WRITE, "write"),
        (Self::SET, "set"),
        (Self::SORTEDSET, "sortedset"),
        (Self::LIST, "list"),
        (Self::HASH, "hash"),
        (Self::STRING, "string"),
        (Self::BITMAP, "bitmap"),
        (Self::HYPERLOGLOG, "hyperloglog"),
        (Self::GEO, "geo"),
        (Self::STREAM, "stream"),
        (Self::PUBSUB, "pubsub"),
        (Self::ADMIN, "admin"),
        (Self::FAST, "fast"),
        (Self::SLOW, "slow"),
        (Self::BLOCKING, "blocking"),
        (Self::DANGEROUS, "dangerous"),
        (Self::CONNECTION, "connection"),
        (Self::TRANSACTION, "transaction"),
        (Self::SCRIPTING, "scripting"),
    ];

    /// The category of that name, in any case.
    #[must_use]
    pub fn named(name: &[u8]) -> Option<Self> {
        Self::NAMED
            .iter()
            .find(|(_, word)| name.eq_ignore_ascii_case(word.as_bytes()))
            .map(|(category, _)| *category)
    }
}
