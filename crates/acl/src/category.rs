//! Command categories (`@name` in ACL rules).

use bitflags::bitflags;

bitflags! {
    /// Access control categories.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Categories: u32 {
        /// Keys of any type: DEL, EXPIRE, SCAN.
        const KEYSPACE = 1;
        /// Reads values.
        const READ = 1 << 1;
        /// Writes values.
        const WRITE = 1 << 2;
        /// Set commands.
        const SET = 1 << 3;
        /// Sorted set commands.
        const SORTEDSET = 1 << 4;
        /// List commands.
        const LIST = 1 << 5;
        /// Hash commands.
        const HASH = 1 << 6;
        /// String commands.
        const STRING = 1 << 7;
        /// Bitmap commands.
        const BITMAP = 1 << 8;
        /// HyperLogLog commands.
        const HYPERLOGLOG = 1 << 9;
        /// Geospatial commands.
        const GEO = 1 << 10;
        /// Stream commands.
        const STREAM = 1 << 11;
        /// Pub/Sub commands.
        const PUBSUB = 1 << 12;
        /// Administrative commands.
        const ADMIN = 1 << 13;
        /// Commands with constant or logarithmic time.
        const FAST = 1 << 14;
        /// Commands that are not fast.
        const SLOW = 1 << 15;
        /// Commands that may block the client.
        const BLOCKING = 1 << 16;
        /// Commands that can harm a running server or its other clients.
        const DANGEROUS = 1 << 17;
        /// Commands about the client's own connection.
        const CONNECTION = 1 << 18;
        /// MULTI and related commands.
        const TRANSACTION = 1 << 19;
        /// Scripts and functions.
        const SCRIPTING = 1 << 20;
    }
}

impl Categories {
    /// All categories with their names, in the order of ACL CAT.
    pub const NAMES: &[(Self, &'static str)] = &[
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

    /// Finds a category by name, ignoring case.
    #[must_use]
    pub fn find_by_name(name: &[u8]) -> Option<Self> {
        Self::NAMES
            .iter()
            .find(|(_, word)| name.eq_ignore_ascii_case(word.as_bytes()))
            .map(|(category, _)| *category)
    }
}
