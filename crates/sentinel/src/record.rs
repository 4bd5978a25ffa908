//! The value that a master's consensus group agrees on: which instance takes over, and that it has.
//!
//! Bincode 2 behind a version byte. The value is proposed twice by each leader that gets so far: once
//! before it promotes, so that a successor knows of a promotion that may be under way, and once when
//! the replica says that it is a master. The second is the switch.

use serde::{Deserialize, Serialize};

const VERSION: u8 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Switch {
    /// The leader's term.
    pub(crate) epoch: u64,
    pub(crate) from: (String, u16),
    pub(crate) to: (String, u16),
    /// Whether `to` is known to be a master.
    pub(crate) done: bool,
}

impl Switch {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bincode::serde::encode_into_std_write(self, &mut bytes, bincode::config::standard())
            .expect("plain data is always encodable");
        bytes
    }

    /// Decodes a committed value; `None` for one that a later version wrote.
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
    fn a_switch_survives_the_log() {
        let switch = Switch { epoch: 7, from: ("a".into(), 1), to: ("b".into(), 2), done: true };
        let mut bytes = switch.encode();
        assert_eq!(Switch::decode(&bytes), Some(switch));
        bytes.push(0);
        assert_eq!(Switch::decode(&bytes), None);
        assert_eq!(Switch::decode(&[]), None);
        assert_eq!(Switch::decode(&[9, 9]), None);
    }
}
