//! A packet of the cluster bus: what can be read is written and read as the same again.

use gossip::wire;

/// Bytes of a packet, to the machine of a node that stands in a cluster.
pub fn run(bytes: &[u8]) {
    if let Ok(packet) = wire::decode(bytes) {
        assert_eq!(wire::decode(&packet.encode()), Ok(packet));
    }
}
