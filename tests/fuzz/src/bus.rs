//! Fuzzes the cluster bus codec: a decoded packet must survive an encode and decode round trip.

use gossip::wire;

/// Decodes `bytes` as a bus packet.
pub fn fuzz_bus(bytes: &[u8]) {
    if let Ok(packet) = wire::decode(bytes) {
        assert_eq!(wire::decode(&packet.encode()), Ok(packet));
    }
}
