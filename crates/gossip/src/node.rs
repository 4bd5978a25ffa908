//! A cluster node as seen by the local node: addresses, health, role and link.

use std::net::IpAddr;
use std::time::Duration;

use clock::Instant;
use slot_routing::{ClientEndpoint, Epoch, NodeId, ReplOffset};

use crate::contract::LinkId;
use crate::event::SuspicionCause;
use crate::node_index::IndexEntry;
use crate::wire::{Header, MessageFlags, NodeFlags};

/// Whether a replica with this offset has any data. CLUSTER SLOTS omits empty replicas, because clients cannot use
/// them, so the topology must be republished when this changes.
pub(crate) fn has_data(offset: ReplOffset) -> bool {
    offset > ReplOffset(0)
}

/// A known node. The table of nodes has one entry per node, including this node itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The node id; a random temporary id during a handshake.
    pub id: NodeId,
    /// The address that other nodes connect to.
    pub address: Address,
    /// The role that the node last announced.
    pub role: Role,
    /// Whether this node suspects the node, or a majority agrees that it is down.
    pub health: NodeHealth,
    /// The running handshake; `None` once the id of the node at this address is known.
    pub handshake: Option<Handshake>,
    /// The shard id that the node, or its master, announced.
    pub shard: NodeId,
    /// The hostname announced for clients; may be empty.
    pub hostname: String,
    /// The human-readable name; may be empty.
    pub human_name: String,
    /// The addresses announced to clients, where they differ from those for other nodes.
    pub client_endpoint: ClientEndpoint,
    /// The availability zone, by which clients can prefer near nodes; may be empty.
    pub zone: String,
    /// Whether the node is configured to never start an election.
    pub disables_failover: bool,
    /// The PING extensions that the node understands.
    pub extensions: SupportedExtensions,
    /// The epoch of the node's last slot claim. Replicas do not claim slots.
    pub config_epoch: Epoch,
    /// The replication offset in the last header of the node: the end of the stream that a master has written or a
    /// replica has applied.
    pub offset: ReplOffset,
    /// State of the outbound link to the node.
    pub link: LinkState,
    /// Times of the last messages from and to the node.
    pub contact_times: ContactTimes,
    /// Whether the node declared itself FAIL, because it restarted with less data than its replicas.
    pub(crate) has_declared_fail: bool,
    /// The values of this node that the indexes of [`Nodes`](crate::nodes::Nodes) currently contain.
    pub(crate) index_entry: IndexEntry,
}

/// The address of a node on the cluster bus and for clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Address {
    /// `None` while the IP address is unknown.
    pub ip: Option<IpAddr>,
    /// The plaintext client port or, with `tls-cluster`, the TLS port.
    pub port: u16,
    /// The second client port: TLS if `port` is plaintext, and vice versa; 0 if there is none.
    pub secondary_port: u16,
    /// The port on which the node accepts links from other nodes.
    pub bus_port: u16,
}

/// The replication role of a node, as the node announces it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The node serves slots, or slots can be assigned to it.
    Master,
    /// The node replicates this master; `None` while the master is unknown.
    Replica(Option<NodeId>),
}

/// The health of a node as this node judges it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeHealth {
    /// The node answers PINGs, or has not been silent for long enough to be suspected.
    Healthy,
    /// PFAIL: this node suspects that the node is down.
    Suspected {
        /// When the suspicion began, on the clock of this node.
        since: Instant,
        /// The rule by which the node became suspected.
        cause: SuspicionCause,
    },
    /// FAIL: a majority of the masters agrees that the node is down.
    Failed {
        /// When this node set the FAIL flag, or read it from `nodes.conf`.
        since: Instant,
    },
}

/// The state of a handshake with a node whose id is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handshake {
    /// When the handshake started; it is abandoned after a timeout.
    pub started_at: Instant,
    /// Whether to send MEET, because an operator ran CLUSTER MEET on this node.
    pub sends_meet: bool,
}

/// The state of the outbound link to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// There is no link.
    Down {
        /// When to connect next.
        retry_at: Instant,
    },
    /// A connection attempt is in progress.
    Connecting {
        /// The number of the requested link.
        id: LinkId,
        /// When the attempt started, for its timeout.
        since: Instant,
    },
    /// The link is established and can carry packets.
    Up {
        /// The number of the established link.
        id: LinkId,
        /// When the link was established; a new link is not replaced at once.
        since: Instant,
    },
}

impl LinkState {
    /// Returns the link number, or `None` if the link is down.
    #[must_use]
    pub fn id(self) -> Option<LinkId> {
        match self {
            Self::Down { .. } => None,
            Self::Connecting { id, .. } | Self::Up { id, .. } => Some(id),
        }
    }

    /// Returns whether the link can carry packets.
    #[must_use]
    pub fn is_up(self) -> bool {
        matches!(self, Self::Up { .. })
    }
}

