//! A node as this one knows it: its name, its address, its condition, and the link to it.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use clock::Instant;
use slot_routing::{ClientEndpoint, Epoch, NodeId, ReplOffset};

use crate::contract::LinkId;
use crate::nodes::Counted;
use crate::wire::{Header, MessageFlags, NodeFlags};

/// Whether a replica that has come to this offset has anything: before that it is of no use to clients, and
/// CLUSTER SLOTS does not name it. When that changes, it is published.
pub(crate) fn has_data(offset: ReplOffset) -> bool {
    offset > ReplOffset(0)
}

/// A node of the cluster. This node itself is one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub id: NodeId,
    /// Where it is reached.
    pub address: Address,
    /// Its role towards the data.
    pub role: Role,
    /// How it seems to be.
    pub condition: Condition,
    /// Only while we do not know yet which node answers at this address: `id` is then a random stand-in.
    pub handshake: Option<Handshake>,
    /// The shard that the node announced, or that its master belongs to.
    pub shard: NodeId,
    /// The name under which clients should reach it; may be empty.
    pub hostname: String,
    /// The name that people gave it; may be empty.
    pub human_name: String,
    /// Where clients reach it, as far as that is elsewhere.
    pub client_endpoint: ClientEndpoint,
    /// Its availability zone; may be empty.
    pub zone: String,
    /// A replica that does not want to be promoted.
    pub no_failover: bool,
    /// The extensions that it reads after the gossip entries.
    pub extensions: Extensions,
    /// Under which it claims its slots, or last claimed some. A replica claims nothing of its own.
    pub config_epoch: Epoch,
    /// How far it has produced or processed its shard's stream.
    pub offset: ReplOffset,
    /// Our link to it.
    pub link: Link,
    /// When it was last spoken to and heard.
    pub contact: Contact,
    /// Which masters reported it as failing, and when last.
    pub reports: BTreeMap<NodeId, Instant>,
    /// It said itself that it has failed, when it last did: it came back with less data than its replicas have.
    pub(crate) resigned: bool,
    /// For which of this master's replicas we last voted, and when.
    pub voted: Option<(NodeId, Instant)>,
    /// Its standing as it was counted last.
    pub(crate) counted: Counted,
}

/// Where a node is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Address {
    /// Its address; `None` if nobody told it yet.
    pub ip: Option<IpAddr>,
    /// The port for clients.
    pub port: u16,
    /// The other client port (TLS), or 0.
    pub other_port: u16,
    /// The port of the bus.
    pub bus_port: u16,
}

/// The role of a node towards the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It serves slots, or may.
    Master,
    /// A copy of this master; `None` while we have only heard of it by gossip.
    Replica(Option<NodeId>),
}

/// How a node seems to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// It answers.
    Well,
    /// PFAIL: this node thinks that it is down.
    Suspected {
        /// Since when.
        since: Instant,
        /// Why.
        cause: Cause,
    },
    /// FAIL: a majority of the masters agreed.
    Failed {
        /// Since when.
        since: Instant,
    },
}

/// Why a node is suspected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// It did not say a word for the node timeout.
    Silence,
    /// Its link broke and its host refuses new ones: the process is gone.
    Refused,
    /// A node of another id answers at its address, and it holds no link to this node any more.
    Replaced,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Silence => "silence",
            Self::Refused => "refused",
            Self::Replaced => "replaced",
        })
    }
}

/// A node that has been met by address only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handshake {
    /// When it was met.
    pub since: Instant,
    /// The operator asked for it here: introduce ourselves with MEET.
    pub meet: bool,
}

/// Our link to a node. It is ours to make; the node makes its own to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// There is none.
    Down {
        /// When the next attempt is due.
        retry_at: Instant,
    },
    /// It is being made.
    Connecting {
        /// Its number.
        id: LinkId,
        /// Since when.
        since: Instant,
    },
    /// It stands.
    Up {
        /// Its number.
        id: LinkId,
        /// Since when.
        since: Instant,
    },
}

