//! The packets of the cluster bus, protocol version 1, with encoder and decoder.
//!
//! Every packet is a 2256-byte header ([`Header`]) followed by data that depends on the message type ([`MessageBody`]).
//! Integers are big-endian, node ids are 40 hexadecimal characters, IP addresses are text in 46 bytes, padded with
//! zeros. The layout is that of Redis 7 and Valkey.
//!
//! ```text
//! offset bytes field              offset bytes field
//!      0     4 "RCmb"               2128    40 master's id, or zeros
//!      4     4 whole length         2168    46 announced ip, or zeros
//!      8     2 version, 1           2214     2 number of extensions
//!     10     2 client port          2216    30 unused
//!     12     2 type                 2246     2 the other client port (TLS), or 0
//!     14     2 gossip entries       2248     2 bus port
//!     16     8 current epoch        2250     2 node flags
//!     24     8 config epoch         2252     1 state: 0 ok, 1 fail
//!     32     8 replication offset   2253     3 message flags, two unused
//!     40    40 sender's id
//!     80  2048 slots
//! ```
//!
//! Invariant: for any input, decoding returns a packet or an error. It never panics and never allocates more than a
//! small multiple of the input size. Decoding an encoded packet returns the same packet.

mod decode;
mod encode;
mod extension;
mod flags;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use slot_routing::{Epoch, NodeId, ReplOffset, SlotSet};

pub(crate) use decode::MAX_EPOCH;
pub use decode::{DecodeError, MAX_PACKET_BYTES, decode, packet_len};
pub use extension::Extension;
pub use flags::{MessageFlags, NodeFlags};

pub(crate) const SIGNATURE: &[u8; 4] = b"RCmb";
pub(crate) const PROTOCOL_VERSION: u16 = 1;
pub(crate) const HEADER_BYTES: usize = 2256;
pub(crate) const GOSSIP_ENTRY_BYTES: usize = 104;
pub(crate) const ID_BYTES: usize = 40;
pub(crate) const IP_BYTES: usize = 46;
pub(crate) const BITMAP_BYTES: usize = 2048;
/// Maximum total size of the channel and the message of a [`Publication`].
pub const MAX_PUBLICATION_BYTES: usize = MAX_PACKET_BYTES - HEADER_BYTES - 8;
pub(crate) const UPDATE_BYTES: usize = 8 + ID_BYTES + BITMAP_BYTES;

/// Byte offsets of the header fields.
pub(crate) mod field_offset {
    pub(crate) const LENGTH_OFFSET: usize = 4;
    pub(crate) const VERSION_OFFSET: usize = 8;
    pub(crate) const PORT_OFFSET: usize = 10;
    pub(crate) const TYPE_OFFSET: usize = 12;
    pub(crate) const ENTRY_COUNT_OFFSET: usize = 14;
    pub(crate) const CURRENT_EPOCH_OFFSET: usize = 16;
    pub(crate) const CONFIG_EPOCH_OFFSET: usize = 24;
    pub(crate) const REPL_OFFSET_OFFSET: usize = 32;
    pub(crate) const SENDER_OFFSET: usize = 40;
    pub(crate) const SLOTS_OFFSET: usize = 80;
    pub(crate) const REPLICA_OF_OFFSET: usize = 2128;
    pub(crate) const IP_OFFSET: usize = 2168;
    pub(crate) const EXTENSION_COUNT_OFFSET: usize = 2214;
    pub(crate) const SECONDARY_PORT_OFFSET: usize = 2246;
    pub(crate) const BUS_PORT_OFFSET: usize = 2248;
    pub(crate) const FLAGS_OFFSET: usize = 2250;
    pub(crate) const STATE_OFFSET: usize = 2252;
    pub(crate) const MESSAGE_FLAGS_OFFSET: usize = 2253;
}

/// A message on the cluster bus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// The sender's identity and state, which every packet contains.
    pub header: Header,
    /// The message type and its data.
    pub body: MessageBody,
}

/// The header of a packet: the identity and state of its sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Node id of the sender. The receiver may not know this node.
    pub sender: NodeId,
    /// The sender's role, with flags such as [`NodeFlags::NO_FAILOVER`].
    pub flags: NodeFlags,
    /// Flags that apply to this message only.
    pub message_flags: MessageFlags,
    /// Whether the cluster state is `ok` in the sender's view.
    pub is_serving: bool,
    /// The announced IP address; `None` means the address of the socket.
    pub ip: Option<IpAddr>,
    /// The client port that the sender prefers: the plaintext port or, with `tls-cluster`, the TLS port.
    pub port: u16,
    /// The second client port: TLS if `port` is plaintext, and vice versa; 0 if there is none.
    pub secondary_port: u16,
    /// The port on which the sender accepts links.
    pub bus_port: u16,
    /// The highest epoch that the sender has seen.
    pub current_epoch: Epoch,
    /// The epoch under which the sender, or its master, claims the slots.
    pub config_epoch: Epoch,
    /// The replication offset of the sender: the end of the stream that a master has written or a replica has applied.
    pub offset: ReplOffset,
    /// The slots of the sender or, if it is a replica, of its master.
    pub slots: SlotSet,
    /// The sender's master, if the sender is a replica.
    pub replica_of: Option<NodeId>,
}

impl Header {
    /// The epoch of the sender's own claim; 0 for a replica.
    #[must_use]
    pub fn own_epoch(&self) -> Epoch {
        if self.replica_of.is_none() { self.config_epoch } else { Epoch(0) }
    }
}

