//! A cluster node as this node knows it: addresses, health, role and link.

use std::net::IpAddr;
use std::time::Duration;

use clock::Instant;
use slot_routing::{ClientEndpoint, Epoch, NodeId, ReplOffset};

use crate::contract::LinkId;
use crate::event::SuspicionCause;
use crate::node_index::IndexEntry;
use crate::wire::{Header, MessageFlags, NodeFlags};

/// Whether a replica at this offset has any data. Clients cannot use an empty replica, so CLUSTER SLOTS omits it; the
/// topology is republished when this changes.
pub(crate) fn has_data(offset: ReplOffset) -> bool {
    offset > ReplOffset(0)
}

/// A known node. The machine keeps one entry per node, including itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The node id; a random temporary id during a handshake.
    pub id: NodeId,
    /// Where other nodes reach the node.
    pub address: Address,
    /// Master, or replica of which master.
    pub role: Role,
    /// Healthy, PFAIL or FAIL.
    pub health: NodeHealth,
    /// Set while the id of the node at this address is unknown.
    pub handshake: Option<Handshake>,
    /// The shard id that the node, or its master, announced.
    pub shard: NodeId,
    /// The hostname announced for clients; may be empty.
    pub hostname: String,
    /// The human-readable name; may be empty.
    pub human_name: String,
    /// Announced client addresses that differ from those for other nodes.
    pub client_endpoint: ClientEndpoint,
    /// The availability zone; may be empty.
    pub zone: String,
    /// Whether the node is configured to never start an election.
    pub no_failover: bool,
    /// The PING extensions that the node understands.
    pub extensions: Extensions,
    /// The epoch of the node's last slot claim. Replicas do not claim slots.
    pub config_epoch: Epoch,
    /// The replication offset that the node has written or applied.
    pub offset: ReplOffset,
    /// State of our outbound link to the node.
    pub link: LinkState,
    /// Times of the last messages from and to the node.
    pub contact: Contact,
    /// Whether the node declared itself FAIL because it restarted with less data than its replicas.
    pub(crate) declared_fail: bool,
    /// The values that the indexes of [`Nodes`](crate::nodes::Nodes) currently hold for this node.
    pub(crate) indexed: IndexEntry,
}

/// The address of a node on the cluster bus and for clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Address {
    /// `None` while the IP address is unknown.
    pub ip: Option<IpAddr>,
    /// The primary client port.
    pub port: u16,
    /// The secondary client port (usually TLS), or 0.
    pub other_port: u16,
    /// The cluster bus port.
    pub bus_port: u16,
}

/// The replication role of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Serves slots, or can be assigned some.
    Master,
    /// Replicates this master; `None` while the master is unknown.
    Replica(Option<NodeId>),
}

/// The health of a node in this node's view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeHealth {
    /// The node answers.
    Healthy,
    /// PFAIL: this node suspects that the node is down.
    Suspected {
        /// When the suspicion began.
        since: Instant,
        /// Why the node is suspected.
        cause: SuspicionCause,
    },
    /// FAIL: a majority of the masters agrees that the node is down.
    Failed {
        /// When the FAIL flag was set.
        since: Instant,
    },
}

/// The state of a handshake with a node whose id is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handshake {
    /// When the handshake started.
    pub since: Instant,
    /// Whether to send MEET, because an operator ran CLUSTER MEET on this node.
    pub meet: bool,
}

/// The state of our outbound link to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// Not connected.
    Down {
        /// When to connect next.
        retry_at: Instant,
    },
    /// A connection attempt is in progress.
    Connecting {
        /// The link number.
        id: LinkId,
        /// When the attempt started.
        since: Instant,
    },
    /// Connected.
    Up {
        /// The link number.
        id: LinkId,
        /// When the link was established.
        since: Instant,
    },
}

impl LinkState {
    /// The link number, unless the link is down.
    #[must_use]
    pub fn id(self) -> Option<LinkId> {
        match self {
            Self::Down { .. } => None,
            Self::Connecting { id, .. } | Self::Up { id, .. } => Some(id),
        }
    }

    /// Whether the link is connected.
    #[must_use]
    pub fn is_up(self) -> bool {
        matches!(self, Self::Up { .. })
    }
}

/// When messages were exchanged with a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Contact {
    /// When the oldest unanswered PING was sent. A reconnect does not reset it.
    pub ping_sent: Option<Instant>,
    /// When the last PONG arrived.
    pub pong_received: Option<Instant>,
    /// When the last message arrived, on any link.
    pub last_message: Option<Instant>,
    /// When to send the next PING, unless one is unanswered.
    pub ping_due: Option<Instant>,
    /// Since when all connection attempts have been refused.
    pub refused_since: Option<Instant>,
    /// Whether a link to the node has worked since this process started.
    pub ever_connected: bool,
    /// Whether the node has answered since this process started or resumed, and does not object to this node serving.
    pub(crate) confirms_serving: bool,
    /// Whether the node has answered since this process started or resumed, and does not object to this node voting.
    pub(crate) confirms_voting: bool,
}

