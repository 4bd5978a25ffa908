//! The name of a replication history.

use std::fmt;

/// Forty hexadecimal characters that name one history of the data. Two nodes with the same identifier
/// and the same offset hold the same data.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplId([u8; 40]);

/// Bytes that are not an identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a replication id has 40 letters and digits")]
pub struct ParseReplIdError;

impl ReplId {
    /// What is shown where there is none.
    pub const NONE: Self = Self([b'0'; 40]);

    /// An identifier from 20 random bytes.
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

    /// Reads forty characters. Peers only compare them, so any letters and digits are taken.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseReplIdError> {
        let id: [u8; 40] = bytes.try_into().map_err(|_| ParseReplIdError)?;
        if id.iter().all(u8::is_ascii_alphanumeric) { Ok(Self(id)) } else { Err(ParseReplIdError) }
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("an identifier is ASCII by construction")
    }
}

impl fmt::Display for ReplId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for ReplId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReplId({}..)", &self.as_str()[..8])
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
