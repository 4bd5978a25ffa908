//! The groups of commands that rules name with `@`.

use bitflags::bitflags;

bitflags! {
    /// Access control categories.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Categories: u32 {
        const KEYSPACE = 1;
        const READ = 1 << 1;
        const WRITE = 1 << 2;
        const SET = 1 << 3;
        const SORTEDSET = 1 << 4;
        const LIST = 1 << 5;
        const HASH = 1 << 6;
        const STRING = 1 << 7;
        const BITMAP = 1 << 8;
        const HYPERLOGLOG = 1 << 9;
        const GEO = 1 << 10;
        const STREAM = 1 << 11;
        const PUBSUB = 1 << 12;
        const ADMIN = 1 << 13;
        const FAST = 1 << 14;
        const SLOW = 1 << 15;
        const BLOCKING = 1 << 16;
        const DANGEROUS = 1 << 17;
        const CONNECTION = 1 << 18;
        const TRANSACTION = 1 << 19;
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
