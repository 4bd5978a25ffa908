//! Passwords, stored only as SHA-256 hashes so that a configuration file does not reveal them.

use sha2::{Digest, Sha256};

/// The SHA-256 hash of a password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PasswordHash([u8; 32]);

impl PasswordHash {
    pub(crate) fn from_password(password: &[u8]) -> Self {
        Self(Sha256::digest(password).into())
    }

    /// Parses a hash in the notation of rules and files: 64 lower-case hexadecimal digits.
    pub(crate) fn from_hex(text: &[u8]) -> Option<Self> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let mut sum = [0; 32];
        if text.len() != 2 * sum.len() {
            return None;
        }
        for (byte, pair) in sum.iter_mut().zip(text.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Self(sum))
    }

    pub(crate) fn to_hex(&self) -> String {
        encode_hex(&self.0)
    }

    /// Compares in constant time, so that timing does not reveal matching prefixes.
    pub(crate) fn equals(&self, other: &Self) -> bool {
        self.0.iter().zip(other.0).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
    }
}

pub(crate) fn encode_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
