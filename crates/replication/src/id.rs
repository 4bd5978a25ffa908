//! Replication ids, which identify histories of the data.

use std::fmt;

use slot_routing::RedisId;

/// Replication id: 40 letters or digits that identify one history of the data. Two nodes with the same id and
/// the same offset hold the same data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplId(RedisId);

/// The bytes are not exactly 40 letters and digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a replication id has 40 letters and digits")]
pub struct ParseReplIdError;

impl ReplId {
    /// Forty zeros, the value shown while no replication id is set.
    pub const NONE: Self = Self(RedisId::ZEROS);

    /// Encodes 20 random bytes as a replication id.
    #[must_use]
    pub fn from_random(bytes: [u8; 20]) -> Self {
        Self(RedisId::from_random(bytes))
    }

    /// Parses a replication id. Peers only compare ids, so any 40 letters and digits are accepted.
    ///
    /// # Errors
    /// The bytes are not exactly 40 letters and digits.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseReplIdError> {
        RedisId::from_bytes(bytes).map(Self).ok_or(ParseReplIdError)
    }

    /// Returns the 40 characters of the id.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl fmt::Display for ReplId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_forty_letters_and_digits() {
        let id = ReplId::from_random([0xC4; 20]);
        assert_eq!(id.as_str(), "c4".repeat(20));
        assert_eq!(ReplId::parse(id.as_str().as_bytes()), Ok(id));
        assert_eq!(ReplId::parse(&[b'z'; 39]), Err(ParseReplIdError));
        assert_eq!(ReplId::parse(&[b' '; 40]), Err(ParseReplIdError));
    }
}