impl Link {
    /// The link's id, if there is one, ready or not.
    #[must_use]
    pub fn id(self) -> Option<LinkId> {
        match self {
            Self::Down { .. } => None,
            Self::Connecting { id, .. } | Self::Up { id, .. } => Some(id),
        }
    }

    /// Whether messages can be sent over it.
    #[must_use]
    pub fn is_up(self) -> bool {
        matches!(self, Self::Up { .. })
    }
}

/// When we spoke and when we were answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Contact {
    /// When the PING was sent that is not answered yet. A reconnect does not restart it.
    pub ping_sent: Option<Instant>,
    /// When the last PONG came.
    pub pong_received: Option<Instant>,
    /// When any message came from the node, over whichever link.
    pub heard: Option<Instant>,
    /// When the next PING is due, if none is under way.
    pub ping_due: Option<Instant>,
    /// Since when every connection attempt has been refused, after a link that worked.
    pub refused_since: Option<Instant>,
    /// Whether a link to the node has worked since this process started.
    pub met: bool,
    /// Whether the node has answered since this process started or stood still, and has nothing against its serving.
    pub(crate) vouches: bool,
    /// The same of its voting.
    pub(crate) trusts: bool,
}

impl Contact {
    /// Forgets `gap`, in which this process itself stood still.
    pub(crate) fn shift(&mut self, gap: Duration) {
        for time in [&mut self.ping_sent, &mut self.heard, &mut self.refused_since].into_iter().flatten() {
            *time += gap;
        }
    }
}

impl Node {
    /// A node that is known by name and nothing else.
    #[must_use]
    pub(crate) fn new(id: NodeId, address: Address, now: Instant) -> Self {
        Self {
            id,
            address,
            role: Role::Master,
            condition: Condition::Well,
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
            link: Link::Down { retry_at: now },
            contact: Contact::default(),
            reports: BTreeMap::new(),
            resigned: false,
            voted: None,
            counted: Counted::default(),
        }
    }

    /// Whether it is a master.
    #[must_use]
    pub fn is_master(&self) -> bool {
        self.role == Role::Master
    }

    /// The master that this node copies, if it is a replica and that is known.
    #[must_use]
    pub fn master(&self) -> Option<NodeId> {
        match self.role {
            Role::Master => None,
            Role::Replica(master) => master,
        }
    }

    /// Whether this node suspects it.
    #[must_use]
    pub fn is_suspected(&self) -> bool {
        matches!(self.condition, Condition::Suspected { .. })
    }

    /// Whether it is agreed to be down.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        matches!(self.condition, Condition::Failed { .. })
    }

    /// Since when it is agreed to be down.
    pub(crate) fn failed_since(&self) -> Option<Instant> {
        match self.condition {
            Condition::Failed { since } => Some(since),
            Condition::Well | Condition::Suspected { .. } => None,
        }
    }

    /// Neither suspected nor failed.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.condition == Condition::Well
    }

    /// The flags that gossip and headers carry for this node.
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

    /// Takes over what a header says about its sender's own standing, its role aside.
    pub(crate) fn learn(&mut self, header: &Header) {
        self.no_failover = header.flags.has(NodeFlags::NO_FAILOVER);
        self.extensions = self.extensions.max(Extensions::said_by(header));
        self.offset = header.offset;
        self.config_epoch = self.config_epoch.max(header.own_epoch());
    }

    /// Whether `header` was sent before what we know of its sender's claim: nobody claims under an epoch
    /// that it has not seen, not even after a power failure. A packet may be read after younger ones that
    /// came over the other link between the two nodes.
    pub(crate) fn outdates(&self, header: &Header) -> bool {
        header.current_epoch < self.config_epoch
    }
}

/// Which extensions a node reads. More is learned, less is not: only some messages tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extensions {
    None,
    /// Redis since 7.0, which complains in its log of every other.
    Hostname,
    /// Valkey, Redis since 7.2 (which shows it by naming its shard), and every node that skips unknown ones.
    All,
}

impl Extensions {
    fn said_by(header: &Header) -> Self {
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
    /// Where the sender of `header` is reached; `peer` is the far end of the link it came over.
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
