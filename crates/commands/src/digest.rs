//! A digest of the dataset (DEBUG DIGEST). Equal data gives the same digest on this server and on Valkey, and on Redis
//! 7.0 unless a score needs 17 digits.
//!
//! The algorithm was derived from the replies of those servers. Everything is hashed with SHA-1. Unordered parts are
//! hashed and xored into the digest. Ordered parts are xored in the same way, and then the digest itself is hashed
//! again. The digest covers whether a key or field has an expiry, but not the time.

use sha1::{Digest as _, Sha1};

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Digest([u8; 20]);

impl Digest {
    /// Adds a part of the data whose position does not matter, such as a member of a set.
    pub(crate) fn add_unordered(&mut self, part: &[u8]) {
        let hash = Sha1::digest(part);
        for (byte, other) in self.0.iter_mut().zip(hash) {
            *byte ^= other;
        }
    }

    /// Adds an already computed digest as a part whose position does not matter.
    pub(crate) fn add_unordered_digest(&mut self, part: Self) {
        self.add_unordered(&part.0);
    }

    /// Adds a part of the data whose position after the previous parts matters, such as an element of a list.
    pub(crate) fn add_ordered(&mut self, part: &[u8]) {
        self.add_unordered(part);
        self.0 = Sha1::digest(self.0).into();
    }

    /// Adds the number of a database; call it before adding the database's keys.
    pub(crate) fn add_database_number(&mut self, db: u16) {
        self.add_ordered(&u32::from(db).to_be_bytes());
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