impl Contact {
    /// Excludes a pause of this process from the timeouts.
    pub(crate) fn exclude_pause(&mut self, gap: Duration) {
        for time in
            [&mut self.ping_sent, &mut self.last_message, &mut self.refused_since].into_iter().flatten()
        {
            *time += gap;
        }
    }
}

impl Node {
    /// Creates a healthy master with default attributes.
    #[must_use]
    pub(crate) fn new(id: NodeId, address: Address, now: Instant) -> Self {
        Self {
            id,
            address,
            role: Role::Master,
            health: NodeHealth::Healthy,
            handshake: None,
            shard: id,
            hostname: String::new(),
            human_name: String::new(),
            client_endpoint: ClientEndpoint::default(),
            zone: String::new(),
            no_failover: false,
            extensions: Extensions::None,
            config_epoch: Epoch(0),
            offset: ReplOffset(0),
            link: LinkState::Down { retry_at: now },
            contact: Contact::default(),
            declared_fail: false,
            indexed: IndexEntry::default(),
        }
    }

    /// Whether the node has the master role, with or without slots.
    #[must_use]
    pub fn is_master(&self) -> bool {
        self.role == Role::Master
    }

    /// The id of the node's master; `None` for a master and for a replica whose master is unknown.
    #[must_use]
    pub fn master(&self) -> Option<NodeId> {
        match self.role {
            Role::Master => None,
            Role::Replica(master) => master,
        }
    }

    /// Whether the node is PFAIL.
    #[must_use]
    pub fn is_suspected(&self) -> bool {
        matches!(self.health, NodeHealth::Suspected { .. })
    }

    /// Whether the node is FAIL.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        matches!(self.health, NodeHealth::Failed { .. })
    }

    /// When the node became FAIL.
    pub(crate) fn failed_since(&self) -> Option<Instant> {
        match self.health {
            NodeHealth::Failed { since } => Some(since),
            NodeHealth::Healthy | NodeHealth::Suspected { .. } => None,
        }
    }

    /// Whether the node is neither PFAIL nor FAIL.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.health == NodeHealth::Healthy
    }

    /// The flags of this node in headers and gossip entries.
    #[must_use]
    pub fn flags(&self) -> NodeFlags {
        let role = if self.is_master() { NodeFlags::MASTER } else { NodeFlags::REPLICA };
        role | NodeFlags::when(self.is_suspected(), NodeFlags::PFAIL)
            | NodeFlags::when(self.has_failed(), NodeFlags::FAIL)
            | NodeFlags::when(self.handshake.is_some(), NodeFlags::HANDSHAKE)
            | NodeFlags::when(self.address.ip.is_none(), NodeFlags::NO_ADDRESS)
            | NodeFlags::when(self.no_failover, NodeFlags::NO_FAILOVER)
            | NodeFlags::when(self.extensions != Extensions::None, NodeFlags::EXTENSIONS)
    }

    /// Updates the node from its own header, except for the role.
    pub(crate) fn update_from(&mut self, header: &Header) {
        self.no_failover = header.flags.has(NodeFlags::NO_FAILOVER);
        self.extensions = self.extensions.max(Extensions::supported_by(header));
        self.offset = header.offset;
        self.config_epoch = self.config_epoch.max(header.own_epoch());
    }

    /// Whether `header` was sent before the sender's last known claim. A node never claims under an epoch above its
    /// `currentEpoch`, not even after a power failure. Packets on the two links between a pair of nodes can overtake
    /// each other.
    pub(crate) fn is_newer_than(&self, header: &Header) -> bool {
        header.current_epoch < self.config_epoch
    }
}

/// The PING extensions that a node understands. The level only rises, because not every message shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extensions {
    None,
    /// Redis 7.0, which logs a warning for all other extensions.
    Hostname,
    /// Valkey, Redis since 7.2 (recognized by its shard id extension), and all nodes that skip unknown extensions.
    All,
}

impl Extensions {
    fn supported_by(header: &Header) -> Self {
        if header.flags.has(NodeFlags::EXTENSIONS) {
            Self::All
        } else if header.message_flags.has(MessageFlags::EXTENSIONS) {
            Self::Hostname
        } else {
            Self::None
        }
    }
}

impl Address {
    /// The address announced in `header`, with `peer`, the remote address of the link, as the fallback.
    #[must_use]
    pub(crate) fn announced(header: &Header, peer: Option<IpAddr>) -> Self {
        Self {
            ip: header.ip.or(peer),
            port: header.port,
            other_port: header.other_port,
            bus_port: header.bus_port,
        }
    }
}
