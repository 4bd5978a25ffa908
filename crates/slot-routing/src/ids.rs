//! Node ids, epochs and replication offsets.

use std::fmt;
use std::str::FromStr;

/// A 40-character alphanumeric id. Redis uses this form for node ids, shard ids and replication ids.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RedisId([u8; 40]);

impl RedisId {
    /// The all-zero id, which means "none".
    pub const ZEROS: Self = Self([b'0'; 40]);

    /// Creates an id from 20 random bytes, as lower-case hexadecimal.
    #[must_use]
    pub fn from_random(bytes: [u8; 20]) -> Self {
        const HEX_DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut name = [0; 40];
        for (pair, byte) in name.chunks_exact_mut(2).zip(bytes) {
            pair[0] = HEX_DIGITS[usize::from(byte >> 4)];
            pair[1] = HEX_DIGITS[usize::from(byte & 15)];
        }
        Self(name)
    }

    /// Parses an id; `None` unless `bytes` are exactly 40 ASCII letters and digits.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let name: [u8; 40] = bytes.try_into().ok()?;
        name.iter().all(u8::is_ascii_alphanumeric).then_some(Self(name))
    }

    /// Returns the 40 ASCII characters as bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 40] {
        &self.0
    }

    /// Returns the 40 ASCII characters as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("a name is ASCII by construction")
    }
}

impl fmt::Display for RedisId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Prints only the first eight characters, which are enough to tell ids apart in test output.
impl fmt::Debug for RedisId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..", &self.as_str()[..8])
    }
}

/// The id of a node: 40 lower-case hexadecimal characters, stored as they appear on the cluster bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(RedisId);

/// The bytes are not a valid node id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseNodeIdError;

impl NodeId {
    /// Creates an id from 20 random bytes, as lower-case hexadecimal.
    #[must_use]
    pub fn from_random(bytes: [u8; 20]) -> Self {
        Self(RedisId::from_random(bytes))
    }

    /// Parses a node id.
    ///
    /// # Errors
    /// [`ParseNodeIdError`] if `bytes` are not exactly 40 lower-case hexadecimal characters.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ParseNodeIdError> {
        let hex = bytes.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        RedisId::from_bytes(bytes).filter(|_| hex).map(Self).ok_or(ParseNodeIdError)
    }

    /// Returns the 40 hexadecimal characters as bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 40] {
        self.0.as_bytes()
    }

    /// Returns the 40 hexadecimal characters as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl FromStr for NodeId {
    type Err = ParseNodeIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::from_bytes(text.as_bytes())
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A value of the cluster's logical clock. Configurations and votes carry an epoch, and the higher epoch wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u64);

impl Epoch {
    /// Returns the next higher epoch. The epoch must be below [`u64::MAX`].
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A position in the replication stream, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ReplOffset(pub u64);

impl fmt::Display for ReplOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_ids_are_forty_lower_case_hex_characters() {
        let id = NodeId::from_random([0xAB; 20]);
        assert_eq!(id.as_str(), "ab".repeat(20));
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!("AB".repeat(20).parse::<NodeId>(), Err(ParseNodeIdError));
        assert_eq!("ab".parse::<NodeId>(), Err(ParseNodeIdError));
    }
}
