//! A digest of the data: equal for equal data, on this server and on a Valkey; on a Redis 7.0 too, unless a score takes
//! 17 digits there.
//!
//! Facts of DEBUG DIGEST, as its replies show them: everything is hashed with SHA-1. Parts whose order
//! does not matter are hashed and xored into the digest; parts whose order does matter are xored in the
//! same way, and the digest is then hashed itself. Whether a key or a field expires counts, when it does
//! does not.

use sha1::{Digest as _, Sha1};

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Digest([u8; 20]);

impl Digest {
    /// Adds a part; the order of such parts does not matter.
    pub(crate) fn xor(&mut self, part: &[u8]) {
        let hash = Sha1::digest(part);
        for (byte, other) in self.0.iter_mut().zip(hash) {
            *byte ^= other;
        }
    }

    /// Adds a part that has a digest of its own; the order of such parts does not matter.
    pub(crate) fn xor_digest(&mut self, part: Self) {
        self.xor(&part.0);
    }

    /// Adds a part after those that are there.
    pub(crate) fn mix(&mut self, part: &[u8]) {
        self.xor(part);
        self.0 = Sha1::digest(self.0).into();
    }

    /// Adds a database: its number, before its keys.
    pub(crate) fn mix_database(&mut self, db: u16) {
        self.mix(&u32::from(db).to_be_bytes());
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
