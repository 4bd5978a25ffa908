//! The names and numbers that a cluster agrees on.

use std::fmt;
use std::str::FromStr;

/// A node's name: 40 lower-case hexadecimal characters, kept as the characters that the bus carries.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId([u8; 40]);

/// Bytes that are not a node's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseNodeIdError;

impl NodeId {
    /// A name from 20 random bytes.
    #[must_use]
    pub fn from_random(bytes: [u8; 20]) -> Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut id = [0; 40];
        for (pair, byte) in id.chunks_exact_mut(2).zip(bytes) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        Self(id)
    }

    /// The name spelt by `bytes`, if it is one.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ParseNodeIdError> {
        let id: [u8; 40] = bytes.try_into().map_err(|_| ParseNodeIdError)?;
        let hex = id.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if hex { Ok(Self(id)) } else { Err(ParseNodeIdError) }
    }

    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 40] {
        &self.0
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("a node id is ASCII by construction")
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
        f.pad(self.as_str())
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeId({}..)", &self.as_str()[..8])
    }
}

/// A logical clock of the cluster: configurations and votes carry one, the higher wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u64);

impl Epoch {
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
