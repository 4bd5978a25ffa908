//! The name of a replication history.

use std::fmt;

use slot_routing::Name;

/// Names one history of the data. Two nodes with the same identifier and the same offset hold the same
/// data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplId(Name);

/// Bytes that are not an identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a replication id has 40 letters and digits")]
pub struct ParseReplIdError;

impl ReplId {
    /// The identifier that is shown where there is none.
    pub const NONE: Self = Self(Name::ZEROS);

    /// An identifier from 20 random bytes.
    #[must_use]
    pub fn from_random(bytes: [u8; 20]) -> Self {
        Self(Name::from_random(bytes))
    }

    /// Reads forty characters. Peers only compare them, so any letters and digits are taken.
    ///
    /// # Errors
    /// Other than forty letters and digits.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseReplIdError> {
        Name::from_bytes(bytes).map(Self).ok_or(ParseReplIdError)
    }

    /// Its forty hexadecimal characters.
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
    fn identifiers_are_forty_letters_and_digits() {
        let id = ReplId::from_random([0xC4; 20]);
        assert_eq!(id.as_str(), "c4".repeat(20));
        assert_eq!(ReplId::parse(id.as_str().as_bytes()), Ok(id));
        assert_eq!(ReplId::parse(&[b'z'; 39]), Err(ParseReplIdError));
        assert_eq!(ReplId::parse(&[b' '; 40]), Err(ParseReplIdError));
    }
}