/// When messages were exchanged with a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ContactTimes {
    /// When the oldest unanswered PING was sent; `None` if all were answered. A reconnect does not reset it.
    pub ping_sent_at: Option<Instant>,
    /// When the last PONG arrived, for CLUSTER NODES and gossip entries.
    pub pong_received_at: Option<Instant>,
    /// When the last message arrived, on any link.
    pub last_message_at: Option<Instant>,
    /// When to send the next PING, unless a PING is unanswered.
    pub ping_due_at: Option<Instant>,
    /// When the current series of refused connection attempts began; `None` if the last attempt was not refused.
    pub refused_since: Option<Instant>,
    /// Whether a link to the node has worked since this process started.
    pub was_ever_connected: bool,
    /// Whether the node has answered since this process started or resumed, and does not object to this node serving.
    pub(crate) confirms_serving: bool,
    /// Whether the node has answered since this process started or resumed, and does not object to this node voting.
    pub(crate) confirms_voting: bool,
}

impl ContactTimes {
    /// Shifts the times by the duration of a pause of this process, so that the pause does not count for the timeouts.
    pub(crate) fn exclude_pause(&mut self, pause: Duration) {
        for time in
            [&mut self.ping_sent_at, &mut self.last_message_at, &mut self.refused_since].into_iter().flatten()
        {
            *time += pause;
        }
    }
}

impl Node {
    /// Creates the entry of a healthy master with default attributes.
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
            disables_failover: false,
            extensions: SupportedExtensions::None,
            config_epoch: Epoch(0),
            offset: ReplOffset(0),
            link: LinkState::Down { retry_at: now },
            contact_times: ContactTimes::default(),
            has_declared_fail: false,
            index_entry: IndexEntry::default(),
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

    /// Returns whether this node suspects the node (PFAIL).
    #[must_use]
    pub fn is_suspected(&self) -> bool {
        matches!(self.health, NodeHealth::Suspected { .. })
    }

    /// Returns whether a majority agrees that the node is down (FAIL).
    #[must_use]
    pub fn has_failed(&self) -> bool {
        matches!(self.health, NodeHealth::Failed { .. })
    }

    /// Returns when the node became FAIL; `None` if it is not.
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

    /// The flags that headers and gossip entries carry about this node.
    #[must_use]
    pub fn flags(&self) -> NodeFlags {
        let role = if self.is_master() { NodeFlags::MASTER } else { NodeFlags::REPLICA };
        role | NodeFlags::flag_if(self.is_suspected(), NodeFlags::PFAIL)
            | NodeFlags::flag_if(self.has_failed(), NodeFlags::FAIL)
            | NodeFlags::flag_if(self.handshake.is_some(), NodeFlags::HANDSHAKE)
            | NodeFlags::flag_if(self.address.ip.is_none(), NodeFlags::NO_ADDRESS)
            | NodeFlags::flag_if(self.disables_failover, NodeFlags::NO_FAILOVER)
            | NodeFlags::flag_if(self.extensions != SupportedExtensions::None, NodeFlags::EXTENSIONS)
    }

    /// Updates all attributes except the role from the node's own header.
    pub(crate) fn update_from_header(&mut self, header: &Header) {
        self.disables_failover = header.flags.contains(NodeFlags::NO_FAILOVER);
        self.extensions = self.extensions.max(SupportedExtensions::supported_by(header));
        self.offset = header.offset;
        self.config_epoch = self.config_epoch.max(header.own_epoch());
    }

    /// Returns whether this entry is newer than `header`: the header was sent before the claim that this entry
    /// contains. Headers can arrive out of order, because each pair of nodes has two links. A node never claims slots
    /// under an epoch above its `currentEpoch`, not even after a power failure.
    pub(crate) fn is_newer_than(&self, header: &Header) -> bool {
        header.current_epoch < self.config_epoch
    }
}

/// The PING extensions that a node understands. The level never decreases, because not every message shows which
/// extensions its sender understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SupportedExtensions {
    None,
    /// Redis 7.0, which logs a warning for all other extensions.
    Hostname,
    /// Valkey, Redis since 7.2 (recognized by its shard id extension), and all nodes that skip unknown extensions.
    All,
}

impl SupportedExtensions {
    fn supported_by(header: &Header) -> Self {
        if header.flags.contains(NodeFlags::EXTENSIONS) {
            Self::All
        } else if header.message_flags.contains(MessageFlags::EXTENSIONS) {
            Self::Hostname
        } else {
            Self::None
        }
    }
}

impl Address {
    /// Returns the address announced in `header`. A missing IP address is replaced by `peer_ip`, the remote address of
    /// the link.
    #[must_use]
    pub(crate) fn from_header(header: &Header, peer_ip: Option<IpAddr>) -> Self {
        Self {
            ip: header.ip.or(peer_ip),
            port: header.port,
            secondary_port: header.secondary_port,
            bus_port: header.bus_port,
        }
    }
}
