//! The value that a master's consensus group replicates: the new master, and whether the switch is complete.
//!
//! The value is encoded with bincode 2 after a version byte. Each leader proposes it twice: before the promotion, so
//! that a successor knows about a promotion in progress, and when the replica reports the master role. The second
//! commit is the switch.

use serde::{Deserialize, Serialize};

const VERSION: u8 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Switch {
    /// The term of the leader that proposes the value.
    pub(crate) epoch: u64,
    pub(crate) from: (String, u16),
    pub(crate) to: (String, u16),
    /// Whether `to` has reported the master role, so that the switch is complete.
    pub(crate) done: bool,
}

impl Switch {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bincode::serde::encode_into_std_write(self, &mut bytes, bincode::config::standard())
            .expect("plain data is always encodable");
        bytes
    }

    /// Decodes a committed value; returns `None` for unknown versions.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (&VERSION, body) = bytes.split_first()? else { return None };
        let config = bincode::config::standard().with_limit::<4096>();
        let (switch, used) = bincode::serde::decode_from_slice(body, config).ok()?;
        (used == body.len()).then_some(switch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switch_round_trips() {
        let switch = Switch { epoch: 7, from: ("a".into(), 1), to: ("b".into(), 2), done: true };
        let mut bytes = switch.encode();
        assert_eq!(Switch::decode(&bytes), Some(switch));
        bytes.push(0);
        assert_eq!(Switch::decode(&bytes), None);
        assert_eq!(Switch::decode(&[]), None);
        assert_eq!(Switch::decode(&[9, 9]), None);
    }
}
