//! The CRC64 at the end of RDB files and DUMP payloads: Jones polynomial, reflected, initial value 0.

use crc_fast::{CrcAlgorithm, Digest};

pub(crate) struct Checksum(Digest);

impl Checksum {
    pub(crate) fn new() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc64Redis))
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.finalize()
    }
}

impl std::fmt::Debug for Checksum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Checksum({:016x})", self.value())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_matches_reference_value_in_any_pieces() {
        for cut in 0..9 {
            let mut checksum = Checksum::new();
            checksum.update(&b"123456789"[..cut]);
            checksum.update(&b"123456789"[cut..]);
            assert_eq!(checksum.value(), 0xe9c6_d914_c4b8_d9ca);
        }
    }
}
