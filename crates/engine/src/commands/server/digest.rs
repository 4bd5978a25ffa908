//! A digest of the data: equal for equal data, on this server and on a real Redis.
//!
//! Facts of DEBUG DIGEST, as its replies show them: everything is hashed with SHA-1. Parts whose order
//! does not matter are hashed and xored into the digest; parts whose order does matter are xored in the
//! same way, and the digest is then hashed itself. Whether a key or a field expires counts, when it does
//! does not.

use keyspace::{Kind, Value};
use sha1::{Digest as _, Sha1};

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Digest([u8; 20]);

impl Digest {
    /// Adds a part; the order of such parts does not matter.
    pub(super) fn xor(&mut self, part: &[u8]) {
        let hash = Sha1::digest(part);
        for (byte, other) in self.0.iter_mut().zip(hash) {
            *byte ^= other;
        }
    }

    /// Adds a part after those that are there.
    pub(super) fn mix(&mut self, part: &[u8]) {
        self.xor(part);
        self.0 = Sha1::digest(self.0).into();
    }

    /// Adds a database: its number, before its keys.
    pub(super) fn mix_database(&mut self, db: u16) {
        self.mix(&u32::from(db).to_be_bytes());
    }

    /// Adds a key with what it holds.
    pub(super) fn xor_key(&mut self, key: &[u8], value: &Value<'_>, expires: bool) {
        let mut digest = Self::default();
        digest.mix(key);
        digest.mix_value(value, expires);
        self.xor(&digest.0);
    }

    /// Adds a value: its type, its content, whether it expires.
    pub(super) fn mix_value(&mut self, value: &Value<'_>, expires: bool) {
        self.mix(&type_number(value.kind()).to_be_bytes());
        match value {
            Value::String(string) => self.mix(string.bytes),
            Value::Set(set) => set.for_each(&mut |member| self.xor(&member)),
            Value::Hash(hash) => hash.for_each(&mut |field| {
                let mut pair = Self::default();
                pair.mix(field.name);
                pair.mix(field.value);
                if field.expiry.is_some() {
                    pair.xor(b"!!hexpire!!");
                }
                self.xor(&pair.0);
            }),
        }
        if expires {
            self.xor(b"!!expire!!");
        }
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Redis's numbers of the types.
fn type_number(kind: Kind) -> u32 {
    match kind {
        Kind::String => 0,
        Kind::Set => 2,
        Kind::Hash => 4,
    }
}
