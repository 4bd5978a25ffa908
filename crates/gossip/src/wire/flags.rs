//! Flag sets of nodes and messages.

use std::ops::{BitOr, BitOrAssign};

/// Role and health of a node in headers and gossip entries. Unknown bits are preserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeFlags(pub u16);

impl NodeFlags {
    /// The node is a master, with or without slots.
    pub const MASTER: Self = Self(1);
    /// The node is a replica of the master named in its own headers.
    pub const REPLICA: Self = Self(2);
    /// The sender suspects that the node is down.
    pub const PFAIL: Self = Self(4);
    /// A majority agrees that the node is down.
    pub const FAIL: Self = Self(8);
    /// The node is the sender.
    pub const MYSELF: Self = Self(16);
    /// The node's id is not known yet.
    pub const HANDSHAKE: Self = Self(32);
    /// The node's address is not known.
    pub const NO_ADDRESS: Self = Self(64);
    /// A MEET must be sent to the node.
    pub const MEET: Self = Self(128);
    /// The replica never starts an election.
    pub const NO_FAILOVER: Self = Self(512);
    /// The node understands extensions. Valkey uses this flag, Redis uses [`MessageFlags::EXTENSIONS`].
    pub const EXTENSIONS: Self = Self(1024);

    /// Returns whether any bit of `flag` is set.
    #[must_use]
    pub const fn contains(self, flag: Self) -> bool {
        self.0 & flag.0 != 0
    }

    /// Returns `flag` if `condition` is true, otherwise no flag.
    #[must_use]
    pub const fn flag_if(condition: bool, flag: Self) -> Self {
        if condition { flag } else { Self(0) }
    }
}

impl BitOr for NodeFlags {
    type Output = Self;

    fn bitor(self, rhs: Self) -> Self {
        Self(self.0 | rhs.0)
    }
}

impl BitOrAssign for NodeFlags {
    fn bitor_assign(&mut self, rhs: Self) {
        self.0 |= rhs.0;
    }
}

/// Flags of a message (byte 0 of `mflags`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MessageFlags(pub u8);

impl MessageFlags {
    /// The sender has paused writes for a manual failover.
    pub const WRITES_PAUSED: Self = Self(1);
    /// Voters must vote even if the master is not FAIL. Set for manual failovers.
    pub const FORCE_ACK: Self = Self(2);
    /// The sender understands extensions, and the message may contain some.
    pub const EXTENSIONS: Self = Self(4);

    /// Returns whether any bit of `flag` is set.
    #[must_use]
    pub const fn contains(self, flag: Self) -> bool {
        self.0 & flag.0 != 0
    }
}

impl BitOr for MessageFlags {
    type Output = Self;

    fn bitor(self, rhs: Self) -> Self {
        Self(self.0 | rhs.0)
    }
}

impl BitOrAssign for MessageFlags {
    fn bitor_assign(&mut self, rhs: Self) {
        self.0 |= rhs.0;
    }
}
