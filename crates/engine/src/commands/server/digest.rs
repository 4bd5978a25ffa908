//! A digest of the data: equal for equal data, on this server and on a real Redis.
//!
//! Facts of DEBUG DIGEST, as its replies show them: everything is hashed with SHA-1. Parts whose order
//! does not matter are hashed and xored into the digest; parts whose order does matter are xored in the
//! same way, and the digest is then hashed itself. Whether a key or a field expires counts, when it does
//! does not.

use keyspace::{ItemDigits, Kind, StreamId, Value};
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
            Value::List(list) => {
                let mut digits = ItemDigits::default();
                list.for_each(&mut |item| self.mix(item.bytes(&mut digits)));
            }
            Value::Set(set) => set.for_each(&mut |member| self.xor(&member)),
            Value::SortedSet(set) => set.for_each(&mut |member| {
                let mut pair = Self::default();
                pair.mix(member.name);
                pair.mix(seventeen_digits(member.score).as_bytes());
                self.xor(&pair.0);
            }),
            Value::Hash(hash) => hash.for_each(&mut |field| {
                let mut pair = Self::default();
                pair.mix(field.name);
                pair.mix(field.value);
                if field.expiry.is_some() {
                    pair.xor(b"!!hexpire!!");
                }
                self.xor(&pair.0);
            }),
            Value::Stream(stream) => {
                for entry in stream.read().range(StreamId::MIN, StreamId::MAX) {
                    self.mix(format!("{}.{}", entry.id.millis, entry.id.sequence).as_bytes());
                    entry.for_each(&mut |name, value| {
                        self.mix(name);
                        self.mix(value);
                    });
                }
            }
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
        Kind::List => 1,
        Kind::Set => 2,
        Kind::SortedSet => 3,
        Kind::Hash => 4,
        Kind::Stream => 6,
    }
}

/// A score as C prints it with `%.17g`.
fn seventeen_digits(score: f64) -> String {
    const DIGITS: i32 = 17;
    if score.is_infinite() || score == 0.0 {
        return score.to_string();
    }
    let scientific = format!("{score:.*e}", DIGITS as usize - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..DIGITS).contains(&exponent) {
        let places = (DIGITS - 1 - exponent) as usize;
        let fixed = format!("{score:.places$}");
        return if places == 0 { fixed } else { trimmed(&fixed).to_owned() };
    }
    let (sign, exponent) = if exponent < 0 { ('-', -exponent) } else { ('+', exponent) };
    format!("{}e{sign}{exponent:02}", trimmed(mantissa))
}

/// Without zeros at the end of what stands behind the point.
fn trimmed(number: &str) -> &str {
    number.trim_end_matches('0').trim_end_matches('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_printed_as_in_c() {
        let table: &[(f64, &str)] = &[
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (-1.5, "-1.5"),
            (100.0, "100"),
            (0.1, "0.10000000000000001"),
            (1e16, "10000000000000000"),
            (1e17, "1e+17"),
            (1.5e300, "1.5000000000000001e+300"),
            (0.0001, "0.0001"),
            (1e-5, "1.0000000000000001e-05"),
            (5e-324, "4.9406564584124654e-324"),
            (f64::NEG_INFINITY, "-inf"),
        ];
        for (score, text) in table {
            assert_eq!(seventeen_digits(*score), *text);
        }
    }
}
