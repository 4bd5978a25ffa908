//! Computes hash slots independently of the server.

/// Number of hash slots of a cluster.
pub const SLOT_COUNT: u16 = 16_384;

/// Returns the slot of a key: the CRC16-XMODEM of its hash tag, or else of the whole key. It is computed bit by bit,
/// independently of the code under test.
#[must_use]
pub fn slot_of(key: &str) -> u16 {
    let tagged = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let mut crc: u16 = 0;
    for byte in tagged.filter(|tag| !tag.is_empty()).unwrap_or(key).bytes() {
        crc ^= u16::from(byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        }
    }
    crc % SLOT_COUNT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_match_published_examples() {
        assert_eq!(slot_of("123456789"), 0x31C3);
        assert_eq!(slot_of("foo"), 12182);
        assert_eq!(slot_of("bar"), 5061);
        assert_eq!(slot_of("{foo}.bar"), 12182);
        assert_eq!(slot_of("{}foo"), slot_of("{}foo"));
    }
}
