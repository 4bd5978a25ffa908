//! The bit sets of the bus: what a node is, and what a message says about its sender's moment.

use std::ops::{BitOr, BitOrAssign};

/// The role and condition of a node, as headers and gossip entries carry them. Bits that we do not know are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeFlags(pub u16);

impl NodeFlags {
    /// A master.
    pub const MASTER: Self = Self(1);
    /// A replica.
    pub const REPLICA: Self = Self(2);
    /// Suspected by the sender.
    pub const PFAIL: Self = Self(4);
    /// Agreed to be down.
    pub const FAIL: Self = Self(8);
    /// The sender itself.
    pub const MYSELF: Self = Self(16);
    /// Its name is not known yet.
    pub const HANDSHAKE: Self = Self(32);
    /// The sender does not know where the node is.
    pub const NO_ADDRESS: Self = Self(64);
    /// It was introduced by an operator and has not been met.
    pub const MEET: Self = Self(128);
    /// A replica that will not stand for election.
    pub const NO_FAILOVER: Self = Self(512);
    /// The node reads the extensions after the gossip entries. Valkey's nodes say so here, Redis's in
    /// [`MessageFlags::EXTENSIONS`].
    pub const EXTENSIONS: Self = Self(1024);

    /// Whether any bit of `flag` is set.
    #[must_use]
    pub const fn has(self, flag: Self) -> bool {
        self.0 & flag.0 != 0
    }

    /// `flag`, if `condition` holds, else nothing.
    #[must_use]
    pub const fn when(condition: bool, flag: Self) -> Self {
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

/// The flags of one message (byte 0 of `mflags`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MessageFlags(pub u8);

impl MessageFlags {
    /// The sender has paused its clients for a manual failover.
    pub const PAUSED: Self = Self(1);
    /// Vote even though the master is not down: a manual failover.
    pub const FORCE_ACK: Self = Self(2);
    /// Extensions may follow the gossip entries, and the sender reads those of others.
    pub const EXTENSIONS: Self = Self(4);

    /// Whether any bit of `flag` is set.
    #[must_use]
    pub const fn has(self, flag: Self) -> bool {
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
