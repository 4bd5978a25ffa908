//! The names and numbers that a cluster agrees on.

use std::fmt;
use std::str::FromStr;

/// Forty letters and digits, the form in which Redis names nodes, shards and histories of the data.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name([u8; 40]);

impl Name {
    /// The text that stands for none.
    pub const ZEROS: Self = Self([b'0'; 40]);

    /// Twenty random bytes in lower-case hexadecimal.
    #[must_use]
    pub fn from_random(bytes: [u8; 20]) -> Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut name = [0; 40];
        for (pair, byte) in name.chunks_exact_mut(2).zip(bytes) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        Self(name)
    }

    /// The name spelt by `bytes`, if they are forty letters and digits.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let name: [u8; 40] = bytes.try_into().ok()?;
        name.iter().all(u8::is_ascii_alphanumeric).then_some(Self(name))
    }

    /// Its forty characters, as bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 40] {
        &self.0
    }

    /// Its forty characters.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("a name is ASCII by construction")
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Short: enough to tell one from the other.
impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..", &self.as_str()[..8])
    }
}

/// A node's name: lower-case hexadecimal, kept as the characters that the bus carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(Name);

/// Bytes that are not a node's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseNodeIdError;

impl NodeId {
    /// A name from 20 random bytes.
    #[must_use]
    pub fn from_random(bytes: [u8; 20]) -> Self {
        Self(Name::from_random(bytes))
    }

    /// The name spelt by `bytes`, if it is one.
    ///
    /// # Errors
    /// Other than forty hexadecimal characters in lower case.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ParseNodeIdError> {
        let hex = bytes.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        Name::from_bytes(bytes).filter(|_| hex).map(Self).ok_or(ParseNodeIdError)
    }

    /// Its forty hexadecimal characters, as bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 40] {
        self.0.as_bytes()
    }

    /// Its forty hexadecimal characters.
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

/// A logical clock of the cluster: configurations and votes carry one, the higher wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The epoch after this one.
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