/// The message types, each with its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageBody {
    /// Heartbeat request. The receiver replies with PONG.
    Ping(GossipSection),
    /// Reply to PING and MEET. Also sent unrequested, to announce changes.
    Pong(GossipSection),
    /// Asks an unknown node to join the cluster and to reply with PONG.
    Meet(GossipSection),
    /// Announces that a majority of the masters agrees that this node is down.
    Fail(NodeId),
    /// A published message for the subscribers of other nodes.
    Publish(Publication),
    /// A replica requests the vote of the receiver (FAILOVER_AUTH_REQUEST).
    AuthRequest,
    /// The sender votes for the receiver (FAILOVER_AUTH_ACK).
    AuthAck,
    /// Informs the receiver about a newer slot claim.
    Update(ConfigUpdate),
    /// A replica asks its master to pause writes for a manual failover (MFSTART).
    ManualFailoverStart,
    /// An unknown or unsupported type (modules), which is counted and ignored.
    Unsupported(u16),
}

/// The gossip section of a PING, PONG or MEET.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GossipSection {
    /// The sender's view of some nodes, chosen at random, and of all nodes that it suspects.
    pub entries: Vec<GossipEntry>,
    /// Additional data; empty if the receiver does not understand extensions.
    pub extensions: Vec<Extension>,
}

/// The sender's view of another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GossipEntry {
    /// The node that the entry describes.
    pub id: NodeId,
    /// When the sender sent the oldest unanswered PING to the node, in seconds since the Unix epoch; 0 if there is
    /// none.
    pub ping_sent: u32,
    /// When the sender received the last PONG from the node, in seconds since the Unix epoch.
    pub pong_received: u32,
    /// The node's IP address; `None` if the sender does not know it.
    pub ip: Option<IpAddr>,
    /// The client port that the described node prefers.
    pub port: u16,
    /// The cluster bus port of the described node.
    pub bus_port: u16,
    /// The node's role and health in the sender's view.
    pub flags: NodeFlags,
    /// The second client port of the described node; 0 if it has none.
    pub secondary_port: u16,
}

/// A message of PUBLISH or SPUBLISH, which the receiver delivers to its own clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    /// Whether this is a shard channel (SPUBLISH).
    pub is_sharded: bool,
    /// The channel name as raw bytes.
    pub channel: Vec<u8>,
    /// The payload, which the bus does not interpret.
    pub message: Vec<u8>,
}

/// A slot claim that is newer than the one the receiver knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigUpdate {
    /// The epoch under which the slots are claimed.
    pub config_epoch: Epoch,
    /// The master with the newer claim.
    pub id: NodeId,
    /// All slots that the master claims.
    pub slots: SlotSet,
}

/// Message types without data, for counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MessageKind {
    /// PING, the heartbeat request.
    Ping,
    /// PONG, the heartbeat reply.
    Pong,
    /// MEET, which introduces a node.
    Meet,
    /// FAIL, which announces a failed node.
    Fail,
    /// PUBLISH, a message on a cluster-wide channel.
    Publish,
    /// FAILOVER_AUTH_REQUEST, by which a replica requests votes.
    AuthRequest,
    /// FAILOVER_AUTH_ACK, by which a master votes.
    AuthAck,
    /// UPDATE, which announces a newer claim.
    Update,
    /// MFSTART, the request for a manual failover.
    ManualFailoverStart,
    /// A message of a module; unsupported.
    Module,
    /// PUBLISHSHARD, a message on a shard channel.
    PublishShard,
}

impl MessageKind {
    /// All types, indexed by their number on the wire.
    pub const ALL: [Self; 11] = [
        Self::Ping,
        Self::Pong,
        Self::Meet,
        Self::Fail,
        Self::Publish,
        Self::AuthRequest,
        Self::AuthAck,
        Self::Update,
        Self::ManualFailoverStart,
        Self::Module,
        Self::PublishShard,
    ];

    /// The name in the CLUSTER INFO fields `cluster_stats_messages_*`.
    #[must_use]
    pub const fn wire_name(self) -> &'static str {
        match self {
            Self::Ping => "ping",
            Self::Pong => "pong",
            Self::Meet => "meet",
            Self::Fail => "fail",
            Self::Publish => "publish",
            Self::AuthRequest => "auth-req",
            Self::AuthAck => "auth-ack",
            Self::Update => "update",
            Self::ManualFailoverStart => "mfstart",
            Self::Module => "module",
            Self::PublishShard => "publishshard",
        }
    }
}

impl MessageBody {
    /// The type number on the wire, which is also valid for unsupported types.
    #[must_use]
    pub fn type_number(&self) -> u16 {
        match self {
            Self::Unsupported(number) => *number,
            known => known.kind().expect("only Other may lack a kind") as u16,
        }
    }

    /// The message type; `None` for unassigned type numbers.
    #[must_use]
    pub fn kind(&self) -> Option<MessageKind> {
        Some(match self {
            Self::Ping(_) => MessageKind::Ping,
            Self::Pong(_) => MessageKind::Pong,
            Self::Meet(_) => MessageKind::Meet,
            Self::Fail(_) => MessageKind::Fail,
            Self::Publish(Publication { is_sharded: false, .. }) => MessageKind::Publish,
            Self::Publish(_) => MessageKind::PublishShard,
            Self::AuthRequest => MessageKind::AuthRequest,
            Self::AuthAck => MessageKind::AuthAck,
            Self::Update(_) => MessageKind::Update,
            Self::ManualFailoverStart => MessageKind::ManualFailoverStart,
            Self::Unsupported(number) => *MessageKind::ALL.get(usize::from(*number))?,
        })
    }
}
